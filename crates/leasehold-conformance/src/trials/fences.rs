//! Fences rise, whoever asks and however the lease before ended.

use std::time::Duration;

use leasehold::{
    Fence,
    backend::Request,
    lease::{Claim, Outcome, Standing},
};

use super::TrialContext;
use crate::instance::{ask, attempt, permits, renewal};

pub(super) async fn a_thousand_grants(context: TrialContext) {
    let instances = [context.instance().await, context.instance().await, context.instance().await];
    let mut last = Fence::default();
    for round in 0..1000 {
        let instance = &instances[round % instances.len()];
        let request = attempt("x", Claim::EXCLUSIVE);
        let fence = instance.granted(&request).await.fence;
        assert!(fence > last, "round {round}: {fence} came after {last}");
        last = fence;
        instance.free(&request).await;
    }
}

pub(super) async fn every_ending(context: TrialContext) {
    let (one, two) = context.two_instances().await;
    let outcomes = [Outcome::Completed, Outcome::failed("Timeout", "no answer"), Outcome::MaxHold];
    let mut last = Fence::default();
    for outcome in &outcomes {
        let request = attempt("x", Claim::EXCLUSIVE);
        let fence = one.granted(&request).await.fence;
        assert!(fence > last);
        last = fence;
        two.release_as(&request, outcome).await;
    }
    let (evicted, next) = (ask("x", Claim::EXCLUSIVE), ask("x", Claim::EXCLUSIVE));
    let fence = one.granted(&evicted).await.fence;
    assert!(fence > last);
    two.queued(&next).await;
    one.evict("x", fence, "stuck").await;
    assert!(two.holding(&next).await.fence > fence, "also when it is handed on");
}

pub(super) async fn shared_fences(context: TrialContext) {
    let (one, two) = context.two_instances().await;
    let mut last = Fence::default();
    for at in 0..10 {
        let fence = [&one, &two][at % 2].granted(&attempt("x", permits(1, 10))).await.fence;
        assert!(fence > last, "{fence} came after {last}");
        last = fence;
    }
}

pub(super) async fn floor_on_acquire(context: TrialContext) {
    let one = context.instance().await;
    let first = attempt("x", Claim::EXCLUSIVE);
    let fence = one.granted(&first).await.fence;
    one.free(&first).await;

    let ahead = Fence::new(fence.get() + micros(Duration::from_secs(5)));
    let second = attempt("x", Claim::EXCLUSIVE).fence_floor(ahead);
    let raised = one.granted(&second).await.fence;
    assert!(raised >= ahead, "{raised} is below the floor {ahead}");
    one.free(&second).await;

    let absurd = Fence::new(fence.get() + micros(Duration::from_secs(3600)));
    let third = attempt("x", Claim::EXCLUSIVE).fence_floor(absurd);
    let clamped = one.granted(&third).await.fence;
    assert!(clamped > raised && clamped < absurd, "a floor an hour ahead was taken: {clamped}");
    one.free(&third).await;

    let low = attempt("x", Claim::EXCLUSIVE).fence_floor(Fence::new(7));
    assert!(one.granted(&low).await.fence > clamped, "a low floor lowers nothing");
}

pub(super) async fn floor_on_renew(context: TrialContext) {
    let (one, two) = context.two_instances().await;
    let (first, second) = (ask("x", Claim::EXCLUSIVE), ask("x", Claim::EXCLUSIVE));
    let fence = one.granted(&first).await.fence;
    two.queued(&second).await;
    let raise = |request: &Request, to: u64| renewal(request).fence_floor(Fence::new(to));
    let fence_after = async |to: u64| match one.renew(raise(&first, to)).await {
        Standing::Holding(grant) => grant.fence,
        other => panic!("it holds: {other:?}"),
    };

    let higher = fence.get() + micros(Duration::from_secs(3));
    assert_eq!(fence_after(higher).await.get(), higher, "stored exactly");
    assert_eq!(fence_after(fence.get()).await.get(), higher, "never lowered");
    assert_eq!(fence_after(higher + micros(Duration::from_secs(3600))).await.get(), higher, "refused, not bent");
    let listed = one.list("x").await;
    assert!(matches!(listed[0].state, leasehold::lease::LeaseState::Holding { fence, .. } if fence.get() == higher));

    let waits = two.renew(raise(&second, higher + 1000)).await;
    assert!(matches!(waits, Standing::Waiting(position) if position.last_fence.get() >= higher));
    one.free(&first).await;
    assert!(two.holding(&second).await.fence.get() > higher, "the next grant is above what was stored");
}

pub(super) async fn exact_in_json(context: TrialContext) {
    let one = context.instance().await;
    let fence = one.granted(&attempt("x", Claim::EXCLUSIVE)).await.fence;
    assert!(fence <= Fence::MAX, "{fence} would be rounded by a JSON reader");
}

fn micros(length: Duration) -> u64 {
    u64::try_from(length.as_micros()).expect("a short time")
}
