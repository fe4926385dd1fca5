//! Gathers the calls that arrive while others are in flight, and sends them together.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    fmt,
    future::{Future, poll_fn},
    pin::Pin,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

use parking_lot::Mutex;
use tokio::{runtime::Handle, sync::oneshot, task::unconstrained};

use crate::{Error, Result};

/// Gathers calls into batches without ever waiting for a timer.
///
/// If no call is in flight, a call is sent at once. Otherwise it waits until the number of
/// waiting calls has reached the number in flight, or until a batch is answered. A few
/// callers are hardly delayed; many callers share a few large batches. After a small batch,
/// its callers run, where possible, before the next batch is formed, as do callers that a
/// push has woken. Their next calls thus join that batch.
///
/// The caller whose call starts a batch first polls `send` on its own thread. If it is still pending after that, it is
/// polled by the runtime, or by the thread that receives the answers.
///
/// # Cancel safety
/// If the future is dropped before its batch is sent, the call is left out. If it is dropped later, the answer is
/// discarded.
pub struct Coalescer<C, A> {
    shared: Arc<CoalescerShared<C, A>>,
    runtime: Handle,
}

type BatchAnswers<A> = Pin<Box<dyn Future<Output = Vec<Result<A>>> + Send>>;

struct CoalescerShared<C, A> {
    send: Box<dyn Fn(Vec<C>) -> BatchAnswers<A> + Send + Sync>,
    calls_again: fn(&A) -> bool,
    most_calls: usize,
    most_batches: usize,
    state: Mutex<PendingCalls<C, A>>,
}

/// The calls that wait to be sent, and how many are in flight.
struct PendingCalls<C, A> {
    waiting: VecDeque<QueuedCall<C, A>>,
    /// The batches in flight.
    batches: usize,
    /// The calls in those batches; for a sender that rests, the calls that it expects.
    calls: usize,
    /// The senders that wait for the callers they have answered to call again. Only whoever will resume them keeps them
    /// alive.
    resting: Vec<Weak<RestingSender>>,
}

/// How a call that was added gets sent.
enum Enqueued {
    /// A sender in flight takes it along later.
    Later,
    /// Another sender has to be started.
    New,
    /// This sender has now got the calls that it rested for.
    Resumed(Arc<RestingSender>),
}

impl<C, A> PendingCalls<C, A> {
    /// Returns whether at least as many calls wait as are in flight, or as fit into a batch.
    fn is_full(&self, most_calls: usize) -> bool {
        self.waiting.len() >= self.calls.min(most_calls)
    }

    /// Removes a sender from those that rest.
    fn forget(&mut self, sender: &Weak<RestingSender>) {
        self.resting.retain(|resting| !Weak::ptr_eq(resting, sender));
    }
}

struct QueuedCall<C, A> {
    call: C,
    answer: oneshot::Sender<Result<A>>,
}

impl<C: Send + 'static, A: Send + 'static> Coalescer<C, A> {
    /// Creates a coalescer that passes batches of up to `most_calls` calls to `send`.
    ///
    /// At most `in_flight` batches are sent at a time, on `runtime`. `send` must return the answers in the order of the
    /// calls.
    pub fn new<F>(
        runtime: Handle,
        most_calls: usize,
        in_flight: usize,
        send: impl Fn(Vec<C>) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Vec<Result<A>>> + Send + 'static,
    {
        let send = Box::new(move |calls| Box::pin(send(calls)) as BatchAnswers<A>);
        let state = PendingCalls { waiting: VecDeque::new(), batches: 0, calls: 0, resting: Vec::new() };
        let shared = CoalescerShared {
            send,
            calls_again: |_| true,
            most_calls: most_calls.max(1),
            most_batches: in_flight.max(1),
            state: Mutex::new(state),
        };
        Self { shared: Arc::new(shared), runtime }
    }

    /// Sets after which answers a caller probably calls again soon. The default is all answers.
    ///
    /// A backend leaves out the answer that a request was queued: that caller waits for a push first.
    ///
    /// # Panics
    /// Panics if calls are in flight: set this when the coalescer is made.
    #[must_use]
    pub fn calls_again_if(mut self, calls_again: fn(&A) -> bool) -> Self {
        let shared = Arc::get_mut(&mut self.shared).expect("nobody calls a coalescer before it is built");
        shared.calls_again = calls_again;
        self
    }

    /// Sends a call, alone or in a batch, and returns the answer to it.
    ///
    /// # Errors
    /// The error that `send` returned for this call; `OutcomeUnknown` if `send` returned no answer to it.
    pub async fn call(&self, call: C) -> Result<A> {
        let (answer, answered) = oneshot::channel();
        match self.shared.enqueue(QueuedCall { call, answer }) {
            Enqueued::Later => {}
            Enqueued::New => SenderTask::start(Box::pin(Arc::clone(&self.shared).send_batches()), &self.runtime),
            Enqueued::Resumed(sender) => continue_here(|| sender.resume()),
        }
        answered.await.unwrap_or_else(|_| Err(Error::unanswered("the backend failed before it answered")))
    }
}

impl<C, A> CoalescerShared<C, A> {
    /// Adds a call.
    fn enqueue(&self, job: QueuedCall<C, A>) -> Enqueued {
        let mut state = self.state.lock();
        state.waiting.push_back(job);
        if !state.is_full(self.most_calls) {
            return Enqueued::Later;
        }
        while let Some(sender) = state.resting.pop() {
            if let Some(sender) = sender.upgrade() {
                return Enqueued::Resumed(sender);
            }
        }
        if state.batches == self.most_batches {
            return Enqueued::Later;
        }
        state.batches += 1;
        Enqueued::New
    }

