//! A lease lives as long as it was given, not shorter and not much longer.

use std::time::Duration;

use leasehold::{
    backend::{Lifetime, Request, model::CONFIRM_WITHIN},
    lease::{Claim, Ending, Standing},
};
use tokio::time;

use super::TrialContext;
use crate::instance::{Instance, MOMENT, SOON, ask, attempt, renewal, ttl};

/// Short enough to wait for, long enough that a busy machine does not outlast it by accident.
const SHORT: Duration = Duration::from_millis(300);

pub(super) async fn renewing_the_gone(context: TrialContext) {
    let (one, two) = context.two_instances().await;
    let request = ask("x", Claim::EXCLUSIVE);
    assert_eq!(one.standing(&request).await, Standing::Gone, "never asked for");
    one.granted(&request).await;
    one.free(&request).await;
    for instance in [&one, &two] {
        assert_eq!(instance.standing(&request).await, Standing::Gone, "released");
    }
    assert!(one.list("x").await.is_empty(), "a renewal makes no lease");
}

/// Detached, so that the end is a matter of the clock on every backend.
pub(super) async fn renewing_never_shortens(context: TrialContext) {
    let one = context.instance().await;
    let request = ask("x", Claim::EXCLUSIVE).lifetime(Lifetime::Detached);
    one.granted(&request).await;
    let before = expires_in(&one, "x").await;
    one.renew(renewal(&request).ttl(ttl(Duration::from_secs(1)))).await;
    assert!(expires_in(&one, "x").await + Duration::from_secs(60) > before, "a short renewal shortened the lease");
    one.acquire(&request.clone().ttl(ttl(Duration::from_secs(1)))).await;
    assert!(expires_in(&one, "x").await + Duration::from_secs(60) > before, "a short ask shortened the lease");
    one.renew(renewal(&request).ttl(ttl(request.ttl.get() * 2))).await;
    let after = expires_in(&one, "x").await;
    assert!(after > before && after <= request.ttl.get() * 2, "the end is now + ttl, not added: {after:?}");
}

pub(super) async fn batches(context: TrialContext) {
    let (one, two) = context.two_instances().await;
    let held: Vec<Request> = (0..20).map(|at| attempt(&format!("x{at}"), Claim::EXCLUSIVE)).collect();
    let mut renewals = Vec::new();
    let mut expected = Vec::new();
    for request in &held {
        expected.push(Standing::Holding(one.granted(request).await));
        renewals.push(renewal(request));
    }
    let waiting = ask("x7", Claim::EXCLUSIVE);
    let position = two.queued(&waiting).await;
    renewals.insert(5, renewal(&attempt("unknown", Claim::EXCLUSIVE)));
    expected.insert(5, Standing::Gone);
    renewals.insert(9, renewal(&waiting));
    expected.insert(9, Standing::Waiting(position));

    let mut standings = one.renew_all(&renewals).await;
    if let Standing::Waiting(renewed) = &mut standings[9] {
        renewed.ask_again_in = position.ask_again_in;
    }
    assert_eq!(standings, expected);
    assert!(one.renew_all(&[]).await.is_empty());
}

pub(super) async fn detached_expires(context: TrialContext) {
    let (one, two) = context.two_instances().await;
    let abandoned = attempt("x", Claim::EXCLUSIVE).lifetime(Lifetime::Detached).ttl(ttl(SHORT));
    one.granted(&abandoned).await;
    expires(&one, &two, &abandoned).await;
}

pub(super) async fn detached_renewed(context: TrialContext) {
    let one = context.instance().await;
    let request = attempt("x", Claim::EXCLUSIVE).lifetime(Lifetime::Detached).ttl(ttl(SHORT * 3));
    let grant = one.granted(&request).await;
    for _ in 0..5 {
        time::sleep(SHORT).await;
        assert_eq!(one.standing(&request).await, Standing::Holding(grant), "it was renewed in time");
    }
}

pub(super) async fn attached_expires(context: TrialContext) {
    let (one, two) = context.two_instances().await;
    let abandoned = attempt("x", Claim::EXCLUSIVE).ttl(ttl(SHORT));
    one.granted(&abandoned).await;
    expires(&one, &two, &abandoned).await;
}

