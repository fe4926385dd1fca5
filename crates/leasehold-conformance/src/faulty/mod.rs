//! A backend that fails on purpose, as networks and servers do.

mod hints;
mod plan;

use std::{
    fmt,
    future::Future,
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use leasehold::{
    Error, Fence, Resource, Result,
    backend::{
        Answer, Backend, Decision, EventStream, Finding, Guarantees, Hint, Hints, Incarnation, Inspect, Renewal,
        Request,
    },
    lease::{
        EndedLease, Evicted, HistoryFilter, LeaseKey, LeasePage, ListFilter, Names, Outcome, Released, RunRecord,
        RunReport, Standing,
    },
};
use tokio::time;

pub use self::{
    hints::HintFaults,
    plan::{BackendCall, Gate, Odds},
};
use self::{hints::Relay, plan::Plan};

/// A backend in front of another one, that loses, delays and doubles what passes through.
///
/// It does nothing of the kind until told to:
///
/// ```
/// use std::sync::Arc;
/// use leasehold::{backend::Inspect, backends::memory::MemoryBackend, clock::SystemClock, lease::ListFilter};
/// use leasehold_conformance::{BackendCall, Faulty};
///
/// # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
/// # runtime.block_on(async {
/// let faulty = Faulty::new(Arc::new(MemoryBackend::private(Arc::new(SystemClock))));
/// let everything = ListFilter::new(Default::default());
/// faulty.cut();
/// assert!(faulty.list(&everything).await.is_err());
/// faulty.heal();
/// assert!(faulty.list(&everything).await.is_ok());
/// assert_eq!(faulty.count(BackendCall::List), 2);
/// # });
/// ```
pub struct Faulty {
    backend: Arc<dyn Backend>,
    plan: Plan,
    relay: Relay,
    lives: AtomicU64,
    mute: AtomicBool,
    in_flight: AtomicUsize,
}

impl Faulty {
    /// In front of this backend.
    pub fn new(backend: Arc<dyn Backend>) -> Arc<Self> {
        let relay = Relay::start(backend.hints());
        Arc::new(Self {
            backend,
            plan: Plan::default(),
            relay,
            lives: AtomicU64::new(0),
            mute: AtomicBool::new(false),
            in_flight: AtomicUsize::new(0),
        })
    }

    /// Nothing passes any more: no request, no reply of a request under way, no hint.
    pub fn cut(&self) {
        self.plan.cut();
        self.relay.cut();
    }

    /// Everything passes again. What was lost stays lost.
    pub fn heal(&self) {
        self.plan.heal();
        self.relay.heal();
    }

    /// Loses the next `count` requests of any kind: nothing is done, and the caller is told that it is unknown.
    pub fn drop_requests(&self, count: usize) {
        self.plan.drop_requests(None, count);
    }

    /// Loses the next `count` requests of this kind.
    pub fn drop_requests_of(&self, call: BackendCall, count: usize) {
        self.plan.drop_requests(Some(call), count);
    }

    /// Loses the next `count` replies of any kind: it is done, and the caller is told that it is unknown.
    pub fn drop_replies(&self, count: usize) {
        self.plan.drop_replies(None, count);
    }

    /// Loses the next `count` replies of this kind.
    pub fn drop_replies_of(&self, call: BackendCall, count: usize) {
        self.plan.drop_replies(Some(call), count);
    }

    /// Does the next `count` requests of this kind twice and gives the second reply.
    pub fn double_requests_of(&self, call: BackendCall, count: usize) {
        self.plan.double_requests(call, count);
    }

    /// Holds every request of this kind back until the gate opens; nothing is done before.
    pub fn hold_requests_of(&self, call: BackendCall) -> Gate {
        self.plan.hold_requests(call)
    }

    /// Holds every reply of this kind back until the gate opens; what was asked is done.
    pub fn hold_replies_of(&self, call: BackendCall) -> Gate {
        self.plan.hold_replies(call)
    }

    /// Lets each request of any kind take this long to arrive.
    pub fn delay(&self, length: Duration) {
        self.plan.delay(length);
    }

    /// Lets chance decide what happens to each call from now on.
    pub fn by_chance(&self, seed: u64, odds: Odds) {
        self.plan.by_chance(seed, odds);
    }

    /// Loses, doubles or delays hints from now on.
    pub fn hint_faults(&self, faults: HintFaults) {
        self.relay.set(faults);
    }

    /// Loses all hints, or none.
    pub fn drop_hints(&self, all: bool) {
        self.relay.set(HintFaults { drop: all, ..self.relay.faults() });
    }

    /// Sends every hint twice, or once.
    pub fn double_hints(&self, all: bool) {
        self.relay.set(HintFaults { double: all, ..self.relay.faults() });
    }

    /// Promises no pushes from now on, and sends none: for instances made after this.
    pub fn push_nothing(&self) {
        self.mute.store(true, Ordering::SeqCst);
        self.drop_hints(true);
    }

    /// Sends a hint that the backend did not send.
    pub fn invent_hint(&self, hint: Hint) {
        self.relay.send(hint);
    }

    /// Answers from now on as another life of the backend, as after a restart.
    pub fn begin_another_life(&self) {
        self.lives.fetch_add(1, Ordering::SeqCst);
    }

    /// How many calls of this kind were made, failed ones included.
    pub fn count(&self, call: BackendCall) -> usize {
        self.plan.count(call)
    }

    /// How many calls were begun and neither answered nor dropped.
    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::SeqCst)
    }

    /// Lets a call pass, or not.
    async fn pass<T, F: Future<Output = Result<T>>>(&self, call: BackendCall, work: impl Fn() -> F) -> Result<T> {
        let _counted = OpenCall::new(&self.in_flight);
        let fate = self.plan.fate(call);
        if let Some(delay) = fate.delay {
            time::sleep(delay).await;
        }
        if let Some(gate) = fate.held_before {
            gate.opened().await;
        }
        if self.plan.is_cut() {
            return Err(Error::unavailable(format!("{call:?}: the connection is cut")));
        }
        if fate.drop_request {
            return Err(Error::unanswered(format!("{call:?}: the request was lost")));
        }
        let mut reply = work().await;
        if fate.double {
            reply = work().await;
        }
        if let Some(gate) = fate.held_after {
            gate.opened().await;
        }
        if fate.drop_reply || self.plan.is_cut() {
            return Err(Error::unanswered(format!("{call:?}: the reply was lost")));
        }
        reply
    }

    async fn answer<T, F>(&self, call: BackendCall, work: impl Fn() -> F) -> Result<Answer<T>>
    where
        F: Future<Output = Result<Answer<T>>>,
    {
        let answer = self.pass(call, work).await?;
        let life = self.lives.load(Ordering::SeqCst) << 32;
        let incarnation = Incarnation(answer.incarnation.0.wrapping_add(life));
        let belief = answer.belief.clone();
        Ok(Answer::new(answer.value, incarnation).believed(belief))
    }
}

