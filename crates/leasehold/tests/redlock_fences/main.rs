//! Fences of a quorum never repeat and never fall, whatever happens between clients and nodes.
//!
//! A seeded simulation: five nodes with clocks that are off, six clients with
//! clocks that are off, expiry at any moment, slow and lost messages, links that
//! are cut, callers that go away, nodes that are restarted and forget all. The
//! same simulation must catch the protocol when a part of it is taken away.
#![cfg(all(feature = "memory", feature = "redlock"))]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod link;
mod simulated_node;
mod verdict;

use std::{sync::Arc, thread, time::Duration};

use leasehold::{
    Fence, Holder, Resource, Ttl,
    backend::{Backend, Decision, Patience, Renewal, Request},
    backends::redlock::{RedlockBackend, RedlockNode, RedlockOptions},
    clock::Clock,
    lease::{Claim, LeaseId, LeaseKey, Outcome, Standing},
};
use leasehold_testkit::Dice;
use link::Link;
use simulated_node::{SimClock, SimulatedNode, Variant};
use verdict::{Ledger, Until, Verdict};

const NODES: usize = 5;
const CLIENTS: u64 = 4;
const RESOURCES: u64 = 6;
const TTL: Duration = Duration::from_millis(150);
/// The shortest there is: 11 s for a ttl this short.
const QUARANTINE: Duration = Duration::from_secs(11);
/// By how many milliseconds the nodes' clocks are off. Two are so far ahead that they answer with
/// fences above what is proposed: that is what makes the second phase necessary.
const CLOCKS_OFF: [i64; NODES] = [2500, 300, -200, -1200, 1700];

/// A broken protocol is caught long before, within some 40,000 acquisitions.
const FAR_BEYOND: usize = 500_000;

fn simulate(variant: Variant, seed: u64, until: Until) -> Verdict {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let mut dice = Dice::new(seed);
        let turned = usize::try_from(dice.below(NODES as u64)).unwrap();
        let node = |at: usize| SimulatedNode::new(variant, CLOCKS_OFF[(at + turned) % NODES] * 1000);
        let nodes: Vec<Arc<SimulatedNode>> = (0..NODES).map(node).collect();
        let ledger = Arc::new(Ledger::new(until));
        let mut tasks = tokio::task::JoinSet::new();
        for client in 0..CLIENTS {
            let links = nodes.iter().map(|node| Link::new(node, dice.next())).collect::<Vec<_>>();
            let off = i64::try_from(dice.below(10_000_000)).unwrap() - 5_000_000;
            let client = Client::new(client, links, SimClock::new(off), dice.next(), Arc::clone(&ledger));
            tasks.spawn(client.run());
        }
        tasks.spawn(trouble(nodes, dice.next()));
        let verdict = ledger.complete().await;
        tasks.abort_all();
        verdict
    })
}

/// Expires what a node has, and restarts nodes: never so many that no majority may vote.
async fn trouble(nodes: Vec<Arc<SimulatedNode>>, seed: u64) {
    let mut dice = Dice::new(seed);
    loop {
        tokio::time::sleep(dice.millis(40)).await;
        let at = usize::try_from(dice.below(NODES as u64)).unwrap();
        let young = nodes.iter().filter(|node| node.is_young(QUARANTINE)).count();
        if dice.below(1000) < 5 && young < NODES / 2 {
            nodes[at].restart();
        } else {
            nodes[at].clock.leap(TTL);
        }
    }
}

struct Client {
    quorum: RedlockBackend,
    links: Vec<Arc<Link>>,
    clock: Arc<SimClock>,
    dice: Dice,
    holder: Holder,
    ledger: Arc<Ledger>,
}

impl Client {
    fn new(number: u64, links: Vec<Arc<Link>>, clock: Arc<SimClock>, seed: u64, ledger: Arc<Ledger>) -> Self {
        Self {
            quorum: quorum(&links, &clock),
            links,
            clock,
            dice: Dice::new(seed),
            holder: Holder::new(format!("client-{number}")).unwrap(),
            ledger,
        }
    }

    async fn run(mut self) {
        loop {
            if self.dice.percent(2) {
                // The process is started again, and knows nothing of the fences it saw before.
                self.quorum = quorum(&self.links, &self.clock);
            }
            if self.dice.percent(15) {
                self.cut_some();
            }
            self.pause(10).await;
            self.acquire_once().await;
        }
    }

    /// Half of the time none at all: others have their turn in between all the same.
    async fn pause(&mut self, limit: u64) {
        if self.dice.percent(50) {
            tokio::task::yield_now().await;
        } else {
            tokio::time::sleep(self.dice.millis(limit)).await;
        }
    }

    /// One or two nodes cannot be reached for a while.
    fn cut_some(&mut self) {
        self.links.iter().for_each(|link| link.cut(false));
        for _ in 0..=self.dice.below(2) {
            let at = usize::try_from(self.dice.below(NODES as u64)).unwrap();
            self.links[at].cut(true);
        }
    }

