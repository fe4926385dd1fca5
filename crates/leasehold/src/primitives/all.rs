//! Several locks, all or nothing.

use std::{
    collections::BTreeMap,
    fmt,
    future::{Future, poll_fn},
    pin::Pin,
    task::Poll,
    time::Duration,
};

use super::lock_options::{LockOptions, conclude, dropped, lock_options, outcome_of, sharing_option};
use crate::{
    Error, Leasehold, Result,
    engine::{Guard, Lease, Loss, Wait},
    lease::{Claim, Outcome, Released, Resource},
};

impl Leasehold {
    /// Returns a lock on several mutexes, which takes either all of them or none.
    pub fn all<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> All {
        All::new(self, names.into_iter().map(|name| name.as_ref().to_owned()).collect())
    }
}

/// Several mutexes that are taken together: either all of them or none.
///
/// They are taken one by one, sorted by name, so two callers that want the same
/// locks cannot deadlock. A name that is given twice counts once.
///
/// # Examples
/// ```
/// # use leasehold::Leasehold;
/// # async fn example() -> leasehold::Result<()> {
/// let locks = Leasehold::connect("memory:").await?;
/// let both = locks.all(["account:b", "account:a"]).acquire().await?;
/// // … move the money, checking both.check()? before each write …
/// both.release().await?;
/// # Ok(()) }
/// # leasehold::blocking::wait(example()).unwrap();
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing happens until they are acquired"]
pub struct All {
    pub(crate) options: LockOptions,
    names: Vec<String>,
}

impl All {
    pub(crate) fn new(locks: &Leasehold, names: Vec<String>) -> Self {
        Self { options: LockOptions::new(locks, ""), names }
    }

    lock_options!(self => self.options);
    sharing_option!(self => self.options);

    /// Waits for all the locks; `wait` limits the total time.
    ///
    /// # Errors
    /// `WaitElapsed`, naming the lock that was not granted and who holds it. The locks that were already taken are
    /// released.
    ///
    /// # Cancel safety
    /// Dropping the future leaves no lease and no queue position behind.
    pub async fn acquire(&self) -> Result<Guards> {
        Guards::acquire(&self.options, self.claims()?).await
    }

    /// Takes all the locks if all are free; otherwise takes none and returns `None`.
    pub async fn try_acquire(&self) -> Result<Option<Guards>> {
        Guards::try_acquire(&self.options, self.claims()?).await
    }

    /// Runs `work` while all the locks are held. If `work` fails, the failure is recorded in their history.
    ///
    /// `work` gets the leases sorted by name. See [`Lock::with`](crate::Lock::with).
    ///
    /// # Errors
    /// The error that `work` returned, or an error of this crate converted to `E`.
    pub async fn with<T, E>(&self, work: impl AsyncFnOnce(Vec<Lease>) -> Result<T, E>) -> Result<T, E>
    where
        E: From<Error> + fmt::Display,
    {
        let mut guards = self.acquire().await?;
        guards.0 = guards.0.into_iter().map(|guard| guard.if_dropped(dropped)).collect();
        let leases: Vec<Lease> = guards.iter().map(|guard| guard.lease().clone()).collect();
        let Some(first) = leases.first().cloned() else { return Err(nothing_to_lock().into()) };
        let done = tokio::select! {
            biased;
            _loss = guards.lost() => {
                let lost = leases.iter().find(|lease| lease.loss().is_some()).unwrap_or(&first);
                return Err(lost.lost_error().into());
            }
            done = work(leases.clone()) => done,
        };
        let released = guards.release_as(outcome_of(&done)).await;
        let lost = leases.iter().find(|lease| lease.end_reason().is_some_and(|reason| reason != Loss::Released));
        conclude(done, released, lost.unwrap_or(&first))
    }

    fn claims(&self) -> Result<BTreeMap<Resource, Claim>> {
        if self.names.is_empty() {
            return Err(nothing_to_lock());
        }
        self.names.iter().map(|name| Ok((Resource::new(name)?, Claim::EXCLUSIVE))).collect()
    }
}

fn nothing_to_lock() -> Error {
    Error::invalid_config("all() needs at least one name: without any, nothing is locked")
}

/// Several leases that are held together.
#[derive(Debug)]
#[must_use = "the leases are released as soon as the guards are dropped"]
pub struct Guards(Vec<Guard>);

