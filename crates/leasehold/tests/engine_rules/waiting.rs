//! Waiting: how long it takes to give up, what the error names, and rule 9, backoff only where nothing pushes.

use std::{future::poll_fn, pin::Pin, sync::Arc, task::Poll, time::Duration};

use leasehold::{ErrorKind, backend::Backend};
use leasehold_conformance::BackendCall;
use tokio::task::JoinSet;

use crate::bench::{Bench, TTL, leases, locks, on_bench, run, soon, ticking};

#[test]
fn a_waiter_asks_at_intervals_only_where_nothing_pushes() {
    run(async {
        for pushes in [true, false] {
            let bench = Bench::new();
            if !pushes {
                bench.faulty.push_nothing();
            }
            let locks = locks(&bench.clock, Arc::clone(&bench.faulty) as Arc<dyn Backend>);
            let holder = bench.truth.mutex("r").ttl(Duration::from_secs(3600)).acquire().await.unwrap();
            let lock = locks.mutex("r").ttl(TTL).wait_forever();
            let lock = lock.backoff(Duration::from_millis(100), Duration::from_millis(400));
            let mut waiting = JoinSet::from_iter([async move { lock.acquire().await }]);
            soon("it waits", async || leases(&bench.truth).await == 2).await;
            for _ in 0..80 {
                bench.clock.advance(Duration::from_millis(100));
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            let asks = bench.faulty.count(BackendCall::Renew);
            assert_eq!(asks == 0, pushes, "{asks} asks within 8 s");
            waiting.shutdown().await;
            holder.release().await.unwrap();
        }
    });
}

#[test]
fn max_tries_bounds_the_asks_where_nothing_pushes() {
    on_bench(async |bench| {
        bench.faulty.push_nothing();
        let locks = locks(&bench.clock, Arc::clone(&bench.faulty) as Arc<dyn Backend>);
        let _holder = bench.truth.mutex("r").acquire().await.unwrap();
        let lock = locks.mutex("r").backoff(Duration::from_millis(10), Duration::from_millis(10)).max_tries(5);
        let waiting = async move { lock.wait_forever().acquire().await };
        let error = ticking(&bench.clock, Duration::from_millis(10), waiting).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WaitElapsed);
        assert_eq!(error.holders().len(), 1, "{error}");
    });
}

#[test]
fn closing_leaves_the_queue_though_nobody_polls_the_waiter() {
    on_bench(async |bench| {
        let _holder = bench.truth.mutex("r").acquire().await.unwrap();
        let lock = bench.locks.mutex("r").ttl(TTL).wait_forever();
        let mut waiting = Box::pin(lock.acquire());
        assert!(poll_once(&mut waiting).await.is_pending());
        soon("it waits", async || leases(&bench.truth).await == 2).await;
        bench.locks.close().await.unwrap();
        assert_eq!(leases(&bench.truth).await, 1, "the holder's alone");
        assert_eq!(waiting.await.unwrap_err().kind(), ErrorKind::Closed);
    });
}

async fn poll_once<T>(future: &mut Pin<Box<impl Future<Output = T>>>) -> Poll<T> {
    poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await
}

// Patience: giving up takes no longer than was promised.

#[test]
fn a_try_ends_within_its_own_bound_on_a_backend_that_does_not_answer() {
    on_bench(async |bench| {
        let gate = bench.faulty.hold_requests_of(BackendCall::Acquire);
        let lock = bench.locks.mutex("r").ttl(TTL);
        let mut trying = JoinSet::from_iter([async move { lock.try_acquire().await }]);
        soon("the request is sent", async || bench.faulty.count(BackendCall::Acquire) == 1).await;
        bench.clock.advance(Duration::from_millis(2999));
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(trying.try_join_next().is_none(), "a slow answer is waited for");
        bench.clock.advance(Duration::from_millis(1));
        let ended = tokio::time::timeout(Duration::from_secs(10), trying.join_next()).await;
        let error = ended.expect("not after the ttl").unwrap().unwrap().unwrap_err();
        assert!(error.outcome_unknown(), "{error:?}");
        gate.open();
        soon("the late grant is given back", async || bench.faulty.count(BackendCall::Release) == 1).await;
        soon("nothing is left", async || leases(&bench.truth).await == 0).await;
    });
}

#[test]
fn a_wait_ends_when_it_promised_though_nobody_says_who_holds_the_lock() {
    on_bench(async |bench| {
        let _held = bench.truth.mutex("r").ttl(TTL).acquire().await.unwrap();
        let _never_answered = bench.faulty.hold_requests_of(BackendCall::List);
        let lock = bench.locks.mutex("r").ttl(TTL).wait(Duration::from_millis(200));
        let mut waiting = JoinSet::from_iter([async move { lock.acquire().await }]);
        soon("it waits", async || leases(&bench.truth).await == 2).await;
        bench.clock.advance(Duration::from_millis(150));
        soon("it looks who is in the way", async || bench.faulty.count(BackendCall::List) == 1).await;
        bench.clock.advance(Duration::from_millis(50));
        let ended = tokio::time::timeout(Duration::from_secs(10), waiting.join_next()).await;
        let error = ended.expect("it does not wait for the list").unwrap().unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WaitElapsed);
        soon("its position is given back", async || leases(&bench.truth).await == 1).await;
    });
}

#[test]
fn a_wait_that_ends_names_the_holder_when_the_backend_says_in_time() {
    on_bench(async |bench| {
        let held = bench.truth.mutex("r").ttl(TTL).acquire().await.unwrap();
        let lock = bench.locks.mutex("r").ttl(TTL).wait(Duration::from_millis(200));
        // The look begins 100 ms before the end, and a busy machine may be too late with it.
        let named = soon("the error names the holder", async || {
            let error = lock.acquire().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::WaitElapsed);
            error.holders().first().is_some_and(|found| found.holder == *held.holder())
        });
        ticking(&bench.clock, Duration::from_millis(5), named).await;
    });
}
