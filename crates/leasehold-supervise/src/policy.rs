//! Whom to signal, and what to do with a child whose lease is lost and with what a child leaves behind.

use std::str::FromStr;

use crate::signal::Signal;

/// Whom to signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KillMode {
    /// The command and everything in its process group.
    Group,
    /// The command's process alone.
    Process,
}

/// What to do with processes that outlive the command and have not left its session, as daemons do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stragglers {
    /// TERM, then KILL.
    Stop,
    /// Keep the lock until they end.
    Wait,
    /// Let them run without the lock.
    Leave,
}

/// What to do with the command when the lock is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnLost {
    /// TERM, then KILL.
    Terminate,
    /// KILL.
    Kill,
    /// This signal, then KILL.
    Signal(Signal),
    /// Nothing but a warning.
    Continue,
}

impl FromStr for KillMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        by_name(text, [("group", Self::Group), ("process", Self::Process)], "write group or process")
    }
}

impl FromStr for Stragglers {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let values = [("stop", Self::Stop), ("wait", Self::Wait), ("leave", Self::Leave)];
        by_name(text, values, "write stop, wait or leave")
    }
}

impl FromStr for OnLost {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(name) = text.strip_prefix("signal:") {
            return name.parse().map(Self::Signal);
        }
        let values = [("terminate", Self::Terminate), ("kill", Self::Kill), ("continue", Self::Continue)];
        by_name(text, values, "write terminate, kill, signal:NAME or continue")
    }
}

/// The value of this name; `advice` is the error if no value has it.
fn by_name<T, const N: usize>(name: &str, values: [(&str, T); N], advice: &str) -> Result<T, String> {
    values.into_iter().find(|(known, _)| *known == name).map(|(_, value)| value).ok_or_else(|| advice.to_owned())
}
