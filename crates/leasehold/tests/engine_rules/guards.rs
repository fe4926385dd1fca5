//! Rule 6 and `max_hold`: how a guard ends.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use leasehold::{
    ErrorKind, Leasehold, Loss, Outcome,
    backend::Backend,
    clock::ManualClock,
    lease::{Ending, HistoryFilter, Names, Released},
};
use leasehold_conformance::{BackendCall, Faulty};

use crate::bench::{Bench, TTL, leases, locks, on_bench, run, soon};

#[test]
fn a_guard_can_be_dropped_where_no_runtime_is_and_while_the_backend_hangs() {
    let bench = Bench::new();
    let guard = leasehold::blocking::wait(bench.locks.mutex("r").ttl(TTL).acquire()).unwrap();
    let gate = bench.faulty.hold_replies_of(BackendCall::Release);
    let started = Instant::now();
    thread::spawn(move || drop(guard)).join().unwrap();
    assert!(started.elapsed() < Duration::from_secs(2), "the drop waited for the backend");
    gate.open();
    run(async {
        soon("it was released", async || leases(&bench.truth).await == 0).await;
    });
}

#[test]
fn a_drop_while_panicking_is_recorded_as_a_failure() {
    let bench = Bench::new();
    let guard = leasehold::blocking::wait(bench.locks.mutex("r").acquire()).unwrap();
    let panicked = thread::spawn(move || {
        let _guard = guard;
        panic!("on purpose");
    });
    panicked.join().unwrap_err();
    run(async {
        soon("it was released", async || leases(&bench.truth).await == 0).await;
        let ended = bench.truth.history(&HistoryFilter::new(Names::All)).await.unwrap().remove(0);
        assert_eq!(ended.ending, Ending::Failed);
        assert_eq!(ended.problem.unwrap().kind, "panic");
    });
}

#[test]
fn a_release_that_was_not_answered_is_tried_again() {
    on_bench(async |bench| {
        let guard = bench.hold().await;
        bench.faulty.drop_requests(1);
        assert!(guard.release().await.unwrap_err().is_retryable());
        bench.assert_soon_ended_by(Ending::Released, Duration::from_millis(20)).await;
    });
}

#[test]
fn max_hold_ends_a_guard_that_would_renew_for_ever() {
    on_bench(async |bench| {
        let guard = bench.locks.mutex("r").max_hold(Duration::from_secs(60)).acquire().await.unwrap();
        for second in 1..60 {
            bench.clock.advance(Duration::from_secs(1));
            let least = Duration::from_secs(18.min(60 - second));
            soon("it is renewed in time", async || guard.remaining().unwrap() >= least).await;
        }
        guard.check().unwrap();
        bench.clock.advance(Duration::from_secs(1));
        assert_eq!(guard.lost().await, Loss::MaxHold);
        soon("it is free for others", async || bench.free_for_others().await).await;
        let history = bench.truth.history(&HistoryFilter::new(Names::All)).await.unwrap();
        assert!(history.iter().any(|ended| ended.ending == Ending::MaxHold), "{history:?}");
    });
}

#[test]
fn a_guard_that_is_released_after_its_longest_hold_was_lost_and_is_given_back() {
    on_bench(async |bench| {
        let guard = bench.locks.mutex("r").max_hold(Duration::from_secs(5)).acquire().await.unwrap();
        bench.clock.advance(Duration::from_secs(5));
        assert_eq!(guard.release().await.unwrap(), Released::Gone);
        soon("it is given back", async || leases(&bench.truth).await == 0).await;
        let ended = bench.truth.history(&HistoryFilter::new(Names::All)).await.unwrap().remove(0);
        assert_eq!(ended.ending, Ending::MaxHold);
    });
}

#[test]
fn the_longest_hold_is_checked_on_use() {
    on_bench(async |bench| {
        let guard = bench.locks.mutex("r").max_hold(Duration::from_secs(5)).acquire().await.unwrap();
        let _no_renewal = bench.faulty.hold_requests_of(BackendCall::Renew);
        bench.clock.advance(Duration::from_secs(6));
        assert_eq!(guard.check().unwrap_err().kind(), ErrorKind::Lost);
        assert_eq!(guard.loss(), Some(Loss::MaxHold));
        let refused = bench.locks.mutex("s").max_hold(TTL).acquire_detached().await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidConfig);
    });
}

#[test]
fn a_detached_lease_is_lost_when_its_ttl_is_over() {
    run(async {
        let bench = Bench::new();
        let detached = bench.locks.mutex("r").ttl(TTL).acquire_detached().await.unwrap();
        let lost = tokio::spawn({
            let lease = detached.lease.clone();
            async move { lease.lost().await }
        });
        bench.clock.advance(TTL / 2);
        detached.lease.renew(TTL).await.unwrap();
        bench.clock.advance(TTL / 2 + TTL / 4);
        detached.lease.check().unwrap();
        assert!(!lost.is_finished(), "it was renewed");
        bench.clock.advance(TTL / 4);
        assert_eq!(lost.await.unwrap(), Loss::RenewTimeout);
        assert_eq!(detached.lease.check().unwrap_err().kind(), ErrorKind::Lost);
        assert_eq!(detached.release_as(Outcome::Completed).await.unwrap(), Released::Gone);
    });
}

