//! What is unknown stays unknown until it is settled, and closing does not wait for it.

use std::{
    future::{Future, poll_fn},
    sync::Arc,
    task::Poll,
    time::Duration,
};

use leasehold::{
    ErrorKind, Leasehold,
    backend::Backend,
    backends::memory::MemoryBackend,
    clock::{Clock, ManualClock},
    lease::{Ending, Outcome},
};
use leasehold_conformance::{BackendCall, Faulty};

use crate::{
    bench::{Bench, TTL, leases, locks, on_bench, run, soon, ticking},
    scripted::Scripted,
};

#[test]
fn a_lost_reply_and_a_refusal_after_it_leave_nothing_behind() {
    on_bench(async |bench| {
        bench.faulty.drop_replies_of(BackendCall::Acquire, 1);
        let lock = bench.locks.mutex("r").ttl(TTL);
        let trying = tokio::task::JoinSet::from_iter([async move { lock.try_acquire().await }]);
        soon("the first ask is done", async || leases(&bench.truth).await == 1).await;
        bench.faulty.cut();
        let error = ticking(&bench.clock, Duration::from_millis(20), trying.join_all()).await.remove(0).unwrap_err();
        assert!(error.outcome_unknown(), "{error:?}");
        bench.faulty.heal();
        bench.assert_soon_ended_by(Ending::Cancelled, Duration::from_millis(20)).await;
    });
}

#[test]
fn closing_waits_neither_for_an_ask_nor_for_a_renewal_that_hangs() {
    on_bench(async |bench| {
        let guard = bench.hold().await;
        let _asks = bench.faulty.hold_requests_of(BackendCall::Acquire);
        let _renewals = bench.faulty.hold_requests_of(BackendCall::Renew);
        let lock = bench.locks.mutex("other").ttl(TTL).wait_forever();
        let asking = tokio::task::JoinSet::from_iter([async move { lock.acquire().await }]);
        let lease = guard.lease().clone();
        let renewing = tokio::task::JoinSet::from_iter([async move { lease.renew(TTL).await }]);
        soon("both are sent", async || {
            bench.faulty.count(BackendCall::Acquire) == 2 && bench.faulty.count(BackendCall::Renew) == 1
        })
        .await;
        let closing = tokio::time::timeout(Duration::from_secs(10), bench.locks.close());
        ticking(&bench.clock, Duration::from_millis(200), closing).await.unwrap().unwrap();
        assert_eq!(asking.join_all().await.remove(0).unwrap_err().kind(), ErrorKind::Closed);
        assert!(renewing.join_all().await.remove(0).is_err());
    });
}

#[test]
fn nobody_goes_on_asking_for_a_caller_that_is_gone() {
    run(async {
        let locks = {
            let memory = Arc::new(MemoryBackend::private(Arc::new(leasehold::clock::SystemClock)));
            let faulty = Faulty::new(memory);
            // Every grant takes longer to arrive than the lease lives.
            faulty.delay(Duration::from_millis(70));
            Leasehold::builder().open(faulty).unwrap()
        };
        let lock = locks.mutex("r").ttl(Duration::from_millis(100)).wait_forever();
        assert!(tokio::time::timeout(Duration::from_millis(300), lock.acquire()).await.is_err());
        tokio::time::timeout(Duration::from_secs(5), locks.close()).await.expect("nothing goes on").unwrap();
    });
}

/// Somebody else's task may keep a caller from being polled.
#[test]
fn what_a_caller_asked_for_is_renewed_though_nobody_polls_the_caller() {
    on_bench(async |bench| {
        let asks = bench.faulty.hold_requests_of(BackendCall::Acquire);
        let lock = bench.locks.mutex("r").ttl(TTL);
        let mut acquiring = Box::pin(lock.acquire());
        assert!(poll_fn(|context| Poll::Ready(acquiring.as_mut().poll(context))).await.is_pending());
        drop(asks);
        soon("it is granted and renewed", async || {
            bench.clock.advance(Duration::from_millis(200));
            bench.faulty.count(BackendCall::Renew) > 0
        })
        .await;
        acquiring.await.expect("it was held all the time").release().await.unwrap();
    });
}

/// The same for a release.
#[test]
fn what_a_caller_releases_is_released_though_nobody_polls_the_caller() {
    on_bench(async |bench| {
        let guard = bench.hold().await;
        let releases = bench.faulty.hold_requests_of(BackendCall::Release);
        let mut releasing = Box::pin(guard.release());
        assert!(poll_fn(|context| Poll::Ready(releasing.as_mut().poll(context))).await.is_pending());
        drop(releases);
        bench.assert_soon_ended_by(Ending::Released, Duration::from_millis(200)).await;
    });
}

/// The same for a detached lease, which the renewer does not know while it is held.
#[test]
fn what_a_caller_releases_of_a_detached_lease_is_released_though_nobody_polls_the_caller() {
    on_bench(async |bench| {
        let detached = bench.locks.mutex("r").ttl(TTL).acquire_detached().await.unwrap();
        let releases = bench.faulty.hold_requests_of(BackendCall::Release);
        let mut releasing = Box::pin(detached.release_as(Outcome::Completed));
        assert!(poll_fn(|context| Poll::Ready(releasing.as_mut().poll(context))).await.is_pending());
        drop(releases);
        bench.locks.close().await.unwrap();
        assert_eq!(leases(&bench.truth).await, 0);
    });
}