/// Counts a call until it is answered or dropped.
struct OpenCall<'a>(&'a AtomicUsize);

impl<'a> OpenCall<'a> {
    fn new(calls: &'a AtomicUsize) -> Self {
        calls.fetch_add(1, Ordering::SeqCst);
        Self(calls)
    }
}

impl Drop for OpenCall<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl fmt::Debug for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Faulty").field(&self.backend).finish()
    }
}

#[async_trait]
impl Backend for Faulty {
    fn guarantees(&self) -> Guarantees {
        let guarantees = self.backend.guarantees();
        let pushes = guarantees.pushes && !self.mute.load(Ordering::SeqCst);
        guarantees.pushes(pushes)
    }

    fn hints(&self) -> Hints {
        self.relay.hints()
    }

    async fn acquire(&self, request: &Request) -> Result<Answer<Decision>> {
        self.answer(BackendCall::Acquire, || self.backend.acquire(request)).await
    }

    async fn renew(&self, renewals: &[Renewal]) -> Result<Answer<Vec<Standing>>> {
        self.answer(BackendCall::Renew, || self.backend.renew(renewals)).await
    }

    async fn release(&self, key: &LeaseKey, outcome: &Outcome) -> Result<Answer<Released>> {
        self.answer(BackendCall::Release, || self.backend.release(key, outcome)).await
    }

    fn inheritable(&self) -> Option<OwnedFd> {
        self.backend.inheritable()
    }
}

#[async_trait]
impl Inspect for Faulty {
    async fn evict(&self, resource: &Resource, expected: Fence, reason: &str) -> Result<Evicted> {
        self.pass(BackendCall::Evict, || self.backend.evict(resource, expected, reason)).await
    }

    async fn list(&self, filter: &ListFilter) -> Result<LeasePage> {
        self.pass(BackendCall::List, || self.backend.list(filter)).await
    }

    async fn history(&self, filter: &HistoryFilter) -> Result<Vec<EndedLease>> {
        self.pass(BackendCall::History, || self.backend.history(filter)).await
    }

    async fn record_runs(&self, reports: &[RunReport]) -> Result<()> {
        self.pass(BackendCall::History, || self.backend.record_runs(reports)).await
    }

    async fn runs(&self, names: &Names) -> Result<Vec<RunRecord>> {
        self.pass(BackendCall::History, || self.backend.runs(names)).await
    }

    async fn watch(&self, names: Names) -> Result<EventStream> {
        self.pass(BackendCall::Watch, || self.backend.watch(names.clone())).await
    }

    async fn examine(&self) -> Result<Vec<Finding>> {
        self.pass(BackendCall::Examine, || self.backend.examine()).await
    }
}
