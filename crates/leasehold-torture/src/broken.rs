//! Clients that each break one rule. A checker that does not catch its client checks nothing.

use std::{mem, time::Duration};

use leasehold::{Guard, Outcome};
use leasehold_testkit::Dice;
use tokio::time::{sleep, timeout};

use crate::{
    args::ClientKind,
    event::LogEvent,
    instant::{Micros, millis, now},
    lane::{LockAttempt, WAIT, WorkerState},
    target::{LockMode, LockTarget, TARGETS},
};

/// Most broken clients contend for one mutex.
const MUTEX: LockTarget = LockTarget { name: "lock:a", mode: LockMode::Mutex };
/// How long a broken holder believes.
const HOLD: Micros = millis(150);

/// One acquisition by a broken client.
pub(crate) async fn turn(shared: &WorkerState, dice: &mut Dice) {
    match shared.role.client {
        ClientKind::Ours | ClientKind::BrokenNoLock => no_lock(shared, dice).await,
        ClientKind::BrokenIgnoresLoss => ignores_loss(shared).await,
        ClientKind::BrokenFromReceipt => from_receipt(shared, dice).await,
        ClientKind::BrokenForgesRelease => forges_release(shared).await,
        ClientKind::BrokenOldFence => old_fence(shared).await,
        ClientKind::BrokenKeepsCancelled => keeps_cancelled(shared, dice).await,
        ClientKind::BrokenStaysQueued => stays_queued(shared, dice).await,
        ClientKind::BrokenSwapsTurns => swaps_turns(shared).await,
        ClientKind::BrokenNeverReleases => never_releases(shared).await,
        ClientKind::BrokenLateLoss => late_loss(shared).await,
    }
}

/// Believes without a check, as a client does that trusts its own arithmetic.
async fn believe_blindly(shared: &WorkerState, ask: &LockAttempt, length: Micros) {
    let until = now() + length;
    while now() < until {
        shared.log.write(LogEvent::Believed { id: ask.id.clone() });
        sleep(Duration::from_millis(5)).await;
    }
    shared.log.write(LogEvent::Ending { id: ask.id.clone() });
}

async fn no_lock(shared: &WorkerState, dice: &mut Dice) {
    let ask = shared.ask(TARGETS[dice.index(TARGETS.len())]);
    shared.began(&ask, now());
    believe_blindly(shared, &ask, HOLD).await;
}

/// Takes the mutex for 50 ms, after which it is lost.
async fn hold_briefly(shared: &WorkerState) -> Option<(LockAttempt, Guard)> {
    let ask = shared.ask(MUTEX);
    let mutex = shared.locks.mutex(MUTEX.name).wait(WAIT).max_hold(Duration::from_millis(50));
    match mutex.acquire().await {
        Ok(guard) => {
            shared.began(&ask, guard.fence().get());
            Some((ask, guard))
        }
        Err(error) => {
            shared.refused(&ask, &error);
            None
        }
    }
}

async fn ignores_loss(shared: &WorkerState) {
    let Some((ask, _lost_soon)) = hold_briefly(shared).await else { return };
    believe_blindly(shared, &ask, HOLD).await;
}

/// Some answers take 150 ms to arrive, and the ttl of 200 ms is counted from then.
async fn from_receipt(shared: &WorkerState, dice: &mut Dice) {
    let ask = shared.ask(MUTEX);
    let ttl = Duration::from_millis(200);
    match shared.locks.mutex(MUTEX.name).ttl(ttl).wait(WAIT).acquire_detached().await {
        Ok(lease) => {
            sleep(Duration::from_millis(if dice.percent(50) { 150 } else { 0 })).await;
            shared.began(&ask, lease.grant.fence.get());
            believe_blindly(shared, &ask, millis(200)).await;
        }
        Err(error) => shared.refused(&ask, &error),
    }
}

