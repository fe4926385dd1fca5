//! `redlock://`: a majority of independent nodes as one backend, with fences.
//!
//! A [`RedlockBackend`] asks a majority of its nodes for a lease. If one of them does not grant it,
//! it asks the other nodes, too. If all of them grant it, it adds the lease to the other
//! nodes a little later. The majority decides. Any backend can be a node.
//!
//! # Promise
//! - A lease is held if a majority of the nodes holds it. A minority of the nodes may
//!   be down, slow or cut off. If fewer than a majority answer, every call fails within
//!   a few times the node limit, with an error that names the nodes.
//! - A node that hangs is left out until it answers again, so that nobody else waits for it.
//! - If a round fails, the leases that some nodes granted in it are released before the
//!   failure is reported or another round begins, even if the caller is gone.
//! - Fences rise. A lease is granted only when a majority has stored exactly its fence,
//!   so every later grant has a higher fence, whatever the clocks do, as long as no node
//!   loses its data. A node that may have lost data, because it was restarted, flushed or
//!   replaced, has no vote until all leases that it may have lost have ended and its own
//!   clock has passed their fences. A node that does not report how long it has kept its
//!   data never has a vote.
//! - Semaphores never exceed their capacity: before a request for fewer than all permits is
//!   granted, the permits in use are counted across a majority.
//!
//! # Fairness
//! All waiters queue at one node, the first in the list that answers, and are served in the
//! order of its queue. If another node takes its place, the order may change. Therefore no
//! order is promised.

mod acquire;
mod agreement;
mod batches;
mod calls;
mod errors;
mod history;
mod inspect;
mod leases;
mod node;
mod nodes;
mod options;
mod queue;
mod release;
mod renew;
mod repair;
mod round;
mod runs;
mod vote;

use std::{
    fmt,
    future::pending,
    pin::Pin,
    sync::{Arc, Weak},
    time::Duration,
};

use async_trait::async_trait;
use tokio::{runtime::Handle, task::AbortHandle, time};

pub use self::options::{RedlockNode, RedlockOptions};
use self::{
    agreement::Agreement, batches::Batches, leases::Leases, node::Abstention, nodes::Nodes, options::Source,
    queue::Contention, release::PendingReleases, repair::NewLeases,
};
use crate::{
    Error, Result,
    backend::{
        Backend, EventStream, Finding, Guarantees, HintSender, Hints, Inspect, Liveness, OpenOptions, Opening, Reach,
    },
    lease::{
        Answer, Decision, EndedLease, Evicted, Fence, HistoryFilter, LeaseKey, LeasePage, LeaseRecord, ListFilter,
        Names, Outcome, Released, Renewal, Request, Resource, RunRecord, RunReport, Standing,
    },
};

/// A majority of independent nodes as one backend.
///
/// ```
/// use std::sync::Arc;
/// use leasehold::{
///     Leasehold,
///     backends::{memory::MemoryBackend, redlock::{RedlockNode, RedlockBackend, RedlockOptions}},
///     clock::SystemClock,
/// };
///
/// # async fn example() -> leasehold::Result<()> {
/// let node = |name| RedlockNode::new(name, Arc::new(MemoryBackend::private(Arc::new(SystemClock))));
/// let options = RedlockOptions::new().longest_ttl(std::time::Duration::ZERO);
/// let backend = RedlockBackend::new(["a", "b", "c"].map(node).to_vec(), options)?;
///
/// let locks = Leasehold::builder().open(Arc::new(backend))?;
/// locks.mutex("order:42").acquire().await?.release().await?;
/// # Ok(()) }
/// # leasehold::blocking::wait(example()).unwrap();
/// ```
pub struct RedlockBackend {
    shared: Arc<RedlockShared>,
    /// One for each node: opens it and handles its hints.
    node_tasks: Vec<AbortHandle>,
}

/// What an instance and its tasks share.
#[derive(Debug)]
struct RedlockShared {
    nodes: Nodes,
    leases: Leases,
    contention: Contention,
    agreement: Agreement,
    pending_releases: Vec<PendingReleases>,
    new_leases: NewLeases,
    batches: Batches,
    hints: HintSender,
    runtime: Handle,
}

