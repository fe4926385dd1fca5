//! The wrapper fails as told, and only as told.

#![allow(clippy::unwrap_used, reason = "to panic is how a test fails")]

use std::{sync::Arc, time::Duration};

use leasehold::{
    ErrorKind, Holder, Resource, Ttl,
    backend::{Backend, Decision, Hint, Hints, Request},
    backends::memory::MemoryBackend,
    clock::SystemClock,
    lease::{Claim, LeaseId, LeaseKey, ListFilter, Names, Outcome},
};
use leasehold_conformance::{BackendCall, Faulty, HintFaults, Odds};
use tokio::time::timeout;

fn faulty_memory() -> (Arc<MemoryBackend>, Arc<Faulty>) {
    let memory = Arc::new(MemoryBackend::private(Arc::new(SystemClock)));
    let faulty = Faulty::new(memory.clone());
    (memory, faulty)
}

fn ask() -> Request {
    Request::new(
        LeaseKey::new(Resource::new("x").unwrap(), LeaseId::random()),
        Claim::EXCLUSIVE,
        Holder::new("one").unwrap(),
    )
    .ttl(Ttl::DEFAULT)
}

async fn live(backend: &dyn Backend) -> usize {
    backend.list(&ListFilter::new(Names::All)).await.unwrap().leases.len()
}

async fn hints_within(hints: &mut Hints, length: Duration) -> Vec<Hint> {
    let mut heard = Vec::new();
    while let Ok(Some(hint)) = timeout(length, hints.next()).await {
        heard.push(hint);
    }
    heard
}

#[tokio::test]
async fn a_lost_request_is_not_done_and_a_lost_reply_is() {
    let (memory, faulty) = faulty_memory();
    faulty.drop_requests(1);
    let error = faulty.acquire(&ask()).await.unwrap_err();
    assert!(error.outcome_unknown());
    assert_eq!(live(&*memory).await, 0);

    faulty.drop_replies_of(BackendCall::Acquire, 1);
    let request = ask();
    assert_eq!(live(&*faulty).await, 0, "other calls pass");
    assert!(faulty.acquire(&request).await.unwrap_err().outcome_unknown());
    assert_eq!(live(&*memory).await, 1);
    assert!(matches!(faulty.acquire(&request).await.unwrap().value, Decision::Granted(_)), "asking again tells");
    assert_eq!(faulty.count(BackendCall::Acquire), 3);
}

#[tokio::test]
async fn a_cut_refuses_what_begins_and_loses_what_is_under_way() {
    let (memory, faulty) = faulty_memory();
    let gate = faulty.hold_replies_of(BackendCall::Acquire);
    let request = ask();
    let under_way = faulty.acquire(&request);
    tokio::pin!(under_way);
    assert!(timeout(Duration::from_millis(20), &mut under_way).await.is_err(), "its reply is held back");
    assert_eq!(live(&*memory).await, 1, "it is done all the same");

    faulty.cut();
    assert_eq!(faulty.acquire(&ask()).await.unwrap_err().kind(), ErrorKind::Unavailable);
    gate.open();
    assert!(under_way.await.unwrap_err().outcome_unknown());
    faulty.heal();
    assert!(faulty.acquire(&request).await.is_ok());
}

#[tokio::test]
async fn a_held_request_is_done_when_the_gate_opens() {
    let (memory, faulty) = faulty_memory();
    let gate = faulty.hold_requests_of(BackendCall::Acquire);
    let request = ask();
    let mut waiting = Box::pin(faulty.acquire(&request));
    assert!(timeout(Duration::from_millis(20), &mut waiting).await.is_err());
    assert_eq!(live(&*memory).await, 0);
    drop(gate);
    assert!(waiting.await.is_ok());
    assert!(faulty.acquire(&ask()).await.is_ok(), "an open gate holds nobody back");
}

#[tokio::test]
async fn hints_are_passed_on_lost_doubled_and_delayed() {
    let (memory, faulty) = faulty_memory();
    let mut hints = faulty.hints();
    let short = Duration::from_millis(100);
    for (faults, expected) in [
        (HintFaults::default(), 1),
        (HintFaults { drop: true, ..HintFaults::default() }, 0),
        (HintFaults { double: true, ..HintFaults::default() }, 2),
        (HintFaults { delay: Duration::from_millis(30), ..HintFaults::default() }, 1),
    ] {
        faulty.hint_faults(faults);
        let (first, second) = (ask(), ask());
        memory.acquire(&first).await.unwrap();
        faulty.acquire(&second).await.unwrap();
        memory.release(&first.key, &Outcome::Completed).await.unwrap();
        let heard = hints_within(&mut hints, short).await;
        let granted = |hint: &Hint| matches!(hint, Hint::Granted { id, .. } if *id == second.key.id);
        assert_eq!(heard.iter().filter(|hint| granted(hint)).count(), expected, "{faults:?}");
        memory.release(&second.key, &Outcome::Completed).await.unwrap();
    }
    faulty.invent_hint(Hint::Missed);
    assert_eq!(hints_within(&mut hints, short).await, [Hint::Missed]);
}

#[tokio::test]
async fn another_life_is_told_by_every_answer() {
    let (_, faulty) = faulty_memory();
    let before = faulty.acquire(&ask()).await.unwrap().incarnation;
    assert_eq!(faulty.renew(&[]).await.unwrap().incarnation, before);
    faulty.begin_another_life();
    assert_ne!(faulty.renew(&[]).await.unwrap().incarnation, before);
}

#[tokio::test]
async fn chance_can_be_repeated() {
    let fates = async |seed| {
        let (_, faulty) = faulty_memory();
        faulty.by_chance(seed, Odds { drop_request: 30, drop_reply: 30, double: 20, ..Odds::default() });
        let mut fates = Vec::new();
        for _ in 0..50 {
            fates.push(faulty.renew(&[]).await.is_ok());
        }
        fates
    };
    assert_eq!(fates(7).await, fates(7).await);
    assert_ne!(fates(7).await, fates(8).await);
    assert!(fates(7).await.contains(&true) && fates(7).await.contains(&false));
}

#[tokio::test]
async fn a_doubled_request_is_done_twice() {
    let (memory, faulty) = faulty_memory();
    let request = ask();
    faulty.double_requests_of(BackendCall::Acquire, 1);
    assert!(matches!(faulty.acquire(&request).await.unwrap().value, Decision::Granted(_)));
    faulty.double_requests_of(BackendCall::Release, 1);
    let released = faulty.release(&request.key, &Outcome::Completed).await.unwrap();
    assert_eq!(released.value, leasehold::lease::Released::Gone, "the second reply is given");
    assert_eq!(live(&*memory).await, 0);
}
