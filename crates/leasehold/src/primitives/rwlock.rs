//! Many readers or one writer.

use std::fmt;

use super::lock_options::{Detached, LockOptions, lock_options};
use crate::{
    Error, Leasehold, Result,
    engine::{Attempt, Guard, Lease},
    lease::Claim,
};

impl Leasehold {
    /// A lock for many readers or one writer.
    pub fn rwlock(&self, name: impl AsRef<str>) -> RwLock {
        RwLock::new(self, name.as_ref())
    }
}

/// A lock that many readers or one writer have at a time.
///
/// # Fairness
/// First come, first served, for readers and writers alike: a writer who waits
/// stops later readers, so nobody starves. Readers who follow each other in the
/// queue come in together.
///
/// # Examples
/// ```
/// # use leasehold::Leasehold;
/// # async fn example() -> leasehold::Result<()> {
/// let locks = Leasehold::connect("memory:").await?;
///
/// let reading = locks.rwlock("config").read().await?;
/// let reading_too = locks.rwlock("config").read().await?;
/// # reading.release().await?;
/// # reading_too.release().await?;
///
/// let writing = locks.rwlock("config").write().await?;
/// // … write …
/// writing.downgrade().await?; // now others may read what we go on reading
/// writing.release().await?;
/// # Ok(()) }
/// # leasehold::blocking::wait(example()).unwrap();
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing happens until it is acquired"]
pub struct RwLock {
    options: LockOptions,
}

impl RwLock {
    pub(crate) fn new(locks: &Leasehold, name: &str) -> Self {
        Self { options: LockOptions::new(locks, name) }
    }

    lock_options!();

    /// Waits to read.
    ///
    /// # Errors
    /// `WaitElapsed` after `wait`, naming who holds it.
    ///
    /// # Cancel safety
    /// Dropping the future leaves no lease and no queue position behind.
    pub async fn read(&self) -> Result<Guard> {
        self.options.acquire(Claim::SHARED).await
    }

    /// Waits to write.
    ///
    /// # Errors
    /// `WaitElapsed` after `wait`, naming who holds it.
    ///
    /// # Cancel safety
    /// Dropping the future leaves no lease and no queue position behind.
    pub async fn write(&self) -> Result<Guard> {
        self.options.acquire(Claim::EXCLUSIVE).await
    }

    /// Reads if nobody writes or waits; `None` otherwise.
    pub async fn try_read(&self) -> Result<Option<Guard>> {
        self.options.try_acquire(Claim::SHARED).await
    }

    /// Writes if nobody holds or waits; `None` otherwise.
    pub async fn try_write(&self) -> Result<Option<Guard>> {
        self.options.try_acquire(Claim::EXCLUSIVE).await
    }

    /// [`try_read`](Self::try_read), also telling who is in the way.
    pub async fn try_read_or_busy(&self) -> Result<Attempt> {
        self.options.attempt(Claim::SHARED).await
    }

    /// [`try_write`](Self::try_write), also telling who is in the way.
    pub async fn try_write_or_busy(&self) -> Result<Attempt> {
        self.options.attempt(Claim::EXCLUSIVE).await
    }

    /// Does the work while reading; see [`Mutex::with`](crate::Mutex::with).
    ///
    /// # Errors
    /// The work's own error, or one of this crate turned into it.
    pub async fn read_with<T, E>(&self, work: impl AsyncFnOnce(Lease) -> Result<T, E>) -> Result<T, E>
    where
        E: From<Error> + fmt::Display,
    {
        self.options.with(Claim::SHARED, work).await
    }

    /// Does the work while writing; see [`Mutex::with`](crate::Mutex::with).
    ///
    /// # Errors
    /// The work's own error, or one of this crate turned into it.
    pub async fn write_with<T, E>(&self, work: impl AsyncFnOnce(Lease) -> Result<T, E>) -> Result<T, E>
    where
        E: From<Error> + fmt::Display,
    {
        self.options.with(Claim::EXCLUSIVE, work).await
    }

    /// Gets a read lease that lives by its ttl alone, to be handed to another process.
    pub async fn read_detached(&self) -> Result<Detached> {
        self.options.detached(Claim::SHARED).await
    }

    /// The same without waiting; `None` when busy.
    pub async fn try_read_detached(&self) -> Result<Option<Detached>> {
        self.options.try_detached(Claim::SHARED).await
    }
}