    /// Sends one batch after the other until nothing waits.
    async fn send_batches(self: Arc<Self>) {
        let mut sender = BatchSender { shared: &self, calls: 0, resting: None, ended: false };
        while let Some(jobs) = self.next_batch(&mut sender) {
            let (calls, answers): (Vec<C>, Vec<_>) = jobs.into_iter().map(|job| (job.call, job.answer)).unzip();
            let mut expected = 0;
            for (answer, result) in answers.into_iter().zip((self.send)(calls).await) {
                expected += usize::from(result.as_ref().map_or(true, self.calls_again));
                let _caller_left = answer.send(result);
            }
            let pushed = take_pushed();
            expected += pushed;
            let most = if pushed == 0 { SMALL_BATCH } else { self.most_calls };
            if (2..=most).contains(&expected) {
                sender.let_callers_run(expected).await;
            }
        }
    }

    /// The calls of the next batch; `None` while too few wait.
    fn next_batch(&self, sender: &mut BatchSender<'_, C, A>) -> Option<Vec<QueuedCall<C, A>>> {
        let mut state = self.state.lock();
        state.calls -= std::mem::take(&mut sender.calls);
        if let Some(rested) = sender.resting.take() {
            state.forget(&rested);
        }
        let mut jobs = Vec::with_capacity(state.waiting.len().min(self.most_calls));
        while jobs.len() < self.most_calls && (!jobs.is_empty() || state.is_full(self.most_calls)) {
            let Some(job) = state.waiting.pop_front() else { break };
            if !job.answer.is_closed() {
                jobs.push(job);
            }
        }
        if jobs.is_empty() {
            // Counted out under the lock that found too few, so that the next call or batch sends them.
            state.batches -= 1;
            sender.ended = true;
            return None;
        }
        state.calls += jobs.len();
        sender.calls = jobs.len();
        Some(jobs)
    }
}

/// A sender and the calls of its batch; counts both out if it is dropped or panics in the middle of a batch.
struct BatchSender<'a, C, A> {
    shared: &'a CoalescerShared<C, A>,
    calls: usize,
    /// Itself among those that rest, if it may be there.
    resting: Option<Weak<RestingSender>>,
    ended: bool,
}

impl<C, A> BatchSender<'_, C, A> {
    /// Completes once as many calls wait as are expected, or when the callers have had a chance to make their next
    /// calls, which then form one batch. Completes at once unless the answers came within [`defer_here`].
    async fn let_callers_run(&mut self, expected: usize) {
        poll_fn(|context| {
            if self.resting.is_some() {
                return Poll::Ready(());
            }
            let rest = |resting: &RefCell<Option<Vec<Arc<RestingSender>>>>| {
                let mut resting = resting.borrow_mut();
                let sender =
                    Arc::new(RestingSender { waker: context.waker().clone(), is_resumed: AtomicBool::new(false) });
                let for_this_coalescer = Arc::downgrade(&sender);
                resting.as_mut()?.push(sender);
                Some(for_this_coalescer)
            };
            let Some(sender) = RESTING.try_with(rest).ok().flatten() else { return Poll::Ready(()) };
            let mut state = self.shared.state.lock();
            state.calls = state.calls - self.calls + expected;
            self.calls = expected;
            state.resting.push(Weak::clone(&sender));
            self.resting = Some(sender);
            Poll::Pending
        })
        .await;
    }
}

