//! What the primitives promise beyond the suite: endings, shutdown, callbacks, re-entry.
#![cfg(feature = "memory")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use leasehold::{
    Attempt, Error, ErrorKind, Holder, Lease, Leasehold, Loss, Resource, Ttl,
    backend::{Backend, Patience, Request},
    backends::memory::MemoryBackend,
    clock::SystemClock,
    lease::{
        Claim, EndedLease, Ending, HistoryFilter, LeaseId, LeaseKey, LeaseState, ListFilter, Names, Outcome, Released,
        Standing,
    },
};

fn locks() -> Leasehold {
    let backend = MemoryBackend::private(Arc::new(SystemClock));
    Leasehold::builder().open(Arc::new(backend)).unwrap()
}

/// The newest ending, once there is one: background releases take a moment.
async fn last_ended(locks: &Leasehold) -> EndedLease {
    for _ in 0..1000 {
        if let Some(ended) = locks.history(&HistoryFilter::new(Names::All)).await.unwrap().into_iter().next() {
            return ended;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    panic!("nothing ended");
}

async fn evict(locks: &Leasehold, name: &str) {
    let resource = Resource::new(name).unwrap();
    let page = locks.list(&ListFilter::new(Names::Exactly(resource.clone()))).await.unwrap();
    let LeaseState::Holding { fence, .. } = page.leases[0].state else { panic!("nobody holds {name}") };
    locks.evict(&resource, fence, "for the test").await.unwrap();
}

/// Work that has no end.
async fn for_ever(_lease: Lease) -> Result<(), Error> {
    std::future::pending().await
}

#[tokio::test]
async fn work_whose_lease_was_gone_before_its_release_is_told_so() {
    let backend = Arc::new(MemoryBackend::private(Arc::new(SystemClock)));
    let locks = Leasehold::builder().open(backend.clone()).unwrap();
    // As if the lease had expired there: this process learns it by the answer to its own release.
    let end = async |lease: &Lease| backend.release(lease.handle().key(), &Outcome::Completed).await.map(drop);
    let error = locks.mutex("r").with(async |lease| end(&lease).await).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    assert!(error.to_string().contains("the backend no longer knows it"), "{error}");

    let error = locks.all(["a", "b"]).with(async |leases| end(&leases[1]).await).await.unwrap_err();
    assert!(error.to_string().starts_with("b on memory"), "{error}");
    assert!(error.to_string().contains("the backend no longer knows it"), "{error}");
}

#[tokio::test]
async fn work_under_with_stops_when_everything_is_released() {
    let locks = locks();
    let lock = locks.mutex("r");
    let working = lock.with(for_ever);
    let closing = async {
        tokio::time::sleep(Duration::from_millis(20)).await;
        locks.release_all().await.unwrap()
    };
    let (outcome, released) = tokio::join!(working, closing);
    assert_eq!(released, 1);
    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Lost);
}

#[tokio::test]
async fn work_that_was_dropped_half_way_is_no_success() {
    let locks = locks();
    let lock = locks.mutex("r");
    let endless = lock.with(for_ever);
    tokio::time::timeout(Duration::from_millis(20), endless).await.unwrap_err();
    let ended = last_ended(&locks).await;
    assert_eq!((ended.ending, ended.problem.unwrap().kind.as_str()), (Ending::Failed, "cancelled"));
}

#[tokio::test]
async fn several_leases_tell_when_one_of_them_was_lost() {
    let locks = locks();
    let both = locks.all(["b", "a", "b"]).acquire().await.unwrap();
    assert_eq!(both.iter().map(|guard| guard.resource().to_string()).collect::<Vec<_>>(), ["a", "b"]);
    evict(&locks, "a").await;
    assert_eq!(both.lost().await, Loss::Evicted);
    assert_eq!(both.check().unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(both.release().await.unwrap(), Released::Gone);
}

#[tokio::test]
async fn a_leader_that_was_released_with_all_others_campaigns_again() {
    let locks = locks();
    let lost = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&lost);
    let election = locks.election("leader:r").on_lost(move || {
        count.fetch_add(1, Ordering::SeqCst);
    });
    let candidate = election.start().await.unwrap();
    let first = candidate.elected().await.unwrap();
    locks.release_all().await.unwrap();
    first.lost().await;
    assert!(!candidate.is_leader() || candidate.lease().unwrap().fence() > first.fence());
    let second = candidate.elected().await.unwrap();
    assert!(second.fence() > first.fence());
    assert_eq!(lost.load(Ordering::SeqCst), 1);
    candidate.stop().await.unwrap();
}

#[tokio::test]
async fn a_candidate_survives_its_callbacks_and_the_closing() {
    let locks = locks();
    let candidate = locks.election("leader:r").on_elected(|_| panic!("on purpose")).start().await.unwrap();
    candidate.elected().await.unwrap();
    locks.close().await.unwrap();
    assert_eq!(candidate.elected().await.unwrap_err().kind(), ErrorKind::Closed);
    candidate.stop().await.unwrap();
}

#[tokio::test]
async fn a_resigned_leader_goes_to_the_end_of_the_queue() {
    let locks = locks();
    let first = locks.election("leader:r").start().await.unwrap();
    first.elected().await.unwrap();
    let second = locks.election("leader:r").start().await.unwrap();
    while locks.list(&ListFilter::new(Names::All)).await.unwrap().leases.len() < 2 {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    first.resign();
    second.elected().await.unwrap();
    assert!(!first.is_leader());
    second.stop().await.unwrap();
    first.elected().await.unwrap();
    first.stop().await.unwrap();
}

#[tokio::test]
async fn a_re_entrant_lock_ends_with_its_last_guard() {
    let locks = locks();
    let lock = locks.mutex("r").shared_by_holder();
    let outer = lock.acquire().await.unwrap();
    let inner = lock.acquire().await.unwrap();
    assert_eq!(outer.fence(), inner.fence());
    assert!(locks.mutex("r").try_acquire().await.unwrap().is_none(), "without saying so, nobody enters again");
    assert_eq!(inner.release().await.unwrap(), Released::Shared);
    assert!(locks.mutex("r").try_acquire().await.unwrap().is_none());
    outer.check().unwrap();
    assert_eq!(outer.release().await.unwrap(), Released::Freed);
    let reading = locks.read("r").shared_by_holder().acquire().await.unwrap();
    let error = locks.write("r").shared_by_holder().acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "an upgrade would wait for itself");
    reading.release().await.unwrap();
}

#[test]
fn blocking_work_may_lock_again_and_renew() {
    let locks = leasehold::blocking::Leasehold::from(locks());
    let nested = locks.mutex("a").with(|outer| {
        outer.renew(Duration::from_secs(60))?;
        let inner = locks.mutex("b").acquire()?;
        inner.release()
    });
    assert_eq!(nested.unwrap(), Released::Freed);
}

#[tokio::test]
async fn an_observer_is_told_every_change_however_often_it_is_dropped() {
    let locks = locks();
    let mut observer = locks.election("leader:r").ttl(Duration::from_millis(300)).observe().await.unwrap();
    assert_eq!(observer.next().await.unwrap().unwrap(), None);
    let leader = locks.election("leader:r").value("here").campaign().await.unwrap();
    let told = loop {
        tokio::select! {
            biased;
            told = observer.next() => break told.unwrap().unwrap().unwrap(),
            () = tokio::task::yield_now() => {}
        }
    };
    assert_eq!((told.fence, told.value.as_deref()), (leader.fence(), Some("here")));
}

#[tokio::test]
async fn an_observer_is_told_of_a_leader_that_ran_out_with_nobody_to_follow_it() {
    let locks = locks();
    let leader = locks.election("leader:r").ttl(Duration::from_millis(300));
    let mut observer = leader.observe().await.unwrap();
    observer.next().await.unwrap().unwrap();
    // One that leads and is gone without a word: nobody renews, nobody releases, nobody else stands.
    let request = Request::new(
        LeaseKey::new(Resource::new("leader:r").unwrap(), LeaseId::random()),
        Claim::LEADER,
        Holder::unique(),
    )
    .ttl(Ttl::new(Duration::from_millis(300)).unwrap())
    .patience(Patience::Try);
    locks.backend().acquire(&request).await.unwrap();
    assert!(observer.next().await.unwrap().unwrap().is_some());
    let told = tokio::time::timeout(Duration::from_secs(5), observer.next()).await.expect("it looks again");
    assert!(told.unwrap().unwrap().is_none());
}

#[tokio::test]
async fn an_election_cannot_be_held_under_a_mutexs_name() {
    let locks = locks();
    let held = locks.mutex("r").acquire().await.unwrap();
    assert_eq!(locks.election("r").leader().await.unwrap_err().kind(), ErrorKind::ShapeMismatch);
    assert_eq!(locks.election("r").start().await.unwrap_err().kind(), ErrorKind::ShapeMismatch);
    held.release().await.unwrap();
    let two_lines = locks.election("r").note("two\nlines").start().await.unwrap_err();
    assert_eq!(two_lines.kind(), ErrorKind::InvalidName);
}

#[tokio::test]
async fn a_started_candidate_refuses_limits_that_it_would_ignore() {
    let locks = locks();
    for election in [locks.election("r").max_tries(1), locks.election("r").wait(Duration::from_secs(1))] {
        assert_eq!(election.start().await.unwrap_err().kind(), ErrorKind::InvalidConfig);
    }
}

#[tokio::test]
async fn the_record_of_failed_work_has_the_causes() {
    let locks = locks();
    let failing = async |_lease: Lease| {
        Err::<(), _>(Error::unavailable("cannot print").caused_by(std::io::Error::other("no paper")))
    };
    locks.mutex("r").with(failing).await.unwrap_err();
    assert_eq!(last_ended(&locks).await.problem.unwrap().details, "cannot print: no paper");
}

#[tokio::test]
async fn the_wait_of_a_re_entrant_lock_counts_from_the_call() {
    let locks = locks();
    let other = locks.mutex("r").acquire().await.unwrap();
    let lock = locks.mutex("r").shared_by_holder().wait(Duration::from_millis(400));
    let both = async { tokio::join!(lock.acquire(), lock.acquire()) };
    let (one, two) = tokio::time::timeout(Duration::from_millis(790), both).await.expect("not twice the wait");
    assert_eq!(one.unwrap_err().kind(), ErrorKind::WaitElapsed);
    assert_eq!(two.unwrap_err().kind(), ErrorKind::WaitElapsed);
    other.release().await.unwrap();
}

#[tokio::test]
async fn nothing_to_lock_is_refused() {
    let locks = locks();
    let none = locks.all(Vec::<String>::new());
    assert_eq!(none.acquire().await.unwrap_err().kind(), ErrorKind::InvalidConfig);
    assert_eq!(none.try_acquire().await.unwrap_err().kind(), ErrorKind::InvalidConfig);
    let worked = none.with(async |_| -> Result<(), Error> { panic!("nothing protects this") }).await;
    assert_eq!(worked.unwrap_err().kind(), ErrorKind::InvalidConfig);
}

#[tokio::test]
async fn a_longest_hold_of_nothing_is_refused() {
    let locks = locks();
    for nothing in [Duration::ZERO, Duration::from_nanos(999)] {
        let lock = locks.mutex("r").max_hold(nothing);
        assert_eq!(lock.acquire().await.unwrap_err().kind(), ErrorKind::InvalidConfig);
    }
    let lock = locks.mutex("r").max_hold(Duration::ZERO);
    assert_eq!(lock.try_acquire().await.unwrap_err().kind(), ErrorKind::InvalidConfig);
    let all = locks.all(["a", "b"]).max_hold(Duration::ZERO);
    assert_eq!(all.acquire().await.unwrap_err().kind(), ErrorKind::InvalidConfig);
}

#[tokio::test]
async fn connecting_may_take_for_ever() {
    let locks = Leasehold::builder().connect_limit(Duration::MAX).connect("memory:for-ever").await.unwrap();
    locks.mutex("r").acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_re_entrant_lock_that_is_busy_names_the_holder() {
    let locks = locks();
    let other = locks.mutex("r").holder(Holder::new("other").unwrap()).acquire().await.unwrap();
    let lock = locks.mutex("r").shared_by_holder();
    let entering = lock.clone().wait_forever();
    let mut entering = tokio::task::JoinSet::from_iter([async move { entering.acquire().await }]);
    while locks.list(&ListFilter::new(Names::All)).await.unwrap().leases.len() < 2 {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    // Another task of this holder waits already: whoever comes now is told whom for.
    let Attempt::Busy(busy) = lock.try_acquire_or_busy().await.unwrap() else { panic!("another holds it") };
    assert_eq!(busy.holders[0].holder, *other.holder());
    assert_eq!(busy.waiting, 1);
    let error = lock.wait(Duration::from_millis(300)).acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WaitElapsed);
    assert_eq!(error.holders()[0].holder, *other.holder());
    entering.shutdown().await;
}

#[tokio::test]
async fn options_that_would_be_ignored_are_refused() {
    let locks = Leasehold::connect("memory:refused").await.unwrap();
    for lock in [locks.mutex("x"), locks.read("x"), locks.write("x")] {
        let error = lock.permits(1).acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    }
    let backend = Arc::clone(locks.backend());
    let error = Leasehold::builder().namespace("mine").open(Arc::clone(&backend)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    Leasehold::builder().open(backend).unwrap();
}

#[tokio::test]
async fn a_lease_that_is_released_by_its_handle_is_held_no_more_by_its_guard() {
    let locks = locks();
    let guard = locks.mutex("r").acquire().await.unwrap();
    assert_eq!(locks.release(&guard.handle(), Outcome::Completed).await.unwrap(), Released::Freed);
    assert_eq!(guard.check().unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(guard.release().await.unwrap(), Released::Gone);
    assert_eq!(last_ended(&locks).await.ending, Ending::Released);
}

#[tokio::test]
async fn a_renewal_by_handle_moves_the_deadline_of_the_guard() {
    let locks = locks();
    let guard = locks.mutex("r").ttl(Duration::from_secs(10)).acquire().await.unwrap();
    let standing = locks.renew(&guard.handle(), Duration::from_secs(1000)).await.unwrap();
    assert!(matches!(standing, Standing::Holding(grant) if grant.fence == guard.fence()));
    assert!(guard.remaining().unwrap() > Duration::from_secs(500));
    guard.release().await.unwrap();
}
