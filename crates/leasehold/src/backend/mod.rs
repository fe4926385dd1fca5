//! The [`Backend`] trait and helpers for implementing it.
//!
//! Programs that only lock need nothing from here.
//!
//! A backend supplies atomicity, a clock and a wake-up. The locking algorithm is
//! in [`model`]: a backend either runs that under a latch of its own or ports
//! it, and the conformance suite compares the two.
//!
//! Every implementation follows these rules:
//!
//! - `Err` means *could not tell*. "No" is a value.
//! - Each operation on a resource is atomic: settle, apply, settle.
//! - `acquire` with an id that already holds or waits returns its standing and
//!   moves its end, so that an unanswered request is settled by sending it again.
//! - `renew` and `release` go by the lease id, never by the name alone.
//! - Hints may be lost, doubled, or arrive before the reply they belong to.
//!   Losing all of them only adds latency: the next renewal returns the same information.
//! - A dropped future may or may not have done its work; never half of it.
//! - A corrupt record affects only its own lease: `renew` answers
//!   [`Standing::Unknown`] for that one and goes on.
//!
//! Helpers for all backends:
//! [`Backoff`], [`HintSender`], [`EventHub`], [`Coalescer`], [`publish`]
//! (effects of the rule as hints, events and history), [`News`] (the same, kept
//! until a write has succeeded), [`UrlOptions`] and [`RunTable`].
//! [`backends::register`](crate::backends::register) adds a URL scheme from outside this crate.

mod backoff;
pub(crate) mod coalesce;
mod effects;
mod events;
mod guarantees;
mod hints;
mod inspect;
pub mod model;
mod opening;
mod operation;
pub(crate) mod options;
mod queue;
mod runs;

use std::{fmt, time::Duration};

use async_trait::async_trait;

pub use self::{
    backoff::Backoff,
    coalesce::Coalescer,
    effects::{Audience, News, publish},
    events::{EventHub, EventStream, Missed},
    guarantees::{Guarantees, Liveness, Reach},
    hints::{Hint, HintDelivery, HintSender, Hints},
    inspect::{Finding, Inspect, Severity},
    opening::{OpenOptions, Opening},
    operation::{Operation, Performed},
    options::UrlOptions,
    runs::RunTable,
};
pub(crate) use self::{
    opening::{Opener, check_namespace},
    operation::perform_each,
};
pub use crate::lease::{
    belief::{Belief, Session},
    filter::Selection,
    grant::{Answer, Decision, Incarnation},
    request::{Lifetime, Patience, Renewal, Request},
};
use crate::{
    Result,
    lease::{LeaseKey, Outcome, Released, Standing},
};

/// What the engine calls: everything a lock needs.
#[async_trait]
pub trait Backend: Inspect + fmt::Debug + Send + Sync + 'static {
    /// Returns what this backend promises; the conformance suite and `doctor` rely on it.
    fn guarantees(&self) -> Guarantees;

    /// Subscribes to hints about leases that were requested through this instance.
    fn hints(&self) -> Hints;

    /// Requests a lease once.
    async fn acquire(&self, request: &Request) -> Result<Answer<Decision>>;

    /// Moves the ends of these leases and returns the standing of each, in the same order.
    async fn renew(&self, renewals: &[Renewal]) -> Result<Answer<Vec<Standing>>>;

    /// Ends a lease or leaves the queue, recording the outcome.
    async fn release(&self, key: &LeaseKey, outcome: &Outcome) -> Result<Answer<Released>>;

    /// Makes several calls at once and returns the answer to each, in the same order; one by one by default.
    ///
    /// Implement this if the backend can take many calls in one round trip.
    async fn perform(&self, operations: Vec<Operation>) -> Vec<Result<Answer<Performed>>> {
        perform_each(self, operations).await
    }

    /// Requests a lease without waiting. If this returns `None`, as it does by default, [`acquire`](Self::acquire) is
    /// called.
    ///
    /// Implement this if the backend never blocks; the engine calls it on the caller's thread, without a task or a
    /// runtime.
    fn acquire_at_once(&self, _request: &Request) -> Option<Answer<Decision>> {
        None
    }

    /// Releases a lease without waiting. If this returns `None`, as it does by default, [`release`](Self::release) is
    /// called.
    fn release_at_once(&self, _key: &LeaseKey, _outcome: &Outcome) -> Option<Answer<Released>> {
        None
    }

    /// Returns a descriptor that a child process may inherit: leases then outlive this process until the child is gone
    /// too.
    #[cfg(unix)]
    fn inheritable(&self) -> Option<std::os::fd::OwnedFd> {
        None
    }

    /// Returns the age of the backend's memory: the time since a restart that may have lost leases, if known.
    fn age(&self) -> Option<Duration> {
        None
    }
}