impl<C, A> Drop for BatchSender<'_, C, A> {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        // Their callers fail when this is dropped, after the lock.
        let _fail = {
            let mut state = self.shared.state.lock();
            state.batches -= 1;
            state.calls -= self.calls;
            if let Some(resting) = &self.resting {
                state.forget(resting);
            }
            // Without another batch in flight, nothing would send them before the next call.
            if state.batches == 0 { std::mem::take(&mut state.waiting) } else { VecDeque::new() }
        };
    }
}

type SenderFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// How many times a sender that is woken while it is polled is polled again before it moves to the runtime.
const MOST_POLLS: usize = 8;
/// After a batch of at most this many calls, its callers run before the next batch is formed. A larger batch gains less
/// from that than from a server that is kept busy. After a push the limit does not apply: the server mostly has nothing to do
/// until these callers have sent their next calls.
const SMALL_BATCH: usize = 16;
/// How many turns callers get at most that a push has woken.
const TURNS_AFTER_PUSH: usize = 6;
/// The most batches that a thread polls for others before it returns to its own work.
const MOST_CONTINUED: usize = 16;

thread_local! {
    /// The senders that were woken on this thread and are polled on it next; `None` where nothing will poll them.
    static WOKEN_HERE: RefCell<Option<VecDeque<Arc<SenderTask>>>> = const { RefCell::new(None) };
    /// The senders that began to rest on this thread; `None` where nothing will resume them.
    static RESTING: RefCell<Option<Vec<Arc<RestingSender>>>> = const { RefCell::new(None) };
    static PUSHED: Cell<Pushed> = const { Cell::new(Pushed { any: false, uncounted: 0 }) };
}

/// The callers that were woken by pushes which this thread read within [`defer_here`]. They are likely to call soon.
#[derive(Clone, Copy, Default)]
struct Pushed {
    any: bool,
    /// Those that no sender has counted among its callers.
    uncounted: usize,
}

/// Returns how many callers were woken by pushes and not counted by a sender yet, and counts them.
fn take_pushed() -> usize {
    let take = |pushed: &Cell<Pushed>| pushed.replace(Pushed { uncounted: 0, ..pushed.get() }).uncounted;
    PUSHED.try_with(take).unwrap_or(0)
}

/// Notes that a push has woken a caller.
#[allow(dead_code, reason = "as `defer_here`")]
pub(crate) fn caller_was_pushed() {
    let is_deferring = || RESTING.try_with(|resting| resting.borrow().is_some()).unwrap_or(false);
    if is_deferring() {
        let uncounted = PUSHED.get().uncounted + 1;
        PUSHED.set(Pushed { any: true, uncounted });
    }
}

/// A sender that waits while the callers that it has answered run.
#[derive(Debug)]
pub(crate) struct RestingSender {
    waker: Waker,
    is_resumed: AtomicBool,
}

impl RestingSender {
    /// Has the sender send what waits.
    pub(crate) fn resume(&self) {
        if !self.is_resumed.swap(true, Ordering::SeqCst) {
            self.waker.wake_by_ref();
        }
    }

    /// Returns whether somebody has resumed the sender.
    #[allow(dead_code, reason = "as `defer_here`")]
    pub(crate) fn is_resumed(&self) -> bool {
        self.is_resumed.load(Ordering::SeqCst)
    }
}

/// The senders that wait while the callers that they have answered run.
#[allow(dead_code, reason = "as `defer_here`")]
pub(crate) struct Deferred {
    pub(crate) senders: Vec<Arc<RestingSender>>,
    /// How many turns to give the callers at most. One that a push has woken first uses what it was granted, and
    /// another thread may have to be woken to run it.
    pub(crate) turns: usize,
}

