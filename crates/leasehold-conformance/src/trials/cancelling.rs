//! A call that is dropped, at whatever point, leaves nothing behind.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use leasehold::{Error, Leasehold, backend::Backend};
use tokio::{task::JoinSet, time};

use super::{
    TrialContext,
    program::{Way, left, locks_on, soon, waiting},
};
use crate::{
    faulty::{BackendCall, Faulty, Gate},
    instance::SOON,
};

type DroppedAttempt<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

/// Polls so often, waiting to be woken in between, then drops; returns whether it was done before.
async fn drop_after(polls: usize, attempt: DroppedAttempt<'_>) -> bool {
    let mut attempt = attempt;
    let mut left = polls;
    let done = poll_fn(|cx| {
        if left == 0 {
            return Poll::Ready(false);
        }
        left -= 1;
        match attempt.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(true),
            Poll::Pending if left == 0 => Poll::Ready(false),
            Poll::Pending => Poll::Pending,
        }
    });
    // One that waits for its turn is woken no more: it is dropped as it stands.
    time::timeout(Duration::from_millis(50), done).await.unwrap_or(false)
}

/// Drops one attempt after the other, each a poll later, until one is done or `most` were dropped.
///
/// On a busy machine an answer may come before the caller looks for it: then all is done again, until `least` were
/// dropped.
async fn sweep(
    least: usize,
    most: usize,
    mut begin: impl FnMut() -> DroppedAttempt<'static>,
    mut after: impl AsyncFnMut(usize),
) {
    for _ in 0..20 {
        let mut dropped = 0;
        while dropped < most {
            let done = drop_after(dropped, begin()).await;
            after(dropped).await;
            if done {
                break;
            }
            dropped += 1;
        }
        if dropped >= least {
            return;
        }
    }
    panic!("none of 20 attempts waited for {least} polls");
}

/// A program on a backend that answers no call at once, so that a caller waits at every one of them.
async fn slow_locks(context: &TrialContext) -> (Arc<Faulty>, Leasehold) {
    let faulty = Faulty::new(context.fixture.instance().await);
    faulty.delay(Duration::from_millis(1));
    (Arc::clone(&faulty), locks_on(faulty))
}

/// Waits until no call is in flight: closing earlier may let a release overtake its own request, which costs one ttl.
async fn all_answered(faulty: &Faulty) {
    soon("every call is answered", async || faulty.in_flight() == 0).await;
}

/// Nothing is left on the storage, and the instance has nothing left to do.
async fn nothing_left(locks: &Leasehold, truth: &Leasehold) {
    soon("no lease and no queue position is left", async || left(truth).await == 0).await;
    time::timeout(SOON, locks.close()).await.expect("no task is left").expect("an answer");
}

fn lock_and_release(locks: &Leasehold, way: Way) -> DroppedAttempt<'static> {
    let locks = locks.clone();
    Box::pin(async move { drop(way.acquire(&locks, "x").await.expect("it is free, or its turn comes")) })
}

pub(super) async fn free(context: TrialContext, way: Way) {
    let ((faulty, one), truth) = (slow_locks(&context).await, context.locks().await);
    // Before its first poll, and while it is answered.
    sweep(
        2,
        20,
        || lock_and_release(&one, way),
        async |polls| {
            soon(&format!("nothing is left after {polls} polls"), async || left(&truth).await == 0).await;
        },
    )
    .await;
    all_answered(&faulty).await;
    nothing_left(&one, &truth).await;
}

pub(super) async fn contended(context: TrialContext, way: Way) {
    let ((faulty, one), truth) = (slow_locks(&context).await, context.locks().await);
    let held = way.acquire(&truth, "x").await.expect("it is free");
    sweep(
        1,
        4,
        || lock_and_release(&one, way),
        async |polls| {
            soon(&format!("no queue position is left after {polls} polls"), async || left(&truth).await == 1).await;
        },
    )
    .await;
    held.check().expect("the holder was not disturbed");
    held.release().await.expect("an answer");
    all_answered(&faulty).await;
    nothing_left(&one, &truth).await;
}

pub(super) async fn every_call(context: TrialContext) {
    let truth = context.locks().await;
    for &call in DroppedCall::EVERY {
        for contended in [false, true] {
            let (faulty, one) = slow_locks(&context).await;
            let held = if contended { Some(truth.write("x").acquire().await.expect("free")) } else { None };
            let begin = || call.begin(&one, contended);
            let least = if call == DroppedCall::All && !contended { 3 } else { 1 };
            sweep(least, if contended { 3 } else { 12 }, begin, async |polls| {
                let what = format!("{call:?}, contended: {contended}, {polls} polls: nothing is left");
                soon(&what, async || left(&truth).await == usize::from(contended)).await;
            })
            .await;
            if let Some(held) = held {
                held.release().await.expect("an answer");
            }
            all_answered(&faulty).await;
            nothing_left(&one, &truth).await;
        }
    }
}

/// A call that gets a lease, or several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DroppedCall {
    Read,
    TryRead,
    TryOrBusy,
    SharedByHolder,
    /// Gets three leases, one after the other.
    All,
    With,
    MaxHold,
    Campaign,
}

impl DroppedCall {
    const EVERY: &[Self] = &[
        Self::Read,
        Self::TryRead,
        Self::TryOrBusy,
        Self::SharedByHolder,
        Self::All,
        Self::With,
        Self::MaxHold,
        Self::Campaign,
    ];