    async fn acquire_once(&mut self) {
        let request = self.request();
        let begun = self.ledger.tick();
        let fence = self.get(&request).await;
        if let Some(fence) = fence {
            self.ledger.record(request.key.resource.as_str(), begun, fence);
            self.pause(10).await;
            if self.dice.percent(10) {
                self.renew(&request, fence).await;
            }
        }
        // Some are left to expire.
        if self.dice.percent(if fence.is_some() { 95 } else { 100 }) {
            let _lapses = self.quorum.release(&request.key, &Outcome::Completed).await;
        }
    }

    /// Renews it, which puts it back on nodes that do not know it; its fence stays what it is.
    async fn renew(&mut self, request: &Request, fence: Fence) {
        let renewal = Renewal::new(request.key.clone(), request.ttl);
        if let Ok(answer) = self.quorum.renew(&[renewal]).await
            && let Standing::Holding(grant) = answer.value[0]
        {
            assert_eq!(grant.fence, fence, "a fence changed");
        }
        self.pause(10).await;
    }

    /// Asks, and waits for its turn for a while; some callers go away.
    async fn get(&mut self, request: &Request) -> Option<Fence> {
        let patience = if self.dice.percent(3) { self.dice.millis(10) } else { Duration::from_secs(1) };
        let asked = tokio::time::timeout(patience, self.quorum.acquire(request)).await.ok()?;
        match asked.ok()?.value {
            Decision::Granted(grant) => return Some(grant.fence),
            Decision::Queued(_) => {}
            _ => return None,
        }
        for _ in 0..8 {
            tokio::time::sleep(self.dice.millis(30)).await;
            let renewal = Renewal::new(request.key.clone(), request.ttl);
            match self.quorum.renew(&[renewal]).await.map(|answer| answer.value[0]) {
                Ok(Standing::Holding(grant)) => return Some(grant.fence),
                Ok(Standing::Gone) => return None,
                _ => {}
            }
        }
        None
    }

    fn request(&mut self) -> Request {
        let resource = Resource::new(format!("r{}", self.dice.below(RESOURCES))).unwrap();
        let id = LeaseId::from_u128((u128::from(self.dice.next()) << 64) | u128::from(self.dice.next()));
        let key = LeaseKey::new(resource, id);
        Request::new(key, if self.dice.percent(20) { Claim::SHARED } else { Claim::EXCLUSIVE }, self.holder.clone())
            .ttl(Ttl::new(TTL).unwrap())
            .patience(if self.dice.percent(60) { Patience::Try } else { Patience::Queue })
    }
}

fn quorum(links: &[Arc<Link>], clock: &Arc<SimClock>) -> RedlockBackend {
    let node = |(at, link): (usize, &Arc<Link>)| RedlockNode::new(format!("node-{at}"), Arc::<Link>::clone(link));
    let nodes = links.iter().enumerate().map(node).collect();
    let clock: Arc<dyn Clock> = Arc::<SimClock>::clone(clock);
    RedlockBackend::new(nodes, RedlockOptions::new().longest_ttl(TTL).clock(clock)).unwrap()
}

/// Two worlds at a time: the machine has two cores.
fn simulate_worlds(variant: Variant, until: Until) -> Verdict {
    let seed = std::env::var("LEASEHOLD_SEED").map_or(1, |seed| seed.parse().unwrap());
    let worlds = [seed, seed + 1].map(|seed| thread::spawn(move || simulate(variant, seed, until)));
    let verdict = worlds.into_iter().map(|world| world.join().unwrap()).sum();
    println!("{variant:?}: {verdict}");
    verdict
}

/// As many as `LEASEHOLD_ACQUISITIONS` says.
#[test]
fn fences_never_repeat_and_never_fall() {
    let wanted = std::env::var("LEASEHOLD_ACQUISITIONS").map_or(40_000, |wanted| wanted.parse().unwrap());
    let in_each_world = wanted / 2;
    let verdict = simulate_worlds(Variant::Sound, Until::Acquired(in_each_world));
    assert!(verdict.acquired >= 2 * in_each_world && verdict.is_clean(), "{verdict}");
}

#[test]
fn taking_the_highest_answer_without_storing_it_is_caught() {
    assert!(!simulate_worlds(Variant::NoWriteBack, Until::AcquiredOrBroken(FAR_BEYOND)).is_clean());
}

#[test]
fn storing_it_where_the_lease_is_no_longer_held_is_caught() {
    assert!(!simulate_worlds(Variant::UnconditionalWriteBack, Until::AcquiredOrBroken(FAR_BEYOND)).is_clean());
}

#[test]
fn a_node_that_forgot_and_votes_is_caught() {
    assert!(!simulate_worlds(Variant::ForgetfulVoter, Until::AcquiredOrBroken(FAR_BEYOND)).is_clean());
}
