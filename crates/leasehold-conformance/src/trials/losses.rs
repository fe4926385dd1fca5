//! What gets lost on the way costs time, never a lock.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use leasehold::{
    ErrorKind, Leasehold,
    backend::Backend,
    lease::{ListFilter, Names, Released},
};
use tokio::{task::JoinSet, time};

use super::{
    TrialContext,
    program::{left, locks_on, soon, waiting},
};
use crate::{
    dice::Dice,
    faulty::{BackendCall, Faulty, HintFaults, Odds},
    instance::SOON,
};

/// A program behind faults.
async fn faulty(context: &TrialContext) -> (Arc<Faulty>, Leasehold) {
    let faulty = Faulty::new(context.fixture.instance().await);
    let locks = locks_on(Arc::clone(&faulty) as Arc<dyn Backend>);
    (faulty, locks)
}

/// A program without faults, and one behind them.
async fn beside_faulty(context: &TrialContext) -> (Leasehold, Arc<Faulty>, Leasehold) {
    let truth = context.locks().await;
    let (faulty, locks) = faulty(context).await;
    (truth, faulty, locks)
}

pub(super) async fn lost_hints(context: TrialContext) {
    let (truth, faulty, one) = beside_faulty(&context).await;
    faulty.drop_hints(true);
    let held = truth.mutex("x").acquire().await.expect("it is free");
    let (locks, mut waiter) = (one.clone(), JoinSet::new());
    waiter.spawn(async move { locks.mutex("x").ttl(Duration::from_secs(3)).wait(SOON).acquire().await });
    soon("it waits", async || waiting(&truth, "x").await == 1).await;
    held.release().await.expect("an answer");
    // Renewed every second, and asked for again then.
    let granted = time::timeout(Duration::from_secs(4), waiter.join_all()).await.expect("a renewal tells").remove(0);
    let guard = granted.expect("its turn came");
    guard.check().expect("it is held");
    assert_eq!(guard.release().await.expect("an answer"), Released::Freed);
}

pub(super) async fn odd_hints(context: TrialContext) {
    let (faulty, one) = faulty(&context).await;
    let two = context.locks().await;
    faulty.hint_faults(HintFaults { double: true, delay: Duration::from_millis(5), ..HintFaults::default() });
    let inside = Arc::new(AtomicUsize::new(0));
    let mut tasks = JoinSet::new();
    for at in 0..6 {
        let (locks, inside) = (if at % 2 == 0 { one.clone() } else { two.clone() }, Arc::clone(&inside));
        tasks.spawn(async move {
            for _ in 0..5 {
                let guard = locks.mutex("x").acquire().await.expect("its turn comes");
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two hold at once");
                time::sleep(Duration::from_millis(1)).await;
                inside.fetch_sub(1, Ordering::SeqCst);
                assert_eq!(guard.release().await.expect("an answer"), Released::Freed);
            }
        });
    }
    time::timeout(SOON, tasks.join_all()).await.expect("everyone gets a turn");
    soon("nothing is left", async || left(&two).await == 0).await;
}

pub(super) async fn lost_reply(context: TrialContext) {
    let (truth, faulty, one) = beside_faulty(&context).await;
    faulty.drop_replies_of(BackendCall::Acquire, 2);
    let guard = one.mutex("x").acquire().await.expect("asking again tells");
    assert_eq!(faulty.count(BackendCall::Acquire), 3);
    let page = truth.list(&ListFilter::new(Names::All)).await.expect("a list");
    assert_eq!(page.leases.len(), 1, "one id, one lease: {page:?}");
    assert_eq!(guard.release().await.expect("an answer"), Released::Freed);
    assert_eq!(left(&truth).await, 0);

    faulty.drop_replies_of(BackendCall::Acquire, 1);
    let held = truth.mutex("x").acquire().await.expect("it is free");
    let (locks, mut waiter) = (one.clone(), JoinSet::new());
    waiter.spawn(async move { locks.mutex("x").acquire().await });
    soon("it was asked again", async || faulty.count(BackendCall::Acquire) == 5).await;
    assert_eq!(left(&truth).await, 2, "one id, one position");
    held.release().await.expect("an answer");
    let guard = waiter.join_all().await.remove(0).expect("its turn comes");
    assert_eq!(guard.release().await.expect("an answer"), Released::Freed);
}

pub(super) async fn lost_request(context: TrialContext) {
    let (truth, faulty, one) = beside_faulty(&context).await;
    faulty.drop_requests_of(BackendCall::Acquire, 2);
    let guard = one.mutex("x").acquire().await.expect("it is asked again");
    assert_eq!(left(&truth).await, 1);
    guard.release().await.expect("an answer");
}

pub(super) async fn unanswered_try(context: TrialContext) {
    let (truth, faulty, one) = beside_faulty(&context).await;
    let gate = faulty.hold_requests_of(BackendCall::Acquire);
    let lock = one.mutex("x").ttl(SOON * 6);
    let tried = time::timeout(SOON, lock.try_acquire()).await;
    let error = tried.expect("a try has a limit of its own").expect_err("nobody can say");
    assert!(error.outcome_unknown(), "{error}");
    gate.open();
    soon("nothing is left", async || left(&truth).await == 0).await;
    truth.mutex("x").acquire().await.expect("it is free").release().await.expect("an answer");
}