/// Like [`continue_here`], but also returns the senders that wait for callers to call again. A reader on the runtime of
/// these callers lets them run, then wakes the senders.
#[allow(
    dead_code,
    reason = "for backends that are driven by the runtimes of callers, of which not every build has one"
)]
pub(crate) fn defer_here<T>(work: impl FnOnce() -> T) -> (T, Deferred) {
    /// Wakes all at once after a panic.
    struct Wakes;

    impl Drop for Wakes {
        fn drop(&mut self) {
            RESTING.take().into_iter().flatten().for_each(|sender| sender.resume());
        }
    }

    RESTING.set(Some(Vec::new()));
    let _after_a_panic = Wakes;
    let done = continue_here(work);
    let turns = if PUSHED.take().any { TURNS_AFTER_PUSH } else { 1 };
    (done, Deferred { senders: RESTING.take().unwrap_or_default(), turns })
}

/// Does `work`, then continues the batches that it woke, on this thread.
///
/// Whoever reads the answers of a server calls this, so that no other thread has to be woken to hand them out. A nested
/// call only does its `work`: a batch continues once everything that led to its answer has returned and released its
/// locks.
pub(crate) fn continue_here<T>(work: impl FnOnce() -> T) -> T {
    // On a thread that ends, the list may be gone already; the runtime then continues the batches.
    if WOKEN_HERE.try_with(|woken| woken.borrow().is_some()).unwrap_or(true) {
        return work();
    }
    WOKEN_HERE.set(Some(VecDeque::new()));
    let _left_to_the_runtime = LeaveToRuntime;
    let done = work();
    for _ in 0..MOST_CONTINUED {
        let Some(task) = WOKEN_HERE.with_borrow_mut(|woken| woken.as_mut()?.pop_front()) else { break };
        task.poll();
    }
    done
}

/// Moves the remaining woken senders to the runtime: one thread continues only a few batches, and none after a panic.
struct LeaveToRuntime;

impl Drop for LeaveToRuntime {
    fn drop(&mut self) {
        for task in WOKEN_HERE.take().unwrap_or_default() {
            task.move_to_runtime();
        }
    }
}

/// A sender that is polled by the thread that starts it or receives its answers; any other wake-up moves it to the
/// runtime.
struct SenderTask {
    state: Mutex<SenderTaskState>,
    runtime: Handle,
}

enum SenderTaskState {
    Polling,
    /// It was woken while it was polled.
    Woken,
    Pending(SenderFuture),
    /// The thread that woke it will poll it.
    Scheduled(SenderFuture),
    /// It has ended, or belongs to the runtime.
    Gone,
}

impl SenderTask {
    fn start(sending: SenderFuture, runtime: &Handle) {
        let state = Mutex::new(SenderTaskState::Scheduled(sending));
        Arc::new(Self { state, runtime: runtime.clone() }).poll();
    }

    fn poll(self: &Arc<Self>) {
        let SenderTaskState::Scheduled(mut sending) =
            std::mem::replace(&mut *self.state.lock(), SenderTaskState::Polling)
        else {
            return;
        };
        let waker = Waker::from(Arc::clone(self));
        let _timers_are_the_runtimes = self.runtime.enter();
        for _ in 0..MOST_POLLS {
            // The cooperative budget of one caller must not delay a batch for which others wait, too: a caller that has
            // spent it may never come back.
            let mut unlimited = unconstrained(&mut sending);
            let polled = Pin::new(&mut unlimited).poll(&mut Context::from_waker(&waker));
            let mut state = self.state.lock();
            if polled.is_ready() {
                *state = SenderTaskState::Gone;
                return;
            }
            if !matches!(*state, SenderTaskState::Woken) {
                *state = SenderTaskState::Pending(sending);
                return;
            }
            *state = SenderTaskState::Polling;
        }
        *self.state.lock() = SenderTaskState::Gone;
        drop(self.runtime.spawn(sending));
    }

    fn move_to_runtime(&self) {
        if let SenderTaskState::Scheduled(sending) = std::mem::replace(&mut *self.state.lock(), SenderTaskState::Gone) {
            drop(self.runtime.spawn(sending));
        }
    }
}

impl Wake for SenderTask {
    fn wake(self: Arc<Self>) {
        let mut state = self.state.lock();
        match std::mem::replace(&mut *state, SenderTaskState::Gone) {
            SenderTaskState::Polling | SenderTaskState::Woken => *state = SenderTaskState::Woken,
            SenderTaskState::Pending(sending) => {
                *state = SenderTaskState::Scheduled(sending);
                drop(state);
                let push = |woken: &RefCell<Option<VecDeque<Arc<Self>>>>| {
                    woken.borrow_mut().as_mut().map(|woken| woken.push_back(Arc::clone(&self))).is_some()
                };
                if !WOKEN_HERE.try_with(push).unwrap_or(false) {
                    self.move_to_runtime();
                }
            }
            scheduled @ SenderTaskState::Scheduled(_) => *state = scheduled,
            SenderTaskState::Gone => {}
        }
    }
}

