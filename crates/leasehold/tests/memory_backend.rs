//! What the memory backend promises beyond the suite: bounded memory, sharing by name, fences that never fall.
#![cfg(feature = "memory")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{sync::Arc, time::Duration};

use leasehold::{
    Fence, Holder, Resource, Ttl,
    backend::{Backend, Decision, Hint, Hints, Inspect, Patience, Renewal, Request},
    backends::memory::MemoryBackend,
    clock::ManualClock,
    lease::{Claim, Ending, HistoryFilter, LeaseId, LeaseKey, ListFilter, Names, Outcome, Released, Timestamp},
};

fn place() -> (MemoryBackend, ManualClock) {
    let clock = ManualClock::new();
    (MemoryBackend::private(Arc::new(clock.clone())), clock)
}

fn named(name: &str, namespace: &str) -> MemoryBackend {
    MemoryBackend::named(name, namespace, Arc::new(ManualClock::new()))
}

fn ask(name: &str, patience: Patience) -> Request {
    Request::new(
        LeaseKey::new(Resource::new(name).unwrap(), LeaseId::random()),
        Claim::EXCLUSIVE,
        Holder::new("worker-1").unwrap(),
    )
    .ttl(Ttl::DEFAULT)
    .patience(patience)
}

async fn fence_of(backend: &MemoryBackend, request: &Request) -> Fence {
    match backend.acquire(request).await.unwrap().value {
        Decision::Granted(grant) => grant.fence,
        other => panic!("{:?} was not granted: {other:?}", request.key.resource),
    }
}

async fn live(backend: &MemoryBackend) -> usize {
    let filter = ListFilter::new(Names::All).limit(usize::MAX);
    backend.list(&filter).await.unwrap().leases.len()
}

async fn next(hints: &mut Hints) -> Option<Hint> {
    tokio::time::timeout(Duration::from_secs(10), hints.next()).await.expect("a hint should have come")
}

#[tokio::test]
async fn names_that_nobody_uses_cost_nothing() {
    let (backend, _) = place();
    for at in 0..100_000 {
        let request = ask(&format!("order:{at}"), Patience::Try);
        fence_of(&backend, &request).await;
        assert_eq!(backend.release(&request.key, &Outcome::Completed).await.unwrap().value, Released::Freed);
    }
    assert_eq!(backend.len(), 0);
    let filter = HistoryFilter::new(Names::All).limit(usize::MAX);
    assert!(backend.history(&filter).await.unwrap().len() <= 64_000);
}

#[tokio::test]
async fn expired_names_that_nobody_touches_are_swept_by_work_on_others() {
    let (backend, clock) = place();
    for at in 0..10_000 {
        fence_of(&backend, &ask(&format!("abandoned:{at}"), Patience::Try)).await;
    }
    assert_eq!(backend.len(), 10_000);
    clock.advance(Duration::from_secs(31));

    for at in 0..30_000 {
        let request = ask(&format!("busy:{at}"), Patience::Try);
        fence_of(&backend, &request).await;
        backend.release(&request.key, &Outcome::Completed).await.unwrap();
    }
    assert_eq!(backend.len(), 0);
}

#[tokio::test]
async fn a_swept_lease_is_recorded_and_its_successor_is_told() {
    let (backend, clock) = place();
    let waiter = backend.sibling();
    let mut hints = waiter.hints();
    fence_of(&backend, &ask("report", Patience::Try)).await;
    let waiting = ask("report", Patience::Queue).ttl(Ttl::new(Duration::from_secs(3600)).unwrap());
    assert!(matches!(waiter.acquire(&waiting).await.unwrap().value, Decision::Queued(_)));
    clock.advance(Duration::from_secs(31));

    for at in 0..10_000 {
        backend.acquire(&ask(&format!("other:{at}"), Patience::Try)).await.unwrap();
    }
    assert!(matches!(next(&mut hints).await, Some(Hint::Granted { id, .. }) if id == waiting.key.id));
    let history = backend.history(&HistoryFilter::new(Names::Exactly(Resource::new("report").unwrap()))).await.unwrap();
    assert_eq!(history[0].ending, Ending::Expired);
    assert_eq!(history[0].ended_at.since(history[0].asked_at), Duration::from_secs(30));
}

#[tokio::test]
async fn instances_of_one_name_and_namespace_share_their_place() {
    let (one, two) = (named("shared", "blue"), named("shared", "blue"));
    let request = ask("x", Patience::Try);
    let fence = fence_of(&one, &request).await;
    let Decision::Busy(busy) = two.acquire(&ask("x", Patience::Try)).await.unwrap().value else {
        panic!("two instances on one place granted one mutex twice");
    };
    assert_eq!(busy.holders[0].fence, fence);
    assert_eq!(two.release(&request.key, &Outcome::Completed).await.unwrap().value, Released::Freed);
}

#[tokio::test]
async fn other_names_and_namespaces_are_other_places() {
    let places = [named("apart", "blue"), named("apart", "green"), named("elsewhere", "blue"), named("", "blue")];
    let private = place().0;
    for backend in places.iter().chain([&private, &place().0]) {
        fence_of(backend, &ask("x", Patience::Try)).await;
    }
    assert_eq!(live(&private).await, 1);
}

#[tokio::test]
async fn a_place_ends_with_its_last_instance() {
    let first = named("short-lived", "");
    let second = first.sibling();
    let request = ask("x", Patience::Try);
    let before = first.acquire(&request).await.unwrap();
    drop(first);
    assert_eq!(live(&second).await, 1);
    drop(second);

    let reborn = named("short-lived", "");
    assert_eq!(live(&reborn).await, 0);
    let after = reborn.acquire(&request).await.unwrap();
    assert_ne!(before.incarnation, after.incarnation, "a place that forgot must say so");
}

#[tokio::test]
async fn fences_rise_over_idle_times_and_a_wall_clock_set_back() {
    let (backend, clock) = place();
    let mut last = Fence::default();
    for round in 0..100 {
        let request = ask("x", Patience::Try);
        let fence = fence_of(&backend, &request).await;
        assert!(fence > last, "round {round}: {fence} came after {last}");
        last = fence;
        backend.release(&request.key, &Outcome::Completed).await.unwrap();
        assert_eq!(backend.len(), 0);
        clock.set_wall(Timestamp::from_micros(1_000_000 * (100 - round)));
    }
}

#[tokio::test]
async fn fences_rise_over_the_sweep_of_an_expired_lease() {
    let (backend, clock) = place();
    let before = fence_of(&backend, &ask("x", Patience::Try)).await;
    clock.advance(Duration::from_secs(31));
    clock.set_wall(Timestamp::from_micros(1));
    for at in 0..10_000 {
        backend.renew(&[Renewal::new(ask(&format!("other:{at}"), Patience::Try).key, Ttl::DEFAULT)]).await.unwrap();
    }
    assert_eq!(backend.len(), 0, "it was swept");
    assert!(fence_of(&backend, &ask("x", Patience::Try)).await > before);
}

#[tokio::test]
async fn one_asker_asking_again_elsewhere_is_told_there() {
    let (first, _) = place();
    let second = first.sibling();
    let holding = ask("x", Patience::Try);
    let waiting = ask("x", Patience::Queue);
    fence_of(&first, &holding).await;
    first.acquire(&waiting).await.unwrap();
    second.acquire(&waiting).await.unwrap();
    let mut hints = second.hints();
    first.release(&holding.key, &Outcome::Completed).await.unwrap();
    assert!(matches!(next(&mut hints).await, Some(Hint::Granted { id, .. }) if id == waiting.key.id));
}
