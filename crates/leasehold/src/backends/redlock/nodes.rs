//! All the nodes: whose queue is waited in, whose vote counts, what makes a majority, and which fence to propose.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{runtime::Handle, sync::Notify};

use super::{
    calls::{Calls, NextAnswer, Watchdog},
    errors,
    leases::Tracked,
    node::{Abstention, Node},
    options::{RedlockNode, RedlockOptions, Source},
};
use crate::{
    Result,
    backend::{Backend, Operation},
    clock::Clock,
    lease::{Answer, Fence, Incarnation, Timestamp},
    model::FENCE_LEAD,
};

/// How far ahead of the nodes' clocks a fence is proposed, so that none of them answers with its own clock.
///
/// More than clocks in good order differ, and little of the 10 s that a node allows.
const PROPOSAL_LEAD: Duration = Duration::from_secs(1);

/// A query may take this long, or as long as the limit if that is longer.
const MIN_QUERY_LIMIT: Duration = Duration::from_secs(1);

/// All the nodes, in the order they were given.
#[derive(Debug)]
pub(super) struct Nodes {
    all: Vec<Arc<Node>>,
    options: RedlockOptions,
    /// The highest fence that was proposed here or granted by a node.
    highest: AtomicU64,
    /// Held while the calls of one round are sent, so that all nodes get the rounds of this process in one order:
    /// otherwise two of them could number the grants of one name differently, and the fences would not agree.
    pub(super) sending: Mutex<()>,
    pub(super) watchdog: Arc<Watchdog>,
    /// Wakes whoever waits for the outcome of an attempt to open a node.
    pub(super) attempted: Arc<Notify>,
}

