//! What operators see: one list out of the lists of all nodes, eviction from all of them, and doctor's findings.
//!
//! A lease is shown as holding where a majority may hold it, counting nodes
//! that did not answer as if they did; as waiting where it has a position, or the
//! head of the queue and no majority yet. Leftovers on a minority are not shown.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use super::{
    RedlockShared, agreement,
    leases::Tag,
    node::{Abstention, Node, probe_renewal},
    nodes::Nodes,
    vote::most_common,
};
use crate::{
    Error, Result,
    backend::{Backend, Finding, Severity},
    lease::{
        Brief, Claim, Evicted, Fence, LeaseKey, LeasePage, LeaseRecord, LeaseState, ListFilter, Names, Resource, Shape,
    },
};

/// What tells one lease from another on all nodes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum LeaseIdentity {
    Tagged(Tag),
    /// A lease that was requested at a node directly: the node, and which lease there.
    Untagged(usize, usize),
}

/// One lease, as the nodes that know it show it, in the order of the nodes.
#[derive(Debug, Default)]
pub(super) struct Sightings(Vec<(usize, LeaseRecord)>);

impl Sightings {
    fn holding(&self) -> impl Iterator<Item = (usize, Fence, &LeaseRecord)> {
        self.0.iter().filter_map(|(at, record)| match record.state {
            LeaseState::Holding { fence, .. } => Some((*at, fence, record)),
            LeaseState::Waiting { .. } => None,
        })
    }

    /// Under which fence each node that has it holds it.
    pub(super) fn fences(&self) -> Vec<(usize, Fence)> {
        self.holding().map(|(at, fence, _)| (at, fence)).collect()
    }

    /// The record to show, if it is to be shown.
    pub(super) fn merged(&self, silent: usize, majority: usize, queue_node: usize) -> Option<LeaseRecord> {
        let holding: Vec<(usize, Fence, &LeaseRecord)> = self.holding().collect();
        let fences: Vec<Fence> = holding.iter().map(|(_, fence, _)| *fence).collect();
        if let (Some((_, _, first)), Some((fence, _))) = (holding.first(), most_common(&fences))
            && holding.len() + silent >= majority
        {
            let LeaseState::Holding { acquired_at, held_for, .. } = first.state else { return None };
            return Some(LeaseRecord {
                state: LeaseState::Holding { fence, acquired_at, held_for },
                ..(*first).clone()
            });
        }
        let waiting = self.0.iter().find(|(_, record)| matches!(record.state, LeaseState::Waiting { .. }));
        let at_head = || self.0.iter().find(|(at, _)| *at == queue_node);
        let (_, record) = waiting.or_else(at_head)?;
        let state = match record.state {
            LeaseState::Holding { held_for, .. } => LeaseState::Waiting { ahead: 0, waiting_for: held_for },
            waiting @ LeaseState::Waiting { .. } => waiting,
        };
        Some(LeaseRecord { state, ..record.clone() })
    }
}

/// All leases that the nodes show, each once.
pub(super) fn sightings(found: Vec<(usize, LeasePage)>) -> BTreeMap<(Resource, LeaseIdentity), Sightings> {
    let mut seen: BTreeMap<(Resource, LeaseIdentity), Sightings> = BTreeMap::new();
    for (at, page) in found {
        let shown = page.leases.into_iter().filter(|record| record.resource.as_str() != agreement::NAME);
        for (index, mut record) in shown.enumerate() {
            let identity =
                Tag::take(&mut record.metadata).map_or(LeaseIdentity::Untagged(at, index), LeaseIdentity::Tagged);
            seen.entry((record.resource.clone(), identity)).or_default().0.push((at, record));
        }
    }
    seen
}

/// The sum over all leases of the most units that any node shows.
///
/// Entries of another shape cannot have a majority, since a node stores one shape for a name.
pub(super) fn units_taken(found: Vec<(usize, LeasePage)>, shape: Shape) -> u64 {
    let most_units = |seen: &Sightings| {
        let claims = seen.holding().map(|(_, _, record)| record.claim).filter(|claim| claim.shape() == shape);
        claims.map(Claim::units).max().unwrap_or_default()
    };
    sightings(found).values().map(|seen| u64::from(most_units(seen))).sum()
}

