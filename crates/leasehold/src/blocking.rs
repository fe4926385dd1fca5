//! The same locks for callers without a runtime.
//!
//! ```
//! use leasehold::blocking::Leasehold;
//!
//! let locks = Leasehold::connect("memory:")?;
//! let guard = locks.mutex("order:42").acquire()?;
//! // … charge the card, sending guard.fence() along …
//! guard.release()?;
//! # Ok::<(), leasehold::Error>(())
//! ```
//!
//! The library renews leases on its own thread, so the work may block. It cannot
//! stop your thread: call [`Lease::check`] before each write.

use std::{fmt, future::Future, ops::Deref, time::Duration};

use crate::{
    DetachedLease, Error, Lease, Result,
    lease::{EndedLease, HistoryFilter, LeasePage, ListFilter, Outcome, Released},
    primitives::{conclude, lock_options, outcome_of, sharing_option},
};

/// Runs a future of this crate to completion on the calling thread.
///
/// # Panics
/// Panics if it is called from async code, since the thread would block its own runtime.
///
/// # Errors
/// The error that the future returned.
pub fn wait<T>(future: impl Future<Output = Result<T>>) -> Result<T> {
    crate::threads::of_process()?.io.block_on(future)
}

/// The blocking form of [`crate::Leasehold`].
#[derive(Clone, Debug)]
pub struct Leasehold(crate::Leasehold);

impl Leasehold {
    /// Connects to the backend of this URL.
    pub fn connect(url: &str) -> Result<Self> {
        wait(crate::Leasehold::connect(url)).map(Self)
    }

    /// Returns the instance that the whole process shares; see [`crate::Leasehold::global`].
    pub fn global() -> Result<Self> {
        wait(crate::Leasehold::global()).map(Self)
    }

    /// Returns a lock for one holder at a time.
    pub fn mutex(&self, name: impl AsRef<str>) -> Blocking<crate::Lock> {
        Blocking(self.0.mutex(name))
    }

    /// Returns the read side of a read-write lock.
    pub fn read(&self, name: impl AsRef<str>) -> Blocking<crate::Lock> {
        Blocking(self.0.read(name))
    }

    /// Returns the write side of a read-write lock.
    pub fn write(&self, name: impl AsRef<str>) -> Blocking<crate::Lock> {
        Blocking(self.0.write(name))
    }

    /// Returns a lock on one of the `limit` permits of a semaphore.
    pub fn semaphore(&self, name: impl AsRef<str>, limit: u32) -> Blocking<crate::Lock> {
        Blocking(self.0.semaphore(name, limit))
    }

    /// Returns a lock on several mutexes, which takes either all of them or none.
    pub fn all<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> Blocking<crate::All> {
        Blocking(self.0.all(names))
    }

    /// Returns an election of one leader.
    pub fn election(&self, name: impl AsRef<str>) -> Blocking<crate::Election> {
        Blocking(self.0.election(name))
    }

    /// Lists live leases and queue positions.
    pub fn list(&self, filter: &ListFilter) -> Result<LeasePage> {
        wait(self.0.list(filter))
    }

    /// Returns ended leases, newest first.
    pub fn history(&self, filter: &HistoryFilter) -> Result<Vec<EndedLease>> {
        wait(self.0.history(filter))
    }

    /// Releases all leases that this instance holds and returns how many it released.
    pub fn release_all(&self) -> Result<usize> {
        wait(self.0.release_all())
    }

    /// Shuts down gracefully: ends every wait and releases every lease.
    ///
    /// Returns when nothing is left to do.
    pub fn close(&self) -> Result<()> {
        wait(self.0.close())
    }
}

impl From<crate::Leasehold> for Leasehold {
    fn from(locks: crate::Leasehold) -> Self {
        Self(locks)
    }
}

/// A lock or an election whose calls block the calling thread.
///
/// `Blocking::from` wraps any lock or election and keeps its options.
#[derive(Clone, Debug)]
#[must_use = "nothing happens until it is acquired"]
pub struct Blocking<P>(P);

impl<P> From<P> for Blocking<P> {
    fn from(primitive: P) -> Self {
        Self(primitive)
    }
}

impl Blocking<crate::Lock> {
    lock_options!(self => self.0.options);
    sharing_option!(self => self.0.options);

    /// Sets how many permits to take at once; 1 by default.
    pub fn permits(self, permits: u32) -> Self {
        Self(self.0.permits(permits))
    }

    /// Waits for the lock.
    pub fn acquire(&self) -> Result<Guard> {
        wait(self.0.acquire()).map(Guard)
    }

    /// Takes the lock if it is free and nobody waits for it; returns `None` otherwise.
    pub fn try_acquire(&self) -> Result<Option<Guard>> {
        Ok(wait(self.0.try_acquire())?.map(Guard))
    }

