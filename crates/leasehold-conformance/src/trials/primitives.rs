//! Every primitive through the engine, as a program uses it.

use std::{sync::Arc, time::Duration};

use leasehold::{
    Error, ErrorKind, Fence, Guard, Leasehold, Loss, Metadata, Outcome, Result,
    lease::{Ending, ListFilter, Names, Released},
};
use parking_lot::Mutex;
use tokio::{task::JoinSet, time};

use super::{
    TrialContext,
    program::{Way, history, left, soon, waiting},
};
use crate::instance::{SOON, resource};

pub(super) async fn locked_and_released(context: TrialContext, way: Way) {
    let (one, two) = (context.locks().await, context.locks().await);
    let mut last = Fence::default();
    for locks in [&one, &two, &one] {
        let guard = way.acquire(locks, "x").await.expect("it is free");
        assert!(guard.fence() > last, "fences rise");
        last = guard.fence();
        guard.check().expect("it is held");
        for other in [&one, &two] {
            assert!(way.try_acquire(other, "x").await.expect("an answer").is_none(), "it is held");
        }
        assert_eq!(guard.release().await.expect("an answer"), Released::Freed);
    }
    assert_eq!(left(&one).await, 0);
}

pub(super) async fn in_order(context: TrialContext, way: Way) {
    let instances = [context.locks().await, context.locks().await, context.locks().await];
    let holding = way.acquire(&instances[0], "x").await.expect("it is free");
    let served = Arc::new(Mutex::new(Vec::new()));
    let mut waiters = JoinSet::new();
    for at in 0..12 {
        let (locks, served) = (instances[at % instances.len()].clone(), Arc::clone(&served));
        waiters.spawn(async move {
            let guard = way.acquire(&locks, "x").await.expect("its turn comes");
            served.lock().push((at, guard.fence()));
            guard.release().await.expect("an answer");
        });
        soon("the waiter is in the queue", async || waiting(&instances[0], "x").await == at + 1).await;
    }
    holding.release().await.expect("an answer");
    time::timeout(SOON, waiters.join_all()).await.expect("everyone gets a turn");
    let served = served.lock();
    assert!(served.is_sorted(), "order and fences: {served:?}");
}

pub(super) async fn gives_up(context: TrialContext, way: Way) {
    let (one, two) = (context.locks().await, context.locks().await);
    let guard = way.acquire(&one, "x").await.expect("it is free");
    // Half of the wait is for finding out who holds it, which takes a busy server a while.
    let error = way.acquire_within(&two, "x", Duration::from_secs(1)).await.expect_err("it is held");
    assert_eq!(error.kind(), ErrorKind::WaitElapsed);
    assert_eq!(error.holders().first().map(|held| &held.holder), Some(one.holder()), "{error}");
    assert!(error.to_string().contains(one.holder().as_str()), "{error}");
    soon("the queue position is given up", async || left(&one).await == 1).await;
    soon("the wait is recorded", async || {
        history(&one, "x").await.first().is_some_and(|ended| ended.ending == Ending::GaveUp)
    })
    .await;
    guard.release().await.expect("an answer");
}

pub(super) async fn dropped(context: TrialContext, way: Way) {
    let (one, two) = (context.locks().await, context.locks().await);
    drop(way.acquire(&one, "x").await.expect("it is free"));
    way.acquire(&two, "x").await.expect("it is given back").release().await.expect("an answer");
    recorded(&two, 2, Ending::Released).await;
}

pub(super) async fn readers_and_writer(context: TrialContext) {
    let (one, two) = (context.locks().await, context.locks().await);
    let readers = [one.read("x").acquire().await.expect("free"), two.read("x").acquire().await.expect("shared")];
    assert!(two.write("x").try_acquire().await.expect("an answer").is_none());
    assert!(one.mutex("x").try_acquire().await.expect("an answer").is_none(), "a mutex is the write side");
    for reader in readers {
        reader.release().await.expect("an answer");
    }
    let writer = one.write("x").acquire().await.expect("free");
    let fence = writer.fence();
    assert!(two.read("x").try_acquire().await.expect("an answer").is_none());
    let late = two.read("x");
    let readers_to_be = JoinSet::from_iter([async move { late.acquire().await }]);
    soon("the reader waits", async || waiting(&one, "x").await == 1).await;
    writer.downgrade().await.expect("writers may read");
    let reader =
        time::timeout(SOON, readers_to_be.join_all()).await.expect("it is let in").remove(0).expect("it reads");
    assert_eq!(writer.fence(), fence);
    assert!(two.write("x").try_acquire().await.expect("an answer").is_none(), "both still read");
    writer.release().await.expect("an answer");
    reader.release().await.expect("an answer");
}

