//! The way from one client to one node: slow, lossy, and cut now and then.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use leasehold::{
    Error, Fence, Resource, Result,
    backend::{Answer, Backend, Decision, EventStream, Finding, Guarantees, Hints, Inspect, Renewal, Request},
    lease::{EndedLease, Evicted, HistoryFilter, LeaseKey, LeasePage, ListFilter, Names, Outcome, Released, Standing},
};
use leasehold_testkit::Dice;
use parking_lot::Mutex;

use crate::simulated_node::SimulatedNode;

/// The way from one client to one node.
pub(crate) struct Link {
    node: Arc<SimulatedNode>,
    dice: Mutex<Dice>,
    cut: AtomicBool,
}

impl Link {
    pub(crate) fn new(node: &Arc<SimulatedNode>, seed: u64) -> Arc<Self> {
        Arc::new(Self { node: Arc::clone(node), dice: Mutex::new(Dice::new(seed)), cut: AtomicBool::new(false) })
    }

    pub(crate) fn cut(&self, cut: bool) {
        self.cut.store(cut, Ordering::SeqCst);
    }

    /// What happens to one call: on the way there, and on the way back.
    async fn pass<T>(&self, work: impl AsyncFnOnce() -> Result<Answer<T>>) -> Result<Answer<T>> {
        if self.cut.load(Ordering::SeqCst) {
            return Err(Error::unavailable("cut"));
        }
        let (there, back, lost_there, lost_back) = {
            let mut dice = self.dice.lock();
            // Some answers come after the node's limit, and some requests are done after it.
            let slow = |dice: &mut Dice| match dice.below(100) {
                0..2 => dice.millis(80),
                2..15 => dice.millis(5),
                _ => Duration::ZERO,
            };
            (slow(&mut dice), slow(&mut dice), dice.percent(2), dice.percent(2))
        };
        if !there.is_zero() {
            tokio::time::sleep(there).await;
        }
        if lost_there {
            return Err(Error::unanswered("the request was lost"));
        }
        let answer = self.node.disguise(work().await?);
        if !back.is_zero() {
            tokio::time::sleep(back).await;
        }
        if lost_back {
            return Err(Error::unanswered("the reply was lost"));
        }
        Ok(answer)
    }
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link").finish_non_exhaustive()
    }
}

#[async_trait]
impl Backend for Link {
    fn guarantees(&self) -> Guarantees {
        self.node.backend().guarantees()
    }

    fn hints(&self) -> Hints {
        self.node.hints.subscribe()
    }

    async fn acquire(&self, request: &Request) -> Result<Answer<Decision>> {
        self.pass(async || self.node.acquire(request).await).await
    }

    async fn renew(&self, renewals: &[Renewal]) -> Result<Answer<Vec<Standing>>> {
        self.pass(async || self.node.renew(renewals).await).await
    }

    async fn release(&self, key: &LeaseKey, outcome: &Outcome) -> Result<Answer<Released>> {
        self.pass(async || self.node.backend().release(key, outcome).await).await
    }

    fn age(&self) -> Option<Duration> {
        Some(self.node.age())
    }
}

#[async_trait]
impl Inspect for Link {
    async fn evict(&self, resource: &Resource, expected: Fence, reason: &str) -> Result<Evicted> {
        self.node.backend().evict(resource, expected, reason).await
    }

    async fn list(&self, filter: &ListFilter) -> Result<LeasePage> {
        self.node.backend().list(filter).await
    }

    async fn history(&self, filter: &HistoryFilter) -> Result<Vec<EndedLease>> {
        self.node.backend().history(filter).await
    }

    async fn watch(&self, names: Names) -> Result<EventStream> {
        self.node.backend().watch(names).await
    }

    async fn examine(&self) -> Result<Vec<Finding>> {
        self.node.backend().examine().await
    }
}
