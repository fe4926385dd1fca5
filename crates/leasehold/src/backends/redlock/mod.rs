//! A majority of independent nodes as one backend: Redlock, fenced.
//!
//! A [`Quorum`] asks all its nodes at once and goes by what a majority of them
//! says. Any backend can be a node.
//!
//! # Promise
//! - A lease is held where a majority of the nodes holds it. A minority may be
//!   down, slow or cut off; with fewer than a majority every call ends within
//!   a few times the node limit, with an error that names the nodes.
//! - What was granted by some is given back before a round is reported or
//!   repeated, also when the caller is gone.
//! - Fences rise: a grant is told only when a majority has stored exactly its
//!   fence, so that no later grant has the same or a lower one, whatever the
//!   clocks do, as long as no node forgets. A node that may have forgotten,
//!   because it was restarted or replaced, has no vote until all leases it may
//!   have forgotten are over and its own clock has passed their fences.
//! - Semaphores never admit more than their capacity: see `agree.rs` for why a
//!   majority alone would.
//!
//! # Fairness
//! Waiting happens in one queue, that of the first node in the list that
//! answers, and is served in its order. When that node changes, order may
//! change with it, so none is promised.

mod acquire;
mod agree;
mod events;
mod examine;
mod fan;
mod history;
mod leases;
mod listing;
mod node;
mod nodes;
mod open;
mod options;
mod pursuit;
mod release;
mod renew;
mod restore;
mod said;
mod tag;
mod url;
mod waiting;

use std::{fmt, sync::Arc};

use async_trait::async_trait;
use tokio::{runtime::Handle, task::AbortHandle};

pub(crate) use self::open::open;
pub use self::options::{Member, QuorumOptions};
use self::{leases::Leases, nodes::Nodes, release::Debts};
use crate::{
    Error, Result,
    backend::{Backend, EventStream, Finding, Guarantees, HintSender, Hints, Inspect, Liveness, Reach},
    lease::{
        Answer, Decision, EndedLease, Evicted, Fence, HistoryFilter, LeaseKey, ListFilter, Names, Outcome, Page,
        Released, Renewal, Request, Resource, Standing,
    },
};

/// A majority of independent nodes as one backend.
///
/// ```
/// use std::sync::Arc;
/// use leasehold::{
///     Leasehold,
///     backends::{memory::MemoryBackend, redlock::{Member, Quorum, QuorumOptions}},
///     clock::SystemClock,
/// };
///
/// # async fn example() -> leasehold::Result<()> {
/// let node = |name| Member::new(name, Arc::new(MemoryBackend::private(Arc::new(SystemClock))));
/// let options = QuorumOptions::new().longest_ttl(std::time::Duration::ZERO);
/// let quorum = Quorum::new(["a", "b", "c"].map(node).to_vec(), options)?;
///
/// let locks = Leasehold::builder().backend(Arc::new(quorum))?;
/// locks.mutex("order:42").acquire().await?.release().await?;
/// # Ok(()) }
/// # leasehold::blocking::wait(example()).unwrap();
/// ```
pub struct Quorum {
    shared: Arc<Shared>,
    listeners: Vec<AbortHandle>,
}

/// What an instance and its tasks share.
#[derive(Debug)]
struct Shared {
    nodes: Nodes,
    leases: Leases,
    debts: Vec<Debts>,
    hints: HintSender,
    runtime: Handle,
}

impl Quorum {
    /// A quorum of these nodes, in the order in which everyone lists them.
    ///
    /// # Errors
    /// `InvalidConfig` when their number is not odd or under 3, or when there is no Tokio runtime to work on.
    pub fn new(members: Vec<Member>, options: QuorumOptions) -> Result<Self> {
        options.check(members.len())?;
        let runtime = Handle::try_current()
            .map_err(|_| Error::invalid_config("a quorum is made on a Tokio runtime, and works on it"))?;
        let nodes = Nodes::new(members, options);
        let shared = Arc::new(Shared {
            leases: Leases::new(Arc::clone(nodes.clock())),
            debts: nodes.iter().map(|_| Debts::default()).collect(),
            hints: HintSender::new(),
            nodes,
            runtime,
        });
        let listen = |(at, node): (usize, &Arc<node::Node>)| {
            let listener = waiting::listen(Arc::downgrade(&shared), at, node.backend.hints());
            shared.runtime.spawn(listener).abort_handle()
        };
        let listeners = shared.nodes.iter().enumerate().map(listen).collect();
        Ok(Self { shared, listeners })
    }

