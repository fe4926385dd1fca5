//! One holder at a time.

use std::fmt;

use super::lock_options::{Detached, LockOptions, lock_options};
use crate::{
    Error, Leasehold, Result,
    engine::{Attempt, Guard, Lease},
    lease::Claim,
};

impl Leasehold {
    /// A lock for one holder at a time.
    pub fn mutex(&self, name: impl AsRef<str>) -> Mutex {
        Mutex::new(self, name.as_ref())
    }
}

/// A lock that one holder has at a time, on every machine that shares the backend.
///
/// A mutex *is* the write side of [`RwLock`](crate::RwLock): `mutex(x)` and
/// `rwlock(x)` contend on one lock.
///
/// # Promise
/// At most one guard believes it holds, as long as clocks run at rates that
/// differ by less than the margin (2 % of the ttl). Fences rise with every grant.
///
/// # Fairness
/// First come, first served; [`try_acquire`](Self::try_acquire) never goes before those who wait.
///
/// # Which one should you use?
/// Where the data to protect is one row of one database, a row lock or a
/// unique key is simpler. Where several may work at once, see
/// [`Semaphore`](crate::Semaphore); where most only read, [`RwLock`](crate::RwLock).
///
/// # Examples
/// ```
/// # use leasehold::Leasehold;
/// # async fn example() -> leasehold::Result<()> {
/// let locks = Leasehold::connect("memory:").await?;
///
/// let guard = locks.mutex("order:42").acquire().await?;
/// // … charge the card, sending guard.fence() along …
/// guard.release().await?;
///
/// if let Some(guard) = locks.mutex("cron:daily-cleanup").try_acquire().await? {
///     // … nobody else is doing it …
///     guard.release().await?;
/// }
/// # Ok(()) }
/// # leasehold::blocking::wait(example()).unwrap();
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing happens until it is acquired"]
pub struct Mutex {
    options: LockOptions,
}

impl Mutex {
    pub(crate) fn new(locks: &Leasehold, name: &str) -> Self {
        Self { options: LockOptions::new(locks, name) }
    }

    lock_options!();

    /// Waits for the lock.
    ///
    /// # Errors
    /// `WaitElapsed` after `wait`, naming who holds it; `Busy` if `wait` is zero.
    ///
    /// # Cancel safety
    /// Dropping the future leaves no lease and no queue position behind.
    pub async fn acquire(&self) -> Result<Guard> {
        self.options.acquire(Claim::EXCLUSIVE).await
    }

    /// Takes the lock if it is free and nobody waits; `None` otherwise.
    pub async fn try_acquire(&self) -> Result<Option<Guard>> {
        self.options.try_acquire(Claim::EXCLUSIVE).await
    }

    /// The same, also telling who is in the way.
    pub async fn try_acquire_or_busy(&self) -> Result<Attempt> {
        self.options.attempt(Claim::EXCLUSIVE).await
    }

    /// Does the work under the lock, and records it as failed if it fails.
    ///
    /// # When you lose it
    /// The work's future is dropped at its next await and the call fails with
    /// `Lost`, before a ttl backend can grant the lock to another.
    ///
    /// # Errors
    /// The work's own error, or one of this crate turned into it.
    ///
    /// ```
    /// # use leasehold::Leasehold;
    /// # async fn example() -> leasehold::Result<()> {
    /// # let locks = Leasehold::connect("memory:").await?;
    /// let report = locks
    ///     .mutex("daily-report")
    ///     .with(async |lease| {
    ///         lease.check()?; // before each write
    ///         Ok::<_, leasehold::Error>("42 orders")
    ///     })
    ///     .await?;
    /// assert_eq!(report, "42 orders");
    /// # Ok(()) }
    /// # leasehold::blocking::wait(example()).unwrap();
    /// ```
    pub async fn with<T, E>(&self, work: impl AsyncFnOnce(Lease) -> Result<T, E>) -> Result<T, E>
    where
        E: From<Error> + fmt::Display,
    {
        self.options.with(Claim::EXCLUSIVE, work).await
    }

    /// The same if the lock is free; `None`, and no work done, otherwise.
    ///
    /// # Errors
    /// As for [`with`](Self::with).
    pub async fn try_with<T, E>(&self, work: impl AsyncFnOnce(Lease) -> Result<T, E>) -> Result<Option<T>, E>
    where
        E: From<Error> + fmt::Display,
    {
        self.options.try_with(Claim::EXCLUSIVE, work).await
    }

    /// Gets a lease that lives by its ttl alone, to be handed to another process.
    pub async fn acquire_detached(&self) -> Result<Detached> {
        self.options.detached(Claim::EXCLUSIVE).await
    }

    /// The same without waiting; `None` when busy.
    pub async fn try_acquire_detached(&self) -> Result<Option<Detached>> {
        self.options.try_detached(Claim::EXCLUSIVE).await
    }
}