pub(super) async fn semaphore(context: TrialContext) {
    let (one, two) = (context.locks().await, context.locks().await);
    let take = async |locks: &Leasehold, permits| locks.semaphore("x", 5).permits(permits).try_acquire().await;
    let three = take(&one, 3).await.expect("an answer").expect("five are free");
    let two_more = take(&two, 2).await.expect("an answer").expect("two are free");
    assert!(take(&one, 1).await.expect("an answer").is_none());
    let error = two.semaphore("x", 3).acquire().await.expect_err("the limits differ");
    assert_eq!(error.kind(), ErrorKind::ShapeMismatch);
    let words = error.to_string();
    assert!(words.contains("semaphore of 5") && words.contains("semaphore of 3"), "both are named: {words}");
    three.release().await.expect("an answer");
    let again = take(&two, 3).await.expect("an answer").expect("three are free");
    drop((two_more, again));
    soon("all is given back", async || left(&one).await == 0).await;
}

pub(super) async fn work(context: TrialContext) {
    let (one, two) = (context.locks().await, context.locks().await);
    let done = one.mutex("x").with(async |lease| lease.check().map(|()| lease.fence())).await;
    let fence = done.expect("the work is done");
    assert_eq!(left(&two).await, 0);

    let failed: Result<()> = two.mutex("x").with(async |_| Err(Error::unavailable("the till is closed"))).await;
    assert_eq!(failed.expect_err("the work failed").kind(), ErrorKind::Unavailable);
    let ended = history(&one, "x").await;
    assert_eq!((ended[1].ending, ended[1].fence), (Ending::Released, Some(fence)));
    assert_eq!((ended[0].ending, &ended[0].holder), (Ending::Failed, two.holder()));
    let problem = ended[0].problem.as_ref().expect("what went wrong");
    assert_eq!(problem.to_string(), "Error: the till is closed");

    let guard = one.mutex("x").acquire().await.expect("it is free again");
    let refused = two.mutex("x").try_with(async |_| Ok::<_, Error>(())).await.expect("an answer");
    assert_eq!(refused, None, "no work is done without the lock");
    guard.release().await.expect("an answer");
    assert_eq!(two.mutex("x").try_with(async |_| Ok::<_, Error>(7)).await.expect("an answer"), Some(7));
}

pub(super) async fn work_stops(context: TrialContext) {
    let (one, operator) = (context.locks().await, context.locks().await);
    // Renewed every ten seconds: a push comes before, and where nothing pushes a renewal tells.
    let soon_enough = Duration::from_secs(if context.guarantees.pushes { 5 } else { 15 });
    let mutex = one.mutex("x").ttl(Duration::from_secs(30));
    let working = mutex.with(async |lease| {
        operator.evict(&resource("x"), lease.fence(), "stuck").await?;
        std::future::pending::<Result<()>>().await
    });
    let ended = time::timeout(soon_enough, working).await.expect("the work stops");
    assert_eq!(ended.expect_err("the lease was taken away").kind(), ErrorKind::Lost);
    recorded(&one, 1, Ending::Evicted).await;
}

