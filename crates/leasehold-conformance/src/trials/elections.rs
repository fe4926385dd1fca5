//! One leader among candidates.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use leasehold::{Candidate, Holder, Leader, Leasehold, Observer};
use tokio::time;

use super::{
    TrialContext,
    program::{history, left, soon, waiting},
};
use crate::instance::SOON;

fn named(name: &str) -> Holder {
    Holder::new(name).expect("a good label")
}

async fn stand(locks: &Leasehold, name: &str) -> Candidate {
    locks.election("seat").holder(named(name)).value(format!("{name}.example:80")).start().await.expect("a seat")
}

async fn leads(candidate: &Candidate) {
    soon("the candidate leads", async || candidate.is_leader()).await;
}

pub(super) async fn one_leads(context: TrialContext) {
    let (one, two) = (context.locks().await, context.locks().await);
    assert_eq!(one.election("seat").leader().await.expect("an answer"), None);
    let first = stand(&one, "ada").await;
    leads(&first).await;
    let second = stand(&two, "bob").await;
    soon("the second waits", async || waiting(&one, "seat").await == 1).await;
    assert!(first.is_leader() && !second.is_leader());
    let leader = second.leader().await.expect("an answer").expect("someone leads");
    assert_eq!((leader.holder, leader.value.as_deref()), (named("ada"), Some("ada.example:80")));
    assert_eq!(Some(leader.fence), first.lease().map(|lease| lease.fence()), "the fence is the term");
    assert!(leader.led_for < SOON);
    first.stop().await.expect("it stops");
    leads(&second).await;
    let next = two.election("seat").leader().await.expect("an answer").expect("someone leads");
    assert!(next.fence > leader.fence, "terms rise");
    second.stop().await.expect("it stops");
    soon("nobody is left", async || left(&one).await == 0).await;
}

pub(super) async fn resigning(context: TrialContext) {
    let (one, two) = (context.locks().await, context.locks().await);
    let (won, lost) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (on_won, on_lost) = (Arc::clone(&won), Arc::clone(&lost));
    let count = |counter: &Arc<AtomicUsize>| counter.load(Ordering::SeqCst);
    let election = one.election("seat").holder(named("ada"));
    let one_more = |counter: &AtomicUsize| {
        counter.fetch_add(1, Ordering::SeqCst);
    };
    let election = election.on_elected(move |_| one_more(&on_won)).on_lost(move || one_more(&on_lost));
    let first = election.start().await.expect("a seat");
    leads(&first).await;
    let second = stand(&two, "bob").await;
    soon("the second waits", async || waiting(&one, "seat").await == 1).await;

    first.resign();
    leads(&second).await;
    assert!(!first.is_leader());
    soon("the first stands again", async || waiting(&two, "seat").await == 1).await;
    assert_eq!((count(&won), count(&lost)), (1, 1));
    second.resign();
    leads(&first).await;
    soon("it is told that it leads again", async || count(&won) == 2).await;
    first.stop().await.expect("it stops");
    assert_eq!(count(&lost), 2);
    second.stop().await.expect("it stops");
    soon("nobody is left", async || left(&one).await == 0).await;
}

pub(super) async fn deposed(context: TrialContext) {
    let (one, two) = (context.locks().await, context.locks().await);
    let first = stand(&one, "ada").await;
    leads(&first).await;
    let term = first.lease().expect("it leads");
    let second = stand(&two, "bob").await;
    soon("the second waits", async || waiting(&one, "seat").await == 1).await;
    let gone = two.election("seat").depose("on fire").await.expect("an answer").expect("someone led");
    assert_eq!((gone.holder, gone.fence), (named("ada"), term.fence()));
    leads(&second).await;
    soon("the deposed one knows", async || term.check().is_err() && !first.is_leader()).await;
    let problem = history(&two, "seat").await[0].problem.clone().expect("a reason");
    assert_eq!(problem.details, "on fire");
    first.stop().await.expect("it stops");
    second.stop().await.expect("it stops");
    soon("nobody is left", async || left(&one).await == 0).await;
}

async fn next(observer: &mut Observer) -> Option<Leader> {
    let change = time::timeout(SOON, observer.next()).await.expect("a change is told");
    change.expect("the stream goes on").expect("an answer")
}

pub(super) async fn observing(context: TrialContext) {
    let (one, two) = (context.locks().await, context.locks().await);
    let mut observer = two.election("seat").observe().await.expect("a seat");
    assert_eq!(next(&mut observer).await, None, "nobody leads yet");
    let first = one.election("seat").holder(named("ada")).campaign().await.expect("it is free");
    assert_eq!(next(&mut observer).await.map(|leader| leader.holder), Some(named("ada")));
    first.release().await.expect("an answer");
    assert_eq!(next(&mut observer).await, None, "nobody leads");
    let second = two.election("seat").holder(named("bob")).campaign().await.expect("it is free");
    let leader = next(&mut observer).await.expect("someone leads");
    assert_eq!((leader.holder, leader.fence), (named("bob"), second.fence()));
    second.release().await.expect("an answer");
}

pub(super) async fn campaigning(context: TrialContext) {
    let (one, two) = (context.locks().await, context.locks().await);
    let leader = one.election("seat").campaign().await.expect("it is free");
    assert!(two.election("seat").try_campaign().await.expect("an answer").is_none());
    let waited = two.election("seat").wait(std::time::Duration::from_secs(1)).campaign().await;
    assert_eq!(waited.expect_err("someone leads").kind(), leasehold::ErrorKind::WaitElapsed);
    leader.release().await.expect("an answer");
    two.election("seat").campaign().await.expect("it is free").release().await.expect("an answer");
    soon("nobody is left", async || left(&one).await == 0).await;
}