impl Guards {
    /// Waits for all these claims, one by one in the order of their names; `options.wait` limits the total time.
    pub(super) async fn acquire(options: &LockOptions, claims: BTreeMap<Resource, Claim>) -> Result<Self> {
        let clock = &options.locks.engine().clock;
        let started = clock.now();
        let mut guards = Self(Vec::new());
        for (name, claim) in claims {
            let mut one = LockOptions { resource: name, ..options.clone() };
            if let Wait::For(length) = options.wait
                && !length.is_zero()
            {
                // Never zero, which would mean not to wait at all.
                let left = length.saturating_sub(clock.now().since(started));
                one.wait = Wait::For(left.max(Duration::from_millis(1)));
            }
            match one.acquire(claim).await {
                Ok(guard) => guards.0.push(guard),
                Err(error) => return Err(guards.give_up(error).await),
            }
        }
        // The first may have been lost during the wait for the last.
        guards.checked().await
    }

    /// Takes all these claims if all their resources are free; otherwise takes none and returns `None`.
    pub(super) async fn try_acquire(options: &LockOptions, claims: BTreeMap<Resource, Claim>) -> Result<Option<Self>> {
        let mut guards = Self(Vec::new());
        for (name, claim) in claims {
            let one = LockOptions { resource: name, ..options.clone() };
            match one.try_acquire(claim).await {
                Ok(Some(guard)) => guards.0.push(guard),
                Ok(None) => {
                    guards.undo().await;
                    return Ok(None);
                }
                Err(error) => return Err(guards.give_up(error).await),
            }
        }
        guards.checked().await.map(Some)
    }

    async fn checked(self) -> Result<Self> {
        match self.check() {
            Ok(()) => Ok(self),
            Err(error) => Err(self.give_up(error).await),
        }
    }

    /// Returns the guards, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = &Guard> {
        self.0.iter()
    }

    /// Fails if any of the leases is no longer held.
    ///
    /// # Errors
    /// `Lost`, naming the lost lock; if several are lost, the first by name.
    pub fn check(&self) -> Result<()> {
        self.0.iter().try_for_each(|guard| guard.check())
    }

    /// Completes when any lease is lost or released; at once if one already is.
    ///
    /// # Cancel safety
    /// May be dropped and called again: a loss is never missed.
    pub async fn lost(&self) -> Loss {
        let mut losses: Vec<Pin<Box<dyn Future<Output = Loss> + Send + '_>>> =
            self.0.iter().map(|guard| Box::pin(guard.lost()) as _).collect();
        poll_fn(|context| {
            losses
                .iter_mut()
                .find_map(|loss| match loss.as_mut().poll(context) {
                    Poll::Ready(loss) => Some(loss),
                    Poll::Pending => None,
                })
                .map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    /// Releases all the leases, in reverse order of their names.
    ///
    /// Returns [`Released::Gone`] if one of the leases was lost earlier.
    ///
    /// # Errors
    /// The first failure; the other leases are still released.
    pub async fn release(self) -> Result<Released> {
        self.release_as(Outcome::Completed).await
    }

    /// Releases all the leases and records how the work ended.
    ///
    /// # Errors
    /// As for [`release`](Self::release).
    pub async fn release_as(mut self, outcome: Outcome) -> Result<Released> {
        let (mut released, mut failure) = (Released::Freed, None);
        while let Some(guard) = self.0.pop() {
            match guard.release_as(outcome.clone()).await {
                Ok(Released::Gone) => released = Released::Gone,
                Ok(_) => {}
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        failure.map_or(Ok(released), Err)
    }

    /// Releases the locks taken before one failed. The caller gets the failure, so an error here is only logged.
    async fn give_up(self, error: Error) -> Error {
        self.undo().await;
        error
    }

    /// Releases locks that were taken in vain. If that fails, the rest is released in the background: a backend that
    /// does not answer must not hold up the caller once for each lock.
    async fn undo(mut self) {
        while let Some(guard) = self.0.pop() {
            if let Err(error) = guard.release_as(Outcome::Cancelled).await {
                tracing::warn!(error = format_args!("{error:#}"), "could not release what was taken before");
                self.0.drain(..).for_each(|guard| guard.abandon(Outcome::Cancelled));
            }
        }
    }
}
