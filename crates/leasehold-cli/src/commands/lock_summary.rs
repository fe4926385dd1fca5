//! One lock as people see it: who holds it, who waits, until when.

use std::time::Duration;

use leasehold::{
    Leasehold, Resource,
    backend::Liveness,
    lease::{LeaseRecord, LeaseState, Mode},
};
use serde_json::{Value, json};

use crate::{command_ended::CommandEnded, duration::Brief, json, run_command::identity::short};

/// One lock and all its leases.
#[derive(Debug)]
pub(crate) struct LockSummary {
    /// Its name.
    pub(crate) name: Resource,
    /// Those who hold it.
    pub(crate) holders: Vec<LeaseRecord>,
    /// Those who wait, in their order.
    pub(crate) waiters: Vec<LeaseRecord>,
}

impl LockSummary {
    /// The locks of a listing, which comes sorted by name.
    pub(crate) fn group(leases: Vec<LeaseRecord>) -> Vec<Self> {
        let mut locks: Vec<Self> = Vec::new();
        for lease in leases {
            if locks.last().is_none_or(|lock| lock.name != lease.resource) {
                locks.push(Self { name: lease.resource.clone(), holders: Vec::new(), waiters: Vec::new() });
            }
            let Some(lock) = locks.last_mut() else { continue };
            match lease.state {
                LeaseState::Holding { .. } => lock.holders.push(lease),
                LeaseState::Waiting { .. } => lock.waiters.push(lease),
            }
        }
        locks
    }

    /// How it is held, or waited for if nobody holds it.
    pub(crate) fn mode(&self) -> Option<Mode> {
        self.holders.first().or(self.waiters.first()).map(|lease| lease.claim.mode())
    }

    /// `exclusive`, `shared ×3`, `permit 2/4`, `leader`
    pub(crate) fn mode_words(&self) -> String {
        match self.mode() {
            Some(Mode::Shared) if self.holders.len() > 1 => format!("shared ×{}", self.holders.len()),
            Some(Mode::Permit) => {
                let taken: u64 = self.holders.iter().map(|lease| u64::from(lease.claim.units())).sum();
                let limit = self.holders.first().or(self.waiters.first()).map_or(0, |lease| lease.claim.capacity());
                format!("permit {taken}/{limit}")
            }
            Some(mode) => mode.to_string(),
            None => String::from("–"),
        }
    }

    /// The holders' names, the first few of them.
    pub(crate) fn holder_words(&self) -> String {
        let shown: Vec<&str> = self.holders.iter().take(3).map(|lease| short(lease.holder.as_str())).collect();
        let more = self.holders.len().saturating_sub(3);
        match (shown.is_empty(), more) {
            (true, _) => String::from("–"),
            (_, 0) => shown.join(", "),
            _ => format!("{} and {more} more", shown.join(", ")),
        }
    }

    /// How long the longest holder has held it.
    pub(crate) fn held_for(&self) -> Option<Duration> {
        let held = self.holders.iter().filter_map(|lease| match lease.state {
            LeaseState::Holding { held_for, .. } => Some(held_for),
            LeaseState::Waiting { .. } => None,
        });
        held.max()
    }

    /// How long until the first lease expires.
    pub(crate) fn expires_in(&self) -> Option<Duration> {
        self.holders.iter().filter_map(|lease| lease.expires_in).min()
    }

    /// The newest fence.
    pub(crate) fn fence(&self) -> Option<u64> {
        let fences = self.holders.iter().filter_map(|lease| match lease.state {
            LeaseState::Holding { fence, .. } => Some(fence.get()),
            LeaseState::Waiting { .. } => None,
        });
        fences.max()
    }

    /// The first holder's note, and whether its command has ended.
    pub(crate) fn note_words(&self) -> String {
        let Some(holder) = self.holders.first() else { return String::new() };
        let note = holder.note.clone().unwrap_or_default();
        match CommandEnded::of(holder) {
            Some(kept) if note.is_empty() => kept.brief(),
            Some(kept) => format!("{note} ({})", kept.brief()),
            None => note,
        }
    }

    /// The number of waiters, marked `(w)` if a writer waits for readers.
    pub(crate) fn waiting_words(&self) -> String {
        let writer_waits = self.waiters.iter().any(|lease| lease.claim.mode() == Mode::Exclusive);
        let mark = if self.mode() == Some(Mode::Shared) && writer_waits { " (w)" } else { "" };
        format!("{}{mark}", self.waiters.len())
    }

    /// The lock as JSON.
    pub(crate) fn to_json(&self) -> Value {
        let capacity = self.holders.first().or(self.waiters.first());
        json!({
            "name": self.name.as_str(),
            "mode": self.mode().map(Mode::as_str),
            "limit": capacity.and_then(|lease| json::permits(lease.claim.mode(), lease.claim.capacity())),
            "fence": self.fence(),
            "holders": self.holders.iter().map(json::lease).collect::<Vec<_>>(),
            "waiters": self.waiters.iter().map(json::lease).collect::<Vec<_>>(),
        })
    }
}

/// `in 24s`, or what else ends the lease.
pub(crate) fn expiry_words(expires_in: Option<Duration>, locks: &Leasehold) -> String {
    match (expires_in, locks.guarantees().liveness) {
        (Some(left), _) => format!("in {}", Brief(left)),
        (None, Liveness::Connection) => String::from("with connection"),
        (None, _) => String::from("with process"),
    }
}
