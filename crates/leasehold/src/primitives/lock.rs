//! One lock: a mutex, one side of a read-write lock, or permits of a semaphore.

use std::fmt;

use super::lock_options::{DetachedLease, LockOptions, lock_options, sharing_option};
use crate::{
    Error, Leasehold, Result,
    engine::{Attempt, Guard, Lease},
    lease::Claim,
};

impl Leasehold {
    /// Returns a lock for one holder at a time; [`write`](Self::write) does the same.
    ///
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
    pub fn mutex(&self, name: impl AsRef<str>) -> Lock {
        Lock::new(self, name.as_ref(), LockKind::Exclusive)
    }

    /// Returns the read side of a read-write lock: many readers at a time, no writer.
    ///
    /// A waiting writer blocks later readers, so that it does not starve. Consecutive readers in the queue are admitted
    /// together.
    ///
    /// ```
    /// # use leasehold::Leasehold;
    /// # async fn example() -> leasehold::Result<()> {
    /// let locks = Leasehold::connect("memory:").await?;
    ///
    /// let reader = locks.read("config").acquire().await?;
    /// let another = locks.read("config").acquire().await?;
    /// # reader.release().await?;
    /// # another.release().await?;
    ///
    /// let writer = locks.write("config").acquire().await?;
    /// // … write …
    /// writer.downgrade().await?; // a read lock from now on: others can read, too
    /// writer.release().await?;
    /// # Ok(()) }
    /// # leasehold::blocking::wait(example()).unwrap();
    /// ```
    pub fn read(&self, name: impl AsRef<str>) -> Lock {
        Lock::new(self, name.as_ref(), LockKind::Shared)
    }

    /// Returns the write side of a read-write lock: one writer at a time, no reader.
    ///
    /// This is the same lock as [`mutex`](Self::mutex) of that name.
    pub fn write(&self, name: impl AsRef<str>) -> Lock {
        Lock::new(self, name.as_ref(), LockKind::Exclusive)
    }

    /// Returns a lock on one of the `limit` permits of a semaphore.
    ///
    /// [`Lock::permits`] takes several at once. Each holder has its own lease.
    ///
    /// All users of a name must agree on its limit. A request with another limit fails with an error that names both.
    ///
    /// ```
    /// # use leasehold::Leasehold;
    /// # async fn example() -> leasehold::Result<()> {
    /// let locks = Leasehold::connect("memory:").await?;
    ///
    /// // at most 10 calls to the external API, from all machines together
    /// let permit = locks.semaphore("api:external", 10).acquire().await?;
    /// // … call it …
    /// permit.release().await?;
    ///
    /// // a heavy job takes four permits at once
    /// let permits = locks.semaphore("gpu", 8).permits(4).acquire().await?;
    /// # permits.release().await?;
    /// # Ok(()) }
    /// # leasehold::blocking::wait(example()).unwrap();
    /// ```
    pub fn semaphore(&self, name: impl AsRef<str>, limit: u32) -> Lock {
        Lock::new(self, name.as_ref(), LockKind::Permits { limit })
    }
}

/// A mutex, one side of a read-write lock, or permits of a semaphore.
///
/// All machines that use the same backend share the lock. [`Leasehold::mutex`],
/// [`read`](Leasehold::read), [`write`](Leasehold::write) and
/// [`semaphore`](Leasehold::semaphore) create one.
///
/// # Promise
/// At any time, no more guards are valid than the lock allows. This holds as long as
/// the clocks of client and backend run at rates that differ by less than the safety
/// margin, which is 2 % of the ttl. Fences rise with every grant.
///
/// # Fairness
/// Waiters are served in order, except on `redlock:`. [`try_acquire`](Self::try_acquire) does not overtake waiters, nor
/// does a small request for permits overtake a large one.
///
/// # When to use something else
/// If you protect one row of one database, a row lock or a unique key is simpler.
#[derive(Clone, Debug)]
#[must_use = "nothing happens until it is acquired"]
pub struct Lock {
    pub(crate) options: LockOptions,
    kind: LockKind,
    permits: Option<u32>,
}

#[derive(Clone, Copy, Debug)]
enum LockKind {
    Exclusive,
    Shared,
    Permits { limit: u32 },
}

impl Lock {
    fn new(locks: &Leasehold, name: &str, kind: LockKind) -> Self {
        Self { options: LockOptions::new(locks, name), kind, permits: None }
    }

    lock_options!(self => self.options);
    sharing_option!(self => self.options);

    /// Sets how many permits to take at once; 1 by default.
    pub fn permits(mut self, permits: u32) -> Self {
        self.permits = Some(permits);
        self
    }

    fn claim(&self) -> Result<Claim> {
        match self.kind {
            LockKind::Permits { limit } => Claim::permits(self.permits.unwrap_or(1), limit),
            LockKind::Exclusive | LockKind::Shared if self.permits.is_some() => {
                Err(Error::invalid_config("only a semaphore has permits: use semaphore(name, limit)"))
            }
            LockKind::Exclusive => Ok(Claim::EXCLUSIVE),
            LockKind::Shared => Ok(Claim::SHARED),
        }
    }

    /// Waits for the lock.
    ///
    /// # Errors
    /// `WaitElapsed` after `wait`, naming who holds the lock; `Busy` if the lock is not free and `wait` is zero, or if
    /// more than `max_waiters` are ahead; `ShapeMismatch` if the name is in use for another kind of lock, or for a
    /// semaphore with another limit.
    ///
    /// # Cancel safety
    /// Dropping the future leaves no lease and no queue position behind.
    pub async fn acquire(&self) -> Result<Guard> {
        self.options.acquire(self.claim()?).await
    }

    /// Takes the lock if it is free and nobody waits for it; returns `None` otherwise.
    pub async fn try_acquire(&self) -> Result<Option<Guard>> {
        self.options.try_acquire(self.claim()?).await
    }

    /// Like [`try_acquire`](Self::try_acquire), but returns who holds the lock if it is busy.
    pub async fn try_acquire_or_busy(&self) -> Result<Attempt> {
        self.options.attempt(self.claim()?).await
    }

    /// Runs `work` under the lock. If `work` fails, the failure is recorded in the lock's history.
    ///
    /// # When the lock is lost
    /// The future of `work` is dropped at its next await point and the call fails with
    /// `Lost`, before a backend with a ttl can grant the lock to another holder.
    ///
    /// # Errors
    /// The error that `work` returned, or an error of this crate converted to `E`.
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
        self.options.with(self.claim()?, work).await
    }

    /// Like [`with`](Self::with) if the lock is free. Otherwise it returns `None` without running `work`.
    ///
    /// # Errors
    /// As for [`with`](Self::with).
    pub async fn try_with<T, E>(&self, work: impl AsyncFnOnce(Lease) -> Result<T, E>) -> Result<Option<T>, E>
    where
        E: From<Error> + fmt::Display,
    {
        self.options.try_with(self.claim()?, work).await
    }

    /// Waits for the lock and returns a lease that can be handed to another process.
    ///
    /// The lease is neither renewed nor released automatically. It survives the end of this process until its ttl runs out.
    pub async fn acquire_detached(&self) -> Result<DetachedLease> {
        self.options.detached(self.claim()?).await
    }

    /// Like [`acquire_detached`](Self::acquire_detached) without waiting; returns `None` if the lock is busy.
    pub async fn try_acquire_detached(&self) -> Result<Option<DetachedLease>> {
        self.options.try_detached(self.claim()?).await
    }
}
