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
//! Leases are renewed on a thread of their own, so the work may block as long
//! as it likes. Nobody can stop a thread: ask [`Lease::check`] before each write.

use std::{fmt, future::Future, ops::Deref, time::Duration};

use crate::{
    Error, Lease, Result,
    lease::{EndedLease, HistoryFilter, Holder, ListFilter, Metadata, Outcome, Page, Released},
    primitives::{conclude, outcome_of},
};

/// Runs a future of this crate to its end on the calling thread.
///
/// # Panics
/// When called from async code: the thread would block its own runtime.
///
/// # Errors
/// Those of the future.
pub fn wait<T>(future: impl Future<Output = Result<T>>) -> Result<T> {
    crate::threads::of_process()?.io.block_on(future)
}

/// [`crate::Leasehold`], blocking.
#[derive(Clone, Debug)]
pub struct Leasehold(crate::Leasehold);

impl Leasehold {
    /// Opens the backend that the URL names.
    pub fn connect(url: &str) -> Result<Self> {
        wait(crate::Leasehold::connect(url)).map(Self)
    }

    /// The process's own instance: `LEASEHOLD_URL`, else `file:`.
    pub fn global() -> Result<Self> {
        wait(crate::Leasehold::global()).map(Self)
    }

    /// A lock for one holder at a time.
    pub fn mutex(&self, name: impl AsRef<str>) -> Blocking<crate::Mutex> {
        Blocking(self.0.mutex(name))
    }

    /// A lock for many readers or one writer.
    pub fn rwlock(&self, name: impl AsRef<str>) -> Blocking<crate::RwLock> {
        Blocking(self.0.rwlock(name))
    }

    /// A limit of so many permits.
    pub fn semaphore(&self, name: impl AsRef<str>, limit: u32) -> Blocking<crate::Semaphore> {
        Blocking(self.0.semaphore(name, limit))
    }

    /// Several mutexes, all or nothing.
    pub fn all<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> Blocking<crate::All> {
        Blocking(self.0.all(names))
    }

    /// An election of one leader.
    pub fn election(&self, name: impl AsRef<str>) -> Blocking<crate::Election> {
        Blocking(self.0.election(name))
    }

    /// Live leases and places in queues.
    pub fn list(&self, filter: &ListFilter) -> Result<Page> {
        wait(self.0.list(filter))
    }

    /// Ended leases, newest first.
    pub fn history(&self, filter: &HistoryFilter) -> Result<Vec<EndedLease>> {
        wait(self.0.history(filter))
    }

    /// Gives back every lease this instance holds; tells how many.
    pub fn release_all(&self) -> Result<usize> {
        wait(self.0.release_all())
    }

    /// Ends waits and leases and waits until nothing is left to do.
    pub fn close(&self) -> Result<()> {
        wait(self.0.close())
    }
}

impl From<crate::Leasehold> for Leasehold {
    fn from(locks: crate::Leasehold) -> Self {
        Self(locks)
    }
}

/// A primitive whose verbs block the calling thread.
///
/// `Blocking::from` makes one of any primitive, with the options it already has.
#[derive(Clone, Debug)]
#[must_use = "nothing happens until it is acquired"]
pub struct Blocking<P>(P);

impl<P> From<P> for Blocking<P> {
    fn from(primitive: P) -> Self {
        Self(primitive)
    }
}

/// The options of the primitive itself, passed on.
macro_rules! pass_options {
    ($($primitive:ident),*) => {$(
        impl Blocking<crate::$primitive> {
            /// How long the lease lives without a renewal.
            pub fn ttl(self, ttl: Duration) -> Self {
                Self(self.0.ttl(ttl))
            }

            /// How long to wait. Zero does not wait.
            pub fn wait(self, wait: Duration) -> Self {
                Self(self.0.wait(wait))
            }

            /// Waits until it is granted.
            pub fn wait_forever(self) -> Self {
                Self(self.0.wait_forever())
            }

            /// One line for people, shown to others.
            pub fn note(self, note: impl Into<String>) -> Self {
                Self(self.0.note(note))
            }

            /// A JSON object for programs, shown to others.
            pub fn metadata(self, metadata: Metadata) -> Self {
                Self(self.0.metadata(metadata))
            }

            /// The label others see.
            pub fn holder(self, holder: Holder) -> Self {
                Self(self.0.holder(holder))
            }

            /// Lets this instance's holder enter again.
            pub fn reentrant(self) -> Self {
                Self(self.0.reentrant())
            }

            /// The longest a guard may hold, renewed or not.
            pub fn max_hold(self, max_hold: Duration) -> Self {
                Self(self.0.max_hold(max_hold))
            }
        }
    )*};
}
pass_options!(Mutex, RwLock, Semaphore, All);

impl Blocking<crate::Mutex> {
    /// Waits for the lock.
    pub fn acquire(&self) -> Result<Guard> {
        wait(self.0.acquire()).map(Guard)
    }

