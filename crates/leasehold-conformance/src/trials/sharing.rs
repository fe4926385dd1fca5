//! Readers, permits, and names used in two ways.

use leasehold::{
    backend::{Decision, Request},
    lease::{Claim, Standing},
};

use super::TrialContext;
use crate::instance::{ask, attempt, permits, renewal};

pub(super) async fn readers_share(context: TrialContext) {
    let (one, two) = context.two_instances().await;
    let readers: Vec<Request> = (0..5).map(|_| attempt("x", Claim::SHARED)).collect();
    for (at, reader) in readers.iter().enumerate() {
        [&one, &two][at % 2].granted(reader).await;
    }
    let busy = one.busy(&attempt("x", Claim::EXCLUSIVE)).await;
    assert_eq!(busy.holders.len(), readers.len());
    for reader in &readers {
        two.busy(&attempt("x", Claim::EXCLUSIVE)).await;
        two.free(reader).await;
    }
    let writer = attempt("x", Claim::EXCLUSIVE);
    two.granted(&writer).await;
    one.busy(&attempt("x", Claim::SHARED)).await;
}

pub(super) async fn writers_do_not_starve(context: TrialContext) {
    big_is_not_overtaken(context, Claim::SHARED, Claim::EXCLUSIVE).await;
}

pub(super) async fn big_claims_do_not_starve(context: TrialContext) {
    big_is_not_overtaken(context, permits(1, 3), permits(3, 3)).await;
}

async fn big_is_not_overtaken(context: TrialContext, small: Claim, big: Claim) {
    let (one, two) = context.two_instances().await;
    let (early, waiting, late) = (ask("x", small), ask("x", big), ask("x", small));
    one.granted(&early).await;
    two.queued(&waiting).await;
    assert_eq!(one.queued(&late).await.ahead, 1);
    one.busy(&attempt("x", small)).await;
    one.free(&early).await;
    two.holding(&waiting).await;
    one.queued(&late).await;
    two.free(&waiting).await;
    one.holding(&late).await;
}

pub(super) async fn readers_get_in_together(context: TrialContext) {
    let one = context.instance().await;
    let writer = ask("x", Claim::EXCLUSIVE);
    one.granted(&writer).await;
    let readers: Vec<Request> = (0..3).map(|_| ask("x", Claim::SHARED)).collect();
    let last = ask("x", Claim::EXCLUSIVE);
    for waiting in readers.iter().chain([&last]) {
        one.queued(waiting).await;
    }
    one.free(&writer).await;
    let mut fences = Vec::new();
    for reader in &readers {
        fences.push(one.holding(reader).await.fence);
    }
    assert!(fences.is_sorted_by(|a, b| a < b), "each reader has a fence of its own, in order: {fences:?}");
    one.queued(&last).await;
}

pub(super) async fn downgrade(context: TrialContext) {
    let (one, two) = context.two_instances().await;
    let (writer, reader, next) = (ask("x", Claim::EXCLUSIVE), ask("x", Claim::SHARED), ask("x", Claim::EXCLUSIVE));
    let grant = one.granted(&writer).await;
    two.queued(&reader).await;
    two.queued(&next).await;
    let standing = one.renew(renewal(&writer).downgrade(Claim::SHARED)).await;
    assert_eq!(standing, Standing::Holding(grant), "less is held under the same fence");
    two.holding(&reader).await;
    two.queued(&next).await;
    one.free(&writer).await;
    two.free(&reader).await;
    two.holding(&next).await;
}

pub(super) async fn downgrade_is_one_way(context: TrialContext) {
    let one = context.instance().await;
    let reader = ask("x", Claim::SHARED);
    one.granted(&reader).await;
    one.renew(renewal(&reader).downgrade(Claim::EXCLUSIVE)).await;
    one.granted(&attempt("x", Claim::SHARED)).await;
    one.renew(renewal(&reader).downgrade(permits(1, 2))).await;
    one.granted(&attempt("x", Claim::SHARED)).await;
    assert!(one.list("x").await.iter().all(|record| record.claim == Claim::SHARED));
}

pub(super) async fn permits_are_weighed(context: TrialContext) {
    let (one, two) = context.two_instances().await;
    let (three, two_more) = (attempt("x", permits(3, 5)), attempt("x", permits(2, 5)));
    one.granted(&three).await;
    one.busy(&attempt("x", permits(3, 5))).await;
    two.granted(&two_more).await;
    one.busy(&attempt("x", permits(1, 5))).await;
    one.free(&three).await;
    two.busy(&attempt("x", permits(4, 5))).await;
    for _ in 0..3 {
        two.granted(&attempt("x", permits(1, 5))).await;
    }
    two.busy(&attempt("x", permits(1, 5))).await;
}

pub(super) async fn permits_given_back(context: TrialContext) {
    let one = context.instance().await;
    let (big, waiting) = (ask("x", permits(3, 3)), ask("x", permits(2, 3)));
    one.granted(&big).await;
    one.queued(&waiting).await;
    one.renew(renewal(&big).downgrade(permits(2, 3))).await;
    one.queued(&waiting).await;
    one.renew(renewal(&big).downgrade(permits(1, 3))).await;
    one.holding(&waiting).await;
}

pub(super) async fn wrong_shape(context: TrialContext) {
    let (one, two) = context.two_instances().await;
    let claims = [Claim::EXCLUSIVE, permits(1, 3), permits(1, 5), Claim::LEADER];
    for (at, in_use) in claims.into_iter().enumerate() {
        let name = format!("x{at}");
        one.granted(&ask(&name, in_use)).await;
        for other in claims.into_iter().filter(|other| *other != in_use) {
            for refused in [ask(&name, other), attempt(&name, other)] {
                let expected = Decision::WrongShape { in_force: in_use.shape() };
                assert_eq!(two.acquire(&refused).await, expected, "{in_use:?} and {other:?}");
                assert_eq!(two.standing(&refused).await, Standing::Gone);
            }
        }
        assert_eq!(one.list(&name).await.len(), 1, "a refusal leaves nothing behind");
    }
}

pub(super) async fn free_names_have_no_shape(context: TrialContext) {
    let (one, two) = context.two_instances().await;
    for claim in [Claim::EXCLUSIVE, permits(1, 3), Claim::LEADER, permits(2, 5), Claim::SHARED] {
        let request = attempt("x", claim);
        one.granted(&request).await;
        two.free(&request).await;
    }
}
