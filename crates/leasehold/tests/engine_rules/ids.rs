//! Rule 8: by id, never by name; an id lives once.

use std::time::Duration;

use leasehold::lease::Released;
use leasehold_conformance::BackendCall;

use crate::bench::{Bench, MARGIN, TTL, leases, on_bench, run, soon, ticking};

#[test]
fn a_late_release_does_not_end_anothers_lease() {
    on_bench(async |bench| {
        let late = bench.hold().await;
        bench.faulty.cut();
        bench.clock.advance(TTL);
        let other = bench.truth.mutex("r").acquire().await.unwrap();
        bench.faulty.heal();
        let handle = late.handle();
        assert_eq!(late.release().await.unwrap(), Released::Gone);
        // Nor does one that does not know it is late.
        let released = bench.truth.release(&handle, leasehold::Outcome::Completed).await.unwrap();
        assert_eq!(released, Released::Gone);
        other.check().unwrap();
        assert!(!bench.free_for_others().await);
    });
}

#[test]
fn a_waiter_whose_place_ran_out_asks_again_under_a_new_id() {
    on_bench(async |bench| {
        let holder = bench.truth.mutex("r").acquire().await.unwrap();
        let lock = bench.locks.mutex("r").ttl(TTL).wait_forever();
        let waiting = tokio::task::JoinSet::from_iter([async move { lock.acquire().await }]);
        soon("it waits", async || leases(&bench.truth).await == 2).await;
        bench.faulty.cut();
        for _ in 0..31 {
            bench.clock.advance(Duration::from_secs(1));
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        assert_eq!(leases(&bench.truth).await, 1, "its place ran out");
        bench.faulty.heal();
        soon("it waits again", async || {
            bench.clock.advance(Duration::from_millis(50));
            leases(&bench.truth).await == 2
        })
        .await;
        holder.release().await.unwrap();
        waiting.join_all().await.remove(0).unwrap().check().unwrap();
    });
}

/// Pushes and answers may come by different ways: what was answered first may be heard last.
#[test]
fn an_answer_from_before_the_grant_does_not_end_it() {
    on_bench(async |bench| {
        let other = bench.truth.mutex("r").ttl(TTL * 10).acquire().await.unwrap();
        let lock = bench.locks.mutex("r").ttl(TTL).wait_forever();
        let acquiring = tokio::task::JoinSet::from_iter([async move { lock.acquire().await }]);
        soon("it waits", async || leases(&bench.truth).await == 2).await;
        // 1. A renewal is answered: waiting. 2. The lease is granted and the push is heard. 3. The answer is heard.
        let gate = bench.faulty.hold_replies_of(BackendCall::Renew);
        bench.clock.advance(Duration::from_secs(10));
        soon("a renewal is sent", async || bench.faulty.count(BackendCall::Renew) == 1).await;
        other.release().await.unwrap();
        let guard = acquiring.join_all().await.remove(0).unwrap();
        gate.open();
        for _ in 0..2 {
            soon("it is renewed", async || guard.remaining() == Some(TTL - MARGIN)).await;
            bench.clock.advance(Duration::from_secs(10));
        }
        soon("it is renewed", async || guard.remaining() == Some(TTL - MARGIN)).await;
        guard.check().unwrap();
    });
}

#[test]
fn doubled_and_lost_hints_make_no_second_holder_and_no_stuck_waiter() {
    run(async {
        for (doubled, dropped) in [(true, false), (false, true)] {
            let bench = Bench::new();
            bench.faulty.double_hints(doubled);
            bench.faulty.drop_hints(dropped);
            let holder = bench.truth.mutex("r").acquire().await.unwrap();
            let mut fence = holder.fence();
            let lock = bench.locks.mutex("r").ttl(TTL).wait_forever();
            let mut waiting = tokio::task::JoinSet::new();
            for _ in 0..5 {
                let lock = lock.clone();
                waiting.spawn(async move { lock.acquire().await.unwrap() });
            }
            soon("all wait", async || leases(&bench.truth).await == 6).await;
            holder.release().await.unwrap();
            for _ in 0..5 {
                let next = ticking(&bench.clock, Duration::from_millis(250), waiting.join_next());
                let guard = next.await.unwrap().unwrap();
                guard.check().unwrap();
                assert!(guard.fence() > fence);
                fence = guard.fence();
                assert_eq!(guard.release().await.unwrap(), Released::Freed);
            }
        }
    });
}
