//! Distributed locks: one lock, many machines.
//!
//! Name a resource and a backend, and run something in one place at a time.
//!
//! ```
//! use leasehold::Leasehold;
//!
//! # async fn example() -> leasehold::Result<()> {
//! let locks = Leasehold::connect("memory:").await?; // file: needs nothing installed either
//!
//! let guard = locks.mutex("order:42").acquire().await?;
//! // … charge the card, sending guard.fence() along …
//! guard.release().await?;
//! # Ok(()) }
//! # leasehold::blocking::wait(example()).unwrap();
//! ```
//!
//! The same call works in one process (`memory:`), across the processes of one
//! machine (`file:`) and across machines (`postgres://`, `redis://`, `redlock://`).
//! Calls can be awaited on any executor; without an executor, use [`blocking`].
//!
//! # What can be locked
//!
//! | | |
//! |---|---|
//! | [`Leasehold::mutex`] | one holder at a time |
//! | [`Leasehold::read`], [`Leasehold::write`] | many readers or one writer; a mutex is the same as the write side |
//! | [`Leasehold::semaphore`] | at most N permits at a time |
//! | [`Leasehold::election`] | one leader, with callbacks and a published value |
//! | [`Leasehold::all`] | several mutexes, either all of them or none, without deadlock |
//!
//! Each resource has one queue. Waiters are served in order, and a release hands
//! the lock directly to the next one. On `redlock:` the order is not promised.
//! Waiters are notified; behind a Postgres pooler that cannot pass notifications on, they poll.
//!
//! # How a lease lives
//!
//! What you hold is a *lease*: it lasts for its `ttl` (30 s by default) and is
//! renewed automatically every third of that time, until you release the
//! [`Guard`]. If the process dies, the lease ends and the next in line gets it:
//! after the ttl, or at once on `file:`, where the kernel reports the death.
//!
//! A lease can be lost, for example because the process was stopped for a minute,
//! the backend was unreachable for too long, or an operator evicted the lease. Then
//!
//! - [`check`](Lease::check) fails as soon as the lease has run out, even if no task has run since;
//! - [`lost`](Lease::lost) completes, before a backend with a ttl can grant the lease to another holder;
//! - [`with`](Lock::with) drops the work it runs;
//! - the [`fence`](Lease::fence), a number that rises with every grant, lets
//!   your own store refuse the writes of a holder that has lost its lease.
//!
//! ```
//! use std::time::Duration;
//! use leasehold::{Leasehold, ErrorKind};
//!
//! # async fn example() -> leasehold::Result<()> {
//! # let locks = Leasehold::connect("memory:tour").await?;
//! // does the work under the lock; its failure is recorded with the lock's history
//! let outcome = locks
//!     .mutex("daily-report")
//!     .ttl(Duration::from_secs(30))
//!     .wait(Duration::from_secs(5))
//!     .note("report of the day")
//!     .with(async |lease| {
//!         lease.check()?;
//!         Err::<(), _>(leasehold::Error::unavailable("the printer is on fire"))
//!     })
//!     .await;
//! assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Unavailable);
//!
//! // no waiting: None when someone else is doing it
//! if let Some(guard) = locks.mutex("cron:daily-cleanup").try_acquire().await? {
//!     guard.release().await?;
//! }
//! # Ok(()) }
//! # leasehold::blocking::wait(example()).unwrap();
//! ```
//!
//! # Who holds it, since when, who waits, what failed?
//!
//! [`Leasehold::list`], [`Leasehold::history`] and [`Leasehold::watch`] answer
//! these questions; [`Leasehold::evict`] takes a lease away from a holder that hangs.
//!
//! ```
//! use leasehold::{Leasehold, lease::{HistoryFilter, ListFilter, Names}};
//!
//! # async fn example() -> leasehold::Result<()> {
//! # let locks = Leasehold::connect("memory:looking").await?;
//! # let guard = locks.mutex("job:7").acquire().await?;
//! for lease in locks.list(&ListFilter::new(Names::Prefix("job:".into()))).await?.leases {
//!     println!("{} is {:?} by {}", lease.resource, lease.state, lease.holder);
//! }
//! # guard.release().await?;
//! for ended in locks.history(&HistoryFilter::new(Names::All)).await? {
//!     println!("{} {} {}", ended.resource, ended.ending, ended.holder);
//! }
//! # Ok(()) }
//! # leasehold::blocking::wait(example()).unwrap();
//! ```
//!
//! # Observability
//!
//! The library emits a `tracing` span at level `DEBUG` for each step of a lock. `acquire lock` and `hold lock` are
//! children of the caller's span; `release lock` and `renew lock` are children of `hold lock`. Every failed renewal has
//! a span, and one successful renewal in twenty. Elections have the spans `campaign leader` and `lead`. The targets are
//! `leasehold::acquire`, `leasehold::hold`, `leasehold::release`, `leasehold::renew` and `leasehold::election`. A lost
//! lease is logged as an error; a lease that reached its `max_hold` and a failed renewal are logged as warnings; a busy
//! lock is not logged.
//!
//! With the feature `metrics`, the library reports these metrics, each with the label `backend`:
//!
//! | | labels | |
//! |---|---|---|
//! | `leasehold_acquire_total`, `leasehold_acquire_wait_seconds` | `mode`, `outcome` | attempts, and how long they took |
//! | `leasehold_hold_seconds` | `mode`, `end` | how long leases were held |
//! | `leasehold_lost_total` | `mode`, `reason` | leases lost while they were held: alert on this |
//! | `leasehold_renew_total`, `leasehold_renew_slack_seconds` | `mode`; `leasehold_renew_total` also `outcome` | renewals, and the time that was left until expiry |
//! | `leasehold_release_total` | `mode`, `outcome` | releases |
//! | `leasehold_evict_total` | | evictions by this process |
//! | `leasehold_locks_held`, `leasehold_waiters` | `mode` | leases held and callers waiting now |
//! | `leasehold_leader`, `leasehold_leader_transitions_total` | | elections led now, and how often one was won |
//! | `leasehold_backend_request_seconds` | `op`, `outcome` | how long the backend took to answer |
//!
//! The name of a lock is never a label. Without a subscriber and a recorder, none of this allocates memory.
//!
//! # Errors
//!
//! Every [`Error`] has a [`kind`](Error::kind). Its message says what failed. Where it
//! helps, it also names the resource, the backend and the holder, and says what to do.
//! `Err` means that a call could not be carried out. Calls that only try, such as
//! [`Lock::try_acquire`], report a busy lock as a value.
//!
//! # Features
//!
//! Each backend is a feature: `memory` and `file` (both on by default), `postgres`, `redis` and `redlock`.
//! `all-backends` enables all of them.
//! `metrics` reports metrics through the crate of that name.
//! `sqlx` lets `FenceCheck` run in a transaction of that crate.
//!
//! # Further reading
//!
//! Read [what is promised and what can still go wrong](_docs::guarantees) and [which
//! backend and which ttl to choose, and when a lock is the wrong tool](_docs::choosing). To
//! write a backend of your own, begin with [`backend`].

