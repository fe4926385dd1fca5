//! A backend in front of the memory backend whose answers, hints and events a test decides.
#![allow(dead_code, reason = "each test uses its part of it")]

use std::{
    collections::HashMap,
    fmt,
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use async_trait::async_trait;
use leasehold::{
    Fence, Resource, Result,
    backend::{
        Answer, Backend, Belief, Decision, EventStream, Finding, Guarantees, Hint, HintSender, Hints, Inspect,
        Liveness, Renewal, Request,
    },
    backends::memory::MemoryBackend,
    lease::{
        EndedLease, Evicted, HistoryFilter, LeaseId, LeaseKey, LeasePage, ListFilter, Names, Outcome, Released,
        Standing,
    },
};
use leasehold_conformance::BackendCall;
use parking_lot::Mutex;

/// What a call does before it is passed on.
type Before = Arc<dyn Fn(BackendCall) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;
/// What happens after a call was carried out, and before it is answered.
type After = Arc<dyn Fn(BackendCall) + Send + Sync>;
type Answering = Box<dyn Fn(&Renewal, Standing) -> Standing + Send>;

/// Passes calls on, changes the answers to renewals, and sends no hint but those of the test.
pub(crate) struct Scripted {
    memory: MemoryBackend,
    hints: HintSender,
    before: Mutex<Before>,
    after: Mutex<After>,
    answers_at_once: AtomicBool,
    belief: Mutex<Belief>,
    standing: Mutex<Answering>,
    requested: Mutex<HashMap<Resource, Vec<LeaseId>>>,
    renewals: AtomicUsize,
    releases: Mutex<Vec<LeaseId>>,
    without_events: AtomicBool,
    ends_with_process: AtomicBool,
    dropped: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Drop for Scripted {
    fn drop(&mut self) {
        if let Some(dropped) = self.dropped.get_mut().take() {
            dropped();
        }
    }
}

impl Scripted {
    pub(crate) fn new(memory: MemoryBackend) -> Arc<Self> {
        Arc::new(Self {
            memory,
            hints: HintSender::new(),
            before: Mutex::new(Arc::new(|_| Box::pin(async {}))),
            after: Mutex::new(Arc::new(|_| ())),
            answers_at_once: AtomicBool::new(false),
            belief: Mutex::new(Belief::Ttl),
            standing: Mutex::new(Box::new(|_, standing| standing)),
            requested: Mutex::default(),
            renewals: AtomicUsize::new(0),
            releases: Mutex::default(),
            without_events: AtomicBool::new(false),
            ends_with_process: AtomicBool::new(false),
            dropped: Mutex::new(None),
        })
    }

    /// Does this when it is dropped.
    pub(crate) fn when_dropped(&self, dropped: impl FnOnce() + Send + 'static) {
        *self.dropped.lock() = Some(Box::new(dropped));
    }

    /// Does this before every request, renewal and release from now on.
    pub(crate) fn before_calls<F: Future<Output = ()> + Send + 'static>(
        &self,
        before: impl Fn(BackendCall) -> F + Send + Sync + 'static,
    ) {
        *self.before.lock() = Arc::new(move |call| Box::pin(before(call)));
    }

    /// Does this after every request, renewal and release from now on, before the answer.
    pub(crate) fn after_calls(&self, after: impl Fn(BackendCall) + Send + Sync + 'static) {
        *self.after.lock() = Arc::new(after);
    }

    /// Answers requests and releases without a task from now on. What `after_calls` set happens after a request, and
    /// before a release.
    pub(crate) fn answer_at_once(&self) {
        self.answers_at_once.store(true, Ordering::SeqCst);
    }

    fn after(&self, call: BackendCall) {
        let after = Arc::clone(&self.after.lock());
        after(call);
    }

    async fn before(&self, call: BackendCall) {
        let before = Arc::clone(&self.before.lock());
        before(call).await;
    }

    /// Gives this belief to every answer from now on.
    pub(crate) fn believe(&self, belief: Belief) {
        *self.belief.lock() = belief;
    }

    /// Changes what renewals find from now on.
    pub(crate) fn answer_renewals(&self, change: impl Fn(&Renewal, Standing) -> Standing + Send + 'static) {
        *self.standing.lock() = Box::new(change);
    }

    /// Guarantees from now on that no clock ends a lease.
    pub(crate) fn end_leases_with_process(&self) {
        self.ends_with_process.store(true, Ordering::SeqCst);
    }

    /// Watches from now on report nothing.
    pub(crate) fn lose_events(&self) {
        self.without_events.store(true, Ordering::SeqCst);
    }

    pub(crate) fn send(&self, hint: Hint) {
        self.hints.send(hint);
    }

    /// The ids under which this name was asked for, oldest first.
    pub(crate) fn requested(&self, name: &str) -> Vec<LeaseId> {
        self.requested.lock().get(&Resource::new(name).unwrap()).cloned().unwrap_or_default()
    }

    /// How many renewals came, each lease of a batch counted.
    pub(crate) fn renewals(&self) -> usize {
        self.renewals.load(Ordering::SeqCst)
    }

    pub(crate) fn released(&self, id: LeaseId) -> bool {
        self.releases.lock().contains(&id)
    }

    /// How many releases came.
    pub(crate) fn releases(&self) -> usize {
        self.releases.lock().len()
    }

    fn belief(&self) -> Belief {
        self.belief.lock().clone()
    }
}

impl fmt::Debug for Scripted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scripted").finish_non_exhaustive()
    }
}

