//! `memory:`: leases in the memory of one process.
//!
//! This backend is for tests and for the tasks of one process, and it is the
//! shortest example of a backend: it runs the [model](crate::backend::model)
//! under mutexes. No operation waits: each is complete when its future is first polled.

mod shard;
mod store;

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;

use self::store::Store;
use crate::{
    Result,
    backend::{
        Backend, EventStream, Finding, Guarantees, HintSender, Hints, Inspect, Liveness, OpenOptions, Opening, Reach,
        Severity,
    },
    clock::Clock,
    lease::{
        Answer, Decision, EndedLease, Evicted, Fence, HistoryFilter, LeaseKey, LeasePage, ListFilter, Names, Outcome,
        Released, Renewal, Request, Resource, RunRecord, RunReport, Standing,
    },
};

/// A backend that keeps leases in a store in the memory of this process.
///
/// Several instances can share a store. When the last of them is dropped, all leases of the store end.
pub struct MemoryBackend {
    store: Arc<Store>,
    hints: HintSender,
    instance: u64,
}

impl MemoryBackend {
    /// Creates an instance on the store with this name and namespace.
    ///
    /// The whole process shares that store. The URL `memory:` uses the store with the name `""`. All instances of a
    /// store use the clock of the first.
    pub fn named(name: &str, namespace: &str, clock: Arc<dyn Clock>) -> Self {
        Self::on(Store::shared(name, namespace, clock))
    }

    /// Creates an instance on a new store that no other instance shares.
    pub fn private(clock: Arc<dyn Clock>) -> Self {
        Self::on(Arc::new(Store::new(clock)))
    }

    /// Creates another instance on the same store, which gets its own hints.
    #[must_use]
    pub fn sibling(&self) -> Self {
        Self::on(Arc::clone(&self.store))
    }

    /// Returns how many names have a lease or a waiter, counting those that have expired but were not swept.
    pub fn len(&self) -> usize {
        self.store.len()
    }

    /// Returns whether the store has no names.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn on(store: Arc<Store>) -> Self {
        let hints = HintSender::new();
        let instance = store.join(hints.clone());
        Self { store, hints, instance }
    }

    fn answer<T>(&self, value: T) -> Answer<T> {
        Answer::new(value, self.store.incarnation())
    }
}

impl Drop for MemoryBackend {
    fn drop(&mut self) {
        self.store.leave(self.instance);
    }
}

impl fmt::Debug for MemoryBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryBackend").field("incarnation", &self.store.incarnation()).finish_non_exhaustive()
    }
}

/// Opens `memory:` or `memory:NAME`.
pub(crate) fn open(url: &str, options: &OpenOptions) -> Opening {
    let name = url.strip_prefix("memory:").unwrap_or_default();
    let backend = MemoryBackend::named(name, &options.namespace, Arc::clone(&options.clock));
    Box::pin(async move { Ok(Arc::new(backend) as Arc<dyn Backend>) })
}

#[async_trait]
impl Backend for MemoryBackend {
    fn guarantees(&self) -> Guarantees {
        Guarantees::new("memory", Reach::Process, Liveness::Ttl).renew_batch(1024).records_runs(true)
    }

    fn hints(&self) -> Hints {
        self.hints.subscribe()
    }

    async fn acquire(&self, request: &Request) -> Result<Answer<Decision>> {
        Ok(self.answer(self.store.acquire(request, self.instance)))
    }

    async fn renew(&self, renewals: &[Renewal]) -> Result<Answer<Vec<Standing>>> {
        Ok(self.answer(renewals.iter().map(|renewal| self.store.renew(renewal)).collect()))
    }

    async fn release(&self, key: &LeaseKey, outcome: &Outcome) -> Result<Answer<Released>> {
        Ok(self.answer(self.store.release(key, outcome)))
    }

    fn acquire_at_once(&self, request: &Request) -> Option<Answer<Decision>> {
        Some(self.answer(self.store.acquire(request, self.instance)))
    }

    fn release_at_once(&self, key: &LeaseKey, outcome: &Outcome) -> Option<Answer<Released>> {
        Some(self.answer(self.store.release(key, outcome)))
    }

    fn age(&self) -> Option<Duration> {
        Some(self.store.age())
    }
}

#[async_trait]
impl Inspect for MemoryBackend {
    async fn evict(&self, resource: &Resource, expected: Fence, reason: &str) -> Result<Evicted> {
        Ok(self.store.evict(resource, expected, reason))
    }

    async fn list(&self, filter: &ListFilter) -> Result<LeasePage> {
        Ok(self.store.list(filter))
    }

    async fn history(&self, filter: &HistoryFilter) -> Result<Vec<EndedLease>> {
        Ok(self.store.history(filter))
    }

    async fn record_runs(&self, reports: &[RunReport]) -> Result<()> {
        self.store.record_runs(reports);
        Ok(())
    }

    async fn runs(&self, names: &Names) -> Result<Vec<RunRecord>> {
        Ok(self.store.runs(names))
    }

    async fn watch(&self, names: Names) -> Result<EventStream> {
        Ok(self.store.watch(names))
    }

    async fn examine(&self) -> Result<Vec<Finding>> {
        Ok(vec![
            Finding::new(
                Severity::Info,
                "reach",
                "excludes tasks of this process only; use file: to exclude other processes of this machine",
            ),
            Finding::new(
                Severity::Info,
                "liveness",
                "a holder that stops renewing keeps its lease for one ttl, then the next in line gets it",
            ),
            Finding::new(
                Severity::Info,
                "restart",
                "leases, queues and history end with the process; after a restart, fences are still higher than \
                 before, unless the wall clock was set back",
            ),
        ])
    }
}
