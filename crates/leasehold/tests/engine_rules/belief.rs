//! Rules 1 to 4: how long a lease is believed, and what its holder learns.

use std::time::Duration;

use leasehold::{ErrorKind, Guard, LeaseHealth, Loss, lease::Released};
use leasehold_conformance::{BackendCall, Gate};

use crate::bench::{Bench, MARGIN, TTL, leases, on_bench, soon};

/// A lease whose first renewal was sent after 10 s, and is not answered before the gate is opened.
async fn hold_until_renewed(bench: &Bench) -> (Guard, Gate) {
    let guard = bench.hold().await;
    let gate = bench.faulty.hold_replies_of(BackendCall::Renew);
    bench.clock.advance(Duration::from_secs(10));
    soon("the renewal is sent", async || bench.faulty.count(BackendCall::Renew) == 1).await;
    (guard, gate)
}

// Rule 1: from the instant before sending, less the margin.

#[test]
fn belief_counts_from_sending_not_from_receipt() {
    on_bench(async |bench| {
        let _no_renewal = bench.faulty.hold_requests_of(BackendCall::Renew);
        let gate = bench.faulty.hold_replies_of(BackendCall::Acquire);
        let lock = bench.locks.mutex("r").ttl(TTL).wait_forever();
        let acquiring = tokio::task::JoinSet::from_iter([async move { lock.acquire().await }]);
        soon("the ask is sent", async || bench.faulty.count(BackendCall::Acquire) == 1).await;
        bench.clock.advance(Duration::from_secs(20));
        gate.open();
        let guard = acquiring.join_all().await.remove(0).unwrap();
        assert_eq!(guard.remaining(), Some(TTL - MARGIN - Duration::from_secs(20)));
    });
}

#[test]
fn a_renewal_counts_from_sending_too() {
    on_bench(async |bench| {
        let (guard, gate) = hold_until_renewed(bench).await;
        bench.clock.advance(Duration::from_secs(5));
        gate.open();
        let expected = TTL - MARGIN - Duration::from_secs(5);
        soon("the deadline moved", async || guard.remaining() == Some(expected)).await;
    });
}

#[test]
fn an_answer_that_took_longer_than_the_lease_lives_is_no_grant() {
    on_bench(async |bench| {
        let gate = bench.faulty.hold_replies_of(BackendCall::Acquire);
        let lock = bench.locks.mutex("r").ttl(TTL);
        let trying = tokio::task::JoinSet::from_iter([async move { lock.try_acquire().await }]);
        soon("the ask is sent", async || bench.faulty.count(BackendCall::Acquire) == 1).await;
        bench.clock.advance(TTL);
        gate.open();
        let error = trying.join_all().await.remove(0).unwrap_err();
        assert!(error.outcome_unknown(), "{error:?}");
        soon("nothing is left behind", async || leases(&bench.truth).await == 0).await;
    });
}

// Rule 2: a clock that runs through suspend. Rule 3: validity on use.

#[test]
fn a_process_that_slept_through_its_lease_knows_on_first_use() {
    on_bench(async |bench| {
        let guard = bench.hold().await;
        bench.faulty.cut();
        // Everything stood still for an hour; no task of ours has run since.
        bench.clock.advance(Duration::from_secs(3600));
        assert_eq!(guard.check().unwrap_err().kind(), ErrorKind::Lost);
        assert_eq!(guard.lost().await, Loss::RenewTimeout);
    });
}

#[test]
fn the_loss_is_told_before_another_can_be_granted() {
    on_bench(async |bench| {
        let guard = bench.hold().await;
        bench.faulty.cut();
        bench.clock.advance(TTL - MARGIN - Duration::from_millis(1));
        assert!(guard.check().is_ok());
        bench.clock.advance(Duration::from_millis(1));
        assert_eq!(guard.lost().await, Loss::RenewTimeout);
        assert!(!bench.free_for_others().await, "the margin is not over at the backend");
        bench.clock.advance(MARGIN);
        assert!(bench.free_for_others().await);
    });
}

#[test]
fn a_late_reply_revives_nothing() {
    on_bench(async |bench| {
        let (guard, gate) = hold_until_renewed(bench).await;
        bench.clock.advance(TTL - MARGIN - Duration::from_secs(10));
        assert_eq!(guard.lost().await, Loss::RenewTimeout);
        gate.open();
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(guard.check().is_err());
        assert_eq!(guard.release().await.unwrap(), Released::Gone);
    });
}

#[test]
fn lost_is_told_again_and_again_and_survives_being_dropped() {
    on_bench(async |bench| {
        let guard = bench.hold().await;
        {
            let lost = guard.lost();
            tokio::pin!(lost);
            assert!(tokio::time::timeout(Duration::from_millis(10), &mut lost).await.is_err());
        }
        bench.faulty.cut();
        bench.clock.advance(TTL);
        assert_eq!(guard.lost().await, Loss::RenewTimeout);
        assert_eq!(guard.lease().clone().lost().await, Loss::RenewTimeout);
    });
}

// Rule 4: four states.

#[test]
fn held_in_doubt_held_lost_and_released() {
    on_bench(async |bench| {
        let guard = bench.hold().await;
        assert_eq!(guard.health(), LeaseHealth::Held);
        bench.faulty.cut();
        bench.clock.advance(Duration::from_secs(10));
        soon("renewals fail", async || guard.health() == LeaseHealth::InDoubt).await;
        assert!(guard.check().is_ok(), "in doubt is still held");
        bench.faulty.heal();
        soon("a retry is answered", async || {
            bench.clock.advance(Duration::from_millis(20));
            guard.health() == LeaseHealth::Held
        })
        .await;
        let lease = guard.lease().clone();
        assert_eq!(guard.release().await.unwrap(), Released::Freed);
        assert_eq!(lease.health(), LeaseHealth::Released);
        let guard = bench.hold().await;
        bench.faulty.cut();
        bench.clock.advance(TTL);
        assert_eq!(guard.health(), LeaseHealth::Lost);
    });
}