#[test]
fn a_detached_lease_says_why_it_was_lost_though_nobody_watched_it() {
    run(async {
        let bench = Bench::new();
        let detached = bench.locks.mutex("r").ttl(TTL).acquire_detached().await.unwrap();
        assert_eq!(detached.lease.loss(), None);
        bench.clock.advance(TTL);
        assert_eq!(detached.lease.loss(), Some(Loss::RenewTimeout));
    });
}

#[test]
fn a_detached_lease_that_is_released_is_no_longer_believed() {
    run(async {
        let bench = Bench::new();
        let detached = bench.locks.mutex("r").ttl(TTL).acquire_detached().await.unwrap();
        let lease = detached.lease.clone();
        assert_eq!(detached.release_as(Outcome::Completed).await.unwrap(), Released::Freed);
        assert!(lease.check().is_err());
        assert_eq!(lease.lost().await, Loss::Released);
        assert_eq!(leases(&bench.truth).await, 0);
    });
}

#[test]
fn what_is_given_up_by_a_downgrade_is_given_up_before_it_is_asked_for() {
    on_bench(async |bench| {
        let guard = bench.locks.write("r").ttl(TTL).acquire().await.unwrap();
        bench.faulty.drop_replies_of(BackendCall::Renew, 1);
        assert!(guard.downgrade().await.unwrap_err().outcome_unknown());
        assert_eq!(guard.mode(), leasehold::lease::Mode::Shared);
        let reader = bench.truth.read("r").try_acquire().await.unwrap().expect("readers are let in");
        reader.release().await.unwrap();
        guard.release().await.unwrap();

        let lock = bench.locks.write("r").shared_by_holder();
        let (outer, inner) = (lock.acquire().await.unwrap(), lock.acquire().await.unwrap());
        assert_eq!(outer.downgrade().await.unwrap_err().kind(), ErrorKind::Unsupported);
        assert!(bench.truth.read("r").try_acquire().await.unwrap().is_none(), "the inner guard may be writing");
        inner.release().await.unwrap();
        outer.downgrade().await.unwrap();
    });
}

/// Runs a test on a `file:` backend whose calls can fail, with locks on it by a clock that moves when told.
#[cfg(feature = "file")]
fn on_file(test: impl AsyncFnOnce(&Faulty, &ManualClock, &Leasehold)) {
    use leasehold::backends::file::{FileBackend, FileOptions};

    run(async {
        let (folder, clock) = (tempfile::tempdir().unwrap(), ManualClock::new());
        let url = format!("file://{}", folder.path().join("locks").display());
        let options = FileOptions::from_url(&url, "default", Arc::new(clock.clone())).unwrap();
        let faulty = Faulty::new(Arc::new(FileBackend::open(options).await.unwrap()));
        let locks = locks(&clock, Arc::clone(&faulty) as Arc<dyn Backend>);
        test(&faulty, &clock, &locks).await;
    });
}

/// Waits until nothing is left, though nothing passed for many times the ttl.
#[cfg(feature = "file")]
async fn given_back_after_a_long_cut(faulty: &Faulty, clock: &ManualClock, locks: &Leasehold) {
    faulty.cut();
    for _ in 0..20 {
        clock.advance(TTL);
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    faulty.heal();
    soon("it was given back", async || {
        clock.advance(Duration::from_secs(1));
        leases(locks).await == 0
    })
    .await;
}

#[cfg(feature = "file")]
#[test]
fn where_no_clock_ends_a_lease_its_release_is_tried_until_it_is_done() {
    on_file(async |faulty, clock, locks| {
        let guard = locks.mutex("r").ttl(TTL).acquire().await.unwrap();
        faulty.drop_requests_of(BackendCall::Release, 1);
        guard.release().await.unwrap_err();
        given_back_after_a_long_cut(faulty, clock, locks).await;
    });
}

#[cfg(feature = "file")]
#[test]
fn where_no_clock_ends_a_lease_a_request_that_was_never_answered_is_released_until_it_is_done() {
    on_file(async |faulty, clock, locks| {
        faulty.drop_replies_of(BackendCall::Acquire, 1000);
        faulty.drop_requests_of(BackendCall::Release, 1);
        let request = locks.mutex("r").ttl(TTL).wait(Duration::from_secs(1));
        let request = tokio::spawn(async move { request.acquire().await.map(drop) });
        soon("it was asked for", async || leases(locks).await == 1).await;
        soon("the wait is over", async || {
            clock.advance(Duration::from_millis(100));
            request.is_finished()
        })
        .await;
        request.await.unwrap().unwrap_err();
        given_back_after_a_long_cut(faulty, clock, locks).await;
    });
}