    /// Runs `work` under the lock. If `work` fails, the failure is recorded in the lock's history.
    ///
    /// # Errors
    /// The error that `work` returned, or an error of this crate converted to `E`; `Lost`
    /// if `work` succeeded but the lock was lost.
    pub fn with<T, E>(&self, work: impl FnOnce(&Guard) -> Result<T, E>) -> Result<T, E>
    where
        E: From<Error> + fmt::Display,
    {
        run_under(self.acquire()?, work)
    }

    /// Like [`with`](Self::with) if the lock is free. Otherwise it returns `None` without running `work`.
    ///
    /// # Errors
    /// As for [`with`](Self::with).
    pub fn try_with<T, E>(&self, work: impl FnOnce(&Guard) -> Result<T, E>) -> Result<Option<T>, E>
    where
        E: From<Error> + fmt::Display,
    {
        self.try_acquire()?.map(|guard| run_under(guard, work)).transpose()
    }

    /// Waits for the lock and returns a lease that can be handed to another process.
    ///
    /// The lease is neither renewed nor released automatically.
    pub fn acquire_detached(&self) -> Result<DetachedLease> {
        wait(self.0.acquire_detached())
    }

    /// Like [`acquire_detached`](Self::acquire_detached) without waiting; returns `None` if the lock is busy.
    pub fn try_acquire_detached(&self) -> Result<Option<DetachedLease>> {
        wait(self.0.try_acquire_detached())
    }
}

/// Does the work on the calling thread, which it may block.
fn run_under<T, E>(guard: Guard, work: impl FnOnce(&Guard) -> Result<T, E>) -> Result<T, E>
where
    E: From<Error> + fmt::Display,
{
    let lease = guard.0.lease().clone();
    let done = work(&guard);
    let released = guard.release_as(outcome_of(&done));
    conclude(done, released, &lease)
}

impl Blocking<crate::All> {
    lock_options!(self => self.0.options);
    sharing_option!(self => self.0.options);

    /// Waits for all the locks; `wait` limits the total time.
    pub fn acquire(&self) -> Result<Guards> {
        wait(self.0.acquire()).map(Guards)
    }

    /// Takes all the locks if all are free; otherwise takes none and returns `None`.
    pub fn try_acquire(&self) -> Result<Option<Guards>> {
        Ok(wait(self.0.try_acquire())?.map(Guards))
    }
}

impl Blocking<crate::Election> {
    lock_options!(self => self.0.options);

    /// Sets the value that the leader publishes, such as its address; none by default.
    pub fn value(self, value: impl Into<String>) -> Self {
        Self(self.0.value(value))
    }

    /// Waits until elected and returns the guard of the term. Release the guard to resign.
    pub fn campaign(&self) -> Result<Guard> {
        wait(self.0.campaign()).map(Guard)
    }

    /// Becomes the leader if nobody leads or waits; returns `None` otherwise.
    pub fn try_campaign(&self) -> Result<Option<Guard>> {
        Ok(wait(self.0.try_campaign())?.map(Guard))
    }

    /// Returns the current leader; `None` if nobody leads.
    pub fn leader(&self) -> Result<Option<crate::Leader>> {
        wait(self.0.leader())
    }
}

/// The blocking form of [`crate::Guard`].
///
/// The lease is held until the guard is released or dropped.
#[derive(Debug)]
#[must_use = "the lease is released as soon as the guard is dropped"]
pub struct Guard(crate::Guard);

impl Guard {
    /// Releases the lease and records that the work is done.
    pub fn release(self) -> Result<Released> {
        wait(self.0.release())
    }

    /// Releases the lease and records how the work ended.
    pub fn release_as(self, outcome: Outcome) -> Result<Released> {
        wait(self.0.release_as(outcome))
    }

    /// Renews the lease for `ttl` from now; later renewals use `ttl` too.
    pub fn renew(&self, ttl: Duration) -> Result<()> {
        wait(self.0.renew(ttl))
    }

    /// Turns a write lock into a read lock without releasing it in between.
    pub fn downgrade(&self) -> Result<()> {
        wait(self.0.downgrade())
    }
}

impl Deref for Guard {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        self.0.lease()
    }
}

/// The blocking form of [`crate::Guards`]: several leases that are held together.
#[derive(Debug)]
#[must_use = "the leases are released as soon as the guards are dropped"]
pub struct Guards(crate::Guards);

impl Guards {
    /// Returns the leases, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = &Lease> {
        self.0.iter().map(crate::Guard::lease)
    }

    /// Fails if any of the leases is no longer held.
    pub fn check(&self) -> Result<()> {
        self.0.check()
    }

    /// Releases all the leases, in reverse order of their names.
    pub fn release(self) -> Result<Released> {
        wait(self.0.release())
    }
}