impl Nodes {
    pub(super) fn new(configured: &[RedlockNode], options: RedlockOptions, runtime: &Handle) -> Self {
        let attempted = Arc::new(Notify::new());
        let node = |node: &RedlockNode| {
            let backend = match &node.source {
                Source::Backend(backend) => Some(Arc::clone(backend)),
                Source::Url(..) => None,
            };
            let (name, clock) = (node.name.clone(), Arc::clone(&options.clock));
            Arc::new(Node::new(name, backend, clock, options.quarantine(), runtime.clone(), Arc::clone(&attempted)))
        };
        let all = configured.iter().map(node).collect();
        let watchdog = Watchdog::new(Arc::clone(&options.clock), runtime.clone());
        Self { all, options, highest: AtomicU64::new(0), sending: Mutex::new(()), watchdog, attempted }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<Node>> {
        self.all.iter()
    }

    /// The backends that could be opened.
    pub(super) fn backends(&self) -> impl Iterator<Item = &Arc<dyn Backend>> {
        self.all.iter().filter_map(|node| node.backend().ok())
    }

    pub(super) fn get(&self, at: usize) -> &Arc<Node> {
        &self.all[at]
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn majority(&self) -> usize {
        self.all.len() / 2 + 1
    }

    pub(super) fn options(&self) -> &RedlockOptions {
        &self.options
    }

    pub(super) fn clock(&self) -> &Arc<dyn Clock> {
        &self.options.clock
    }

    pub(super) fn limit(&self) -> Duration {
        self.options.node_limit
    }

    /// The first node in the list that answers: the one whose queue is waited in.
    pub(super) fn queue_node(&self) -> usize {
        self.all.iter().position(|node| node.answers()).unwrap_or(0)
    }

    /// The nodes in the order in which they may become the queue node.
    pub(super) fn queue_node_candidates(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.len()).collect();
        order.sort_by_key(|at| !self.all[*at].answers());
        order
    }

    /// The nodes worth asking: those that hang are left out while enough others are there.
    pub(super) fn reachable(&self) -> Vec<usize> {
        let reachable: Vec<usize> = (0..self.len()).filter(|at| !self.all[*at].is_unreachable()).collect();
        if reachable.len() >= self.majority() { reachable } else { (0..self.len()).collect() }
    }

    /// The same, and the queue node.
    pub(super) fn reachable_and(&self, queue_node: usize) -> Vec<usize> {
        let mut reachable = self.reachable();
        if !reachable.contains(&queue_node) {
            reachable.push(queue_node);
        }
        reachable
    }

    /// The nodes to ask first for a new lease: the queue node and as many others as make a majority, and those whose
    /// last call failed, to find out whether they are there again. Few are asked because each yes beyond a majority
    /// costs as much as one that is needed, and most leases are over before any node fails.
    pub(super) fn first_choice(&self, queue_node: usize) -> Vec<usize> {
        let counted = |at: &usize| self.all[*at].answers() && self.votes(*at);
        let mut chosen: Vec<usize> = (0..self.len()).filter(|at| *at != queue_node && counted(at)).collect();
        if chosen.len() + 1 < self.majority() || !counted(&queue_node) {
            return self.reachable_and(queue_node);
        }
        chosen.truncate(self.majority() - 1);
        chosen.push(queue_node);
        chosen.extend((0..self.len()).filter(|at| !self.all[*at].answers() && !self.all[*at].is_unreachable()));
        chosen
    }

    /// Whether a majority answers without these nodes.
    pub(super) fn suffice_without(&self, pending: &[usize]) -> bool {
        let others = (0..self.len()).filter(|at| !pending.contains(at) && !self.all[*at].is_unreachable());
        others.count() >= self.majority()
    }

    /// Why this node's yes does not count.
    pub(super) fn abstains(&self, at: usize) -> Option<Abstention> {
        let incarnation = self.all[at].incarnation();
        if incarnation.is_some() && self.all[..at].iter().any(|node| node.incarnation() == incarnation) {
            return Some(Abstention::Duplicate);
        }
        self.all[at].abstains()
    }

    /// Whether this node's yes counts.
    pub(super) fn votes(&self, at: usize) -> bool {
        self.abstains(at).is_none()
    }

    /// Whether this node's yes counts for this lease.
    pub(super) fn votes_for(&self, tracked: &Tracked, at: usize) -> bool {
        self.votes(at) && !tracked.may_yet_release(at)
    }

    /// Whether enough nodes could count for this lease if all of them answered.
    pub(super) fn may_grant(&self, tracked: &Tracked) -> bool {
        (0..self.len()).filter(|at| !tracked.may_yet_release(*at)).count() >= self.majority()
    }

    /// The incarnations of all nodes as one: it changes whenever one of theirs does.
    pub(super) fn incarnation(&self) -> Incarnation {
        let mix = |sum: u64, node: &Arc<Node>| {
            let life = node.incarnation().map_or(0, |incarnation| incarnation.0);
            (sum ^ life).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
        };
        Incarnation(self.all.iter().fold(0, mix))
    }

    /// The wall clock of the nodes, as far as it was seen: ours, corrected by the middle one of theirs.
    pub(super) fn wall(&self) -> Timestamp {
        let mut ahead: Vec<i64> = self.all.iter().filter_map(|node| node.ahead()).collect();
        ahead.sort_unstable();
        let middle = ahead.get(ahead.len() / 2).copied().unwrap_or_default();
        Timestamp::from_micros(self.clock().wall().as_micros().saturating_add_signed(middle))
    }

    /// A fence that no node in good order has reached, different from every other proposal of this process.
    pub(super) fn proposal(&self) -> Fence {
        let by_clock = self.wall().after(PROPOSAL_LEAD).as_micros();
        let next = |highest: u64| Some(by_clock.max(highest + 1));
        let before = self.highest.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).unwrap_or_default();
        Fence::new(by_clock.max(before + 1))
    }

    /// A fence from a hand-off, if all nodes are likely to answer with it; otherwise a new proposal.
    pub(super) fn proposal_from(&self, fence: Fence) -> Fence {
        let reached_soon = Fence::new(self.wall().after(PROPOSAL_LEAD / 2).as_micros());
        if fence > reached_soon { fence } else { self.proposal().max(fence) }
    }

    /// Proposes above this fence from now on, unless the clock of its node has run away.
    pub(super) fn on_fence(&self, fence: Fence) {
        let limit = self.wall().after(FENCE_LEAD / 2).as_micros();
        if fence.get() <= limit {
            self.highest.fetch_max(fence.get(), Ordering::Relaxed);
        }
    }

    /// The highest fence that a node with a correct clock accepts.
    pub(super) fn fence_limit(&self) -> Fence {
        Fence::new(self.wall().after(FENCE_LEAD).as_micros())
    }

    /// Asks these nodes in parallel and returns what each answered within the limit.
    pub(super) async fn ask_each<T, F>(
        &self,
        at: impl IntoIterator<Item = usize>,
        call: impl Fn(Arc<dyn Backend>) -> F,
    ) -> Vec<(usize, Result<T>)>
    where
        F: Future<Output = Result<Answer<T>>>,
    {
        self.ask_each_at(at, |_, backend| call(backend)).await
    }

