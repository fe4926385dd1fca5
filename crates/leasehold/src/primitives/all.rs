//! Several locks, all or nothing.

use std::{
    collections::BTreeSet,
    future::{Future, poll_fn},
    pin::Pin,
    task::Poll,
};

use super::terms::{Terms, options};
use crate::{
    Leasehold, Result,
    engine::{Guard, Loss, Wait},
    lease::{Claim, Resource},
};

/// Several mutexes, taken all or none, in an order that cannot deadlock.
///
/// They are taken one after the other, sorted by name, so two callers who want
/// the same ones never wait for each other. A name given twice counts once.
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
    terms: Terms,
    names: Vec<String>,
}

impl All {
    pub(crate) fn new(locks: &Leasehold, names: Vec<String>) -> Self {
        Self { terms: Terms::new(locks, ""), names }
    }

    options!();

    /// Waits for all of them, within one `wait`.
    ///
    /// # Errors
    /// `WaitElapsed`, naming the lock that was not granted and who holds it; those taken before are given back.
    ///
    /// # Cancel safety
    /// Dropping the future leaves no lease and no place in a queue behind.
    pub async fn acquire(&self) -> Result<Guards> {
        let clock = &self.terms.locks.engine().clock;
        let started = clock.now();
        let mut guards = Guards(Vec::new());
        for name in self.sorted()? {
            let mut terms = self.terms.clone();
            terms.name = name.into();
            if let Wait::For(length) = self.terms.wait {
                terms.wait = Wait::For(length.saturating_sub(clock.now().since(started)));
            }
            match terms.acquire(Claim::EXCLUSIVE).await {
                Ok(guard) => guards.0.push(guard),
                Err(error) => {
                    guards.release().await?;
                    return Err(error);
                }
            }
        }
        Ok(guards)
    }

    /// Takes all of them if all are free; `None`, and nothing taken, otherwise.
    pub async fn try_acquire(&self) -> Result<Option<Guards>> {
        let mut guards = Guards(Vec::new());
        for name in self.sorted()? {
            let mut terms = self.terms.clone();
            terms.name = name.into();
            match terms.try_acquire(Claim::EXCLUSIVE).await {
                Ok(Some(guard)) => guards.0.push(guard),
                Ok(None) => {
                    guards.release().await?;
                    return Ok(None);
                }
                Err(error) => {
                    guards.release().await?;
                    return Err(error);
                }
            }
        }
        Ok(Some(guards))
    }

    fn sorted(&self) -> Result<BTreeSet<Resource>> {
        self.names.iter().map(Resource::new).collect()
    }
}

/// Several leases that are held together.
#[derive(Debug)]
#[must_use = "the leases are given back as soon as the guards are dropped"]
pub struct Guards(Vec<Guard>);

impl Guards {
    /// Each of them, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = &Guard> {
        self.0.iter()
    }

    /// Fails if any of them is no longer held.
    ///
    /// # Errors
    /// `Lost`, naming the first that is.
    pub fn check(&self) -> Result<()> {
        self.0.iter().try_for_each(|guard| guard.check())
    }

    /// Ends when any of them is lost, at once if one already is.
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

    /// Gives all of them back, the last taken first.
    ///
    /// # Errors
    /// The first failure; the others are given back all the same.
    pub async fn release(mut self) -> Result<()> {
        let mut failure = None;
        while let Some(guard) = self.0.pop() {
            if let Err(error) = guard.release().await {
                failure.get_or_insert(error);
            }
        }
        failure.map_or(Ok(()), Err)
    }
}