pub mod backend;
pub mod backends;
pub mod blocking;
pub mod clock;
mod engine;
#[cfg(unix)]
#[cfg_attr(not(target_os = "linux"), path = "event_loop_stub.rs")]
#[doc(hidden)]
#[allow(dead_code, reason = "for backends that callers' event loops read from, of which not every build has one")]
pub mod event_loop;
pub mod lease;
mod leasehold;
mod primitives;
#[cfg(target_os = "linux")]
#[allow(dead_code, reason = "for backends that callers' runtimes read from, of which not every build has one")]
mod readable;
mod setters_macro;
mod threads;

pub(crate) use backend::model;
pub use engine::{Attempt, Guard, Lease, LeaseHealth, Loss};
pub use lease::{
    Fence, Holder, LeaseHandle, Metadata, Outcome, Resource, Ttl,
    error::{Error, ErrorKind, Result},
};
pub use leasehold::{Builder, Leasehold};
pub use primitives::{All, Candidate, DetachedLease, Election, Guards, Leader, Lock, Observer};

/// Guides and the changelog.
#[cfg(doc)]
pub mod _docs {
    #[doc = include_str!("../docs/choosing.md")]
    pub mod choosing {}
    #[doc = include_str!("../docs/guarantees.md")]
    pub mod guarantees {}
    #[doc = include_str!("../docs/changelog.md")]
    pub mod changelog {}
}