impl RedlockBackend {
    /// Creates a backend of these nodes. All clients must list the nodes in the same order.
    ///
    /// Call this inside a Tokio runtime; the backend works only while that runtime runs.
    ///
    /// # Errors
    /// `InvalidConfig` if the number of nodes is even or less than 3, or outside of a Tokio runtime.
    pub fn new(nodes: Vec<RedlockNode>, options: RedlockOptions) -> Result<Self> {
        options.check(nodes.len())?;
        let runtime = Handle::try_current()
            .map_err(|_| Error::invalid_config("redlock: create the backend inside a Tokio runtime"))?;
        let states = Nodes::new(&nodes, options, &runtime);
        let shared = Arc::new_cyclic(|shared: &Weak<RedlockShared>| RedlockShared {
            leases: Leases::new(Arc::clone(states.clock())),
            contention: Contention::default(),
            agreement: Agreement::default(),
            pending_releases: states.iter().map(|_| PendingReleases::default()).collect(),
            new_leases: NewLeases::default(),
            batches: Batches::new(Weak::clone(shared), runtime.clone()),
            hints: HintSender::new(),
            nodes: states,
            runtime,
        });
        let start_task = |(at, node): (usize, RedlockNode)| {
            let task: Pin<Box<dyn Future<Output = ()> + Send>> = match node.source {
                Source::Backend(backend) => Box::pin(queue::listen(Arc::downgrade(&shared), at, backend.hints())),
                Source::Url(url, options) => Box::pin(open_and_listen(Arc::downgrade(&shared), at, url, options)),
            };
            shared.runtime.spawn(task).abort_handle()
        };
        let node_tasks = nodes.into_iter().enumerate().map(start_task).collect();
        Ok(Self { shared, node_tasks })
    }

    /// Waits until a majority was opened, and then a moment for the others.
    async fn opened(&self, limit: Duration) -> Result<()> {
        let nodes = &self.shared.nodes;
        let (give_up, mut grace) = (time::sleep(limit), None);
        tokio::pin!(give_up);
        loop {
            let attempted = nodes.attempted.notified();
            tokio::pin!(attempted);
            attempted.as_mut().enable();
            let states: Vec<Option<bool>> = nodes.iter().map(|node| node.was_opened()).collect();
            let opened = states.iter().filter(|state| **state == Some(true)).count();
            if states.iter().all(Option::is_some) {
                return if opened >= nodes.majority() { Ok(()) } else { Err(self.too_few_opened()) };
            }
            if opened >= nodes.majority() && grace.is_none() {
                grace = Some(Box::pin(time::sleep(nodes.limit().min(LONGEST_GRACE))));
            }
            tokio::select! {
                () = attempted => {}
                () = async { match &mut grace { Some(grace) => grace.await, None => pending().await } } => return Ok(()),
                () = &mut give_up => return Err(self.too_few_opened()),
            }
        }
    }

    fn too_few_opened(&self) -> Error {
        let nodes = &self.shared.nodes;
        let misconfigured: Vec<String> = nodes
            .iter()
            .filter_map(|node| Some(format!("redlock: {}: {}", node.name, node.misconfigured()?)))
            .collect();
        // Whoever opens it need not try again. One is enough to read, since most mistakes are in all nodes' URLs.
        if let Some(first) = misconfigured.first().filter(|_| nodes.len() - misconfigured.len() < nodes.majority()) {
            return Error::invalid_config(first);
        }
        let failures = nodes.iter().enumerate().filter_map(|(at, node)| Some((at, node.backend().err()?)));
        Error::unavailable(nodes.message("redlock", &failures.collect::<Vec<_>>()))
    }

    /// Refuses nodes that never could vote, and a `longest_ttl` that others do not share.
    async fn check(&self) -> Result<()> {
        let nodes = &self.shared.nodes;
        inspect::learn_incarnations(nodes).await;
        let cannot_vote =
            |node: &&Arc<node::Node>| node.incarnation().is_some() && node.abstains() == Some(Abstention::AgeUnknown);
        match nodes.iter().find(cannot_vote) {
            Some(node) => Err(Error::permission_denied(format!("redlock: {} {}", node.name, Abstention::AgeUnknown))),
            // Last, because it leaves a lease on the nodes.
            None => self.shared.agreement.check(nodes).await,
        }
    }

    fn answer<T>(&self, value: T) -> Answer<T> {
        Answer::new(value, self.shared.nodes.incarnation())
    }

    /// Runs a call to its end, whatever becomes of the caller.
    async fn run<T: Send + 'static>(&self, call: impl Future<Output = Result<T>> + Send + 'static) -> Result<T> {
        let done = self.shared.runtime.spawn(call).await;
        done.unwrap_or_else(|_| {
            Err(Error::unavailable("redlock: the Tokio runtime in which the backend was created has ended"))
        })
    }
}