async fn forges_release(shared: &WorkerState) {
    let stolen = shared.handles.lock().remove(MUTEX.name);
    if let Some(handle) = stolen {
        // By the backend itself, since the library would end the belief of the guard.
        let _it_may_have_ended = shared.locks.backend().release(handle.key(), &Outcome::Completed).await;
    }
    let ask = shared.ask(MUTEX);
    match shared.acquire(&ask).await {
        Ok(guard) => {
            shared.began(&ask, guard.fence().get());
            shared.handles.lock().insert(MUTEX.name, guard.handle());
            match shared.believe(&ask, &guard, now() + HOLD).await {
                None => shared.release(&ask, guard).await,
                Some(failed_at) => shared.lose(&ask, &guard, failed_at).await,
            }
        }
        Err(error) => shared.refused(&ask, &error),
    }
}

async fn old_fence(shared: &WorkerState) {
    let ask = shared.ask(MUTEX);
    match shared.acquire(&ask).await {
        Ok(guard) => {
            shared.began(&ask, guard.fence().get() / millis(1000));
            shared.release(&ask, guard).await;
        }
        Err(error) => shared.refused(&ask, &error),
    }
}

/// Drops its interest, and keeps the guard when it comes.
async fn keeps_cancelled(shared: &WorkerState, dice: &mut Dice) {
    let ask = shared.ask(TARGETS[dice.index(TARGETS.len())]);
    if let Ok(guard) = shared.acquire(&ask).await {
        mem::forget(guard);
    }
    shared.log.write(LogEvent::Cancelled { id: ask.id });
}

/// Forgets the future of a queued ask instead of dropping it.
async fn stays_queued(shared: &WorkerState, dice: &mut Dice) {
    let ask = shared.ask(MUTEX);
    let mut acquire = Box::pin(shared.acquire(&ask));
    let Ok(answer) = timeout(Duration::from_micros(dice.below(millis(20))), &mut acquire).await else {
        mem::forget(acquire);
        // A short queue shows the leak as well as a long one.
        sleep(Duration::from_millis(100)).await;
        return shared.log.write(LogEvent::Cancelled { id: ask.id });
    };
    match answer {
        Ok(guard) => {
            shared.began(&ask, guard.fence().get());
            shared.believe(&ask, &guard, now() + HOLD).await;
            shared.release(&ask, guard).await;
        }
        Err(error) => shared.refused(&ask, &error),
    }
}

/// Asks twice and gives the first turn to the second ask.
async fn swaps_turns(shared: &WorkerState) {
    let (early, late) = (shared.ask(MUTEX), shared.ask(MUTEX));
    let first = shared.acquire(&early);
    let second = async {
        sleep(Duration::from_millis(50)).await;
        let guard = shared.acquire(&late).await;
        hold_as(shared, &early, guard).await;
    };
    let first = async {
        let guard = first.await;
        hold_as(shared, &late, guard).await;
    };
    tokio::join!(first, second);
}

async fn hold_as(shared: &WorkerState, ask: &LockAttempt, guard: leasehold::Result<Guard>) {
    match guard {
        Ok(guard) => {
            shared.began(ask, guard.fence().get());
            shared.believe(ask, &guard, now() + HOLD).await;
            shared.release(ask, guard).await;
        }
        Err(error) => shared.refused(ask, &error),
    }
}

async fn never_releases(shared: &WorkerState) {
    let ask = shared.ask(MUTEX);
    match shared.acquire(&ask).await {
        Ok(guard) => {
            shared.began(&ask, guard.fence().get());
            shared.log.write(LogEvent::Ending { id: ask.id.clone() });
            mem::forget(guard);
        }
        Err(error) => shared.refused(&ask, &error),
    }
}

async fn late_loss(shared: &WorkerState) {
    let Some((ask, guard)) = hold_briefly(shared).await else { return };
    if let Some(failed_at) = shared.believe(&ask, &guard, now() + millis(5000)).await {
        sleep(Duration::from_secs(3)).await;
        shared.lose(&ask, &guard, failed_at).await;
    }
}
