//! One history out of the histories of all nodes, and eviction from all of them.
//!
//! A lease that ended is told once, as most nodes tell it. What some nodes held
//! for a moment and was given back, because a round did not get its majority or
//! its caller was gone, is left out.

use std::{cmp::Reverse, collections::BTreeMap, sync::Arc, time::Duration};

use super::{
    Shared,
    fan::Fan,
    listing::{Mark, sightings},
    said::most_common,
    tag::Tag,
};
use crate::{
    Error, Result,
    lease::{EndedLease, Ending, Evicted, Fence, HistoryFilter, LeaseState, ListFilter, Names, Resource},
    model::FENCE_LEAD,
};

/// Nodes date one ending differently, by the way of the message and by their clocks.
const SPREAD: Duration = FENCE_LEAD;

pub(super) async fn history(shared: &Shared, filter: &HistoryFilter) -> Result<Vec<EndedLease>> {
    let nodes = &shared.nodes;
    // Records just outside the time asked for may belong to leases inside it, and the other way round.
    let mut wider = HistoryFilter {
        since: filter.since.map(|since| since.before(SPREAD)),
        until: filter.until.map(|until| until.after(SPREAD)),
        ..filter.clone()
    };
    loop {
        let answers = nodes
            .look(|backend| {
                let filter = wider.clone();
                async move { backend.history(&filter).await }
            })
            .await;
        let found = nodes.found("the history on redlock", answers)?;
        let cut_short = found.iter().any(|(_, records)| records.len() >= wider.limit);
        let mut told = told_once(shared, found);
        told.retain(|ended| filter.include(ended));
        told.sort_by_key(|ended| Reverse(ended.ended_at));
        if told.len() < filter.limit && cut_short && wider.limit < MOST_RECORDS {
            wider.limit = wider.limit.saturating_mul(4);
            continue;
        }
        told.truncate(filter.limit);
        return Ok(told);
    }
}

/// A node is asked for no more than this.
const MOST_RECORDS: usize = 100_000;

fn told_once(shared: &Shared, found: Vec<(usize, Vec<EndedLease>)>) -> Vec<EndedLease> {
    let nodes = &shared.nodes;
    let silent = nodes.len() - found.len();
    let mut seen: BTreeMap<(Resource, Mark), Vec<EndedLease>> = BTreeMap::new();
    for (at, records) in found {
        for (index, mut ended) in records.into_iter().enumerate() {
            let mark = Tag::take(&mut ended.metadata).map_or(Mark::Stray(at, index), Mark::Tag);
            seen.entry((ended.resource.clone(), mark)).or_default().push(ended);
        }
    }
    seen.into_values().filter_map(|records| merged(records, silent, nodes.majority())).collect()
}

/// What the nodes tell of one lease, in the order of the nodes.
fn merged(mut records: Vec<EndedLease>, silent: usize, majority: usize) -> Option<EndedLease> {
    // What held and was cancelled was given back before anyone was told that it held.
    records.retain(|ended| ended.fence.is_none() || ended.ending != Ending::Cancelled);
    let (held, waited): (Vec<EndedLease>, Vec<EndedLease>) =
        records.into_iter().partition(|ended| ended.fence.is_some());
    let count = |ending: Ending| held.iter().filter(|other| other.ending == ending).count();
    let most = held.iter().map(|ended| count(ended.ending)).max();
    let first = held.iter().find(|ended| Some(count(ended.ending)) == most);
    let Some(first) = first else { return waited.into_iter().next() };

    let by_majority = held.len() + silent >= majority;
    if by_majority || !matches!(first.ending, Ending::Expired | Ending::GaveUp) {
        let fences: Vec<Fence> = held.iter().filter_map(|ended| ended.fence).collect();
        return Some(EndedLease { fence: most_common(&fences).map(|(fence, _)| fence), ..first.clone() });
    }
    if first.ending == Ending::GaveUp {
        // It was at the head of its queue and no further.
        return Some(EndedLease { fence: None, acquired_at: None, ..first.clone() });
    }
    waited.into_iter().next()
}

/// Takes the lease with this fence away wherever it is held, the node whose queue is waited in last.
pub(super) async fn evict(shared: &Shared, resource: &Resource, expected: Fence, reason: &str) -> Result<Evicted> {
    let nodes = &shared.nodes;
    let filter = ListFilter::new(Names::Exactly(resource.clone()));
    let answers = nodes
        .look(|backend| {
            let filter = filter.clone();
            async move { backend.list(&filter).await }
        })
        .await;
    let found = nodes.found(&format!("evicting from {resource} on redlock"), answers)?;
    let lead = found.first().map_or(0, |(at, _)| *at);
    let silent = nodes.len() - found.len();

    let mut current = Vec::new();
    for seen in sightings(found).values() {
        let Some(record) = seen.merged(silent, nodes.majority(), lead) else { continue };
        let LeaseState::Holding { fence, .. } = record.state else { continue };
        if fence != expected {
            current.push(fence);
            continue;
        }
        let evicted = evict_at(shared, resource, &seen.fences(), lead, reason).await;
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

/// Evicts under the fence that each node knows; tells how many did.
async fn evict_at(shared: &Shared, resource: &Resource, fences: &[(usize, Fence)], last: usize, reason: &str) -> usize {
    let limit = shared.nodes.limit();
    let call = |at: usize, fence: Fence| {
        let (node, resource, reason) = (Arc::clone(shared.nodes.get(at)), resource.clone(), reason.to_owned());
        async move { node.within(limit, node.backend.evict(&resource, fence, &reason)).await }
    };
    let mut others = Fan::new();
    for (at, fence) in fences.iter().filter(|(at, _)| *at != last) {
        others.add(*at, call(*at, *fence));
    }
    let mut answers = others.all().await;
    if let Some((at, fence)) = fences.iter().find(|(at, _)| *at == last) {
        answers.push((*at, call(*at, *fence).await));
    }
    answers.into_iter().filter(|(_, answer)| answer.is_ok()).count()
}