    /// Begins the call. If it is `contended`, somebody holds the write lock of `x`: the call then wants `x`, too, or
    /// does nothing if it cannot, as an election of a name that is in use as a lock.
    fn begin(self, locks: &Leasehold, contended: bool) -> DroppedAttempt<'static> {
        let locks = locks.clone();
        Box::pin(async move {
            match self {
                Self::Read => drop(locks.read("x").acquire().await),
                Self::TryRead => drop(locks.read("x").try_acquire().await),
                Self::TryOrBusy => drop(locks.mutex("x").try_acquire_or_busy().await),
                Self::SharedByHolder => drop(locks.mutex("x").shared_by_holder().acquire().await),
                Self::All => drop(locks.all(["a", "x", "z"]).acquire().await),
                Self::With => drop(locks.mutex("x").with(async |lease| lease.check()).await),
                Self::MaxHold => drop(locks.mutex("x").max_hold(SOON).acquire().await),
                Self::Campaign if contended => {}
                Self::Campaign => drop(locks.election("y").campaign().await),
            }
        })
    }
}

/// Each call takes two milliseconds; the caller goes a little later each time.
pub(super) async fn any_moment(context: TrialContext) {
    let truth = context.locks().await;
    let faulty = Faulty::new(context.fixture.instance().await);
    faulty.delay(Duration::from_millis(2));
    let one = locks_on(Arc::clone(&faulty) as Arc<dyn Backend>);
    for step in 0..20 {
        let held = if step % 2 == 0 { truth.mutex("b").try_acquire().await.expect("an answer") } else { None };
        let (locks, mut taking) = (one.clone(), JoinSet::new());
        taking.spawn(async move { locks.all(["a", "b"]).acquire().await.map(drop) });
        time::sleep(Duration::from_micros(400 * step)).await;
        drop(taking);
        drop(held);
        soon(&format!("nothing is left after step {step}"), async || left(&truth).await == 0).await;
    }
    all_answered(&faulty).await;
    nothing_left(&one, &truth).await;
}

pub(super) async fn request_under_way(context: TrialContext) {
    gated(context, |faulty| faulty.hold_requests_of(BackendCall::Acquire)).await;
}

pub(super) async fn reply_under_way(context: TrialContext) {
    gated(context, |faulty| faulty.hold_replies_of(BackendCall::Acquire)).await;
}

/// Free and contended: the call is dropped before the gate opens.
async fn gated(context: TrialContext, close: fn(&Faulty) -> Gate) {
    let truth = context.locks().await;
    for contended in [false, true] {
        let held = if contended { Some(truth.mutex("x").acquire().await.expect("free")) } else { None };
        let faulty = Faulty::new(context.fixture.instance().await);
        let one = locks_on(Arc::clone(&faulty) as Arc<dyn Backend>);
        let gate = close(&faulty);
        let mutex = one.mutex("x");
        drop_after(2, Box::pin(async move { drop(mutex.acquire().await) })).await;
        gate.open();
        soon("nothing is left", async || left(&truth).await == usize::from(contended)).await;
        if let Some(held) = held {
            held.release().await.expect("an answer");
        }
        all_answered(&faulty).await;
        nothing_left(&one, &truth).await;
    }
}

/// The holder releases while the waiter goes: the lease is given on or given back, never stuck.
pub(super) async fn hand_off(context: TrialContext) {
    let (one, two) = (context.locks().await, context.locks().await);
    for round in 0..30 {
        let held = one.mutex("x").acquire().await.expect("nothing is left of the round before");
        let locks = two.clone();
        let mut waiter = JoinSet::new();
        waiter.spawn(async move { locks.mutex("x").acquire().await.map(drop) });
        soon("it waits", async || waiting(&one, "x").await == 1).await;
        let mut releasing = JoinSet::new();
        releasing.spawn(async move { held.release().await });
        time::sleep(Duration::from_micros(30 * round)).await;
        drop(waiter);
        assert!(releasing.join_all().await.remove(0).is_ok());
        soon(&format!("nothing is left after round {round}"), async || left(&one).await == 0).await;
    }
    nothing_left(&two, &one).await;
}

pub(super) async fn some_of_several(context: TrialContext) {
    let (one, truth) = (context.locks().await, context.locks().await);
    let held = truth.mutex("b").acquire().await.expect("it is free");
    let (locks, mut taking) = (one.clone(), JoinSet::new());
    taking.spawn(async move { locks.all(["a", "b", "c"]).acquire().await.map(drop) });
    soon("the first is taken, the second waited for", async || left(&truth).await == 3).await;
    drop(taking);
    soon("both are given back", async || left(&truth).await == 1).await;
    held.release().await.expect("an answer");
    nothing_left(&one, &truth).await;
}

pub(super) async fn work(context: TrialContext) {
    let (one, truth) = (context.locks().await, context.locks().await);
    let (locks, mut working) = (one.clone(), JoinSet::new());
    working.spawn(async move {
        let for_ever = async |_| -> Result<(), Error> { std::future::pending().await };
        locks.mutex("x").with(for_ever).await
    });
    soon("it works", async || left(&truth).await == 1).await;
    drop(working);
    nothing_left(&one, &truth).await;
}

pub(super) async fn release(context: TrialContext) {
    let (one, truth) = (context.locks().await, context.locks().await);
    for polls in 1..4 {
        let guard = one.mutex("x").acquire().await.expect("it is free");
        drop_after(polls, Box::pin(async move { drop(guard.release().await) })).await;
        soon("it is released", async || left(&truth).await == 0).await;
    }
    let guard = one.write("x").acquire().await.expect("it is free");
    drop_after(1, Box::pin(async { drop(guard.downgrade().await) })).await;
    drop_after(1, Box::pin(async { drop(guard.renew(SOON).await) })).await;
    guard.check().expect("a dropped renewal loses nothing");
    drop(guard);
    nothing_left(&one, &truth).await;
}
