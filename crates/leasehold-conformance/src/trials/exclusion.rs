//! One at a time: what a mutex is for.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use leasehold::{
    backend::{Decision, Request},
    lease::{Claim, LeaseState, Released, Standing},
};
use tokio::{sync::Barrier, task::JoinSet, time};

use super::TrialContext;
use crate::instance::{Instance, ask, attempt};

pub(super) async fn one_holds(context: TrialContext, claim: Claim) {
    let (one, two) = context.two_instances().await;
    let first = attempt("x", claim).note("nightly run");
    let grant = one.granted(&first).await;
    for instance in [&one, &two] {
        let busy = instance.busy(&attempt("x", claim)).await;
        assert_eq!(busy.waiting, 0);
        let [held] = busy.holders.as_slice() else { panic!("one holds, not {:?}", busy.holders) };
        assert_eq!((&held.holder, held.fence, held.mode), (&first.holder, grant.fence, claim.mode()));
        assert_eq!(held.note.as_deref(), Some("nightly run"));
    }
    one.free(&first).await;
    two.granted(&attempt("x", claim)).await;
}

/// Eight callers on three instances: whoever holds must be alone.
pub(super) async fn contention(context: TrialContext, claim: Claim) {
    const CALLERS: usize = 8;
    const ROUNDS: usize = 8;
    let instances = [context.instance().await, context.instance().await, context.instance().await];
    let inside = Arc::new(AtomicUsize::new(0));
    let together = Arc::new(Barrier::new(CALLERS));
    let mut callers = JoinSet::new();
    for at in 0..CALLERS {
        let (instance, inside) = (Arc::clone(&instances[at % instances.len()]), Arc::clone(&inside));
        let together = Arc::clone(&together);
        callers.spawn(async move {
            for _ in 0..ROUNDS {
                together.wait().await;
                let request = ask("x", claim);
                hold(&instance, &request).await;
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two hold at once");
                time::sleep(Duration::from_micros(200)).await;
                assert_eq!(inside.fetch_sub(1, Ordering::SeqCst), 1, "two held at once");
                instance.free(&request).await;
            }
        });
    }
    callers.join_all().await;
    assert!(instances[0].list("x").await.is_empty(), "all were released");
}

/// Asks until it holds: hints are not what this trial is about.
async fn hold(instance: &Instance, request: &Request) {
    loop {
        match instance.acquire(request).await {
            Decision::Granted(_) => return,
            Decision::Queued(_) => time::sleep(Duration::from_millis(1)).await,
            other => panic!("a position in the queue was refused: {other:?}"),
        }
    }
}

pub(super) async fn same_id(context: TrialContext, claim: Claim) {
    let (one, two) = context.two_instances().await;
    let first = ask("x", claim);
    let grant = one.granted(&first).await;
    for instance in [&one, &two, &one] {
        assert_eq!(instance.granted(&first).await, grant, "the same id holds the same lease");
    }
    let second = ask("x", claim);
    for _ in 0..3 {
        assert_eq!(two.queued(&second).await.ahead, 0, "the same id has one position");
    }
    assert_eq!(one.list("x").await.len(), 2);
    one.free(&first).await;
    let fence = two.granted(&second).await.fence;
    assert_eq!(two.granted(&second).await.fence, fence);
    two.free(&second).await;
    assert!(one.list("x").await.is_empty(), "one release ends it, however often it was asked for");
}

pub(super) async fn try_is_modest(context: TrialContext, claim: Claim) {
    let (one, two) = context.two_instances().await;
    let (first, second) = (ask("x", claim), ask("x", claim));
    one.granted(&first).await;
    for _ in 0..3 {
        two.busy(&attempt("x", claim)).await;
    }
    assert_eq!(one.list("x").await.len(), 1, "a try that failed has no position");

    two.queued(&second).await;
    assert_eq!(one.busy(&attempt("x", claim)).await.waiting, 1);
    one.free(&first).await;
    one.busy(&attempt("x", claim)).await;
    two.holding(&second).await;
}

pub(super) async fn foreign_release(context: TrialContext, claim: Claim) {
    let (one, two) = context.two_instances().await;
    let (first, second, stranger) = (ask("x", claim), ask("x", claim), ask("x", claim));
    let grant = one.granted(&first).await;
    two.queued(&second).await;
    for instance in [&one, &two] {
        assert_eq!(instance.release(&stranger).await, Released::Gone);
        assert_eq!(instance.standing(&stranger).await, Standing::Gone);
    }
    assert_eq!(one.holding(&first).await, grant);
    one.free(&first).await;
    assert_eq!(one.release(&first).await, Released::Gone, "a release twice frees once");
    two.holding(&second).await;
}

pub(super) async fn other_instance(context: TrialContext, claim: Claim) {
    let (one, two) = context.two_instances().await;
    let request = ask("x", claim);
    let grant = one.granted(&request).await;
    assert_eq!(two.holding(&request).await, grant);
    two.free(&request).await;
    assert_eq!(one.standing(&request).await, Standing::Gone);
}

pub(super) async fn names_apart(context: TrialContext) {
    let one = context.instance().await;
    let names = ["x", "X", "x ", "x:", "x:1", "xx", "х", "x%", "x*", "../x", "x/y", "{x}", "x'y\"z", "x\\y", "."];
    for name in names {
        one.granted(&attempt(name, Claim::EXCLUSIVE)).await;
    }
    for name in names {
        let records = one.list(name).await;
        assert_eq!(records.len(), 1, "{name:?} is one resource");
        assert_eq!(records[0].resource.as_str(), name);
        assert!(matches!(records[0].state, LeaseState::Holding { .. }));
    }
}