#[async_trait]
impl Backend for Scripted {
    fn guarantees(&self) -> Guarantees {
        let mut guarantees = self.memory.guarantees();
        if self.ends_with_process.load(Ordering::SeqCst) {
            guarantees.liveness = Liveness::Process;
        }
        guarantees
    }

    fn hints(&self) -> Hints {
        self.hints.subscribe()
    }

    async fn acquire(&self, request: &Request) -> Result<Answer<Decision>> {
        self.before(BackendCall::Acquire).await;
        let belief = self.belief();
        self.requested.lock().entry(request.key.resource.clone()).or_default().push(request.key.id);
        let answer = self.memory.acquire(request).await?;
        self.after(BackendCall::Acquire);
        Ok(answer.believed(belief))
    }

    fn acquire_at_once(&self, request: &Request) -> Option<Answer<Decision>> {
        let answer = self.answers_at_once.load(Ordering::SeqCst).then(|| self.memory.acquire_at_once(request))?;
        self.after(BackendCall::Acquire);
        answer
    }

    async fn renew(&self, renewals: &[Renewal]) -> Result<Answer<Vec<Standing>>> {
        self.before(BackendCall::Renew).await;
        let belief = self.belief();
        let answer = self.memory.renew(renewals).await?;
        self.renewals.fetch_add(renewals.len(), Ordering::SeqCst);
        self.after(BackendCall::Renew);
        let change = self.standing.lock();
        let change =
            |found: Vec<Standing>| renewals.iter().zip(found).map(|(renewal, found)| change(renewal, found)).collect();
        Ok(answer.map(change).believed(belief))
    }

    async fn release(&self, key: &LeaseKey, outcome: &Outcome) -> Result<Answer<Released>> {
        self.before(BackendCall::Release).await;
        self.releases.lock().push(key.id);
        let answer = self.memory.release(key, outcome).await?;
        self.after(BackendCall::Release);
        Ok(answer)
    }

    fn release_at_once(&self, key: &LeaseKey, outcome: &Outcome) -> Option<Answer<Released>> {
        if !self.answers_at_once.load(Ordering::SeqCst) {
            return None;
        }
        self.after(BackendCall::Release);
        self.memory.release_at_once(key, outcome)
    }
}

#[async_trait]
impl Inspect for Scripted {
    async fn evict(&self, resource: &Resource, expected: Fence, reason: &str) -> Result<Evicted> {
        self.memory.evict(resource, expected, reason).await
    }

    async fn list(&self, filter: &ListFilter) -> Result<LeasePage> {
        self.memory.list(filter).await
    }

    async fn history(&self, filter: &HistoryFilter) -> Result<Vec<EndedLease>> {
        self.memory.history(filter).await
    }

    async fn watch(&self, names: Names) -> Result<EventStream> {
        if self.without_events.load(Ordering::SeqCst) {
            return Ok(Box::pin(Silence));
        }
        self.memory.watch(names).await
    }

    async fn examine(&self) -> Result<Vec<Finding>> {
        self.memory.examine().await
    }
}

/// A stream of events that never has one.
struct Silence;

impl futures_core::Stream for Silence {
    type Item = Result<leasehold::lease::Event, leasehold::backend::Missed>;

    fn poll_next(self: Pin<&mut Self>, _: &mut std::task::Context<'_>) -> std::task::Poll<Option<Self::Item>> {
        std::task::Poll::Pending
    }
}
