//! What a quorum promises beyond the suite: nodes that are down, hung or young, hand-offs, permits, leftovers.
#![cfg(all(feature = "memory", feature = "redlock"))]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use leasehold::{
    ErrorKind, Holder, Leasehold, Resource, Ttl,
    backend::{Backend, Decision, Finding, Hint, Hints, Inspect, Lifetime, Patience, Renewal, Request, Severity},
    backends::{
        memory::MemoryBackend,
        redlock::{RedlockBackend, RedlockNode, RedlockOptions},
    },
    clock::{Clock, ManualClock, SystemClock},
    lease::{Claim, LeaseId, LeaseKey, LeaseState, ListFilter, Names, Outcome, Released, Standing},
};
use leasehold_conformance::{BackendCall, Faulty};
use tokio::{task::JoinSet, time};

/// Nodes, and the ways to them of one client.
struct Nodes {
    memories: Vec<MemoryBackend>,
}

impl Nodes {
    fn new(count: usize) -> Self {
        Self { memories: (0..count).map(|_| MemoryBackend::private(Arc::new(SystemClock))).collect() }
    }

    /// Another client, with ways of its own that can be cut.
    fn client(&self) -> (Arc<RedlockBackend>, Vec<Arc<Faulty>>) {
        // These nodes forget nothing: there is nothing to wait for before they vote.
        self.client_with(RedlockOptions::new().longest_ttl(Duration::ZERO))
    }

    /// A client with a lease that every node has by now.
    async fn client_that_holds(&self, name: &str) -> (Arc<RedlockBackend>, Vec<Arc<Faulty>>, Request) {
        let (quorum, links) = self.client();
        let held = attempt(name);
        assert!(is_granted(&quorum, &held).await);
        self.come_to(&vec![1; self.memories.len()]).await;
        (quorum, links, held)
    }

    /// A client that cannot reach these nodes.
    fn client_without<const N: usize>(&self, cut: [usize; N]) -> (Arc<RedlockBackend>, Vec<Arc<Faulty>>) {
        let (quorum, links) = self.client();
        for at in cut {
            links[at].cut();
        }
        (quorum, links)
    }

    fn client_with(&self, options: RedlockOptions) -> (Arc<RedlockBackend>, Vec<Arc<Faulty>>) {
        let links: Vec<Arc<Faulty>> =
            self.memories.iter().map(|memory| Faulty::new(Arc::new(memory.sibling()))).collect();
        let node =
            |(at, link): (usize, &Arc<Faulty>)| RedlockNode::new(format!("node-{at}"), Arc::<Faulty>::clone(link));
        let nodes = links.iter().enumerate().map(node).collect();
        (Arc::new(RedlockBackend::new(nodes, options).unwrap()), links)
    }

    /// A client whose clock stands still, so that nothing is held for longer than a moment before it is moved. It asks a
    /// majority first.
    async fn client_at_a_standstill(&self) -> (Arc<RedlockBackend>, Vec<Arc<Faulty>>, ManualClock) {
        let clock = ManualClock::new();
        let options = RedlockOptions::new().longest_ttl(Duration::ZERO).clock(Arc::new(clock.clone()));
        let (quorum, links) = self.client_with(options);
        let to_compare_clocks = ask("before", Claim::EXCLUSIVE, Patience::Queue);
        assert!(is_granted(&quorum, &to_compare_clocks).await);
        quorum.release(&to_compare_clocks.key, &Outcome::Completed).await.unwrap();
        (quorum, links, clock)
    }

    /// A request that queues: nodes 0 and 1 grant it, which is too few, and each other node has another lease. The first
    /// releases at these links are lost. Returns the hints that follow, the other leases and the request.
    async fn queued_behind_others(
        &self,
        quorum: &RedlockBackend,
        lose_releases: &[Arc<Faulty>],
    ) -> (Hints, Vec<LeaseKey>, Request) {
        let hints = quorum.hints();
        let others: Vec<Request> = self.memories.iter().map(|_| attempt("x")).collect();
        for (memory, other) in self.memories.iter().zip(&others).skip(2) {
            memory.acquire(other).await.unwrap();
        }
        for link in lose_releases {
            link.drop_requests_of(BackendCall::Release, 1);
        }
        let request = ask("x", Claim::EXCLUSIVE, Patience::Queue);
        assert!(matches!(quorum.acquire(&request).await.unwrap().value, Decision::Queued(_)));
        (hints, others.into_iter().map(|other| other.key).collect(), request)
    }

