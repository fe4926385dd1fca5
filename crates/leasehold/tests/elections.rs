//! Elections whose backend loses events, fails, or uses the name for something else.
#![cfg(feature = "memory")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "events/mod.rs"]
mod events;
#[path = "scripted/mod.rs"]
mod scripted;

use std::{
    sync::{Arc, mpsc},
    time::Duration,
};

use leasehold::{
    Election, ErrorKind, Guard, Holder, Leader, Leasehold, Observer, Resource, Ttl,
    backend::{Backend, Request},
    backends::memory::MemoryBackend,
    blocking,
    clock::{ManualClock, SystemClock},
    lease::{Claim, LeaseId, LeaseKey, Outcome},
};
use leasehold_conformance::{BackendCall, Faulty};
use parking_lot::Mutex;
use tokio::time;

use self::scripted::Scripted;

const LIMIT: Duration = Duration::from_secs(20);
/// More events than wait for a slow reader.
const MANY: usize = 1100;

fn locks(clock: &ManualClock, backend: Arc<dyn Backend>) -> Leasehold {
    Leasehold::builder().clock(Arc::new(clock.clone())).open(backend).unwrap()
}

async fn next(observer: &mut Observer) -> Option<Leader> {
    time::timeout(LIMIT, observer.next()).await.expect("the change is reported").unwrap().unwrap()
}

/// An observer that has reported that nobody leads, on a clock that stands still: only events wake it.
async fn observer(election: &Election) -> Observer {
    let mut observer = election.observe().await.unwrap();
    assert_eq!(next(&mut observer).await, None);
    observer
}

/// Locks on a clock that stands still, an observer of `leader:r`, and a leader that it has not reported yet.
async fn observed() -> (Leasehold, Observer, Guard) {
    let clock = ManualClock::new();
    let locks = locks(&clock, Arc::new(MemoryBackend::private(Arc::new(clock.clone()))));
    let observer = observer(&locks.election("leader:r")).await;
    let leader = locks.election("leader:r").campaign().await.unwrap();
    (locks, observer, leader)
}

#[tokio::test]
async fn an_observer_reports_a_leader_among_events_of_many_other_names() {
    let (locks, mut observer, leader) = observed().await;
    for n in 0..MANY {
        locks.mutex(format!("other:{n}")).acquire().await.unwrap().release().await.unwrap();
    }
    assert_eq!(next(&mut observer).await.unwrap().fence, leader.fence());
}

#[tokio::test]
async fn an_observer_that_missed_events_of_its_own_election_looks_again() {
    let (locks, mut observer, leader) = observed().await;
    for _ in 0..MANY {
        let key = LeaseKey::new(Resource::new("leader:r").unwrap(), LeaseId::random());
        let waiter = Request::new(key, Claim::LEADER, Holder::unique()).ttl(Ttl::DEFAULT);
        locks.backend().acquire(&waiter).await.unwrap();
        locks.backend().release(&waiter.key, &Outcome::GaveUp).await.unwrap();
    }
    assert_eq!(next(&mut observer).await.unwrap().fence, leader.fence());
}

#[tokio::test]
async fn an_observer_looks_again_though_every_event_is_lost() {
    let clock = ManualClock::new();
    let script = Scripted::new(MemoryBackend::private(Arc::new(clock.clone())));
    script.lose_events();
    let locks = locks(&clock, script);
    let mut observer = observer(&locks.election("leader:r")).await;
    let leader = locks.election("leader:r").campaign().await.unwrap();
    let ticking = async {
        loop {
            clock.advance(Duration::from_millis(100));
            time::sleep(Duration::from_millis(2)).await;
        }
    };
    let seen = tokio::select! {
        seen = next(&mut observer) => seen,
        () = ticking => unreachable!("it ticks for ever"),
    };
    assert_eq!(seen.unwrap().fence, leader.fence());
}

#[tokio::test]
async fn an_observer_pauses_after_a_look_that_failed() {
    let clock = ManualClock::new();
    let faulty = Faulty::new(Arc::new(MemoryBackend::private(Arc::new(clock.clone()))));
    let locks = locks(&clock, Arc::clone(&faulty) as _);
    let mut observer = locks.election("leader:r").observe().await.unwrap();
    faulty.cut();
    assert_eq!(observer.next().await.unwrap().unwrap_err().kind(), ErrorKind::Unavailable);
    let so_far = faulty.count(BackendCall::List);
    assert!(time::timeout(Duration::from_millis(100), observer.next()).await.is_err(), "no time has passed");
    assert_eq!(faulty.count(BackendCall::List), so_far);
    clock.advance(Duration::from_secs(5));
    observer.next().await.unwrap().unwrap_err();
    assert_eq!(faulty.count(BackendCall::List), so_far + 1);
    faulty.heal();
    clock.advance(Duration::from_secs(10));
    assert_eq!(next(&mut observer).await, None);
}

static LOG: Mutex<String> = Mutex::new(String::new());

/// The name is in use as a mutex when the candidate campaigns: it goes on trying until it is free.
#[tokio::test]
async fn a_candidate_waits_until_its_name_is_no_mutex_any_more() {
    tracing::subscriber::set_global_default(events::Events(|target, fields| {
        LOG.lock().extend([target, ": ", fields, "\n"]);
    }))
    .unwrap();
    let locks = Leasehold::builder().open(Arc::new(MemoryBackend::private(Arc::new(SystemClock)))).unwrap();
    let (taken, mutex) = mpsc::channel::<Guard>();
    let (other, first) = (locks.clone(), Mutex::new(Some(taken)));
    let deposing = locks.election("r");
    let election = locks.election("r").on_lost(move || {
        // The first loss is the time when someone takes the name for a mutex.
        if let Some(taken) = first.lock().take() {
            taken.send(blocking::wait(other.mutex("r").acquire()).unwrap()).unwrap();
        }
    });
    let candidate = election.start().await.unwrap();
    time::timeout(LIMIT, candidate.elected()).await.unwrap().unwrap();
    assert!(candidate.last_error().is_none());
    deposing.depose("for the test").await.unwrap();
    let stopped = time::timeout(LIMIT, async {
        while candidate.last_error().is_none() {
            time::sleep(Duration::from_millis(5)).await;
        }
    });
    stopped.await.expect("the candidate meets the mutex");
    assert_eq!(candidate.last_error().unwrap().kind(), ErrorKind::ShapeMismatch);
    assert!(!candidate.is_leader());
    assert!(LOG.lock().contains("cannot campaign"), "{}", LOG.lock());
    assert!(time::timeout(Duration::from_millis(100), candidate.elected()).await.is_err(), "it waits through errors");

    mutex.recv().unwrap().release().await.unwrap();
    let term = time::timeout(LIMIT, candidate.elected()).await.expect("the name is free").unwrap();
    term.check().unwrap();
    assert!(candidate.last_error().is_none());
    candidate.stop().await.unwrap();
}