/// The next client gets it, not before its end and soon after; history says how it ended.
async fn expires(one: &Instance, two: &Instance, abandoned: &Request) {
    let next = ask("x", Claim::EXCLUSIVE);
    let position = two.queued(&next).await;
    let left = position.ask_again_in.expect("a lease with an end is ahead");
    assert!(left <= SHORT, "the end is at most a ttl away: {left:?}");
    time::sleep(left).await;
    let granted = async {
        while !matches!(two.standing(&next).await, Standing::Holding(_)) {
            time::sleep(Duration::from_millis(10)).await;
        }
    };
    time::timeout(SOON, granted).await.expect("an expired lease must not stay in the way");
    assert_eq!(one.standing(abandoned).await, Standing::Gone);
    let mut history = one.history("x").await;
    history.retain(|ended| ended.holder == abandoned.holder);
    assert_eq!(history.len(), 1);
    assert_eq!(history[0].ending, Ending::Expired);
    let lived = history[0].ended_at.since(history[0].acquired_at.expect("it held"));
    assert!(lived + Duration::from_millis(50) >= SHORT, "it was cut short: {lived:?}");
}

pub(super) async fn queue_position_expires(context: TrialContext) {
    let (one, two) = context.two_instances().await;
    let holding = ask("x", Claim::EXCLUSIVE);
    let abandoned = ask("x", Claim::EXCLUSIVE).ttl(ttl(SHORT));
    let patient = ask("x", Claim::EXCLUSIVE);
    one.granted(&holding).await;
    one.queued(&abandoned).await;
    let position = two.queued(&patient).await;
    assert_eq!(position.ahead, 1);
    time::sleep(SHORT + Duration::from_millis(100)).await;
    assert_eq!(two.queued(&patient).await.ahead, 0, "the abandoned position is gone");
    assert_eq!(one.standing(&abandoned).await, Standing::Gone);
    let history = one.history("x").await;
    assert_eq!((history[0].ending, history[0].fence), (Ending::Expired, None));
    one.free(&holding).await;
    two.holding(&patient).await;
}

pub(super) async fn ask_again(context: TrialContext) {
    let (one, two) = context.two_instances().await;
    let minute = Duration::from_secs(60);
    let holding = ask("x", Claim::EXCLUSIVE).lifetime(Lifetime::Detached).ttl(ttl(minute));
    one.granted(&holding).await;
    let waiting = ask("x", Claim::EXCLUSIVE);
    let left = two.queued(&waiting).await.ask_again_in.expect("the lease ahead has an end");
    assert!(left <= minute && left + SOON > minute, "the lease ahead ends in a minute, not in {left:?}");
    one.renew(renewal(&holding).ttl(ttl(minute * 3))).await;
    let left = two.queued(&waiting).await.ask_again_in.expect("the lease ahead has an end");
    assert!(left > minute * 2, "the lease ahead was renewed");
}

/// What it held is handed on, what it waited for is left, both recorded; nobody waits for a ttl.
pub(super) async fn gone_instance(context: TrialContext) {
    let (doomed, two) = context.two_instances().await;
    let (held, waiting) = (ask("x", Claim::EXCLUSIVE), ask("x", Claim::EXCLUSIVE));
    let next = ask("x", Claim::EXCLUSIVE);
    // Nobody waits for this one: only whoever has its id asks again.
    let handed_over = ask("y", Claim::EXCLUSIVE);
    doomed.granted(&held).await;
    doomed.queued(&waiting).await;
    doomed.granted(&handed_over).await;
    two.queued(&next).await;
    drop(doomed);
    let handed_on = async {
        while !matches!(two.standing(&next).await, Standing::Holding(_)) {
            time::sleep(Duration::from_millis(10)).await;
        }
    };
    time::timeout(SOON, handed_on).await.expect("a death does not delay the others");
    let gone = async {
        while two.standing(&handed_over).await != Standing::Gone {
            time::sleep(Duration::from_millis(10)).await;
        }
    };
    time::timeout(SOON, gone).await.expect("a lease id does not keep the lease of the dead");
    let history = two.history("x").await;
    assert_eq!(history.len(), 2);
    assert!(history.iter().all(|ended| ended.ending == Ending::Disconnected), "{history:?}");
}