    /// How many leases and positions each node has, besides the one by which all agree on `longest_ttl`.
    async fn left(&self) -> Vec<usize> {
        let mut left = Vec::new();
        for memory in &self.memories {
            let leases = memory.list(&ListFilter::new(Names::All)).await.unwrap().leases;
            left.push(leases.iter().filter(|lease| !lease.resource.as_str().starts_with("leasehold:")).count());
        }
        left
    }

    async fn are_left_empty(&self) {
        self.come_to(&vec![0; self.memories.len()]).await;
    }

    /// Waits until each node has this many leases and positions.
    async fn come_to(&self, expected: &[usize]) {
        for _ in 0..500 {
            if self.left().await == expected {
                return;
            }
            time::sleep(Duration::from_millis(10)).await;
        }
        panic!("the nodes have {:?} instead of {expected:?}", self.left().await);
    }
}

fn ask(name: &str, claim: Claim, patience: Patience) -> Request {
    Request::new(LeaseKey::new(Resource::new(name).unwrap(), LeaseId::random()), claim, Holder::new("worker").unwrap())
        .ttl(Ttl::DEFAULT)
        .patience(patience)
}

fn attempt(name: &str) -> Request {
    ask(name, Claim::EXCLUSIVE, Patience::Try)
}

async fn is_granted(quorum: &RedlockBackend, request: &Request) -> bool {
    matches!(quorum.acquire(request).await.unwrap().value, Decision::Granted(_))
}

/// Five nodes, a bare majority of which has just granted `x` to a client whose clock stands still.
struct JustGranted {
    nodes: Nodes,
    quorum: Arc<RedlockBackend>,
    links: Vec<Arc<Faulty>>,
    clock: ManualClock,
    request: Request,
}

async fn just_granted() -> JustGranted {
    let nodes = Nodes::new(5);
    let (quorum, links, clock) = nodes.client_at_a_standstill().await;
    let request = ask("x", Claim::EXCLUSIVE, Patience::Queue);
    assert!(is_granted(&quorum, &request).await);
    assert_eq!(nodes.left().await, [1, 1, 1, 0, 0]);
    JustGranted { nodes, quorum, links, clock, request }
}

#[tokio::test]
async fn two_of_five_nodes_may_be_down_or_hang() {
    let nodes = Nodes::new(5);
    let (quorum, links) = nodes.client_without([0]);
    let hung =
        [BackendCall::Acquire, BackendCall::Renew, BackendCall::Release].map(|call| links[3].hold_requests_of(call));
    for round in 0..5 {
        let request = attempt("x");
        assert!(is_granted(&quorum, &request).await, "round {round}");
        assert!(!is_granted(&nodes.client().0, &attempt("x")).await);
        let waiting = ask("x", Claim::EXCLUSIVE, Patience::Queue);
        assert!(matches!(quorum.acquire(&waiting).await.unwrap().value, Decision::Queued(_)));
        assert_eq!(quorum.release(&request.key, &Outcome::Completed).await.unwrap().value, Released::Freed);
        let handed_on = time::timeout(Duration::from_secs(5), async {
            while !is_granted(&quorum, &waiting).await {
                time::sleep(Duration::from_millis(5)).await;
            }
        });
        handed_on.await.expect("the one who waits gets it");
        assert_eq!(quorum.release(&waiting.key, &Outcome::Completed).await.unwrap().value, Released::Freed);
    }
    drop(hung);
    links[0].heal();
    nodes.are_left_empty().await;
}

#[tokio::test]
async fn with_three_of_five_down_every_call_ends_soon_and_names_them() {
    let nodes = Nodes::new(5);
    let (quorum, links, held) = nodes.client_that_holds("held").await;
    links[1].cut();
    links[2].cut();
    let hung = [BackendCall::Acquire, BackendCall::Renew, BackendCall::Release, BackendCall::List]
        .map(|call| links[4].hold_requests_of(call));
    let locks = Leasehold::builder().open(Arc::<RedlockBackend>::clone(&quorum)).unwrap();
    let bounded = time::timeout(Duration::from_secs(5), async {
        for wait in [Duration::ZERO, Duration::from_secs(60)] {
            let error = locks.mutex("x").wait(wait).acquire().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            let words = error.to_string();
            assert!(["node-1", "node-2", "node-4", "x on redlock"].iter().all(|part| words.contains(part)), "{words}");
            assert!(!words.contains("node-0") && !words.contains("node-3"), "{words}");
        }
        assert!(quorum.release(&held.key, &Outcome::Completed).await.unwrap_err().outcome_unknown());
        assert_eq!(locks.list(&ListFilter::new(Names::All)).await.unwrap_err().kind(), ErrorKind::Unavailable);
    });
    bounded.await.expect("an error in bounded time");
    drop(hung);
    for link in &links {
        link.heal();
    }
    assert!(is_granted(&quorum, &attempt("x")).await, "it recovers by itself");
}

