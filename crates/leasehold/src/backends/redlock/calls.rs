//! Calls to several nodes at once, whose task is woken when enough of them have answered, or when their time is up.
//!
//! Answers come in on another thread, shortly after each other: waking the task for each of them would cost more than
//! the calls themselves. So would a timer for each round, since a new timer wakes the thread that sleeps: one task
//! watches the time of all of them.

use std::{
    collections::VecDeque,
    fmt,
    future::poll_fn,
    pin::Pin,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    runtime::Handle,
    task::{Unconstrained, unconstrained},
};

use crate::{clock::Clock, lease::Moment};

/// Calls under way, each with the index of its node.
///
/// They ignore tokio's cooperative budget: once that is spent, tokio wakes all of them by one call of the waker that they
/// share, which would count as the progress of one.
pub(super) struct Calls<F: Future + ?Sized> {
    pending: Vec<(usize, Unconstrained<Pin<Box<F>>>)>,
    answers: Vec<(usize, F::Output)>,
    signal: Arc<CallWaker>,
}

/// What became of calls under way.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NextAnswer<T> {
    /// The node at this index answered.
    Answer(usize, T),
    /// The time is up.
    Elapsed,
    /// Every answer was taken.
    Done,
}

/// Wakes the task when enough calls have made progress, or when their time is up.
#[derive(Debug, Default)]
struct CallWaker {
    progressed: AtomicUsize,
    enough: AtomicUsize,
    is_elapsed: AtomicBool,
    /// When the time is up; the watchdog may still know an earlier end.
    end: Mutex<Moment>,
    task: Mutex<Option<Waker>>,
}

impl CallWaker {
    fn wake_task(&self) {
        if let Some(task) = self.task.lock().take() {
            task.wake();
        }
    }
}

impl Wake for CallWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.progressed.fetch_add(1, Ordering::SeqCst) + 1 >= self.enough.load(Ordering::SeqCst) {
            self.wake_task();
        }
    }
}

impl<F: Future + ?Sized> Calls<F>
where
    F::Output: Sized,
{
    pub(super) fn new() -> Self {
        Self { pending: Vec::new(), answers: Vec::new(), signal: Arc::default() }
    }

    pub(super) fn push(&mut self, at: usize, call: Pin<Box<F>>) {
        self.pending.push((at, unconstrained(call)));
    }

    /// Whether every answer was taken.
    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty() && self.answers.is_empty()
    }

    /// Drops the calls that were not answered.
    pub(super) fn clear(&mut self) {
        self.pending.clear();
    }

    /// Sends what was pushed: a call is sent when it is first polled.
    pub(super) fn send(&mut self) {
        let waker = Waker::from(Arc::clone(&self.signal));
        self.poll_all(&mut Context::from_waker(&waker));
    }

    /// Has `watchdog` end the wait for an answer after a while.
    pub(super) fn limit(&self, watchdog: &Arc<Watchdog>, length: Duration) {
        self.signal.is_elapsed.store(false, Ordering::SeqCst);
        watchdog.watch(&self.signal, length);
    }

    /// The next answer, taken as soon as `enough` calls have made progress.
    ///
    /// # Cancel safety
    /// A dropped future loses nothing.
    pub(super) async fn next(&mut self, enough: usize) -> NextAnswer<F::Output> {
        poll_fn(|context| {
            if let Some((at, answer)) = self.answers.pop() {
                return Poll::Ready(NextAnswer::Answer(at, answer));
            }
            if self.pending.is_empty() {
                return Poll::Ready(NextAnswer::Done);
            }
            // 1. The task is set, so that what progresses from now on wakes it.
            // 2. Every call is polled, so that what progressed before is seen. Counting it twice wakes early, no more.
            *self.signal.task.lock() = Some(context.waker().clone());
            self.signal.enough.store(enough.clamp(1, self.pending.len()), Ordering::SeqCst);
            self.signal.progressed.store(0, Ordering::SeqCst);
            let waker = Waker::from(Arc::clone(&self.signal));
            self.poll_all(&mut Context::from_waker(&waker));
            match self.answers.pop() {
                Some((at, answer)) => Poll::Ready(NextAnswer::Answer(at, answer)),
                None if self.signal.is_elapsed.swap(false, Ordering::SeqCst) => Poll::Ready(NextAnswer::Elapsed),
                None => Poll::Pending,
            }
        })
        .await
    }

    fn poll_all(&mut self, context: &mut Context<'_>) {
        let answers = &mut self.answers;
        self.pending.retain_mut(|(at, call)| match Pin::new(call).poll(context) {
            Poll::Ready(answer) => {
                answers.push((*at, answer));
                false
            }
            Poll::Pending => true,
        });
    }
}

/// Watches the time of all calls of a backend, in one task that lives while there are any.
pub(super) struct Watchdog {
    clock: Arc<dyn Clock>,
    runtime: Handle,
    watched: Mutex<Watched>,
}

type Ends = VecDeque<(Moment, Weak<CallWaker>)>;

#[derive(Default)]
struct Watched {
    /// Those with the same limit end in the order in which they began.
    ends: Vec<(Duration, Ends)>,
    /// When the task looks again; `None` while there is none.
    looks_at: Option<Moment>,
}