impl<C, A> fmt::Debug for Coalescer<C, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.shared.state.lock();
        f.debug_struct("Coalescer")
            .field("waiting", &state.waiting.len())
            .field("batches", &state.batches)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

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
        assert_eq!(coalescer.shared.state.lock().batches, 0);
    }

    #[tokio::test]
    async fn a_second_batch_leaves_when_as_many_wait_as_are_on_their_way() {
        let gate = Arc::new(Semaphore::new(0));
        let (coalescer, sizes) = gated(&gate, 3);
        let mut calls: Vec<_> = (0..5).map(|call| Box::pin(coalescer.call(call))).collect();
        for call in &mut calls {
            // Each is sent on this thread, as far as it gets.
            assert!(call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        }
        assert_eq!(*sizes.lock(), [1, 1, 2], "the fifth waits: as many batches as may be are on their way");
        gate.add_permits(10);
        for (expected, call) in (0..).zip(calls) {
            assert_eq!(call.await.unwrap(), expected);
        }
        assert_eq!(*sizes.lock(), [1, 1, 2, 1]);
        assert_eq!(coalescer.shared.state.lock().batches, 0);
    }

    /// A coalescer with this many batches in flight, each of which needs a permit to be answered, and their sizes.
    fn gated(gate: &Arc<Semaphore>, most: usize) -> (Coalescer<u32, u32>, Arc<Mutex<Vec<usize>>>) {
        let (gate, sizes) = (Arc::clone(gate), Arc::new(Mutex::new(Vec::new())));
        let seen = Arc::clone(&sizes);
        let coalescer = Coalescer::new(Handle::current(), 20, most, move |calls: Vec<u32>| {
            let (gate, sizes) = (Arc::clone(&gate), Arc::clone(&seen));
            async move {
                sizes.lock().push(calls.len());
                gate.acquire().await.unwrap().forget();
                calls.into_iter().map(Ok).collect()
            }
        });
        (coalescer, sizes)
    }

    /// A call that was polled once and waits.
    fn begun(coalescer: &Coalescer<u32, u32>, number: u32) -> Pin<Box<dyn Future<Output = Result<u32>> + '_>> {
        let mut call: Pin<Box<dyn Future<Output = Result<u32>> + '_>> = Box::pin(coalescer.call(number));
        assert!(call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        call
    }

    #[tokio::test]
    async fn a_call_fails_that_waits_for_a_sender_that_was_dropped() {
        let gate = Arc::new(Semaphore::new(0));
        let (coalescer, sizes) = gated(&gate, 2);
        let mut calls: Vec<_> = (0..4).map(|number| begun(&coalescer, number)).collect();
        let ((), _none) = defer_here(|| gate.add_permits(2));
        let ((), Deferred { senders: deferred, .. }) = defer_here(|| gate.add_permits(1));
        assert_eq!((sizes.lock().as_slice(), deferred.len()), ([1, 1, 2].as_slice(), 1));
        calls.push(begun(&coalescer, 4));
        drop(deferred);
        let waiting = calls.pop().unwrap();
        let answer = tokio::time::timeout(Duration::from_secs(5), waiting).await;
        assert!(answer.expect("nobody would send it").unwrap_err().outcome_unknown());
        assert_eq!(coalescer.shared.state.lock().batches, 0);
    }

    #[tokio::test]
    async fn a_caller_that_a_push_woke_calls_together_with_the_one_that_was_answered() {
        let gate = Arc::new(Semaphore::new(0));
        let (coalescer, sizes) = gated(&gate, 2);
        let mut calls = vec![begun(&coalescer, 0)];
        let ((), Deferred { senders: deferred, .. }) = defer_here(|| {
            caller_was_pushed();
            gate.add_permits(1);
        });
        assert_eq!(deferred.len(), 1, "it answered one caller, and a push woke another");
        calls.push(begun(&coalescer, 1));
        assert_eq!(*sizes.lock(), [1], "the first that calls again does not go alone");
        calls.push(begun(&coalescer, 2));
        assert_eq!(*sizes.lock(), [1, 2]);
        continue_here(|| deferred.iter().for_each(|sender| sender.resume()));
        let ((), Deferred { senders: deferred, .. }) = defer_here(|| gate.add_permits(1));
        assert_eq!(deferred.len(), 1, "that push counts once");
        continue_here(|| deferred.iter().for_each(|sender| sender.resume()));
        for (expected, call) in (0..).zip(calls) {
            assert_eq!(call.await.unwrap(), expected);
        }
        assert_eq!(coalescer.shared.state.lock().batches, 0);
    }

    #[tokio::test]
    async fn a_large_batch_lets_its_callers_run_only_after_a_push() {
        for pushed in [false, true] {
            let gate = Arc::new(Semaphore::new(0));
            let (coalescer, sizes) = gated(&gate, 1);
            let calls: Vec<_> = (0..19).map(|number| begun(&coalescer, number)).collect();
            let ((), _none) = defer_here(|| gate.add_permits(1));
            assert_eq!(*sizes.lock(), [1, 18]);
            let ((), Deferred { senders: deferred, .. }) = defer_here(|| {
                if pushed {
                    caller_was_pushed();
                }
                gate.add_permits(1);
            });
            assert_eq!(deferred.len(), usize::from(pushed));
            continue_here(|| deferred.iter().for_each(|sender| sender.resume()));
            for (expected, call) in (0..).zip(calls) {
                assert_eq!(call.await.unwrap(), expected);
            }
        }
    }

    #[tokio::test]
    async fn callers_that_are_answered_together_form_the_next_batch_together() {
        let gate = Arc::new(Semaphore::new(0));
        let (coalescer, sizes) = gated(&gate, 2);
        let call = |number| begun(&coalescer, number);
        let mut calls: Vec<_> = (0..4).map(call).collect();
        assert_eq!(*sizes.lock(), [1, 1], "two batches are on their way, two calls wait");
        let ((), Deferred { senders: deferred, .. }) = defer_here(|| gate.add_permits(2));
        assert!(deferred.is_empty(), "each answered one caller");
        assert_eq!(*sizes.lock(), [1, 1, 2]);
        let ((), Deferred { senders: deferred, .. }) = defer_here(|| gate.add_permits(1));
        assert_eq!(deferred.len(), 1, "it answered two callers, and lets them run");
        calls.extend([4].map(call));
        assert_eq!(*sizes.lock(), [1, 1, 2], "the first that calls again does not go alone");
        calls.extend([5].map(call));
        assert_eq!(*sizes.lock(), [1, 1, 2, 2], "the second sends both, before their turns are over");
        assert!(deferred[0].is_resumed());
        continue_here(|| deferred.iter().for_each(|sender| sender.resume()));
        gate.add_permits(10);
        for (expected, call) in (0..).zip(calls) {
            assert_eq!(call.await.unwrap(), expected);
        }
        assert_eq!(*sizes.lock(), [1, 1, 2, 2]);
        assert_eq!(coalescer.shared.state.lock().batches, 0);
    }

    #[tokio::test]
    async fn nobody_rests_for_a_caller_that_will_not_call_again() {
        let gate = Arc::new(Semaphore::new(0));
        let (coalescer, sizes) = gated(&gate, 1);
        let coalescer = coalescer.calls_again_if(|number| *number != 2);
        let calls: Vec<_> = (0..3).map(|number| begun(&coalescer, number)).collect();
        let ((), Deferred { senders: deferred, .. }) = defer_here(|| gate.add_permits(2));
        assert_eq!((sizes.lock().as_slice(), deferred.len()), ([1, 2].as_slice(), 0));
        for (expected, call) in (0..).zip(calls) {
            assert_eq!(call.await.unwrap(), expected);
        }
        assert_eq!(coalescer.shared.state.lock().batches, 0);
    }

    #[tokio::test]
    async fn a_call_that_was_dropped_is_not_sent_and_one_that_is_not_answered_fails() {
        let coalescer = Coalescer::<u32, u32>::new(Handle::current(), 8, 1, |_| async { Vec::new() });
        drop(Box::pin(coalescer.call(1)));
        let error = coalescer.call(2).await.unwrap_err();
        assert!(error.outcome_unknown(), "{error:?}");
        assert_eq!(coalescer.shared.state.lock().batches, 0);
    }
}