/// Each acquisition asks a node once when it begins and, unless that was granted, once more when its turn has
/// come; every further ask belongs to a round that failed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixteen_waiters_each_get_their_turn_with_few_failed_rounds() {
    const WAITERS: usize = 16;
    const TURNS: usize = 4;
    let nodes = Nodes::new(5);
    let clients: Vec<_> = (0..4).map(|_| nodes.client()).collect();
    let mut waiters = JoinSet::new();
    let turns = Arc::new(AtomicUsize::new(0));
    for waiter in 0..WAITERS {
        let locks =
            Leasehold::builder().open(Arc::<RedlockBackend>::clone(&clients[waiter % clients.len()].0)).unwrap();
        let turns = Arc::clone(&turns);
        waiters.spawn(async move {
            for _ in 0..TURNS {
                let guard = locks.mutex("x").wait(Duration::from_secs(30)).acquire().await.unwrap();
                turns.fetch_add(1, Ordering::SeqCst);
                time::sleep(Duration::from_millis(2)).await;
                guard.release().await.unwrap();
            }
        });
    }
    while let Some(waiter) = waiters.join_next().await {
        waiter.expect("each gets its turn");
    }
    let asked: usize = clients.iter().map(|(_, links)| links[2].count(BackendCall::Acquire)).sum();
    let hand_offs = turns.load(Ordering::SeqCst);
    let failed = asked.saturating_sub(2 * hand_offs);
    println!("{hand_offs} hand-offs, {asked} asks, {failed} failed rounds");
    assert_eq!(hand_offs, WAITERS * TURNS);
    assert!(failed <= 2 * hand_offs, "{failed} failed rounds in {hand_offs} hand-offs");
    nodes.are_left_empty().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_caller_leaves_nothing_on_any_node() {
    let nodes = Nodes::new(5);
    let (quorum, links) = nodes.client();
    for (at, link) in links.iter().enumerate() {
        link.delay(Duration::from_millis(at as u64 * 2));
    }
    for micros in (0..12_000).step_by(400) {
        let request = ask("x", Claim::EXCLUSIVE, if micros % 800 == 0 { Patience::Try } else { Patience::Queue });
        let asked = time::timeout(Duration::from_micros(micros), quorum.acquire(&request)).await;
        if asked.is_ok() {
            quorum.release(&request.key, &Outcome::Completed).await.unwrap();
        }
    }
    nodes.are_left_empty().await;
}

#[tokio::test]
async fn what_a_minority_granted_is_given_back_before_busy_is_told() {
    let nodes = Nodes::new(5);
    let (holder, _links) = nodes.client_without([0, 1]);
    assert!(is_granted(&holder, &attempt("x")).await, "held on the nodes 2, 3 and 4");
    let (other, _) = nodes.client();
    for _ in 0..3 {
        assert!(!is_granted(&other, &attempt("x")).await);
        assert_eq!(nodes.left().await, [0, 0, 1, 1, 1]);
    }
    let waiting = ask("x", Claim::EXCLUSIVE, Patience::Queue);
    assert!(matches!(other.acquire(&waiting).await.unwrap().value, Decision::Queued(_)));
    assert_eq!(nodes.left().await[1..], [0, 1, 1, 1], "one place only is kept");
    other.release(&waiting.key, &Outcome::Cancelled).await.unwrap();
    assert_eq!(nodes.left().await, [0, 0, 1, 1, 1]);
}

