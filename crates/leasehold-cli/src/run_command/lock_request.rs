//! The lock, or locks, that a command requests, checked before anything is touched.

use std::{cell::Cell, collections::BTreeSet, time::Duration};

use leasehold::{
    Guard, Leasehold, Lock, Outcome, Resource, Ttl,
    clock::{Clock, SystemClock},
    lease::{Claim, Mode, Moment},
};
use tokio::task::JoinSet;

use super::identity::Labels;
use crate::{
    args::AskArgs,
    error::{CommandError, Result},
};

/// One lease, or several, to be asked for.
#[derive(Clone, Debug)]
pub(crate) struct LockRequest {
    /// The lock that was named first.
    pub(crate) resource: Resource,
    /// All of them, in the order in which they are taken: sorted, so that two who want the same never deadlock.
    pub(crate) all: BTreeSet<Resource>,
    /// How much of each.
    pub(crate) claim: Claim,
    /// The length of the lease.
    pub(crate) ttl: Ttl,
    /// How long to wait.
    pub(crate) wait: WaitLimit,
    /// Since when: the time in which the server was not there counts.
    pub(crate) began: Moment,
    /// What others see of it.
    pub(crate) labels: Labels,
}

/// How long to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitLimit {
    /// Not at all.
    Try,
    /// At most this long.
    For(Duration),
    /// Until it is granted.
    Forever,
}

impl WaitLimit {
    /// What the flags say.
    pub(crate) fn of(args: &AskArgs) -> Self {
        match args.wait {
            _ if args.nonblock => Self::Try,
            Some(Duration::ZERO) => Self::Try,
            Some(wait) => Self::For(wait),
            None => Self::Forever,
        }
    }
}

/// The lock's name, checked.
pub(crate) fn resource(name: &str) -> Result<Resource> {
    Resource::new(name).map_err(CommandError::from)
}

/// A ttl given by flag.
pub(crate) fn ttl(given: Option<Duration>, config: Option<Duration>, usual: Ttl) -> Result<Ttl> {
    match (given, config) {
        (Some(ttl), _) => Ttl::new(ttl).map_err(|error| CommandError::by_flag("--ttl", error)),
        (None, Some(ttl)) => Ttl::new(ttl).map_err(CommandError::from),
        (None, None) => Ok(usual),
    }
}

/// How much is asked for.
pub(crate) fn claim(args: &AskArgs) -> Result<Claim> {
    match args.limit {
        Some(limit) => Claim::permits(args.permits, limit).map_err(|error| CommandError::by_flag("-j", error)),
        None if args.shared => Ok(Claim::SHARED),
        None => Ok(Claim::EXCLUSIVE),
    }
}

impl LockRequest {
    /// Gets all of them or none; `asked` names the one that is being requested.
    ///
    /// # Cancel safety
    /// Dropping the future leaves no lease and no place in a queue behind.
    pub(crate) async fn acquire<'a>(
        &'a self,
        locks: &Leasehold,
        asked: &Cell<&'a Resource>,
    ) -> leasehold::Result<Vec<Guard>> {
        let mut guards = Vec::new();
        for resource in &self.all {
            asked.set(resource);
            match self.lock(locks, resource).acquire().await {
                Ok(guard) => guards.push(guard),
                Err(error) => {
                    give_back(guards).await;
                    return Err(error);
                }
            }
        }
        Ok(guards)
    }

    /// Makes the lock of this name, with the options from the command line and the rest of the wait.
    fn lock(&self, locks: &Leasehold, name: &Resource) -> Lock {
        let lock = match self.claim.mode() {
            Mode::Shared => locks.read(name.as_str()),
            Mode::Permit => locks.semaphore(name.as_str(), self.claim.capacity()).permits(self.claim.units()),
            _ => locks.mutex(name.as_str()),
        };
        let mut lock = lock.ttl(self.ttl.get()).metadata(self.labels.metadata.clone());
        if let Some(note) = &self.labels.note {
            lock = lock.note(note);
        }
        match self.wait_left() {
            Some(wait) => lock.wait(wait),
            None => lock.wait_forever(),
        }
    }

    /// How long to go on waiting; `None` is for ever.
    fn wait_left(&self) -> Option<Duration> {
        match self.wait {
            WaitLimit::Try => Some(Duration::ZERO),
            // Never nothing: who gives up has waited, and the history says so.
            WaitLimit::For(wait) => {
                Some(wait.saturating_sub(SystemClock.now().since(self.began)).max(Duration::from_millis(1)))
            }
            WaitLimit::Forever => None,
        }
    }

    /// Gets a lease that ends with its ttl.
    ///
    /// # Cancel safety
    /// Dropping the future leaves no lease and no place in a queue behind.
    pub(crate) async fn acquire_detached(&self, locks: &Leasehold) -> leasehold::Result<leasehold::DetachedLease> {
        self.lock(locks, &self.resource).acquire_detached().await
    }
}

/// Releases locks that were taken before another could not be had, side by side: a server that does not answer must not
/// hold up the caller once for each.
async fn give_back(guards: Vec<Guard>) {
    let mut releases = JoinSet::new();
    for guard in guards {
        // The library logs a failure and tries again. The user has to learn why the other lock could not be had.
        releases.spawn(async move { drop(guard.release_as(Outcome::Cancelled).await) });
    }
    releases.join_all().await;
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use leasehold::{
        ErrorKind,
        backend::Backend,
        backends::memory::MemoryBackend,
        lease::{Ending, HistoryFilter, Names},
    };
    use leasehold_conformance::{BackendCall, Faulty};

    use super::*;

    #[tokio::test]
    async fn locks_given_back_because_another_is_busy_are_cancelled_and_the_busy_one_is_reported() {
        let memory = MemoryBackend::private(Arc::new(SystemClock));
        let others = Leasehold::builder().open(Arc::new(memory.sibling())).unwrap();
        let faulty = Faulty::new(Arc::new(memory));
        let locks = Leasehold::builder().open(Arc::clone(&faulty) as Arc<dyn Backend>).unwrap();
        let _busy = others.mutex("b").acquire().await.unwrap();
        faulty.drop_requests_of(BackendCall::Release, 1);
        let first = resource("a").unwrap();
        let request = LockRequest {
            all: BTreeSet::from([first.clone(), resource("b").unwrap()]),
            resource: first,
            claim: Claim::EXCLUSIVE,
            ttl: Ttl::DEFAULT,
            wait: WaitLimit::Try,
            began: SystemClock.now(),
            labels: Labels::default(),
        };
        let asked = Cell::new(&request.resource);
        let error = request.acquire(&locks, &asked).await.unwrap_err();
        assert_eq!((error.kind(), asked.get().as_str()), (ErrorKind::Busy, "b"), "{error:#}");
        let _released = others.mutex("a").acquire().await.unwrap();
        let history = others.history(&HistoryFilter::new(Names::All)).await.unwrap();
        let endings: Vec<_> = history.iter().map(|ended| (ended.resource.as_str(), ended.ending)).collect();
        assert!(endings.contains(&("a", Ending::Cancelled)), "{endings:?}");
    }
}
