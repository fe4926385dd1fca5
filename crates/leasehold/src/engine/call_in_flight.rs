//! A request or release that is polled on the caller's thread, which saves waking another thread.
//!
//! It moves to the I/O thread, and runs to completion there, if the caller goes
//! away, the instance is closed, or the answer is slow.

use std::{
    fmt,
    task::{Context, Poll, Waker},
    time::Duration,
};

use super::sync::{AtomicBool, AtomicU64, Mutex, MutexGuard, Ordering};
use crate::{lease::Moment, threads::Task};

/// How long the caller of `acquire` or `release` polls its call before the call moves to the I/O thread.
const TAKE_OVER_AFTER: Duration = Duration::from_secs(1);
/// How long the renewer waits before it tries again to take over a call that its caller is polling.
const TAKE_OVER_RETRY: Duration = Duration::from_millis(10);

/// The call of a lease that its caller polls, if there is one.
#[derive(Debug)]
pub(crate) struct CallInFlight {
    task: Mutex<Option<StoredTask>>,
    /// Whether the caller polls it.
    by_caller: AtomicBool,
    take_over_at: AtomicU64,
}

/// Polls a task with the timers and sockets of the I/O thread.
pub(crate) type PollTask<'a> = &'a dyn Fn(&mut Task, &mut Context<'_>) -> Poll<()>;

/// A task, and the waker of the caller that polls it.
struct StoredTask {
    task: Task,
    caller: Waker,
}

impl fmt::Debug for StoredTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StoredTask")
    }
}

/// What the renewer is to do about a call that its caller may be polling.
pub(crate) enum TakeOver {
    /// Nothing: the caller polls no call.
    Nothing,
    /// Schedule the lease again: it is too early, or the caller polls the call at this moment.
    Later,
    /// Run this task to completion.
    Now(Task),
}

impl CallInFlight {
    pub(crate) fn none() -> Self {
        Self {
            task: Mutex::new(None),
            by_caller: AtomicBool::new(false),
            take_over_at: AtomicU64::new(Moment::NEVER.as_micros()),
        }
    }

    /// When the renewer takes over the call that the caller polls; `NEVER` if there is none.
    pub(crate) fn take_over_at(&self) -> Moment {
        Moment::from_micros(self.take_over_at.load(Ordering::SeqCst))
    }

    /// Polls the task once, by `poll`, and stores it for the caller to poll again.
    ///
    /// Ready if the task finished. If it is pending, schedule the lease: the renewer moves the task to the I/O thread
    /// by `take_over_by`.
    pub(crate) fn start(&self, mut task: Task, now: Moment, take_over_by: Moment, poll: PollTask<'_>) -> Poll<()> {
        self.by_caller.store(true, Ordering::SeqCst);
        if poll(&mut task, &mut Context::from_waker(Waker::noop())).is_ready() {
            self.by_caller.store(false, Ordering::SeqCst);
            return Poll::Ready(());
        }
        let at = now.after(TAKE_OVER_AFTER).min(take_over_by);
        let mut stored = self.task.lock();
        self.take_over_at.store(at.as_micros(), Ordering::SeqCst);
        *stored = Some(StoredTask { task, caller: Waker::noop().clone() });
        Poll::Pending
    }

    /// Polls the stored task again, by `poll`; ready when it is done or was taken over.
    pub(crate) fn poll(&self, context: &mut Context<'_>, poll: PollTask<'_>) -> Poll<()> {
        let mut slot = self.task.lock();
        // Taken out, so that a task that panics is not polled again.
        let Some(mut stored) = slot.take() else { return Poll::Ready(()) };
        if poll(&mut stored.task, context).is_pending() {
            stored.caller.clone_from(context.waker());
            *slot = Some(stored);
            return Poll::Pending;
        }
        self.by_caller.store(false, Ordering::SeqCst);
        self.take_over_at.store(Moment::NEVER.as_micros(), Ordering::SeqCst);
        drop(slot);
        Poll::Ready(())
    }

    /// Takes the stored task away from its caller. The new owner must run the task to completion.
    pub(crate) fn take_over(&self) -> Option<Task> {
        self.take(self.task.lock())
    }

    /// Like `take_over`, for the renewer, if the time for that has come.
    ///
    /// A poll by the caller may run code of the backend and of tracing subscribers, so this never waits for it to end: it
    /// tries again after `TAKE_OVER_RETRY`.
    pub(crate) fn take_over_if_due(&self, now: Moment) -> TakeOver {
        let due = self.take_over_at();
        if due == Moment::NEVER {
            return TakeOver::Nothing;
        }
        if due > now {
            return TakeOver::Later;
        }
        if let Some(stored) = self.task.try_lock() {
            return self.take(stored).map_or(TakeOver::Nothing, TakeOver::Now);
        }
        // No effect if the caller has finished meanwhile.
        let (due, later) = (due.as_micros(), now.after(TAKE_OVER_RETRY).as_micros());
        let _changed = self.take_over_at.compare_exchange(due, later, Ordering::SeqCst, Ordering::SeqCst);
        TakeOver::Later
    }

    fn take(&self, mut stored: MutexGuard<'_, Option<StoredTask>>) -> Option<Task> {
        self.take_over_at.store(Moment::NEVER.as_micros(), Ordering::SeqCst);
        let StoredTask { task, caller } = stored.take()?;
        self.by_caller.store(false, Ordering::SeqCst);
        drop(stored);
        caller.wake();
        Some(task)
    }

    /// Returns whether the call is polled on the caller's thread. If so, it needs no timeout: the renewer takes over a
    /// slow call.
    pub(crate) fn is_polled_by_caller(&self) -> bool {
        self.by_caller.load(Ordering::SeqCst)
    }
}
