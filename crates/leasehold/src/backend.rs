//! The seam: what a place that keeps leases must supply.
//!
//! A backend supplies atomicity, a clock and a wake-up. The rule is
//! [`model`](crate::model)'s: a backend either runs it under a latch of its
//! own or ports it, and the conformance suite compares the two.
//!
//! What every implementation keeps to:
//!
//! - `Err` means *could not tell*. "No" is a value.
//! - Each operation on a resource is atomic: settle, apply, settle.
//! - `acquire` with an id that already holds or waits tells how it stands and
//!   moves its end, so that an unanswered ask is settled by asking again.
//! - `renew` and `release` go by the lease id, never by the name alone.
//! - Hints may be lost, doubled, or come before the reply they belong to.
//!   Losing all of them costs latency only: the next renewal says the same.
//! - A dropped future may or may not have done its work; never half of it.

use std::{fmt, os::fd::OwnedFd, pin::Pin, time::Duration};

use async_trait::async_trait;
use futures_core::Stream;
use tokio::sync::broadcast;

use crate::{
    Result,
    lease::{
        Answer, Decision, EndedLease, Event, Evicted, Fence, HistoryFilter, LeaseId, LeaseKey, ListFilter, Moment,
        Names, Outcome, Page, Released, Renewal, Request, Resource, Standing, Ttl,
    },
};

/// A place that keeps leases.
#[async_trait]
pub trait Backend: fmt::Debug + Send + Sync + 'static {
    /// What this backend promises; chooses the suite's trials and doctor's words.
    fn guarantees(&self) -> Guarantees;

    /// Tells, from now on, what may concern leases asked for through this instance.
    fn hints(&self) -> Hints;

    /// When the connection that attached leases lived by was lost last. What was asked for before that is not held any
    /// more: others may be granted it, also while this instance can ask nobody.
    fn severed_at(&self) -> Option<Moment> {
        None
    }

    /// Asks for a lease once.
    async fn acquire(&self, request: &Request) -> Result<Answer<Decision>>;

    /// Moves the ends of these leases and tells how each stands, in the same order.
    async fn renew(&self, renewals: &[Renewal]) -> Result<Answer<Vec<Standing>>>;

    /// Ends a lease or leaves the queue, recording the outcome.
    async fn release(&self, key: &LeaseKey, outcome: &Outcome) -> Result<Answer<Released>>;

    /// Takes the lease with this fence away from its holder.
    async fn evict(&self, resource: &Resource, expected: Fence, reason: &str) -> Result<Evicted>;

    /// Live leases and places: by name, within a name holders first, then the queue in its order.
    async fn list(&self, filter: &ListFilter) -> Result<Page>;

    /// Ended leases, newest first.
    async fn history(&self, filter: &HistoryFilter) -> Result<Vec<EndedLease>>;

    /// Follows what happens to these resources from now on, in any process.
    async fn watch(&self, names: Names) -> Result<EventStream>;

    /// Looks for settings and circumstances that endanger locks.
    async fn examine(&self) -> Result<Vec<Finding>>;

    /// What a child process may inherit so that leases outlive this process until the child is gone too.
    fn inheritable(&self) -> Option<OwnedFd> {
        None
    }

    /// How long this life of the backend has lasted, as far as this instance knows: since a restart
    /// that may have lost memory, not since this instance was opened.
    fn age(&self) -> Option<Duration> {
        None
    }
}

/// What a backend promises.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "each is one line of the promises table")]
pub struct Guarantees {
    /// The backend in one word: `memory`, `file`, `redis`.
    pub kind: &'static str,
    /// Who can contend for one resource.
    pub reach: Reach,
    /// What ends the lease of a holder that died.
    pub liveness: Liveness,
    /// Waiters are served in the order they came.
    pub fifo: bool,
    /// A grant is pushed to its waiter; without this the engine asks at intervals.
    pub pushes: bool,
    /// Fences rise over every grant of a resource, as long as the backend keeps its data.
    pub fences: bool,
    /// A lease outlives a restart of the place that keeps it.
    pub survives_restart: bool,
    /// How many renewals go into one call.
    pub renew_batch: usize,
}

/// Who can contend for one resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Tasks of one process.
    Process,
    /// Processes of one machine.
    Machine,
    /// Machines that reach one server.
    Network,
}

/// What ends the lease of a holder that died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Liveness {
    /// Its ttl runs out.
    Ttl,
    /// The kernel tells that the process is gone; no clock is involved.
    Process,
    /// The server tells that the connection is gone; no clock is involved.
    Connection,
}

impl Liveness {
    /// The longest belief in one answer about an attached lease, whatever ttl was asked for.
    ///
    /// A server gives up a connection that fell silent after 11 s, and grants to others what lived by it.
    pub fn longest_ttl(self) -> Ttl {
        match self {
            Self::Ttl | Self::Process => Ttl::MAX,
            Self::Connection => Ttl::SILENCE,
        }
    }
}

/// Something a backend has to say to one of its instances.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hint {
    /// This waiting lease may hold now.
    Granted {
        /// Which.
        id: LeaseId,
        /// Under which fence.
        fence: Fence,
    },
    /// This lease may have been taken away.
    Evicted {
        /// Which.
        id: LeaseId,
    },
    /// Something changed for those who wait for this resource.
    Changed {
        /// Which.
        resource: Resource,
    },
    /// Hints were missed: everything may have changed.
    Missed,
}

/// The sending end of an instance's hints.
#[derive(Clone, Debug)]
pub struct HintSender(broadcast::Sender<Hint>);

impl HintSender {
    /// As many hints are kept for a reader that lags; then it is told that it missed some.
    const KEPT: usize = 4096;

    /// A sender without readers.
    pub fn new() -> Self {
        Self(broadcast::Sender::new(Self::KEPT))
    }

    /// Sends to every reader; without one the hint is dropped.
    pub fn send(&self, hint: Hint) {
        let _no_reader = self.0.send(hint);
    }

    /// A reader of what is sent from now on.
    pub fn subscribe(&self) -> Hints {
        Hints(self.0.subscribe())
    }
}

impl Default for HintSender {
    fn default() -> Self {
        Self::new()
    }
}

/// The reading end of an instance's hints.
#[derive(Debug)]
pub struct Hints(broadcast::Receiver<Hint>);

impl Hints {
    /// The next hint; `None` when the backend is gone.
    ///
    /// # Cancel safety
    /// A dropped call loses nothing.
    pub async fn next(&mut self) -> Option<Hint> {
        match self.0.recv().await {
            Ok(hint) => Some(hint),
            Err(broadcast::error::RecvError::Lagged(_)) => Some(Hint::Missed),
            Err(broadcast::error::RecvError::Closed) => None,
        }
    }
}

/// What happens to resources, as it happens; events may be missed by a slow reader.
pub type EventStream = Pin<Box<dyn Stream<Item = Event> + Send>>;

/// One line of a doctor's report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// What was looked at, in a word or two.
    pub subject: String,
    /// What was seen, and what to do about it.
    pub words: String,
}

impl Finding {
    /// A line of the report.
    pub fn new(severity: Severity, subject: impl Into<String>, words: impl Into<String>) -> Self {
        Self { severity, subject: subject.into(), words: words.into() }
    }
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Worth knowing.
    Info,
    /// As it should be.
    Ok,
    /// May hurt.
    Warning,
    /// Will hurt.
    Failure,
}