pub(super) async fn shared_by_holder(context: TrialContext) {
    let (one, two) = (context.locks().await, context.locks().await);
    let outer = one.mutex("x").shared_by_holder().acquire().await.expect("it is free");
    let middle = one.mutex("x").shared_by_holder().acquire().await.expect("the same holder");
    assert_eq!(middle.fence(), outer.fence(), "one lease, one fence");
    assert_eq!(left(&two).await, 1);
    assert!(two.mutex("x").shared_by_holder().try_acquire().await.expect("an answer").is_none(), "another holder");
    assert!(one.mutex("x").try_acquire().await.expect("an answer").is_none(), "not without saying so");
    assert_eq!(outer.release().await.expect("an answer"), Released::Shared);
    middle.check().expect("the last guard holds");
    assert!(two.mutex("x").try_acquire().await.expect("an answer").is_none());
    assert_eq!(middle.release().await.expect("an answer"), Released::Freed);
    assert_eq!(left(&two).await, 0);
}

/// Whoever ends a lease may hand it on before the end is in the history.
async fn recorded(locks: &Leasehold, leases: usize, last: Ending) {
    soon("the end is in the history", async || {
        let ended = history(locks, "x").await;
        ended.len() == leases && ended[0].ending == last
    })
    .await;
}

pub(super) async fn max_hold(context: TrialContext) {
    let (one, two) = (context.locks().await, context.locks().await);
    let guard = one.mutex("x").max_hold(Duration::from_millis(200)).acquire().await.expect("it is free");
    guard.check().expect("it is held");
    let next = time::timeout(SOON, two.mutex("x").wait_forever().acquire()).await.expect("it ends").expect("free");
    assert_eq!(guard.lost().await, Loss::MaxHold);
    assert_eq!(guard.check().expect_err("it is lost").kind(), ErrorKind::Lost);
    recorded(&two, 1, Ending::MaxHold).await;
    drop(guard);
    time::sleep(Duration::from_millis(50)).await;
    next.check().expect("a guard that lost its lease releases nothing");
    next.release().await.expect("an answer");
}

pub(super) async fn detached(context: TrialContext) {
    let (one, two) = (context.locks().await, context.locks().await);
    let detached = one.mutex("x").acquire_detached().await.expect("it is free");
    assert!(two.mutex("x").try_acquire_detached().await.expect("an answer").is_none());
    let handle = detached.handle.to_string().parse().expect("a handle is text");
    one.close().await.expect("nothing is left to do");
    let found = two.find(&handle).await.expect("an answer").expect("it outlives the caller that acquired it");
    assert_eq!(found.fence(), Some(detached.grant.fence));
    two.renew(&handle, Duration::from_secs(60)).await.expect("an answer");
    let released = two.release(&handle, Outcome::Completed).await.expect("an answer");
    assert_eq!(released, Released::Freed);
    assert_eq!(two.find(&handle).await.expect("an answer"), None);
}

/// Looks until the lease has ended, more often than the shortest ttl: looking must not keep it alive.
pub(super) async fn only_looking(context: TrialContext) {
    let (one, two) = (context.locks().await, context.locks().await);
    let ttl = Duration::from_millis(500);
    let detached = one.mutex("x").ttl(ttl).acquire_detached().await.expect("it is free");
    let looking = async {
        let mut looks = 0;
        while two.find(&detached.handle).await.expect("an answer").is_some() {
            looks += 1;
            time::sleep(Duration::from_millis(20)).await;
        }
        looks
    };
    assert!(time::timeout(SOON, looking).await.expect("it ends by its ttl") > 0, "it was held at first");
    one.mutex("x").wait(SOON).acquire().await.expect("it is free").release().await.expect("an answer");
}

pub(super) async fn metadata(context: TrialContext) {
    let (one, two) = (context.locks().await, context.locks().await);
    let value = |text: &str| Metadata::from_iter([(String::from("step"), text.into())]);
    let guard: Guard = one.mutex("x").note("nightly").metadata(value("copy")).acquire().await.expect("free");
    let seen = async || two.list(&ListFilter::new(Names::All)).await.expect("a list").leases;
    assert_eq!((seen().await[0].note.as_deref(), &seen().await[0].metadata), (Some("nightly"), &value("copy")));
    guard.set_metadata(value("verify")).await.expect("it is held");
    assert_eq!((seen().await[0].metadata.clone(), guard.metadata()), (value("verify"), value("verify")));
    guard.release().await.expect("an answer");
}
