//! Who waits is served in the order of coming, and told.

use std::{collections::BTreeMap, sync::Arc};

use leasehold::{
    backend::{Hint, Request},
    lease::{Claim, LeaseId, Released, Standing},
};

use super::TrialContext;
use crate::instance::{Instance, MOMENT, ask};

pub(super) async fn fifty_waiters(context: TrialContext, claim: Claim) {
    const WAITERS: usize = 50;
    let instances = [context.instance().await, context.instance().await, context.instance().await];
    let at = |waiter: usize| &instances[waiter * 7 % instances.len()];
    let first = ask("x", claim);
    let mut last_fence = at(0).granted(&first).await.fence;
    let mut newest = last_fence;
    let waiters: Vec<Request> = (0..WAITERS).map(|_| ask("x", claim)).collect();
    for (waiter, request) in waiters.iter().enumerate() {
        let position = at(waiter).queued(request).await;
        assert_eq!(position.ahead as usize, waiter);
        assert!(position.last_fence >= last_fence, "the newest fence is at least the holder's");
        newest = position.last_fence;
    }

    let mut before = first;
    for (waiter, request) in waiters.into_iter().enumerate() {
        instances[waiter % 2].free(&before).await;
        let fence = at(waiter).told_granted(&request).await;
        assert!(fence > last_fence && fence > newest, "waiter {waiter}: fence {fence} came after {last_fence}");
        assert_eq!(at(waiter).holding(&request).await.fence, fence, "waiter {waiter} was told the truth");
        (before, last_fence) = (request, fence);
    }
    for instance in &instances {
        instance.told_nothing().await;
    }
    instances[0].free(&before).await;
    assert!(instances[0].list("x").await.is_empty());
}

pub(super) async fn positions_are_counted(context: TrialContext) {
    let (one, two) = context.two_instances().await;
    let holding = ask("x", Claim::EXCLUSIVE);
    let fence = one.granted(&holding).await.fence;
    let waiting: Vec<Request> = (0..4).map(|_| ask("x", Claim::EXCLUSIVE)).collect();
    for (at, request) in waiting.iter().enumerate() {
        assert_eq!(two.queued(request).await.ahead as usize, at);
    }
    one.free(&holding).await;
    for (at, request) in waiting.iter().enumerate().skip(1) {
        let position = one.queued(request).await;
        assert_eq!(position.ahead as usize, at - 1);
        assert!(position.last_fence > fence, "the newest fence is that of the new holder");
    }
}

pub(super) async fn leaving_the_middle(context: TrialContext) {
    let (one, two) = context.two_instances().await;
    let requests: Vec<Request> = (0..4).map(|_| ask("x", Claim::EXCLUSIVE)).collect();
    let [first, second, third, fourth] = requests.as_slice() else { unreachable!("four were made") };
    one.granted(first).await;
    for request in [second, third, fourth] {
        two.queued(request).await;
    }
    assert_eq!(two.release(third).await, Released::LeftQueue);
    assert_eq!(two.standing(third).await, Standing::Gone);
    assert_eq!(two.queued(fourth).await.ahead, 1);
    assert_eq!(two.release(second).await, Released::LeftQueue);
    one.free(first).await;
    two.holding(fourth).await;
}

pub(super) async fn renewing_a_position(context: TrialContext) {
    let (one, two) = context.two_instances().await;
    let (first, second) = (ask("x", Claim::EXCLUSIVE), ask("x", Claim::EXCLUSIVE));
    one.granted(&first).await;
    two.queued(&second).await;
    let Standing::Waiting(position) = two.standing(&second).await else { panic!("it waits") };
    assert_eq!(position.ahead, 0);
    one.free(&first).await;
    assert!(matches!(two.standing(&second).await, Standing::Holding(_)), "renewing tells what a hint may not have");
}

/// Hand-offs in quick succession: at each hint, the one told does hold. Hints to others are not sent.
pub(super) async fn hints_tell_the_truth(context: TrialContext) {
    let instances = [context.instance().await, context.instance().await];
    let requests: Vec<Request> = (0..20).map(|_| ask("x", Claim::SHARED)).collect();
    let writer = ask("x", Claim::EXCLUSIVE);
    instances[0].granted(&writer).await;
    for (at, request) in requests.iter().enumerate() {
        instances[at % 2].queued(request).await;
    }
    instances[1].free(&writer).await;
    for (at, instance) in instances.iter().enumerate() {
        let hinted = hinted_within_a_moment(instance).await;
        let of_this: Vec<&Request> = requests.iter().skip(at).step_by(2).collect();
        assert_eq!(hinted.len(), of_this.len(), "each reader of this instance is told, and no other");
        for request in of_this {
            assert_eq!(hinted.get(&request.key.id), Some(&1), "{} is told once", request.holder);
            instance.holding(request).await;
        }
    }
}

/// How many hints of a grant come for each lease.
async fn hinted_within_a_moment(instance: &Arc<Instance>) -> BTreeMap<LeaseId, usize> {
    let mut hinted = BTreeMap::new();
    while let Some(hint) = instance.hint(MOMENT * 5).await {
        if let Hint::Granted { id, .. } = hint {
            *hinted.entry(id).or_default() += 1;
        }
    }
    hinted
}
