//! What others see of a lock that `--min-hold` keeps although its command has ended; `run_under_lease.rs` keeps it.

use std::time::Duration;

use leasehold::{
    Metadata,
    lease::{EndedLease, Ending, LeaseRecord, LeaseState},
};
use leasehold_supervise::{Status, signal_name};
use serde_json::{Value, json};

use crate::duration::{Brief, millis};

/// The field of the lease's metadata that says so.
const KEY: &str = "leasehold.command_ended";

/// Adds to the metadata that the command has ended, and how.
pub(crate) fn mark(mut metadata: Metadata, status: Status, min_hold: Duration) -> Metadata {
    let (code, signal) = match status {
        Status::Exited(code) => (Some(code), None),
        Status::Killed(number) => (None, Some(signal_name(number))),
    };
    // A length, not a time of day: the clocks of two machines are never compared.
    let ended = json!({"exit_code": code, "signal": signal, "min_hold_ms": millis(min_hold)});
    metadata.insert(KEY.to_owned(), ended);
    metadata
}

/// The metadata as its owner gave it.
pub(crate) fn without_mark(metadata: &Metadata) -> Metadata {
    let mut metadata = metadata.clone();
    metadata.remove(KEY);
    metadata
}

/// Returns whether the lease lapsed after its command had succeeded: in or after the shortest hold, when nobody was left
/// to release it. Nothing has gone wrong then.
pub(crate) fn lapsed_after_success(ended: &EndedLease) -> bool {
    matches!(ended.ending, Ending::Expired | Ending::Disconnected)
        && ended.metadata.get(KEY).is_some_and(|mark| mark.get("exit_code").and_then(Value::as_u64) == Some(0))
}

/// How a command ended whose lock `--min-hold` keeps.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CommandEnded {
    exit_code: Option<u64>,
    signal: Option<String>,
    min_hold: Duration,
    left: Duration,
}

impl CommandEnded {
    /// What the record says; `None` while the command runs.
    pub(crate) fn of(record: &LeaseRecord) -> Option<Self> {
        let LeaseState::Holding { held_for, .. } = record.state else { return None };
        let ended = record.metadata.get(KEY)?;
        let min_hold = Duration::from_millis(ended.get("min_hold_ms")?.as_u64()?);
        Some(Self {
            exit_code: ended.get("exit_code").and_then(Value::as_u64),
            signal: ended.get("signal").and_then(Value::as_str).map(|name| name.replace(char::is_control, " ")),
            min_hold,
            left: min_hold.saturating_sub(held_for),
        })
    }

    /// The same, this much later.
    pub(crate) fn after(mut self, age: Duration) -> Self {
        self.left = self.left.saturating_sub(age);
        self
    }

    /// `ended with code 0; the lock is kept for 32s more (--min-hold 45s)`
    pub(crate) fn message(&self) -> String {
        let how = match (self.exit_code, &self.signal) {
            (Some(code), _) => format!("ended with code {code}"),
            (None, Some(signal)) => format!("ended by {signal}"),
            (None, None) => String::from("has ended"),
        };
        if self.left.is_zero() {
            return format!("{how}; the lock is free when its lease ends");
        }
        format!("{how}; the lock is kept for {} more (--min-hold {})", Brief(self.left), Brief(self.min_hold))
    }

    /// `ended, kept for 32s more`
    pub(crate) fn brief(&self) -> String {
        if self.left.is_zero() {
            return String::from("ended, free when its lease ends");
        }
        format!("ended, kept for {} more", Brief(self.left))
    }

    /// The same for programs.
    pub(crate) fn to_json(&self) -> Value {
        json!({"exit_code": self.exit_code, "signal": self.signal, "kept_for_ms": millis(self.left)})
    }
}