/// The time is watched no more closely than this: looking costs time, too.
const GRAIN: Duration = Duration::from_millis(2);

impl Watchdog {
    pub(super) fn new(clock: Arc<dyn Clock>, runtime: Handle) -> Arc<Self> {
        Arc::new(Self { clock, runtime, watched: Mutex::default() })
    }

    fn watch(self: &Arc<Self>, signal: &Arc<CallWaker>, length: Duration) {
        let end = self.clock.now().after(length);
        *signal.end.lock() = end;
        let mut watched = self.watched.lock();
        let entry = (end, Arc::downgrade(signal));
        match watched.ends.iter_mut().find(|(other, _)| *other == length) {
            Some((_, ends)) => ends.push_back(entry),
            None => watched.ends.push((length, VecDeque::from([entry]))),
        }
        if watched.looks_at.is_none_or(|looks_at| end < looks_at) {
            watched.looks_at = Some(end);
            drop(watched);
            self.runtime.spawn(Arc::clone(self).run(end));
        }
    }

    async fn run(self: Arc<Self>, mut next: Moment) {
        loop {
            self.clock.sleep_until(next).await;
            match self.end_due(next) {
                Some(later) => next = later,
                None => return,
            }
        }
    }

    /// Ends what is due; returns when to look again. On `None` the task must end: nothing is left, or another looks earlier.
    fn end_due(&self, looked_at: Moment) -> Option<Moment> {
        let now = self.clock.now();
        let mut watched = self.watched.lock();
        // Keeps running for answered calls too: restarting the task would cost more.
        let due = |ends: &mut Ends| {
            let later = ends.partition_point(|(end, _)| *end <= now);
            for (end, signal) in ends.drain(..later) {
                if let Some(signal) = signal.upgrade().filter(|signal| *signal.end.lock() == end) {
                    signal.is_elapsed.store(true, Ordering::SeqCst);
                    signal.wake_task();
                }
            }
        };
        watched.ends.iter_mut().for_each(|(_, ends)| due(ends));
        if watched.looks_at.is_some_and(|looks_at| looks_at != looked_at) {
            return None;
        }
        let next = watched.ends.iter().filter_map(|(_, ends)| ends.front()).map(|(end, _)| *end).min();
        watched.looks_at = next.map(|next| next.max(now.after(GRAIN)));
        watched.looks_at
    }
}

impl fmt::Debug for Watchdog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watchdog").field("limits", &self.watched.lock().ends.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use tokio::{sync::oneshot, task::coop};

    use super::*;
    use crate::clock::SystemClock;

    type Call = dyn Future<Output = Option<u32>> + Send;

    /// Three calls that were sent, and what answers each of them.
    fn three_calls() -> (Calls<Call>, Vec<oneshot::Sender<u32>>) {
        let (mut calls, mut answers) = (Calls::<Call>::new(), Vec::new());
        for at in 0..3 {
            let (answer, answered) = oneshot::channel();
            answers.push(answer);
            calls.push(at, Box::pin(async move { answered.await.ok() }));
        }
        calls.send();
        (calls, answers)
    }

    #[tokio::test]
    async fn the_task_is_woken_once_enough_have_answered() {
        let (mut calls, mut answers) = three_calls();
        assert!(!has_answer(&mut calls, 2), "nobody has answered");
        answers.pop().unwrap().send(2).unwrap();
        assert!(calls.signal.task.lock().is_some(), "one is not enough");
        answers.pop().unwrap().send(1).unwrap();
        assert!(calls.signal.task.lock().is_none(), "two are");
        let mut seen = vec![calls.next(2).await, calls.next(1).await];
        seen.sort_by_key(|next| matches!(next, NextAnswer::Answer(2, _)));
        assert_eq!(seen, [NextAnswer::Answer(1, Some(1)), NextAnswer::Answer(2, Some(2))]);
        let watchdog = Watchdog::new(Arc::new(SystemClock), Handle::current());
        calls.limit(&watchdog, Duration::from_millis(10));
        assert_eq!(calls.next(1).await, NextAnswer::Elapsed);
        answers.pop().unwrap().send(0).unwrap();
        assert_eq!(calls.next(5).await, NextAnswer::Answer(0, Some(0)));
        assert_eq!(calls.next(1).await, NextAnswer::Done);
    }

    #[tokio::test]
    async fn answers_are_seen_by_a_task_that_has_spent_its_budget() {
        let (mut calls, answers) = three_calls();
        for answer in answers {
            answer.send(0).unwrap();
        }
        let task = Handle::current().spawn(async move {
            while coop::has_budget_remaining() {
                coop::consume_budget().await;
            }
            calls.next(3).await
        });
        let next = tokio::time::timeout(Duration::from_secs(10), task).await;
        assert!(matches!(next, Ok(Ok(NextAnswer::Answer(..)))), "{next:?}");
    }

    /// Polls once; returns whether there was an answer.
    fn has_answer(calls: &mut Calls<Call>, enough: usize) -> bool {
        let mut next = Box::pin(calls.next(enough));
        next.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }
}