#[tokio::test]
async fn a_waiter_at_the_head_gets_what_another_held_elsewhere() {
    let nodes = Nodes::new(5);
    let (holder, links) = nodes.client_without([0]);
    let held = attempt("x");
    assert!(is_granted(&holder, &held).await);
    let locks = Leasehold::builder().open(nodes.client().0).unwrap();
    let mutex = locks.mutex("x").wait(Duration::from_secs(20));
    let (guard, ()) = tokio::join!(mutex.acquire(), async {
        time::sleep(Duration::from_millis(200)).await;
        holder.release(&held.key, &Outcome::Completed).await.unwrap();
    });
    guard.unwrap().release().await.unwrap();
    links[0].heal();
    nodes.are_left_empty().await;
}

/// A node may carry out an unanswered release at any time, even after it has granted the same lease again.
#[tokio::test]
async fn a_node_where_a_release_is_unanswered_does_not_count() {
    let nodes = Nodes::new(5);
    let (quorum, links) = nodes.client();
    // What is sent to give node 1 back is still on its way.
    let (mut hints, others, request) = nodes.queued_behind_others(&quorum, &links[1..2]).await;
    assert!(links[1].count(BackendCall::Release) > 0);

    nodes.memories[2].release(&others[2], &Outcome::Completed).await.unwrap();
    let granted = time::timeout(Duration::from_secs(1), hints.next()).await;
    assert!(granted.is_err(), "granted by nodes 0 and 2, and by one that may give it up: {granted:?}");
    nodes.memories[3].release(&others[3], &Outcome::Completed).await.unwrap();
    let granted = time::timeout(Duration::from_secs(5), hints.next()).await;
    assert!(matches!(granted, Ok(Some(Hint::Granted { .. }))), "{granted:?}");

    nodes.memories[1].release(&request.key, &Outcome::Cancelled).await.unwrap();
    nodes.memories[4].release(&others[4], &Outcome::Completed).await.unwrap();
    let (other, _) = nodes.client_without([0, 2]);
    assert!(!is_granted(&other, &attempt("x")).await, "two hold it at once");
}

#[tokio::test]
async fn a_waiter_starts_over_if_too_few_nodes_count_for_it() {
    let nodes = Nodes::new(5);
    let (quorum, links) = nodes.client();
    let (mut hints, others, request) = nodes.queued_behind_others(&quorum, &links[1..4]).await;
    for at in [2, 3] {
        nodes.memories[at].release(&others[at], &Outcome::Completed).await.unwrap();
        let given_back = async {
            while links[at].count(BackendCall::Release) == 0 {
                time::sleep(Duration::from_millis(5)).await;
            }
        };
        time::timeout(Duration::from_secs(5), given_back).await.expect("too few nodes granted it");
    }
    let hint = time::timeout(Duration::from_secs(5), hints.next()).await;
    assert!(matches!(hint, Ok(Some(Hint::Changed { .. }))), "{hint:?}");
    let renewal = Renewal::new(request.key.clone(), request.ttl);
    assert_eq!(quorum.renew(&[renewal]).await.unwrap().value, [Standing::Gone]);
    nodes.come_to(&[0, 0, 0, 0, 1]).await;
}

