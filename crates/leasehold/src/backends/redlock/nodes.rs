//! All the nodes: who leads, whose yes counts, what makes a majority.

use std::{fmt::Write as _, sync::Arc, time::Duration};

use super::{
    fan::Fan,
    node::Node,
    options::{Member, QuorumOptions},
};
use crate::{
    Error, Result,
    backend::Backend,
    clock::Clock,
    lease::{Brief, Fence, Incarnation, Resource, Timestamp},
    model::FENCE_LEAD,
};

/// How far ahead of the nodes' clocks a fence is proposed, so that none of them answers with its own clock.
///
/// More than clocks in good order differ, and little of the 10 s that a node allows.
const LEAD: Duration = Duration::from_secs(1);

/// Looking is not urgent: a listing may take as long as this, or as the limit if that is longer.
const LOOK: Duration = Duration::from_secs(1);

/// All the nodes, in the order they were given.
#[derive(Debug)]
pub(super) struct Nodes {
    nodes: Vec<Arc<Node>>,
    options: QuorumOptions,
}

impl Nodes {
    pub(super) fn new(members: Vec<Member>, options: QuorumOptions) -> Self {
        let node = |Member { name, backend }| Arc::new(Node::new(name, backend, Arc::clone(&options.clock)));
        Self { nodes: members.into_iter().map(node).collect(), options }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<Node>> {
        self.nodes.iter()
    }

    pub(super) fn get(&self, at: usize) -> &Arc<Node> {
        &self.nodes[at]
    }

    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    pub(super) fn majority(&self) -> usize {
        self.nodes.len() / 2 + 1
    }

    pub(super) fn options(&self) -> &QuorumOptions {
        &self.options
    }

    pub(super) fn clock(&self) -> &Arc<dyn Clock> {
        &self.options.clock
    }

    pub(super) fn limit(&self) -> Duration {
        self.options.node_limit
    }

    /// The first node in the list that answers: the one whose queue is waited in.
    pub(super) fn lead(&self) -> usize {
        self.nodes.iter().position(|node| !node.failed()).unwrap_or(0)
    }

    /// The nodes in the order in which they may lead.
    pub(super) fn in_order_of_lead(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.len()).collect();
        order.sort_by_key(|at| self.nodes[*at].failed());
        order
    }

    /// The nodes worth asking for something new: those that hung a moment ago are left out while enough are there.
    pub(super) fn awake(&self) -> Vec<usize> {
        let awake: Vec<usize> = (0..self.len()).filter(|at| !self.nodes[*at].rests()).collect();
        if awake.len() >= self.majority() { awake } else { (0..self.len()).collect() }
    }

    /// How long this node's yes does not count; for ever if it is the same as one before it.
    pub(super) fn silent_for(&self, at: usize) -> Option<Duration> {
        let incarnation = self.nodes[at].incarnation();
        if incarnation.is_some() && self.nodes[..at].iter().any(|node| node.incarnation() == incarnation) {
            return Some(Duration::MAX);
        }
        let left = self.nodes[at].quarantined_for(self.options.quarantine());
        (!left.is_zero()).then_some(left)
    }

    /// Whether this node's yes counts.
    pub(super) fn votes(&self, at: usize) -> bool {
        self.silent_for(at).is_none()
    }

    /// The lives of all nodes as one: it changes whenever one of theirs does.
    pub(super) fn incarnation(&self) -> Incarnation {
        let mix = |sum: u64, node: &Arc<Node>| {
            let life = node.incarnation().map_or(0, |incarnation| incarnation.0);
            (sum ^ life).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
        };
        Incarnation(self.nodes.iter().fold(0, mix))
    }

    /// The wall clock of the nodes, as far as it was seen: ours, corrected by the middle one of theirs.
    pub(super) fn wall(&self) -> Timestamp {
        let mut ahead: Vec<i64> = self.nodes.iter().filter_map(|node| node.ahead()).collect();
        ahead.sort_unstable();
        let middle = ahead.get(ahead.len() / 2).copied().unwrap_or_default();
        Timestamp::from_micros(self.clock().wall().as_micros().saturating_add_signed(middle))
    }

    /// A fence that no node in good order has reached by its clock.
    pub(super) fn proposal(&self) -> Fence {
        Fence::new(self.wall().after(LEAD).as_micros())
    }

    /// A fence from a hand-off, if all nodes are likely to answer with it; otherwise a new proposal.
    pub(super) fn proposal_from(&self, fence: Fence) -> Fence {
        let reached_soon = Fence::new(self.wall().after(LEAD / 2).as_micros());
        if fence > reached_soon { fence } else { self.proposal().max(fence) }
    }

    /// The highest fence that a node whose clock is in good order takes back.
    pub(super) fn fence_limit(&self) -> Fence {
        Fence::new(self.wall().after(FENCE_LEAD).as_micros())
    }

    /// Asks every node to look something up.
    pub(super) async fn look<T, F>(&self, call: impl Fn(Arc<dyn Backend>) -> F) -> Vec<(usize, Result<T>)>
    where
        T: 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let mut fan = Fan::new();
        for (at, node) in self.nodes.iter().enumerate() {
            let limit = if node.rests() { self.limit() } else { self.limit().max(LOOK) };
            let (node, call) = (Arc::clone(node), call(Arc::clone(&node.backend)));
            fan.add(at, async move { node.within(limit, call).await });
        }
        fan.all().await
    }

    /// What was found where, if a majority answered.
    pub(super) fn found<T>(&self, what: &str, answers: Vec<(usize, Result<T>)>) -> Result<Vec<(usize, T)>> {
        let mut found = Vec::new();
        let mut failures = Vec::new();
        for (at, answer) in answers {
            match answer {
                Ok(answer) => found.push((at, answer)),
                Err(error) => failures.push((at, error)),
            }
        }
        if found.len() >= self.majority() { Ok(found) } else { Err(Error::unavailable(self.words(what, &failures))) }
    }

    /// Says which nodes kept a majority from being reached.
    pub(super) fn too_few(&self, resource: &Resource, failures: &[(usize, Error)]) -> Error {
        Error::unavailable(self.words(&format!("{resource} on redlock"), failures)).about(resource)
    }

    pub(super) fn words(&self, what: &str, failures: &[(usize, Error)]) -> String {
        let mut words =
            format!("{what}: {} of {} nodes are needed and too few can be counted on", self.majority(), self.len());
        let mut separator = ": ";
        for (at, node) in self.nodes.iter().enumerate() {
            let why = match (failures.iter().find(|(failed, _)| *failed == at), self.silent_for(at)) {
                (Some((_, error)), _) => error.to_string(),
                (None, Some(Duration::MAX)) => String::from("is the same server as one before it"),
                (None, Some(left)) => {
                    format!("was started a short time ago and votes in {}", Brief(left.max(Duration::from_millis(1))))
                }
                (None, None) => continue,
            };
            let _infallible = write!(words, "{separator}{} ({why})", node.name);
            separator = ", ";
        }
        words
    }
}