pub(super) async fn unanswered_list(context: TrialContext) {
    let (truth, faulty, one) = beside_faulty(&context).await;
    let held = truth.mutex("x").acquire().await.expect("it is free");
    let gate = faulty.hold_requests_of(BackendCall::List);
    // Long enough for a busy server to answer the request, which is not what this is about.
    let lock = one.mutex("x").wait(Duration::from_secs(3));
    let waited = time::timeout(SOON, lock.acquire()).await;
    let error = waited.expect("it ends when it promised").expect_err("another holds");
    assert_eq!(error.kind(), ErrorKind::WaitElapsed, "{error}");
    gate.open();
    held.release().await.expect("an answer");
    soon("nothing is left", async || left(&truth).await == 0).await;
}

pub(super) async fn doubled_request(context: TrialContext) {
    let (truth, faulty, one) = beside_faulty(&context).await;
    faulty.double_requests_of(BackendCall::Acquire, 1);
    let guard = one.mutex("x").acquire().await.expect("it is free");
    assert_eq!(left(&truth).await, 1);
    assert_eq!(guard.release().await.expect("an answer"), Released::Freed);
    assert_eq!(left(&truth).await, 0);
}

pub(super) async fn lost_release(context: TrialContext) {
    let (truth, faulty, one) = beside_faulty(&context).await;
    let guard = one.mutex("x").acquire().await.expect("it is free");
    faulty.drop_requests_of(BackendCall::Release, 1);
    let error = guard.release().await.expect_err("nobody can say");
    assert!(error.outcome_unknown(), "{error}");
    soon("it is tried again", async || left(&truth).await == 0).await;

    let guard = one.mutex("x").acquire().await.expect("it is free");
    let next = {
        let (locks, mut waiter) = (truth.clone(), JoinSet::new());
        waiter.spawn(async move { locks.mutex("x").acquire().await });
        soon("it waits", async || waiting(&truth, "x").await == 1).await;
        faulty.drop_replies_of(BackendCall::Release, 1);
        drop(guard);
        waiter.join_all().await.remove(0).expect("its turn comes")
    };
    time::sleep(Duration::from_millis(300)).await;
    next.check().expect("releasing again does not end another's lease");
    assert_eq!(next.release().await.expect("an answer"), Released::Freed);
}

pub(super) async fn short_cut(context: TrialContext) {
    let (truth, faulty, one) = beside_faulty(&context).await;
    let guard = one.mutex("x").ttl(Duration::from_secs(3)).acquire().await.expect("it is free");
    let held = truth.mutex("y").acquire().await.expect("it is free");
    let (locks, mut waiter) = (one.clone(), JoinSet::new());
    waiter.spawn(async move { locks.mutex("y").ttl(Duration::from_secs(3)).wait(SOON).acquire().await });
    soon("it waits", async || waiting(&truth, "y").await == 1).await;
    // The queue tells of it before its own answer has come back.
    time::sleep(Duration::from_millis(100)).await;
    faulty.cut();
    held.release().await.expect("an answer");
    time::sleep(Duration::from_millis(1500)).await;
    guard.check().expect("its ttl is not over");
    faulty.heal();
    let granted = time::timeout(SOON, waiter.join_all()).await.expect("a renewal tells").remove(0);
    granted.expect("its turn came").release().await.expect("an answer");
    guard.check().expect("it was renewed");
    assert_eq!(guard.release().await.expect("an answer"), Released::Freed);
}

/// Two programs behind random faults take turns; calls may fail, but nobody is in with another.
pub(super) async fn chance(context: TrialContext) {
    let truth = context.locks().await;
    let seed = Dice::seed();
    let odds = Odds { drop_request: 8, drop_reply: 8, double: 8, delay: Duration::from_millis(4) };
    let inside = Arc::new(AtomicUsize::new(0));
    let mut tasks = JoinSet::new();
    let mut programs = Vec::new();
    for at in 0..2 {
        let (faulty, locks) = faulty(&context).await;
        faulty.by_chance(seed + at, odds);
        faulty.hint_faults(HintFaults { drop: at == 1, double: true, ..HintFaults::default() });
        programs.push((faulty, locks));
    }
    for at in 0..4 {
        let (locks, inside) = (programs[at % 2].1.clone(), Arc::clone(&inside));
        tasks.spawn(async move {
            for _ in 0..4 {
                let lock = locks.mutex("x").ttl(Duration::from_secs(2)).wait(Duration::from_secs(5));
                let Ok(guard) = lock.acquire().await else { continue };
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two hold at once");
                time::sleep(Duration::from_millis(2)).await;
                inside.fetch_sub(1, Ordering::SeqCst);
                drop(guard.release().await);
            }
        });
    }
    let finished = time::timeout(Duration::from_secs(60), tasks.join_all()).await;
    assert!(finished.is_ok(), "stuck; to repeat: LEASEHOLD_SEED={seed}");
    for (faulty, _) in &programs {
        faulty.by_chance(seed, Odds::default());
    }
    soon("nothing is left", async || left(&truth).await == 0).await;
}