pub(super) async fn list(shared: &RedlockShared, filter: &ListFilter) -> Result<LeasePage> {
    let nodes = &shared.nodes;
    let answers = nodes.query_all(|backend| async move { backend.list(filter).await }).await;
    let found = nodes.require_majority("listing on redlock", answers)?;
    let queue_node = found.first().map_or(0, |(at, _)| *at);
    let silent = nodes.len() - found.len();
    // Past the end of the shortest page, not every node has shown what it has.
    let known_until = found.iter().filter_map(|(_, page)| page.next.clone()).min();

    let seen = sightings(found);
    let known = |name: &Resource| known_until.as_ref().is_none_or(|end| name <= end);
    let names: BTreeSet<Resource> = seen.keys().map(|(name, _)| name.clone()).filter(known).collect();
    let more = known_until.is_some() || names.len() > filter.limit;
    let names: BTreeSet<Resource> = names.into_iter().take(filter.limit).collect();
    let next = if more { names.last().cloned() } else { None };

    let merged = seen
        .into_iter()
        .filter(|((name, _), _)| names.contains(name))
        .filter_map(|(_, seen)| seen.merged(silent, nodes.majority(), queue_node))
        .collect();
    Ok(LeasePage { leases: in_order(merged), next })
}

/// The leases and positions of this resource, of each node that answers; fails without a majority.
async fn list_one(nodes: &Nodes, resource: &Resource, doing: &str) -> Result<Vec<(usize, LeasePage)>> {
    let filter = &ListFilter::new(Names::Exactly(resource.clone()));
    let answers = nodes.query_all(|backend| async move { backend.list(filter).await }).await;
    nodes.require_majority(&format!("{doing} on {resource} on redlock"), answers)
}

/// The lease with this key, if a majority of nodes that vote hold it.
///
/// It is found by its tag: a node that was given the lease later, after a restart, numbers it otherwise.
pub(super) async fn find(shared: &RedlockShared, key: &LeaseKey, fence: Fence) -> Result<Option<LeaseRecord>> {
    let (nodes, resource) = (&shared.nodes, &key.resource);
    learn_incarnations(nodes).await;
    let found = list_one(nodes, resource, "looking for a lease").await?;
    let queue_node = found.first().map_or(0, |(at, _)| *at);
    let unknown = nodes.len() - found.iter().filter(|(at, _)| nodes.votes(*at)).count();
    let seen = sightings(found).remove(&(resource.clone(), LeaseIdentity::Tagged(Tag::of(key.id)))).unwrap_or_default();
    let holding = seen.fences().into_iter().filter(|(at, _)| nodes.votes(*at)).count();
    if holding >= nodes.majority() {
        let mut record = seen.merged(0, nodes.majority(), queue_node);
        if let Some(LeaseRecord { state: LeaseState::Holding { fence: shown, .. }, .. }) = &mut record {
            *shown = fence;
        }
        return Ok(record);
    }
    if holding + unknown < nodes.majority() {
        return Ok(None);
    }
    Err(Error::unavailable(format!(
        "{resource} on redlock: {holding} of {} nodes hold the lease, {unknown} did not answer or do not vote yet; \
         renew the lease to find out, or try again",
        nodes.len()
    ))
    .about(resource))
}

/// By name; holders by their fences, then the queue, counted anew.
fn in_order(mut leases: Vec<LeaseRecord>) -> Vec<LeaseRecord> {
    leases.sort_by_cached_key(|record| {
        let order = match record.state {
            LeaseState::Holding { fence, .. } => (false, fence.get()),
            LeaseState::Waiting { ahead, .. } => (true, u64::from(ahead)),
        };
        (record.resource.clone(), order, record.asked_at)
    });
    let mut count = 0;
    let mut before: Option<Resource> = None;
    for record in &mut leases {
        if before.as_ref() != Some(&record.resource) {
            (before, count) = (Some(record.resource.clone()), 0);
        }
        if let LeaseState::Waiting { ahead, .. } = &mut record.state {
            *ahead = count;
            count += 1;
        }
    }
    leases
}

/// Takes the lease with this fence away wherever it is held, at the queue node last.
pub(super) async fn evict(
    shared: &RedlockShared,
    resource: &Resource,
    expected: Fence,
    reason: &str,
) -> Result<Evicted> {
    let nodes = &shared.nodes;
    let found = list_one(nodes, resource, "evicting").await?;
    let queue_node = found.first().map_or(0, |(at, _)| *at);
    let silent = nodes.len() - found.len();

    let mut current = Vec::new();
    for seen in sightings(found).values() {
        let Some(record) = seen.merged(silent, nodes.majority(), queue_node) else { continue };
        let LeaseState::Holding { fence, .. } = record.state else { continue };
        if fence != expected {
            current.push(fence);
            continue;
        }
        let evicted = evict_at(shared, resource, &seen.fences(), queue_node, reason).await;
        if seen.fences().len() - evicted + silent >= nodes.majority() {
            return Err(Error::unanswered(format!(
                "{resource} on redlock: the lease under fence {expected} was evicted on {evicted} of {} nodes only; try again",
                nodes.len()
            ))
            .about(resource));
        }
        return Ok(Evicted::Evicted { holder: record.holder });
    }
    current.sort_unstable();
    Ok(Evicted::NoSuchFence { current })
}