/// The waiter's process is stopped: it lives, and does not renew.
pub(super) async fn unconfirmed_turn(context: TrialContext) {
    let (one, two, three) = (context.instance().await, context.instance().await, context.instance().await);
    let [held, stopped, next] = [(), (), ()].map(|()| ask("x", Claim::EXCLUSIVE));
    one.granted(&held).await;
    two.queued(&stopped).await;
    three.queued(&next).await;
    one.free(&held).await;
    let fence = two.told_granted(&stopped).await;

    let hint = three.hint(CONFIRM_WITHIN + SOON).await;
    assert!(hint.is_some(), "who waits behind it is told");
    let its_turn = async {
        loop {
            if let Standing::Holding(grant) = three.standing(&next).await {
                break grant;
            }
            time::sleep(MOMENT).await;
        }
    };
    let grant = time::timeout(CONFIRM_WITHIN + SOON, its_turn).await.expect("its turn comes within seconds");
    assert!(grant.fence > fence);
    assert_eq!(two.standing(&stopped).await, Standing::Gone);
    let endings: Vec<Ending> = three.history("x").await.iter().map(|ended| ended.ending).collect();
    assert_eq!(endings, [Ending::Expired, Ending::Released]);
    assert_eq!(three.holding(&next).await, grant);
}

pub(super) async fn detached_outlives(context: TrialContext) {
    let (doomed, two) = context.two_instances().await;
    let request = ask("x", Claim::EXCLUSIVE).lifetime(Lifetime::Detached);
    let grant = doomed.granted(&request).await;
    drop(doomed);
    assert_eq!(two.holding(&request).await, grant, "whoever has its id goes on with it");
    two.busy(&attempt("x", Claim::EXCLUSIVE)).await;
    two.free(&request).await;
}

/// Only its own instance may give it an end: another would shorten what that instance relies on.
pub(super) async fn detached_later(context: TrialContext) {
    let (doomed, two, three) = (context.instance().await, context.instance().await, context.instance().await);
    let request = ask("x", Claim::EXCLUSIVE);
    let grant = doomed.granted(&request).await;
    let end = two.list("x").await[0].expires_in;
    two.renew(renewal(&request).ttl(ttl(SHORT)).detach(true)).await;
    assert_eq!(two.list("x").await[0].expires_in.is_none(), end.is_none(), "it is not theirs to detach");
    let minute = Duration::from_secs(60);
    let standing = doomed.renew(renewal(&request).ttl(ttl(minute)).detach(true)).await;
    assert_eq!(standing, Standing::Holding(grant));
    drop(doomed);
    assert_eq!(two.holding(&request).await, grant, "whoever has its id goes on with it");
    two.busy(&attempt("x", Claim::EXCLUSIVE)).await;
    if end.is_none() {
        assert!(expires_in(&two, "x").await <= request.ttl.get().max(minute));
    }
    two.free(&request).await;

    // It ends when its ttl has run out.
    let again = ask("x", Claim::EXCLUSIVE).ttl(ttl(SHORT));
    two.granted(&again).await;
    two.renew(renewal(&again).ttl(ttl(SHORT)).detach(true)).await;
    expires(&two, &three, &again).await;
}

pub(super) async fn exact_expiry(context: TrialContext) {
    let (one, two) = context.two_instances().await;
    let length = Duration::from_secs(30);
    let request = attempt("x", Claim::EXCLUSIVE).lifetime(Lifetime::Detached).ttl(ttl(length));
    let grant = one.granted(&request).await;
    context.clock.advance(length.saturating_sub(Duration::from_micros(1)));
    two.busy(&attempt("x", Claim::EXCLUSIVE)).await;
    context.clock.advance(Duration::from_micros(1));
    assert_eq!(one.standing(&request).await, Standing::Gone);
    two.granted(&attempt("x", Claim::EXCLUSIVE)).await;
    assert_eq!(one.history("x").await[0].ended_at, grant.acquired_at.after(length));
}

async fn expires_in(instance: &Instance, name: &str) -> Duration {
    instance.list(name).await[0].expires_in.expect("it has an end")
}