/// A release by another connection may overtake the request that it is meant for.
#[test]
fn closing_gives_a_request_on_its_way_time_to_arrive_before_it_is_given_back() {
    on_bench(async |bench| {
        let gate = bench.faulty.hold_requests_of(BackendCall::Acquire);
        let lock = bench.locks.mutex("r").ttl(TTL).wait_forever();
        let asking = tokio::task::JoinSet::from_iter([async move { lock.acquire().await }]);
        soon("the request is sent", async || bench.faulty.count(BackendCall::Acquire) == 1).await;
        let locks = bench.locks.clone();
        let closing = tokio::task::JoinSet::from_iter([async move { locks.close().await }]);
        assert_eq!(
            asking.join_all().await.remove(0).unwrap_err().kind(),
            ErrorKind::Closed,
            "its caller need not wait"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(bench.faulty.count(BackendCall::Release), 0, "a release would find nothing");
        gate.open();
        closing.join_all().await.remove(0).unwrap();
        assert_eq!((bench.faulty.count(BackendCall::Release), leases(&bench.truth).await), (1, 0));
    });
}

#[test]
fn a_lease_that_no_clock_ends_is_not_released_before_its_request_is_answered() {
    run(async {
        let clock = ManualClock::new();
        let scripted = Scripted::new(MemoryBackend::private(Arc::new(clock.clone())));
        scripted.end_leases_with_process();
        let faulty = Faulty::new(Arc::clone(&scripted) as Arc<dyn Backend>);
        let gate = faulty.hold_requests_of(BackendCall::Acquire);
        let locks = locks(&clock, faulty as Arc<dyn Backend>);
        let lock = locks.mutex("r");
        let tried = tokio::spawn(async move { lock.try_acquire().await.map(|guard| guard.is_some()) });
        soon("the try ends", async || {
            clock.advance(Duration::from_millis(500));
            tried.is_finished()
        })
        .await;
        assert!(tried.await.unwrap().unwrap_err().outcome_unknown());
        for _ in 0..50 {
            clock.advance(Duration::from_millis(500));
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(scripted.releases(), 0, "the request would be carried out after the release");
        gate.open();
        soon("it is released", async || scripted.releases() == 1 && leases(&locks).await == 0).await;
    });
}

#[test]
fn the_end_of_a_backend_does_not_hold_up_the_threads_of_the_library() {
    run(async {
        let clock = ManualClock::new();
        for _ in 0..20 {
            let scripted = Scripted::new(MemoryBackend::private(Arc::new(clock.clone())));
            let (sender, dropped) = std::sync::mpsc::channel();
            scripted.when_dropped(move || {
                let name = std::thread::current().name().unwrap_or_default().to_owned();
                sender.send(name).unwrap();
            });
            drop(locks(&clock, scripted));
            let thread = dropped.recv_timeout(Duration::from_secs(10)).unwrap();
            assert!(!["leasehold-io", "leasehold-timer"].contains(&thread.as_str()), "it ended on {thread}");
        }
    });
}

#[test]
fn locks_taken_in_vain_are_given_back_without_waiting_for_each() {
    run(async {
        let bench = Bench::new();
        let _held = bench.truth.mutex("z").acquire().await.unwrap();
        let _releases = bench.faulty.hold_requests_of(BackendCall::Release);
        let names: Vec<String> = (0..10).map(|number| format!("r{number}")).chain([String::from("z")]).collect();
        let all = bench.locks.all(names);
        let asked = tokio::spawn(async move { all.try_acquire().await.map(|all| all.is_some()) });
        let begun = bench.clock.now();
        soon("the answer", async || {
            bench.clock.advance(Duration::from_millis(100));
            asked.is_finished()
        })
        .await;
        assert!(!asked.await.unwrap().unwrap());
        let waited = bench.clock.now().since(begun);
        assert!(waited < Duration::from_secs(8), "it waited for each lock: {waited:?}");
    });
}

#[test]
fn entering_again_waits_no_longer_than_it_may() {
    run(async {
        let bench = Bench::new();
        let lock = bench.locks.mutex("r").shared_by_holder().ttl(Duration::from_secs(600));
        let _outer = lock.clone().acquire().await.unwrap();
        let _renewals = bench.faulty.hold_requests_of(BackendCall::Renew);
        let begun = bench.clock.now();
        let asked = tokio::spawn(async move { lock.wait(Duration::from_secs(2)).acquire().await.map(drop) });
        soon("the answer", async || {
            bench.clock.advance(Duration::from_millis(100));
            asked.is_finished()
        })
        .await;
        assert!(asked.await.unwrap().unwrap_err().outcome_unknown());
        let waited = bench.clock.now().since(begun);
        assert!(waited < Duration::from_secs(5), "it waited for {waited:?}");
    });
}