    /// Takes the lock if it is free and nobody waits; `None` otherwise.
    pub fn try_acquire(&self) -> Result<Option<Guard>> {
        Ok(wait(self.0.try_acquire())?.map(Guard))
    }

    /// Does the work under the lock, and records it as failed if it fails.
    ///
    /// # Errors
    /// The work's own error, or one of this crate turned into it; `Lost` when
    /// the lock was lost although the work came to its end.
    pub fn with<T, E>(&self, work: impl FnOnce(&Guard) -> Result<T, E>) -> Result<T, E>
    where
        E: From<Error> + fmt::Display,
    {
        run_under(self.acquire()?, work)
    }

    /// The same if the lock is free; `None`, and no work done, otherwise.
    ///
    /// # Errors
    /// As for [`with`](Self::with).
    pub fn try_with<T, E>(&self, work: impl FnOnce(&Guard) -> Result<T, E>) -> Result<Option<T>, E>
    where
        E: From<Error> + fmt::Display,
    {
        self.try_acquire()?.map(|guard| run_under(guard, work)).transpose()
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

impl Blocking<crate::RwLock> {
    /// Waits to read.
    pub fn read(&self) -> Result<Guard> {
        wait(self.0.read()).map(Guard)
    }

    /// Waits to write.
    pub fn write(&self) -> Result<Guard> {
        wait(self.0.write()).map(Guard)
    }

    /// Reads if nobody writes or waits; `None` otherwise.
    pub fn try_read(&self) -> Result<Option<Guard>> {
        Ok(wait(self.0.try_read())?.map(Guard))
    }

    /// Writes if nobody holds or waits; `None` otherwise.
    pub fn try_write(&self) -> Result<Option<Guard>> {
        Ok(wait(self.0.try_write())?.map(Guard))
    }
}

impl Blocking<crate::Semaphore> {
    /// How many permits to take at once; 1 by default.
    pub fn permits(self, units: u32) -> Self {
        Self(self.0.permits(units))
    }

    /// Waits for the permits.
    pub fn acquire(&self) -> Result<Guard> {
        wait(self.0.acquire()).map(Guard)
    }

    /// Takes the permits if they are free and nobody waits; `None` otherwise.
    pub fn try_acquire(&self) -> Result<Option<Guard>> {
        Ok(wait(self.0.try_acquire())?.map(Guard))
    }

    /// Does the work under the permits; see the mutex's `with`.
    ///
    /// # Errors
    /// The work's own error, or one of this crate turned into it.
    pub fn with<T, E>(&self, work: impl FnOnce(&Guard) -> Result<T, E>) -> Result<T, E>
    where
        E: From<Error> + fmt::Display,
    {
        run_under(self.acquire()?, work)
    }
}

impl Blocking<crate::All> {
    /// Waits for all of them, within one `wait`.
    pub fn acquire(&self) -> Result<Guards> {
        wait(self.0.acquire()).map(Guards)
    }

    /// Takes all of them if all are free; `None`, and nothing taken, otherwise.
    pub fn try_acquire(&self) -> Result<Option<Guards>> {
        Ok(wait(self.0.try_acquire())?.map(Guards))
    }
}

impl Blocking<crate::Election> {
    /// Waits to lead, once. Releasing the guard resigns.
    pub fn campaign(&self) -> Result<Guard> {
        wait(self.0.campaign()).map(Guard)
    }

    /// Who leads now.
    pub fn leader(&self) -> Result<Option<crate::Leader>> {
        wait(self.0.leader())
    }
}

/// [`crate::Guard`], blocking: a lease that is held until it is given back.
#[derive(Debug)]
#[must_use = "the lease is given back as soon as the guard is dropped"]
pub struct Guard(crate::Guard);

impl Guard {
    /// Gives the lease back: the work is done.
    pub fn release(self) -> Result<Released> {
        wait(self.0.release())
    }

    /// Gives the lease back and records how the work ended.
    pub fn release_as(self, outcome: Outcome) -> Result<Released> {
        wait(self.0.release_as(outcome))
    }

    /// Moves the end to now + `ttl`.
    pub fn renew(&self, ttl: Duration) -> Result<()> {
        wait(self.0.renew(ttl))
    }

    /// Turns a write lock into a read lock, with no moment in between.
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

/// [`crate::Guards`], blocking: several leases that are held together.
#[derive(Debug)]
#[must_use = "the leases are given back as soon as the guards are dropped"]
pub struct Guards(crate::Guards);

impl Guards {
    /// Each of the leases, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = &Lease> {
        self.0.iter().map(crate::Guard::lease)
    }

    /// Fails if any of them is no longer held.
    pub fn check(&self) -> Result<()> {
        self.0.check()
    }

    /// Gives all of them back, the last taken first.
    pub fn release(self) -> Result<Released> {
        wait(self.0.release())
    }
}