    /// The same, with a call that depends on the node.
    pub(super) async fn ask_each_at<T, F>(
        &self,
        at: impl IntoIterator<Item = usize>,
        call: impl Fn(usize, Arc<dyn Backend>) -> F,
    ) -> Vec<(usize, Result<T>)>
    where
        F: Future<Output = Result<Answer<T>>>,
    {
        self.each(at, self.limit(), call, Node::on_answer).await
    }

    /// Makes these calls, several at each node, and notes which nodes answer.
    pub(super) async fn perform_each(&self, operations: &[Vec<Operation>]) {
        let asked = (0..operations.len()).filter(|at| !operations[*at].is_empty());
        let perform =
            |at: usize, backend: Arc<dyn Backend>| async move { backend.perform(operations[at].clone()).await };
        self.each(asked, self.limit(), perform, |node, answers| Ok(node.on_answers(answers))).await;
    }

    /// Queries every node.
    pub(super) async fn query_all<T, F>(&self, call: impl Fn(Arc<dyn Backend>) -> F) -> Vec<(usize, Result<T>)>
    where
        F: Future<Output = Result<T>>,
    {
        self.each(0..self.len(), self.query_limit(), |_, backend| call(backend), Node::on_result).await
    }

    /// How long a node may take to answer a query, which is not urgent.
    pub(super) fn query_limit(&self) -> Duration {
        self.limit().max(MIN_QUERY_LIMIT)
    }

    /// Asks these nodes in parallel; those that hang only if fewer than half of them succeed without. Each gets a result
    /// within the limit, or within four times the limit as long as fewer than half have answered. `note` notes the answer
    /// of a node and returns its result.
    pub(super) async fn each<R, T, F>(
        &self,
        at: impl IntoIterator<Item = usize>,
        limit: Duration,
        call: impl Fn(usize, Arc<dyn Backend>) -> F,
        note: impl Fn(&Node, R) -> Result<T>,
    ) -> Vec<(usize, Result<T>)>
    where
        F: Future<Output = R>,
    {
        let reachable = self.reachable();
        let (first, left_out): (Vec<usize>, Vec<usize>) = at.into_iter().partition(|at| reachable.contains(at));
        let asked = first.len() + left_out.len();
        let mut results = self.wave(first, limit, &call, &note).await;
        let enough = results.iter().filter(|(_, result)| result.is_ok()).count() > asked / 2;
        if enough || asked == 1 {
            results.extend(left_out.into_iter().map(|at| (at, Err(errors::hangs()))));
        } else {
            // Those that seemed to hang are needed after all.
            results.extend(self.wave(left_out, limit, &call, &note).await);
        }
        results.sort_by_key(|(at, _)| *at);
        results
    }

    async fn wave<R, T, F>(
        &self,
        at: Vec<usize>,
        limit: Duration,
        call: &impl Fn(usize, Arc<dyn Backend>) -> F,
        note: &impl Fn(&Node, R) -> Result<T>,
    ) -> Vec<(usize, Result<T>)>
    where
        F: Future<Output = R>,
    {
        let mut results = Vec::with_capacity(at.len());
        let mut pending = Vec::with_capacity(at.len());
        let mut calls = Calls::new();
        for at in at {
            match self.all[at].backend() {
                Ok(backend) => {
                    calls.push(at, Box::pin(call(at, Arc::clone(backend))));
                    pending.push(at);
                }
                Err(error) => results.push((at, Err(error))),
            }
        }
        let asked = pending.len();
        calls.limit(&self.watchdog, limit);
        let mut is_extended = false;
        loop {
            match calls.next(asked).await {
                NextAnswer::Answer(at, answer) => {
                    pending.retain(|other| *other != at);
                    results.push((at, note(&self.all[at], answer)));
                }
                // Nobody waits for a slow minority, but a slow majority gets more time.
                NextAnswer::Elapsed if is_extended || asked - pending.len() > asked / 2 => {
                    results.extend(pending.drain(..).map(|at| (at, Err(self.all[at].on_timeout(limit)))));
                    return results;
                }
                NextAnswer::Elapsed => {
                    is_extended = true;
                    calls.limit(&self.watchdog, limit * 3);
                }
                NextAnswer::Done => return results,
            }
        }
    }
}