impl Drop for RedlockBackend {
    fn drop(&mut self) {
        self.node_tasks.iter().for_each(AbortHandle::abort);
    }
}

impl fmt::Debug for RedlockBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.shared.nodes.iter().map(|node| node.name.as_str()).collect();
        f.debug_struct("RedlockBackend").field("nodes", &names).finish_non_exhaustive()
    }
}

#[async_trait]
impl Backend for RedlockBackend {
    fn guarantees(&self) -> Guarantees {
        let of_nodes: Vec<Guarantees> = self.shared.nodes.backends().map(|backend| backend.guarantees()).collect();
        let mut guarantees = Guarantees::new("redlock", Reach::Network, Liveness::Ttl)
            .pushes(of_nodes.iter().all(|node| node.pushes))
            .survives_restart(of_nodes.iter().all(|node| node.survives_restart))
            .records_runs(of_nodes.iter().all(|node| node.records_runs))
            .renew_batch(of_nodes.iter().map(|node| node.renew_batch).min().unwrap_or(1));
        guarantees.fifo = false;
        guarantees.fences = of_nodes.iter().all(|node| node.fences);
        guarantees
    }

    fn hints(&self) -> Hints {
        self.shared.hints.subscribe()
    }

    async fn acquire(&self, request: &Request) -> Result<Answer<Decision>> {
        let decision = acquire::acquire(&self.shared, request).await?;
        Ok(self.answer(decision))
    }

    async fn renew(&self, renewals: &[Renewal]) -> Result<Answer<Vec<Standing>>> {
        let (shared, renewals) = (Arc::clone(&self.shared), renewals.to_vec());
        let standings = self.run(async move { renew::renew(&shared, renewals).await }).await?;
        Ok(self.answer(standings))
    }

    async fn release(&self, key: &LeaseKey, outcome: &Outcome) -> Result<Answer<Released>> {
        let released = release::everywhere(&self.shared, key, outcome).await?;
        Ok(self.answer(released))
    }
}

#[async_trait]
impl Inspect for RedlockBackend {
    async fn evict(&self, resource: &Resource, expected: Fence, reason: &str) -> Result<Evicted> {
        let (shared, resource, reason) = (Arc::clone(&self.shared), resource.clone(), reason.to_owned());
        self.run(async move { inspect::evict(&shared, &resource, expected, &reason).await }).await
    }

    async fn list(&self, filter: &ListFilter) -> Result<LeasePage> {
        inspect::list(&self.shared, filter).await
    }

    async fn find(&self, key: &LeaseKey, fence: Fence) -> Result<Option<LeaseRecord>> {
        inspect::find(&self.shared, key, fence).await
    }

    async fn history(&self, filter: &HistoryFilter) -> Result<Vec<EndedLease>> {
        history::history(&self.shared, filter).await
    }

    async fn record_runs(&self, reports: &[RunReport]) -> Result<()> {
        runs::record(&self.shared, reports).await
    }

    async fn runs(&self, names: &Names) -> Result<Vec<RunRecord>> {
        runs::read(&self.shared, names).await
    }

    async fn watch(&self, names: Names) -> Result<EventStream> {
        history::watch(&self.shared, names).await
    }

    async fn examine(&self) -> Result<Vec<Finding>> {
        inspect::examine(&self.shared).await
    }
}

/// Opens the nodes that a URL names; a minority of its nodes may join later.
pub(crate) fn open(url: &str, options: &OpenOptions) -> Opening {
    let parsed = options::parse(url, options);
    let limit = options.connect_limit;
    Box::pin(async move {
        let (nodes, options) = parsed?;
        let backend = RedlockBackend::new(nodes, options)?;
        // A little less than the caller allows, so that the error names the nodes.
        backend.opened(limit / 10 * 9).await?;
        backend.check().await?;
        Ok(Arc::new(backend) as Arc<dyn Backend>)
    })
}

/// How long opening waits for the other nodes once a majority is open, so that all clients queue at the same node.
const LONGEST_GRACE: Duration = Duration::from_millis(50);

async fn open_and_listen(shared: Weak<RedlockShared>, at: usize, url: String, options: OpenOptions) {
    let Some(node) = shared.upgrade().map(|shared| Arc::clone(shared.nodes.get(at))) else { return };
    let backend = node.open(&url, &options).await;
    queue::listen(shared, at, backend.hints()).await;
}
