//! The [`Backend`] trait and helpers for implementing it.
//!
//! Programs that only use locks do not need this module.
//!
//! A backend makes operations atomic, supplies a clock and notifies waiters. The
//! locking algorithm itself is in [`model`]. A backend either calls that code while
//! it holds a latch of its own, or ports it to the server's language; the
//! conformance suite then compares the port with the model.
//!
//! Every implementation follows these rules:
//!
//! - Return `Err` only if an operation failed or its outcome is unknown. A refusal
//!   is a value, such as [`Decision::Busy`].
//! - Each operation on a resource is atomic. It settles the resource, applies the
//!   change and settles the resource again; see [`model`].
//! - `acquire` is idempotent: if the lease id already holds or waits, it renews that
//!   lease and returns its decision. A client can thus repeat a request that was not answered.
//! - `renew` and `release` identify a lease by its id, never by the resource name alone.
//! - Hints about a lease go to the instance that requested it, whoever renews or releases it.
//! - Hints may be lost, duplicated, or arrive before the reply they belong to.
//!   Losing all of them only adds latency: the next renewal returns the same information.
//! - If a future is dropped, its operation happens completely or not at all.
//! - A corrupt record affects only its own lease: `renew` returns
//!   [`Standing::Unknown`] for that lease and renews the others.
//! - Namespaces are isolated: the leases, queues, history, events and run records of one
//!   never mix with those of another, even for resources of the same name.
//! - No error, finding or `Debug` output shows a password.
//!
//! Threads and forks:
//!
//! - The library may poll `acquire`, `renew`, `release` and `perform` on the thread of
//!   their caller. It moves such a call to its own I/O thread if the caller drops it or the
//!   answer takes long. It polls all other futures on the I/O thread. So no poll may
//!   block for long: slow work belongs on `spawn_blocking`.
//! - Each of these polls has a tokio runtime, that of the I/O thread: timers, sockets and
//!   [`Handle::current`](tokio::runtime::Handle::current) work. Tests call a backend on
//!   runtimes of their own. For tasks that outlive a call, keep the handle that was
//!   current when the instance was opened.
//! - `guarantees`, `hints`, `age`, `inheritable` and the `_at_once` methods may be called
//!   without a runtime.
//! - In a forked child, the library sends nothing through an instance of the parent and
//!   does not drop it. A child that connects again finds the parent's static variables: a
//!   backend that must not share them keeps them by `leasehold_fork::generation()`. If a
//!   lease or a latch lasts as long as a descriptor is open,
//!   `leasehold_fork::close_in_child` closes the child's copy.
//!
//! Helpers for all backends:
//! [`Backoff`], [`HintSender`], [`EventHub`], [`Coalescer`], [`publish()`]
//! (turns the effects of an operation into hints, events and history), [`CollectedEffects`]
//! (collects these until a write has succeeded), [`UrlOptions`] and [`RunTable`].
//! [`backends::register`](crate::backends::register) adds a URL scheme from outside this crate.

mod backoff;
pub(crate) mod coalesce;
mod events;
mod guarantees;
mod hints;
mod inspect;
pub mod model;
mod opening;
mod operation;
pub(crate) mod options;
mod publish;
mod queue;
mod runs;

use std::{fmt, time::Duration};

use async_trait::async_trait;

pub use self::{
    backoff::Backoff,
    coalesce::Coalescer,
    events::{EventHub, EventStream, Missed},
    guarantees::{Guarantees, Liveness, Reach},
    hints::{Hint, HintDelivery, HintSender, Hints},
    inspect::{Finding, Inspect, Severity},
    opening::{OpenOptions, Opening},
    operation::{Operation, Performed},
    options::UrlOptions,
    publish::{Audience, CollectedEffects, publish},
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

/// The operations that the library needs to provide locks on a backend.
#[async_trait]
pub trait Backend: Inspect + fmt::Debug + Send + Sync + 'static {
    /// Returns what this backend promises. The conformance suite and the command `leasehold doctor` rely on it.
    fn guarantees(&self) -> Guarantees;

    /// Subscribes to hints about leases that were requested through this instance.
    fn hints(&self) -> Hints;

    /// Requests a lease and returns the decision. This does not wait for a busy resource to become free.
    async fn acquire(&self, request: &Request) -> Result<Answer<Decision>>;

    /// Renews these leases and returns the standing of each, in the same order.
    async fn renew(&self, renewals: &[Renewal]) -> Result<Answer<Vec<Standing>>>;

    /// Ends a lease, or its wait in the queue, and records the outcome.
    async fn release(&self, key: &LeaseKey, outcome: &Outcome) -> Result<Answer<Released>>;

    /// Performs several operations at once and returns the answers in the same order.
    ///
    /// The default implementation calls [`acquire`](Self::acquire) or [`release`](Self::release) for each of them,
    /// concurrently. Override it if the backend can perform several operations in one round trip.
    async fn perform(&self, operations: Vec<Operation>) -> Vec<Result<Answer<Performed>>> {
        perform_each(self, operations).await
    }

    /// Requests a lease synchronously. If this returns `None`, as it does by default, the library calls
    /// [`acquire`](Self::acquire) instead.
    ///
    /// Implement this if the backend never blocks. The library calls it on the caller's thread, without a task or a
    /// runtime.
    fn acquire_at_once(&self, _request: &Request) -> Option<Answer<Decision>> {
        None
    }

    /// Releases a lease synchronously. If this returns `None`, as it does by default, the library calls
    /// [`release`](Self::release) instead.
    fn release_at_once(&self, _key: &LeaseKey, _outcome: &Outcome) -> Option<Answer<Released>> {
        None
    }

    /// Returns a file descriptor for a child process to inherit. The leases of this instance then last until the child
    /// has ended, too.
    #[cfg(unix)]
    fn inheritable(&self) -> Option<std::os::fd::OwnedFd> {
        None
    }

    /// Returns how long ago the backend last started or may last have lost leases.
    ///
    /// `None` if it is unknown.
    fn age(&self) -> Option<Duration> {
        None
    }
}
