//! One history out of the histories of all nodes, and eviction from all of them.
//!
//! A lease that ended is told once, as most nodes tell it. What a minority
//! held for a moment, because a round did not get its majority, is left out.

use std::{cmp::Reverse, collections::BTreeMap, sync::Arc};

use super::{
    Shared,
    fan::Fan,
    listing::{Mark, sightings},
    pursuit::most_common,
    tag::Tag,
};
use crate::{
    Error, Result,
    lease::{EndedLease, Ending, Evicted, Fence, HistoryFilter, LeaseState, ListFilter, Names, Resource},
};

pub(super) async fn history(shared: &Shared, filter: &HistoryFilter) -> Result<Vec<EndedLease>> {
    let nodes = &shared.nodes;
    let answers = nodes
        .look(|backend| {
            let filter = filter.clone();
            async move { backend.history(&filter).await }
        })
        .await;
    let found = nodes.found("the history on redlock", answers)?;
    let silent = nodes.len() - found.len();

    let mut seen: BTreeMap<(Resource, Mark), Vec<EndedLease>> = BTreeMap::new();
    for (at, records) in found {
        for (index, mut ended) in records.into_iter().enumerate() {
            let mark = Tag::take(&mut ended.metadata).map_or(Mark::Stray(at, index), Mark::Tag);
            seen.entry((ended.resource.clone(), mark)).or_default().push(ended);
        }
    }
    let mut told: Vec<EndedLease> =
        seen.into_values().filter_map(|records| merged(records, silent, nodes.majority())).collect();
    told.sort_by_key(|ended| Reverse(ended.ended_at));
    told.truncate(filter.limit);
    Ok(told)
}

/// What the nodes tell of one lease, in the order of the nodes.
fn merged(records: Vec<EndedLease>, silent: usize, majority: usize) -> Option<EndedLease> {
    let endings: Vec<Ending> = records.iter().map(|ended| ended.ending).collect();
    let count = |ending: Ending| endings.iter().filter(|other| **other == ending).count();
    let (held, waited): (Vec<EndedLease>, Vec<EndedLease>) =
        records.into_iter().partition(|ended| ended.fence.is_some());
    let by_majority = held.len() + silent >= majority;
    let fences: Vec<Fence> = held.iter().filter_map(|ended| ended.fence).collect();
    let most = held.iter().map(|ended| count(ended.ending)).max();
    let first = held.into_iter().find(|ended| Some(count(ended.ending)) == most);
    match first {
        Some(ended) if by_majority || !matches!(ended.ending, Ending::Cancelled | Ending::Expired | Ending::GaveUp) => {
            Some(EndedLease { fence: most_common(&fences).map(|(fence, _)| fence), ..ended })
        }
        // It was at the head of its queue and no further.
        Some(ended) if ended.ending == Ending::GaveUp => Some(EndedLease { fence: None, acquired_at: None, ..ended }),
        Some(_) | None => waited.into_iter().next(),
    }
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
