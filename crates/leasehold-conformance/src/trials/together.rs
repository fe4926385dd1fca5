//! Several locks at once, and all of a program's locks at its end.

use std::{sync::Arc, time::Duration};

use leasehold::{ErrorKind, Loss, Resource, lease::Ending};
use parking_lot::Mutex;
use tokio::{task::JoinSet, time};

use super::{
    TrialContext,
    program::{history, left, soon, waiting},
};
use crate::instance::SOON;

/// Eight tasks move money between two accounts, each in its own order; none is made or lost.
pub(super) async fn no_deadlock(context: TrialContext) {
    let instances = [context.locks().await, context.locks().await];
    let accounts = Arc::new(Mutex::new([100_i32, 100]));
    let mut tasks = JoinSet::new();
    for at in 0..8 {
        let (locks, accounts) = (instances[at % 2].clone(), Arc::clone(&accounts));
        tasks.spawn(async move {
            let names = if at < 4 { ["account:a", "account:b"] } else { ["account:b", "account:a"] };
            for _ in 0..4 {
                let both = locks.all(names).wait(SOON).acquire().await.expect("nobody deadlocks");
                let [a, b] = *accounts.lock();
                time::sleep(Duration::from_millis(1)).await;
                both.check().expect("both are held");
                *accounts.lock() = [a - 1, b + 1];
                both.release().await.expect("an answer");
            }
        });
    }
    time::timeout(SOON, tasks.join_all()).await.expect("nobody deadlocks");
    assert_eq!(*accounts.lock(), [68, 132], "two were in at once");
    assert_eq!(left(&instances[0]).await, 0);
}

pub(super) async fn all_or_nothing(context: TrialContext) {
    let (one, two) = (context.locks().await, context.locks().await);
    let held = one.mutex("b").acquire().await.expect("it is free");
    assert!(two.all(["a", "b", "c"]).try_acquire().await.expect("an answer").is_none());
    assert_eq!(left(&one).await, 1, "what was taken first is given back");
    let error = two.all(["c", "b", "a"]).wait(Duration::from_secs(1)).acquire().await.expect_err("b is held");
    assert_eq!(error.kind(), ErrorKind::WaitElapsed);
    assert_eq!(error.resource().map(Resource::as_str), Some("b"), "{error}");
    soon("what was taken first is given back", async || left(&one).await == 1).await;
    held.release().await.expect("an answer");
    let all = two.all(["a", "b", "c", "a"]).acquire().await.expect("all are free");
    assert_eq!(all.iter().count(), 3, "a name given twice counts once");
    all.release().await.expect("an answer");
}

pub(super) async fn release_all(context: TrialContext) {
    let (one, two) = (context.locks().await, context.locks().await);
    let mut guards = Vec::new();
    for at in 0..10 {
        guards.push(one.mutex(format!("x{at}")).acquire().await.expect("it is free"));
    }
    let other = two.mutex("y").acquire().await.expect("it is free");
    assert_eq!(one.release_all().await.expect("an answer"), 10);
    assert_eq!(left(&two).await, 1, "only one's own are released");
    assert!(guards.iter().all(|guard| guard.check().is_err()), "no guard believes in what was released");
    other.check().expect("it is held");
    drop(guards);
    assert_eq!(one.release_all().await.expect("an answer"), 0);
    assert!(one.mutex("x0").try_acquire().await.expect("an answer").is_some(), "the program goes on");
}

pub(super) async fn close(context: TrialContext) {
    let (one, two) = (context.locks().await, context.locks().await);
    let held = one.mutex("x").acquire().await.expect("it is free");
    let foreign = two.mutex("y").acquire().await.expect("it is free");
    let (locks, mut tasks) = (one.clone(), JoinSet::new());
    tasks.spawn(async move { locks.mutex("y").wait_forever().acquire().await.map(drop) });
    soon("it waits", async || waiting(&two, "y").await == 1).await;

    time::timeout(SOON, one.close()).await.expect("closing ends").expect("an answer");
    assert_eq!(left(&two).await, 1, "what is left is the other's");
    assert_eq!(held.lost().await, Loss::Released);
    let waited = time::timeout(SOON, tasks.join_all()).await.expect("the wait ends").remove(0);
    assert_eq!(waited.expect_err("nothing was granted").kind(), ErrorKind::Closed);
    assert_eq!(one.mutex("x").try_acquire().await.expect_err("it is closed").kind(), ErrorKind::Closed);
    assert_eq!(history(&two, "x").await[0].ending, Ending::Released);
    foreign.release().await.expect("an answer");
}

pub(super) async fn close_one(context: TrialContext) {
    let (one, two) = (context.locks().await, context.locks().await);
    let (mine, theirs) = (one.mutex("x").acquire().await.expect("free"), two.mutex("y").acquire().await.expect("free"));
    one.close().await.expect("an answer");
    theirs.check().expect("it is held");
    two.mutex("x").acquire().await.expect("it was given back").release().await.expect("an answer");
    drop(mine);
    theirs.release().await.expect("an answer");
}
