//! What trials of whole programs share: locks on a fixture, and what is left on it.

use std::{future::Future, sync::Arc, time::Duration};

use leasehold::{
    Error, Guard, Leasehold, Result,
    backend::Backend,
    lease::{EndedLease, HistoryFilter, LeaseState, ListFilter, Names},
};
use tokio::time;

use super::{Trial, TrialContext};
use crate::instance::{SOON, resource};

impl TrialContext {
    /// A program's own instance on the storage of the trial.
    pub(crate) async fn locks(&self) -> Leasehold {
        locks_on(self.fixture.instance().await)
    }
}

/// A program on this backend.
pub(crate) fn locks_on(backend: Arc<dyn Backend>) -> Leasehold {
    Leasehold::builder().wait(SOON).open(backend).expect("an engine")
}

/// The three ways to have something alone.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Way {
    Mutex,
    WriteLock,
    Semaphore,
}

impl Way {
    /// The same trial in each way.
    pub(crate) fn each<F>(name: &str, run: fn(TrialContext, Self) -> F) -> Vec<Trial>
    where
        F: Future<Output = ()> + 'static,
    {
        let ways = [("mutex", Self::Mutex), ("write lock", Self::WriteLock), ("semaphore of 1", Self::Semaphore)];
        ways.into_iter()
            .map(|(word, way)| Trial::of(format!("{name} [{word}]"), move |context| run(context, way)))
            .collect()
    }

    pub(crate) async fn acquire(self, locks: &Leasehold, name: &str) -> Result<Guard> {
        self.acquire_within(locks, name, SOON).await
    }

    pub(crate) async fn acquire_within(self, locks: &Leasehold, name: &str, wait: Duration) -> Result<Guard> {
        match self {
            Self::Mutex => locks.mutex(name).wait(wait).acquire().await,
            Self::WriteLock => locks.write(name).wait(wait).acquire().await,
            Self::Semaphore => locks.semaphore(name, 1).wait(wait).acquire().await,
        }
    }

    /// Tries again while the outcome is unknown: on a busy machine, a server may answer after the limit of a try.
    pub(crate) async fn try_acquire(self, locks: &Leasehold, name: &str) -> Result<Option<Guard>> {
        let lock = match self {
            Self::Mutex => locks.mutex(name),
            Self::WriteLock => locks.write(name),
            Self::Semaphore => locks.semaphore(name, 1),
        };
        let mut tries_left = 5;
        loop {
            let answer = lock.try_acquire().await;
            tries_left -= 1;
            if tries_left == 0 || !answer.as_ref().is_err_and(Error::outcome_unknown) {
                return answer;
            }
        }
    }
}

/// How many leases hold or wait, of all names.
pub(crate) async fn left(locks: &Leasehold) -> usize {
    locks.list(&ListFilter::new(Names::All)).await.expect("a list").leases.len()
}

/// How many wait for this name.
pub(crate) async fn waiting(locks: &Leasehold, name: &str) -> usize {
    let page = locks.list(&ListFilter::new(Names::Exactly(resource(name)))).await.expect("a list");
    page.leases.iter().filter(|lease| matches!(lease.state, LeaseState::Waiting { .. })).count()
}

/// What ended on this name, newest first.
pub(crate) async fn history(locks: &Leasehold, name: &str) -> Vec<EndedLease> {
    locks.history(&HistoryFilter::new(Names::Exactly(resource(name)))).await.expect("a history")
}

/// Waits for what other tasks bring about, within bounds.
pub(crate) async fn soon(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let come_true = async {
        while !holds().await {
            time::sleep(Duration::from_millis(2)).await;
        }
    };
    time::timeout(SOON, come_true).await.unwrap_or_else(|_| panic!("not within {SOON:?}: {what}"));
}