#[tokio::test]
async fn a_lease_is_not_asked_for_again_while_a_release_of_it_is_under_way() {
    let nodes = Nodes::new(3);
    let no_hurry = RedlockOptions::new().longest_ttl(Duration::ZERO).node_limit(Duration::from_secs(5));
    let (quorum, links) = nodes.client_with(no_hurry);
    links[2].cut();
    // The first request finds out whether others agree on `longest_ttl`.
    links[1].drop_replies_of(BackendCall::Acquire, 2);
    let release = links[1].hold_requests_of(BackendCall::Release);
    let request = ask("x", Claim::EXCLUSIVE, Patience::Queue);
    quorum.acquire(&request).await.expect_err("one of three nodes answered");

    let mut tasks = JoinSet::new();
    tasks.spawn(async move { is_granted(&quorum, &request).await });
    time::sleep(Duration::from_millis(20)).await;
    drop(release);
    assert!(tasks.join_next().await.unwrap().unwrap());
    while links[1].in_flight() > 0 {
        time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(nodes.left().await, [1, 1, 0]);
}

#[tokio::test]
async fn nodes_that_come_back_are_given_the_lease_so_that_others_may_fail() {
    let nodes = Nodes::new(5);
    let (quorum, links) = nodes.client_without([0, 4]);
    let held = attempt("x");
    assert!(is_granted(&quorum, &held).await);
    assert_eq!(nodes.left().await, [0, 1, 1, 1, 0], "a bare majority");
    links[0].heal();
    links[4].heal();
    let renew = async || {
        let renewal = Renewal::new(held.key.clone(), held.ttl);
        quorum.renew(&[renewal]).await.unwrap().value[0]
    };
    let Standing::Holding(before) = renew().await else { panic!("a majority holds it") };
    nodes.come_to(&[1; 5]).await;

    links[1].cut();
    links[3].cut();
    let Standing::Holding(after) = renew().await else { panic!("a majority holds it still") };
    assert_eq!(after, before, "the fence is what it was");
    assert!(!is_granted(&nodes.client().0, &attempt("x")).await);
    links[1].heal();
    links[3].heal();
    assert_eq!(quorum.release(&held.key, &Outcome::Completed).await.unwrap().value, Released::Freed);
    nodes.are_left_empty().await;
    let next = attempt("x");
    let Decision::Granted(grant) = quorum.acquire(&next).await.unwrap().value else { panic!("it is free") };
    assert!(grant.fence > before.fence);
}

#[tokio::test]
async fn a_lease_is_given_to_more_than_a_majority_once_it_is_held_for_a_while() {
    let nodes = Nodes::new(5);
    let (quorum, links, clock) = nodes.client_at_a_standstill().await;
    let released_before = links[4].count(BackendCall::Release);
    let short = ask("x", Claim::EXCLUSIVE, Patience::Queue);
    assert!(is_granted(&quorum, &short).await);
    assert_eq!(nodes.left().await, [1, 1, 1, 0, 0]);
    assert_eq!(quorum.release(&short.key, &Outcome::Completed).await.unwrap().value, Released::Freed);
    assert_eq!(links[4].count(BackendCall::Release), released_before, "it never was there");

    let long = ask("x", Claim::EXCLUSIVE, Patience::Queue);
    assert!(is_granted(&quorum, &long).await);
    clock.advance(Duration::from_millis(100));
    nodes.come_to(&[1; 5]).await;
    assert_eq!(quorum.release(&long.key, &Outcome::Completed).await.unwrap().value, Released::Freed);
    assert_eq!(nodes.left().await, [0; 5]);
}

/// A node that is slow to release must not make the lease look lost to the task that gives it to more nodes.
#[tokio::test]
async fn a_lease_that_is_being_released_is_not_given_to_more_nodes() {
    let JustGranted { nodes, quorum, links, clock, request } = just_granted().await;
    let slow = links[0].hold_requests_of(BackendCall::Release);
    let renewed = links[1].count(BackendCall::Renew);
    let (releasing, key) = (Arc::clone(&quorum), request.key.clone());
    let mut tasks = JoinSet::new();
    tasks.spawn(async move { releasing.release(&key, &Outcome::Completed).await });
    nodes.come_to(&[1, 0, 0, 0, 0]).await;
    clock.advance(Duration::from_millis(25));
    time::sleep(Duration::from_millis(50)).await;
    assert_eq!(links[1].count(BackendCall::Renew), renewed, "the release is under way");
    drop(slow);
    assert_eq!(tasks.join_next().await.unwrap().unwrap().unwrap().value, Released::Freed);
    nodes.are_left_empty().await;
}

#[tokio::test]
async fn a_node_that_fails_right_after_a_grant_does_not_cost_the_lease() {
    let JustGranted { nodes, quorum, links, request, .. } = just_granted().await;
    links[0].cut();
    let renewal = Renewal::new(request.key.clone(), request.ttl);
    let held = time::timeout(Duration::from_secs(5), async {
        while !matches!(quorum.renew(std::slice::from_ref(&renewal)).await.unwrap().value[0], Standing::Holding(_)) {
            time::sleep(Duration::from_millis(5)).await;
        }
    });
    held.await.expect("four of five nodes can hold it");
    assert_eq!(nodes.left().await, [1; 5]);
}

#[tokio::test]
async fn what_is_given_to_more_nodes_after_someone_else_released_it_is_taken_back() {
    let JustGranted { nodes, quorum: _holder, links, clock, request } = just_granted().await;
    let slow = [3, 4].map(|at| links[at].hold_requests_of(BackendCall::Acquire));
    let asked = links[3].count(BackendCall::Acquire);
    clock.advance(Duration::from_millis(25));
    while links[3].count(BackendCall::Acquire) == asked {
        time::sleep(Duration::from_millis(5)).await;
    }
    let other = nodes.client().0;
    assert_eq!(other.release(&request.key, &Outcome::Completed).await.unwrap().value, Released::Freed);
    drop(slow);
    time::sleep(Duration::from_millis(100)).await;
    nodes.are_left_empty().await;
}

#[tokio::test]
async fn a_lease_that_nobody_renews_is_asked_of_every_node_at_once() {
    let nodes = Nodes::new(5);
    let (quorum, ..) = nodes.client_at_a_standstill().await;
    assert!(is_granted(&quorum, &attempt("x").lifetime(Lifetime::Detached)).await);
    assert_eq!(nodes.left().await, [1; 5]);
}

#[tokio::test]
async fn a_refused_round_does_not_wait_for_a_node_that_hangs() {
    let nodes = Nodes::new(3);
    let (quorum, links) = nodes.client();
    let _hung = [BackendCall::Acquire, BackendCall::Renew, BackendCall::Release, BackendCall::List]
        .map(|call| links[2].hold_requests_of(call));
    assert!(is_granted(&quorum, &ask("before", Claim::EXCLUSIVE, Patience::Queue)).await);
    let stray = attempt("x");
    assert!(matches!(nodes.memories[1].acquire(&stray).await.unwrap().value, Decision::Granted(_)));
    let asked = links[2].count(BackendCall::Acquire);
    assert!(!is_granted(&quorum, &attempt("x")).await);
    assert_eq!(links[2].count(BackendCall::Acquire), asked);
}

/// One of those that a new lease is asked of first is refused, cannot be reached, or does not answer.
#[tokio::test]
async fn others_stand_in_for_a_node_that_does_not_grant_a_new_lease() {
    let nodes = Nodes::new(5);
    let (quorum, links) = nodes.client();
    let stray = attempt("x");
    assert!(matches!(nodes.memories[2].acquire(&stray).await.unwrap().value, Decision::Granted(_)));
    let refused = ask("x", Claim::EXCLUSIVE, Patience::Queue);
    assert!(is_granted(&quorum, &refused).await);
    assert_eq!(nodes.left().await, [1; 5], "the stray one on the third node");
    links[1].cut();
    assert!(is_granted(&quorum, &ask("y", Claim::EXCLUSIVE, Patience::Queue)).await);
    links[1].heal();
    let _hung = links[2].hold_requests_of(BackendCall::Acquire);
    assert!(is_granted(&quorum, &ask("z", Claim::EXCLUSIVE, Patience::Queue)).await);
}

#[tokio::test]
async fn a_lease_is_found_if_a_majority_holds_it_and_not_if_nodes_that_are_silent_might() {
    let nodes = Nodes::new(3);
    let (holder, _) = nodes.client();
    let held = attempt("x");
    let Decision::Granted(grant) = holder.acquire(&held).await.unwrap().value else { panic!("nobody else has it") };
    nodes.come_to(&[1; 3]).await;
    // A node that is given the lease later numbers it otherwise.
    for memory in &nodes.memories[..2] {
        memory.release(&held.key, &Outcome::Completed).await.unwrap();
        holder.renew(&[Renewal::new(held.key.clone(), Ttl::DEFAULT)]).await.unwrap();
        nodes.come_to(&[1; 3]).await;
    }
    let (other, links) = nodes.client();
    let find = async || other.find(&held.key, grant.fence).await;
    let found = find().await.unwrap().expect("all nodes hold it");
    assert_eq!((found.holder.as_str(), found.fence()), ("worker", Some(grant.fence)));
    links[0].cut();
    assert!(find().await.unwrap().is_some(), "a majority holds it");
    nodes.memories[2].release(&held.key, &Outcome::Completed).await.unwrap();
    assert_eq!(find().await.unwrap_err().kind(), ErrorKind::Unavailable, "the silent node may hold it or not");
    nodes.memories[1].release(&held.key, &Outcome::Completed).await.unwrap();
    assert!(find().await.unwrap().is_none(), "one node is no majority");
}

#[tokio::test]
async fn what_is_left_of_a_lease_that_a_majority_lost_is_freed() {
    let nodes = Nodes::new(5);
    let (quorum, _links, held) = nodes.client_that_holds("x").await;
    for memory in &nodes.memories[1..4] {
        let page = memory.list(&ListFilter::new(Names::Exactly(held.key.resource.clone()))).await.unwrap();
        let LeaseState::Holding { fence, .. } = page.leases[0].state else { panic!("it is held there") };
        memory.evict(&held.key.resource, fence, "for the test").await.unwrap();
    }
    let standing = quorum.renew(&[Renewal::new(held.key.clone(), held.ttl)]).await.unwrap().value[0];
    assert_eq!(standing, Standing::Gone);
    nodes.are_left_empty().await;
}

/// Each of three clients reaches another pair of three nodes: each pair has room for two.
#[tokio::test]
async fn a_semaphore_admits_no_more_than_it_has() {
    let nodes = Nodes::new(3);
    let claim = Claim::permits(1, 2).unwrap();
    let mut admitted = 0;
    for unreachable in 0..3 {
        let (quorum, links) = nodes.client();
        links[unreachable].cut();
        admitted += usize::from(is_granted(&quorum, &ask("x", claim, Patience::Try)).await);
    }
    assert_eq!(admitted, 2);
}

#[tokio::test]
async fn a_node_that_was_restarted_does_not_vote_until_its_leases_are_over() {
    let clock = ManualClock::new();
    let shared: Arc<dyn Clock> = Arc::new(clock.clone());
    let nodes: Vec<RedlockNode> = (0..3)
        .map(|at| RedlockNode::new(format!("node-{at}"), Arc::new(MemoryBackend::private(Arc::clone(&shared)))))
        .collect();
    let options = RedlockOptions::new().clock(shared).longest_ttl(Duration::from_secs(60));
    let quorum = RedlockBackend::new(nodes, options).unwrap();
    let error = quorum.acquire(&attempt("x")).await.unwrap_err();
    let told = "each of them (began with an empty memory a short time ago and votes in 1m); ready in 1m: try again then, \
                or use --connect-timeout 70s (and -w 70s or more, if any)";
    assert!(error.to_string().ends_with(told), "{error}");
    let findings = quorum.examine().await.unwrap();
    assert_eq!(findings.iter().filter(|finding| finding.severity == Severity::Warning).count(), 3, "{findings:?}");
    let grants_nothing = |findings: &[Finding]| findings.iter().any(|finding| finding.subject == "votes");
    let failure = findings.iter().find(|finding| finding.severity == Severity::Failure).unwrap();
    assert!(grants_nothing(&findings) && failure.message.starts_with("nothing is granted for 1m: "), "{findings:?}");
    clock.advance(Duration::from_secs(60));
    assert!(!grants_nothing(&quorum.examine().await.unwrap()));
    assert!(is_granted(&quorum, &attempt("x")).await);

    let long = attempt("y").ttl(Ttl::new(Duration::from_secs(61)).unwrap());
    assert_eq!(quorum.acquire(&long).await.unwrap_err().kind(), ErrorKind::InvalidConfig);
}

#[tokio::test]
async fn a_quorum_needs_an_odd_number_of_different_nodes() {
    let memory = || Arc::new(MemoryBackend::private(Arc::new(SystemClock)));
    let of = |nodes: Vec<Arc<MemoryBackend>>| {
        let node = |node: Arc<MemoryBackend>| RedlockNode::new("node", node);
        let options = RedlockOptions::new().longest_ttl(Duration::ZERO);
        RedlockBackend::new(nodes.into_iter().map(node).collect(), options)
    };
    for wrong in [0, 1, 2, 4] {
        let error = of((0..wrong).map(|_| memory()).collect()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    }
    let one = memory();
    let twice = of(vec![Arc::clone(&one), Arc::new(one.sibling()), Arc::new(one.sibling())]).unwrap();
    let error = twice.acquire(&attempt("x")).await.unwrap_err();
    assert!(error.to_string().contains("the same server"), "{error}");
    assert!(twice.examine().await.unwrap().iter().any(|finding| finding.severity == Severity::Failure));
}

/// A try that takes the other nodes for a moment would be in the way of the head of the queue.
#[tokio::test]
async fn a_try_of_a_busy_name_asks_the_node_of_the_queue_alone() {
    let nodes = Nodes::new(5);
    let held = attempt("x");
    assert!(is_granted(&nodes.client().0, &held).await);
    let (trying, links) = nodes.client();
    assert!(is_granted(&trying, &attempt("y")).await, "a free name");
    let before: Vec<usize> = links.iter().map(|link| link.count(BackendCall::Acquire)).collect();
    for _ in 0..10 {
        assert!(!is_granted(&trying, &attempt("x")).await);
    }
    let asked: Vec<usize> =
        links.iter().zip(before).map(|(link, before)| link.count(BackendCall::Acquire) - before).collect();
    assert_eq!(asked, [10, 0, 0, 0, 0]);

    let (waiting, links) = nodes.client();
    for _ in 0..10 {
        let request = ask("x", Claim::EXCLUSIVE, Patience::Queue);
        assert!(matches!(waiting.acquire(&request).await.unwrap().value, Decision::Queued(_)));
    }
    // One for the agreement, and one for the first request, which knew nothing of the name.
    assert_eq!(links[2].count(BackendCall::Acquire), 2, "who saw it busy asks the queue first");
}

#[tokio::test]
async fn a_node_that_hangs_is_left_alone_until_it_answers_again() {
    let nodes = Nodes::new(5);
    let (quorum, links) = nodes.client();
    assert!(is_granted(&quorum, &attempt("before")).await);
    let hung =
        [BackendCall::Acquire, BackendCall::Renew, BackendCall::Release].map(|call| links[1].hold_requests_of(call));
    let asked = || links[1].count(BackendCall::Acquire) + links[1].count(BackendCall::Release);
    let before = asked();
    for round in 0..40 {
        let request = ask("x", Claim::EXCLUSIVE, Patience::Queue);
        assert!(is_granted(&quorum, &request).await, "round {round}");
        assert_eq!(quorum.release(&request.key, &Outcome::Completed).await.unwrap().value, Released::Freed);
    }
    // The round that found out; its release and those of the others wait until the node is there again.
    assert!(asked() - before <= 2, "asked {} times", asked() - before);
    drop(hung);
    for _ in 0..500 {
        let request = ask("x", Claim::EXCLUSIVE, Patience::Queue);
        assert!(is_granted(&quorum, &request).await);
        quorum.release(&request.key, &Outcome::Completed).await.unwrap();
        if asked() - before > 6 {
            break;
        }
        time::sleep(Duration::from_millis(10)).await;
    }
    assert!(asked() - before > 6, "it takes part again");
}

/// None of these reports how old its memory is.
#[tokio::test]
async fn nodes_of_unknown_age_have_no_vote() {
    let (quorum, _links) = Nodes::new(3).client_with(RedlockOptions::new());
    let error = quorum.acquire(&attempt("x")).await.unwrap_err();
    assert!(error.to_string().contains("ACL SETUSER <user> +info"), "{error}");
    let findings = quorum.examine().await.unwrap();
    let unknown = findings.iter().filter(|finding| finding.severity == Severity::Failure).count();
    assert_eq!(unknown, 3, "{findings:?}");
}

#[tokio::test]
async fn clients_that_disagree_on_the_longest_ttl_find_out() {
    let nodes = Nodes::new(3);
    let (first, _) = nodes.client();
    assert!(is_granted(&first, &attempt("x")).await);
    let minute = || RedlockOptions::new().longest_ttl(Duration::from_secs(60));
    let (other, _) = nodes.client_with(minute());
    let error = other.acquire(&attempt("y")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    assert!(error.to_string().contains("longest_ttl=0ms") && error.to_string().contains("1m"), "{error}");

    // What they agree by is nothing that anyone asked for.
    let page = first.list(&ListFilter::new(Names::All)).await.unwrap();
    let names: Vec<&str> = page.leases.iter().map(|lease| lease.resource.as_str()).collect();
    assert_eq!(names, ["x"]);
}

#[tokio::test]
async fn a_queue_can_be_bounded() {
    let nodes = Nodes::new(3);
    let (quorum, _) = nodes.client();
    assert!(is_granted(&quorum, &attempt("x")).await);
    let bounded = || ask("x", Claim::EXCLUSIVE, Patience::Queue).max_waiters(1);
    assert!(matches!(quorum.acquire(&bounded()).await.unwrap().value, Decision::Queued(_)));
    let waiting = bounded();
    assert!(matches!(quorum.acquire(&waiting).await.unwrap().value, Decision::Queued(_)));
    let Decision::Busy(busy) = quorum.acquire(&bounded()).await.unwrap().value else { panic!("two are ahead") };
    assert_eq!((busy.holders.len(), busy.waiting), (1, 2));
    quorum.release(&waiting.key, &Outcome::Cancelled).await.unwrap();
    assert!(matches!(quorum.acquire(&bounded()).await.unwrap().value, Decision::Queued(_)));
}
