//! So many holders at a time.

use std::fmt;

use super::lock_options::{Detached, LockOptions, lock_options};
use crate::{
    Error, Leasehold, Result,
    engine::{Attempt, Guard, Lease},
    lease::Claim,
};

impl Leasehold {
    /// A limit of `limit` permits.
    pub fn semaphore(&self, name: impl AsRef<str>, limit: u32) -> Semaphore {
        Semaphore::new(self, name.as_ref(), limit)
    }
}

/// A limit on how many work at once, each permit with a lease of its own.
///
/// All who use one name must agree on its limit: two deploys that disagree
/// find out by an error that names both.
///
/// # Fairness
/// First come, first served, by weight: one who asks for many permits is not
/// overtaken by those who ask for few.
///
/// # Examples
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
#[derive(Clone, Debug)]
#[must_use = "nothing happens until it is acquired"]
pub struct Semaphore {
    options: LockOptions,
    units: u32,
    limit: u32,
}

impl Semaphore {
    pub(crate) fn new(locks: &Leasehold, name: &str, limit: u32) -> Self {
        Self { options: LockOptions::new(locks, name), units: 1, limit }
    }

    lock_options!();

    /// How many permits to take at once; 1 by default.
    pub fn permits(mut self, units: u32) -> Self {
        self.units = units;
        self
    }

    fn claim(&self) -> Result<Claim> {
        Claim::permits(self.units, self.limit)
    }

    /// Waits for the permits.
    ///
    /// # Errors
    /// `WaitElapsed` after `wait`; `ShapeMismatch` if others use another limit.
    ///
    /// # Cancel safety
    /// Dropping the future leaves no lease and no queue position behind.
    pub async fn acquire(&self) -> Result<Guard> {
        self.options.acquire(self.claim()?).await
    }

    /// Takes the permits if they are free and nobody waits; `None` otherwise.
    pub async fn try_acquire(&self) -> Result<Option<Guard>> {
        self.options.try_acquire(self.claim()?).await
    }

    /// The same, also telling who is in the way.
    pub async fn try_acquire_or_busy(&self) -> Result<Attempt> {
        self.options.attempt(self.claim()?).await
    }

    /// Does the work under the permits; see [`Mutex::with`](crate::Mutex::with).
    ///
    /// # Errors
    /// The work's own error, or one of this crate turned into it.
    pub async fn with<T, E>(&self, work: impl AsyncFnOnce(Lease) -> Result<T, E>) -> Result<T, E>
    where
        E: From<Error> + fmt::Display,
    {
        self.options.with(self.claim()?, work).await
    }

    /// The same if the permits are free; `None`, and no work done, otherwise.
    ///
    /// # Errors
    /// As for [`with`](Self::with).
    pub async fn try_with<T, E>(&self, work: impl AsyncFnOnce(Lease) -> Result<T, E>) -> Result<Option<T>, E>
    where
        E: From<Error> + fmt::Display,
    {
        self.options.try_with(self.claim()?, work).await
    }

    /// Gets permits that live by their ttl alone, to be handed to another process.
    pub async fn acquire_detached(&self) -> Result<Detached> {
        self.options.detached(self.claim()?).await
    }

    /// The same without waiting; `None` when busy.
    pub async fn try_acquire_detached(&self) -> Result<Option<Detached>> {
        self.options.try_detached(self.claim()?).await
    }
}
