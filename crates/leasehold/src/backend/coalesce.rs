//! Sends calls together that arrive while others are in flight.

use std::{collections::VecDeque, fmt, future::Future, pin::Pin, sync::Arc};

use parking_lot::Mutex;
use tokio::{runtime::Handle, sync::oneshot};

use crate::{Error, Result};

/// Gathers calls into batches without ever waiting for a timer.
///
/// A call goes out at once while fewer than `in_flight` batches are on their
/// way. Otherwise it joins the next batch, which leaves as soon as one of
/// those is answered.
///
/// # Cancel safety
/// A call that is dropped before its batch leaves is not sent; afterwards its answer is discarded.
pub struct Coalescer<C, A> {
    shared: Arc<Shared<C, A>>,
    runtime: Handle,
}

type Batch<A> = Pin<Box<dyn Future<Output = Vec<Result<A>>> + Send>>;

struct Shared<C, A> {
    send: Box<dyn Fn(Vec<C>) -> Batch<A> + Send + Sync>,
    most_calls: usize,
    most_batches: usize,
    state: Mutex<State<C, A>>,
}

struct State<C, A> {
    waiting: VecDeque<Job<C, A>>,
    in_flight: usize,
}

struct Job<C, A> {
    call: C,
    answer: oneshot::Sender<Result<A>>,
}

impl<C: Send + 'static, A: Send + 'static> Coalescer<C, A> {
    /// Sends batches of at most `most_calls`, at most `in_flight` of them at a time, by `send` on `runtime`.
    ///
    /// `send` answers the calls of a batch in their order.
    pub fn new<F>(
        runtime: Handle,
        most_calls: usize,
        in_flight: usize,
        send: impl Fn(Vec<C>) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Vec<Result<A>>> + Send + 'static,
    {
        let send = Box::new(move |calls| Box::pin(send(calls)) as Batch<A>);
        let state = Mutex::new(State { waiting: VecDeque::new(), in_flight: 0 });
        let shared = Shared { send, most_calls: most_calls.max(1), most_batches: in_flight.max(1), state };
        Self { shared: Arc::new(shared), runtime }
    }

    /// Sends a call, alone or with others, and returns its own answer.
    ///
    /// # Errors
    /// The call's own error; `OutcomeUnknown` when `send` did not answer it.
    pub async fn call(&self, call: C) -> Result<A> {
        let (answer, answered) = oneshot::channel();
        if self.shared.enqueue(Job { call, answer }) {
            self.runtime.spawn(Arc::clone(&self.shared).send_batches());
        }
        answered.await.unwrap_or_else(|_| Err(Error::unanswered("the backend failed before it answered")))
    }
}

impl<C, A> Shared<C, A> {
    /// Adds a call; returns whether another sender has to be started for it.
    fn enqueue(&self, job: Job<C, A>) -> bool {
        let mut state = self.state.lock();
        state.waiting.push_back(job);
        let start = state.in_flight < self.most_batches;
        state.in_flight += usize::from(start);
        start
    }

    /// Sends one batch after the other until nothing waits.
    async fn send_batches(self: Arc<Self>) {
        let sending = InFlight(&self);
        while let Some(jobs) = self.next_batch() {
            let (calls, answers): (Vec<C>, Vec<_>) = jobs.into_iter().map(|job| (job.call, job.answer)).unzip();
            for (answer, result) in answers.into_iter().zip((self.send)(calls).await) {
                let _caller_left = answer.send(result);
            }
        }
        std::mem::forget(sending);
    }

    /// The calls that wait for a batch; `None`, counting this sender out, when there are none.
    fn next_batch(&self) -> Option<Vec<Job<C, A>>> {
        let mut state = self.state.lock();
        let mut jobs = Vec::new();
        while jobs.len() < self.most_calls {
            let Some(job) = state.waiting.pop_front() else { break };
            if !job.answer.is_closed() {
                jobs.push(job);
            }
        }
        if jobs.is_empty() {
            state.in_flight -= 1;
            return None;
        }
        Some(jobs)
    }
}

/// Counts a sender out that was dropped or panicked in the middle of a batch.
struct InFlight<'a, C, A>(&'a Shared<C, A>);

impl<C, A> Drop for InFlight<'_, C, A> {
    fn drop(&mut self) {
        self.0.state.lock().in_flight -= 1;
    }
}

impl<C, A> fmt::Debug for Coalescer<C, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.shared.state.lock();
        f.debug_struct("Coalescer")
            .field("waiting", &state.waiting.len())
            .field("in_flight", &state.in_flight)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use tokio::{sync::Semaphore, task::JoinSet};

    use super::*;

    #[tokio::test]
    async fn calls_gather_while_a_batch_is_on_its_way() {
        let (gate, sizes) = (Arc::new(Semaphore::new(0)), Arc::new(Mutex::new(Vec::new())));
        let (opened, seen) = (Arc::clone(&gate), Arc::clone(&sizes));
        let coalescer = Arc::new(Coalescer::new(Handle::current(), 3, 1, move |calls: Vec<u32>| {
            let (gate, sizes) = (Arc::clone(&opened), Arc::clone(&seen));
            async move {
                sizes.lock().push(calls.len());
                gate.acquire().await.unwrap().forget();
                calls.into_iter().map(|call| Ok(call * 10)).collect()
            }
        }));
        let mut callers = JoinSet::new();
        for call in 0..6 {
            let caller = Arc::clone(&coalescer);
            callers.spawn(async move { caller.call(call).await.unwrap() });
            while coalescer.shared.state.lock().waiting.len() + sizes.lock().iter().sum::<usize>() <= call as usize {
                tokio::task::yield_now().await;
            }
        }
        gate.add_permits(10);
        let mut answers = callers.join_all().await;
        answers.sort_unstable();
        assert_eq!(answers, [0, 10, 20, 30, 40, 50]);
        assert_eq!(*sizes.lock(), [1, 3, 2], "the first goes alone, the rest gather");
        assert_eq!(coalescer.shared.state.lock().in_flight, 0);
    }

    #[tokio::test]
    async fn a_call_that_was_dropped_is_not_sent_and_one_that_is_not_answered_fails() {
        let coalescer = Coalescer::<u32, u32>::new(Handle::current(), 8, 1, |_| async { Vec::new() });
        drop(Box::pin(coalescer.call(1)));
        let error = coalescer.call(2).await.unwrap_err();
        assert!(error.outcome_unknown(), "{error:?}");
        assert_eq!(coalescer.shared.state.lock().in_flight, 0);
    }
}
