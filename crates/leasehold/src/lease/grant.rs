//! What a backend answers.

use std::{fmt, time::Duration};

use super::{Fence, Holder, Mode, Shape, Timestamp};

/// An answer, and which life of the backend gave it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer<T> {
    /// What was asked for.
    pub value: T,
    /// A change between two answers means that the backend may have forgotten.
    pub incarnation: Incarnation,
}

/// One life of a backend: a restart that may have lost memory begins another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Incarnation(pub u64);

/// What a backend decided about a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The lease is held.
    Granted(Grant),
    /// The request has a place in the queue.
    Queued(Place),
    /// Others hold it or were here before; nothing was left behind.
    Busy(Busy),
    /// The resource is in use as something else; nothing was left behind.
    WrongShape {
        /// What it is in use as.
        in_force: Shape,
    },
}

/// A lease that holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The number of this grant.
    pub fence: Fence,
    /// When it was granted, by the backend's wall clock.
    pub acquired_at: Timestamp,
}

/// A place in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// How many wait before this one.
    pub ahead: u32,
    /// The resource's newest fence: a hint that is not above it is stale.
    pub last_fence: Fence,
    /// When the first lease ahead runs out: the time to ask again if nothing was heard.
    pub ask_again_in: Option<Duration>,
}

/// Who is in the way.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Busy {
    /// Those who hold.
    pub holders: Vec<HeldBy>,
    /// How many wait.
    pub waiting: u32,
}

/// One of those who hold, and since when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldBy {
    /// Who.
    pub holder: Holder,
    /// What the holder says about itself.
    pub note: Option<String>,
    /// How.
    pub mode: Mode,
    /// The number of the grant.
    pub fence: Fence,
    /// Since how long, by the backend's clock.
    pub held_for: Duration,
}

impl fmt::Display for HeldBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.holder)?;
        if let Some(note) = &self.note {
            write!(f, " ({note})")?;
        }
        write!(f, " for {}", Brief(self.held_for))
    }
}

/// Where a lease stands, as told by a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It holds, and its end was moved.
    Holding(Grant),
    /// It waits, and its end was moved.
    Waiting(Place),
    /// The backend does not know it: it ended, or never began.
    Gone,
    /// The backend could not tell for this one.
    Unknown,
}

/// What a release did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// A lease that held was ended.
    Freed,
    /// A place in the queue was given up.
    LeftQueue,
    /// There was nothing: it had ended before.
    Gone,
    /// Another guard of a re-entrant lock holds it on; told by guards, never by a backend.
    Shared,
}

/// What an eviction did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Evicted {
    /// The lease with that fence was taken away.
    Evicted {
        /// From whom.
        holder: Holder,
    },
    /// Nobody holds with that fence; nothing was changed.
    NoSuchFence {
        /// The fences that do hold.
        current: Vec<Fence>,
    },
}

/// A duration as people say it: `350ms`, `4s`, `3m12s`, `2h05m`, `6d02h`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Brief(pub(crate) Duration);

impl fmt::Display for Brief {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        match seconds {
            0 => write!(f, "{}ms", self.0.as_millis()),
            1..60 => write!(f, "{seconds}s"),
            60..3600 => write!(f, "{}m{:02}s", seconds / 60, seconds % 60),
            3600..86400 => write!(f, "{}h{:02}m", seconds / 3600, seconds % 3600 / 60),
            _ => write!(f, "{}d{:02}h", seconds / 86400, seconds % 86400 / 3600),
        }
    }
}
