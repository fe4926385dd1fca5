//! What a backend answers.

use std::{fmt, time::Duration};

use super::{Belief, Fence, Holder, Mode, Shape, Timestamp};

/// An answer of a backend, and how long a client may rely on it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Answer<T> {
    /// The answer itself.
    pub value: T,
    /// The incarnation of the backend. If it differs from that of an earlier answer, leases may have been lost.
    pub incarnation: Incarnation,
    /// How long a client may rely on what the answer says about attached leases.
    pub belief: Belief,
}

impl<T> Answer<T> {
    /// Creates an answer that a client may rely on for the ttl.
    pub fn new(value: T, incarnation: Incarnation) -> Self {
        Self { value, incarnation, belief: Belief::Ttl }
    }

    /// Sets how long a client may rely on the answer.
    #[must_use]
    pub fn believed(mut self, belief: Belief) -> Self {
        self.belief = belief;
        self
    }

    /// Applies `change` to the value and keeps the rest.
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Answer<U> {
        Answer { value: change(self.value), incarnation: self.incarnation, belief: self.belief }
    }
}

/// A number that changes when leases may have been lost, for example by a restart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Incarnation(pub u64);

/// What a backend decided about a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The lease is held.
    Granted(Grant),
    /// The request is in the queue.
    Queued(QueuePosition),
    /// Others hold the resource or wait for it; the request was not queued.
    Busy(Busy),
    /// The resource is in use as another kind or with another capacity; the request was not queued.
    WrongShape {
        /// The shape in use.
        in_force: Shape,
    },
}

/// The grant of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Grant {
    /// The fence of the grant.
    pub fence: Fence,
    /// When it was granted, by the backend's wall clock.
    pub acquired_at: Timestamp,
}

impl Grant {
    /// Creates a grant with this fence, made at this time.
    pub const fn new(fence: Fence, acquired_at: Timestamp) -> Self {
        Self { fence, acquired_at }
    }
}

/// A position in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueuePosition {
    /// How many waiters are ahead.
    pub ahead: u32,
    /// The resource's newest fence: a hint whose fence is not higher is stale.
    pub last_fence: Fence,
    /// How long to wait for a hint before asking again: until the first of the leases in the way expires. If the
    /// request is new or the queue is long, the backend may give a shorter time.
    pub ask_again_in: Option<Duration>,
}

impl QueuePosition {
    /// Creates a position behind this many waiters, with the resource's newest fence.
    pub const fn new(ahead: u32, last_fence: Fence, ask_again_in: Option<Duration>) -> Self {
        Self { ahead, last_fence, ask_again_in }
    }
}

/// Who holds a busy resource, and how many wait for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Busy {
    /// The current holders.
    pub holders: Vec<HeldBy>,
    /// How many waiters are in the queue.
    pub waiting: u32,
}

impl Busy {
    /// Creates a `Busy` with these holders and this many waiters.
    pub const fn new(holders: Vec<HeldBy>, waiting: u32) -> Self {
        Self { holders, waiting }
    }
}

/// One of the holders, and how long it has held the resource.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeldBy {
    /// The holder's label.
    pub holder: Holder,
    /// A one-line note from the holder.
    pub note: Option<String>,
    /// Exclusive, shared, permit or leader.
    pub mode: Mode,
    /// The fence of the grant.
    pub fence: Fence,
    /// How long it has been held, by the backend's clock.
    pub held_for: Duration,
}

impl HeldBy {
    /// Creates the description of a holder, without a note.
    pub const fn new(holder: Holder, mode: Mode, fence: Fence, held_for: Duration) -> Self {
        Self { holder, note: None, mode, fence, held_for }
    }
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

/// The state of a lease at the backend, as a renewal returns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The lease is held and was renewed.
    Holding(Grant),
    /// The lease waits in the queue and was renewed.
    Waiting(QueuePosition),
    /// The backend does not have the lease: it ended, or was never requested.
    Gone,
    /// The backend could not find out.
    Unknown,
}

/// What a release did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// The lease was held and has ended.
    Freed,
    /// The lease waited and has left the queue.
    LeftQueue,
    /// The lease had already ended.
    Gone,
    /// Another guard still shares the lease (`shared_by_holder`). Backends never return this.
    Shared,
}

/// What an eviction did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Evicted {
    /// The lease with that fence was taken away.
    Evicted {
        /// Its former holder.
        holder: Holder,
    },
    /// No lease has that fence; nothing was changed.
    NoSuchFence {
        /// The fences of the current holders.
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
            60..3600 if seconds.is_multiple_of(60) => write!(f, "{}m", seconds / 60),
            60..3600 => write!(f, "{}m{:02}s", seconds / 60, seconds % 60),
            3600..86400 if seconds % 3600 < 60 => write!(f, "{}h", seconds / 3600),
            3600..86400 => write!(f, "{}h{:02}m", seconds / 3600, seconds % 3600 / 60),
            _ => write!(f, "{}d{:02}h", seconds / 86400, seconds % 86400 / 3600),
        }
    }
}
