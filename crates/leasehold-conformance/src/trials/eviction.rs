//! An operator takes a lease away, and only the one that was meant.

use leasehold::{
    Fence,
    lease::{Claim, Ending, Evicted, Standing},
};

use super::TrialContext;
use crate::instance::{ask, permits};

pub(super) async fn stale_fence(context: TrialContext) {
    let (one, two) = context.two_instances().await;
    assert_eq!(one.evict("x", Fence::new(7), "nobody").await, Evicted::NoSuchFence { current: vec![] });
    let first = ask("x", Claim::EXCLUSIVE);
    let old = one.granted(&first).await.fence;
    one.free(&first).await;
    let second = ask("x", Claim::EXCLUSIVE);
    let grant = one.granted(&second).await;
    let refused = two.evict("x", old, "too late").await;
    assert_eq!(refused, Evicted::NoSuchFence { current: vec![grant.fence] });
    assert_eq!(one.holding(&second).await, grant);
}

pub(super) async fn handed_on(context: TrialContext) {
    let (one, two) = context.two_instances().await;
    let (first, second) = (ask("x", Claim::EXCLUSIVE), ask("x", Claim::EXCLUSIVE));
    let fence = one.granted(&first).await.fence;
    one.queued(&second).await;
    let evicted = two.evict("x", fence, "stuck since Tuesday").await;
    assert_eq!(evicted, Evicted::Evicted { holder: first.holder.clone() });
    assert_eq!(one.standing(&first).await, Standing::Gone);
    one.holding(&second).await;
    let history = two.history("x").await;
    assert_eq!((history[0].ending, history[0].fence), (Ending::Evicted, Some(fence)));
    assert_eq!(history[0].problem.as_ref().map(|problem| problem.details.as_str()), Some("stuck since Tuesday"));
}

pub(super) async fn one_of_many(context: TrialContext) {
    let one = context.instance().await;
    let requests = [ask("x", permits(1, 3)), ask("x", permits(1, 3)), ask("x", permits(1, 3))];
    let mut fences = Vec::new();
    for request in &requests {
        fences.push(one.granted(request).await.fence);
    }
    one.evict("x", fences[1], "stuck").await;
    assert_eq!(one.standing(&requests[1]).await, Standing::Gone);
    one.holding(&requests[0]).await;
    one.holding(&requests[2]).await;
}

pub(super) async fn told(context: TrialContext) {
    let (one, two, operator) = (context.instance().await, context.instance().await, context.instance().await);
    let (first, second) = (ask("x", Claim::EXCLUSIVE), ask("x", Claim::EXCLUSIVE));
    let fence = one.granted(&first).await.fence;
    two.queued(&second).await;
    operator.evict("x", fence, "stuck").await;
    one.told_evicted(&first).await;
    assert_eq!(two.told_granted(&second).await, two.holding(&second).await.fence);
    operator.told_nothing().await;
}