/// Evicts the lease at each node, by the fence that the node has for it. Returns how many nodes did.
async fn evict_at(
    shared: &RedlockShared,
    resource: &Resource,
    fences: &[(usize, Fence)],
    last: usize,
    reason: &str,
) -> usize {
    let (last, others): (Vec<_>, Vec<_>) = fences.iter().copied().partition(|(at, _)| *at == last);
    let mut evicted = 0;
    for fences in [others, last] {
        let fences: BTreeMap<usize, Fence> = fences.into_iter().collect();
        let evict = |at: usize, backend: Arc<dyn Backend>| {
            let fence = fences[&at];
            async move { backend.evict(resource, fence, reason).await }
        };
        let (at, limit) = (fences.keys().copied(), shared.nodes.query_limit());
        let answers = shared.nodes.each(at, limit, evict, Node::on_result).await;
        evicted += answers.iter().filter(|(_, answer)| answer.is_ok()).count();
    }
    evicted
}

/// A clock that is further off costs a round trip on every grant; one that is 9 s off costs the node its vote.
const CLOCK_OFF: Duration = Duration::from_millis(500);

pub(super) async fn examine(shared: &RedlockShared) -> Result<Vec<Finding>> {
    let nodes = &shared.nodes;
    learn_incarnations(nodes).await;
    let answers = nodes.query_all(|backend| async move { backend.examine().await }).await;
    let there = answers.iter().filter(|(_, answer)| answer.is_ok()).count();
    let (all, majority) = (nodes.len(), nodes.majority());
    let mut findings = vec![
        Finding::new(
            Severity::Info,
            "promises",
            format!(
                "a lease is held where {majority} of {all} nodes hold it; {} may be down; fences rise as long as \
                 clocks do not go back, order among waiters is likely and not promised",
                all - majority
            ),
        ),
        Finding::new(
            if there == all { Severity::Ok } else { Severity::Failure.min(severity_of(there, majority)) },
            "nodes",
            format!("{there} of {all} answer; {majority} are needed"),
        ),
    ];
    let failed: Vec<usize> = answers.iter().filter(|(_, answer)| answer.is_err()).map(|(at, _)| *at).collect();
    if let Some(left) = nodes.time_to_majority(&failed) {
        let message = format!("nothing is granted for {}: too few nodes have a vote until then", Brief(left));
        findings.push(Finding::new(Severity::Failure, "votes", message));
    }
    for (at, answer) in answers {
        let name = &nodes.get(at).name;
        match nodes.abstains(at) {
            Some(Abstention::Duplicate) => findings.push(Finding::new(
                Severity::Failure,
                "same node twice",
                format!("{name} is the same server as one before it in the list: its vote does not count"),
            )),
            Some(abstention @ Abstention::Young(_)) => {
                findings.push(Finding::new(Severity::Warning, "young memory", format!("{name} {abstention}")));
            }
            Some(Abstention::AgeUnknown) if answer.is_ok() => {
                let message = format!("{name} {}: its vote does not count", Abstention::AgeUnknown);
                findings.push(Finding::new(Severity::Failure, "age unknown", message));
            }
            Some(Abstention::AgeUnknown) | None => {}
        }
        findings.extend(nodes.get(at).ahead().and_then(|micros| clock_finding(name, micros)));
        match answer {
            Ok(of_node) => {
                // What one node promises is not what a majority does.
                let of_node = of_node.into_iter().filter(|finding| finding.subject != "promises");
                findings.extend(of_node.map(|finding| named(name, finding)));
            }
            Err(error) => findings.push(Finding::new(Severity::Warning, "node", format!("{name}: {error}"))),
        }
    }
    Ok(findings)
}

/// The finding with the name of its node.
fn named(name: &str, finding: Finding) -> Finding {
    if finding.message.starts_with(name) {
        return finding;
    }
    Finding { message: format!("{name}: {}", finding.message), ..finding }
}

/// Learns the incarnation of each node, which only answers about leases carry: about one that nobody has.
pub(super) async fn learn_incarnations(nodes: &Nodes) {
    let Some(renewal) = probe_renewal() else { return };
    let renewals = std::slice::from_ref(&renewal);
    // The following query finds nodes that do not answer.
    nodes.ask_each(0..nodes.len(), |backend: Arc<dyn Backend>| async move { backend.renew(renewals).await }).await;
}

fn severity_of(there: usize, majority: usize) -> Severity {
    if there >= majority { Severity::Warning } else { Severity::Failure }
}

fn clock_finding(name: &str, micros: i64) -> Option<Finding> {
    let off = Duration::from_micros(micros.unsigned_abs());
    let direction = if micros < 0 { "behind" } else { "ahead of" };
    (off > CLOCK_OFF).then(|| {
        let message = format!("the clock of {name} is {} {direction} this machine's; keep clocks in step", Brief(off));
        Finding::new(Severity::Warning, "clock", message)
    })
}