    fn answer<T>(&self, value: T) -> Answer<T> {
        Answer::new(value, self.shared.nodes.incarnation())
    }

    /// Runs a call to its end, whatever becomes of the caller.
    async fn run<T: Send + 'static>(&self, call: impl Future<Output = Result<T>> + Send + 'static) -> Result<T> {
        let done = self.shared.runtime.spawn(call).await;
        done.unwrap_or_else(|_| Err(Error::unavailable("the runtime that this quorum was made on is gone")))
    }
}

impl Drop for Quorum {
    fn drop(&mut self) {
        self.listeners.iter().for_each(AbortHandle::abort);
    }
}

impl fmt::Debug for Quorum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.shared.nodes.iter().map(|node| node.name.as_str()).collect();
        f.debug_struct("Quorum").field("nodes", &names).finish_non_exhaustive()
    }
}

#[async_trait]
impl Backend for Quorum {
    fn guarantees(&self) -> Guarantees {
        let of_nodes: Vec<Guarantees> = self.shared.nodes.iter().map(|node| node.backend.guarantees()).collect();
        let mut guarantees = Guarantees::new("redlock", Reach::Network, Liveness::Ttl)
            .pushes(of_nodes.iter().all(|node| node.pushes))
            .survives_restart(of_nodes.iter().all(|node| node.survives_restart))
            .renew_batch(of_nodes.iter().map(|node| node.renew_batch).min().unwrap_or(1));
        guarantees.fifo = false;
        guarantees.fences = of_nodes.iter().all(|node| node.fences);
        guarantees
    }

    fn hints(&self) -> Hints {
        self.shared.hints.subscribe()
    }

    async fn acquire(&self, request: &Request) -> Result<Answer<Decision>> {
        if request.max_waiters.is_some() {
            let words = "redlock cannot bound the queue of a resource yet; leave max_waiters out";
            return Err(Error::unsupported(words).about(&request.key.resource));
        }
        let decision = acquire::acquire(&self.shared, request).await?;
        Ok(self.answer(decision))
    }

    async fn renew(&self, renewals: &[Renewal]) -> Result<Answer<Vec<Standing>>> {
        let (shared, renewals) = (Arc::clone(&self.shared), renewals.to_vec());
        let standings = self.run(async move { renew::renew(&shared, renewals).await }).await?;
        Ok(self.answer(standings))
    }

    async fn release(&self, key: &LeaseKey, outcome: &Outcome) -> Result<Answer<Released>> {
        let (shared, key, outcome) = (Arc::clone(&self.shared), key.clone(), outcome.clone());
        let released = self.run(async move { release::everywhere(&shared, &key, &outcome).await }).await?;
        Ok(self.answer(released))
    }
}

#[async_trait]
impl Inspect for Quorum {
    async fn evict(&self, resource: &Resource, expected: Fence, reason: &str) -> Result<Evicted> {
        let (shared, resource, reason) = (Arc::clone(&self.shared), resource.clone(), reason.to_owned());
        self.run(async move { history::evict(&shared, &resource, expected, &reason).await }).await
    }

    async fn list(&self, filter: &ListFilter) -> Result<Page> {
        listing::list(&self.shared, filter).await
    }

    async fn history(&self, filter: &HistoryFilter) -> Result<Vec<EndedLease>> {
        history::history(&self.shared, filter).await
    }

    async fn watch(&self, names: Names) -> Result<EventStream> {
        events::watch(&self.shared, names).await
    }

    async fn examine(&self) -> Result<Vec<Finding>> {
        examine::examine(&self.shared).await
    }
}
