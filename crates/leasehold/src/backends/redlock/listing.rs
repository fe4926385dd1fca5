//! One list out of the lists of all nodes.
//!
//! A lease is shown as holding where a majority may hold it, counting nodes
//! that did not answer as if they did; as waiting where it has a place, or the
//! head of the queue and no majority yet. Leftovers on a minority are not shown.

use std::collections::{BTreeMap, BTreeSet};

use super::{Shared, said::most_common, tag::Tag};
use crate::{
    Result,
    lease::{Fence, LeaseRecord, LeaseState, ListFilter, Page, Resource},
};

/// What tells one lease from another on all nodes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Mark {
    Tag(Tag),
    /// A lease that did not come through a quorum: the node, and which one there.
    Stray(usize, usize),
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
    pub(super) fn merged(&self, silent: usize, majority: usize, lead: usize) -> Option<LeaseRecord> {
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
        let at_head = || self.0.iter().find(|(at, _)| *at == lead);
        let (_, record) = waiting.or_else(at_head)?;
        let state = match record.state {
            LeaseState::Holding { held_for, .. } => LeaseState::Waiting { ahead: 0, waiting_for: held_for },
            waiting @ LeaseState::Waiting { .. } => waiting,
        };
        Some(LeaseRecord { state, ..record.clone() })
    }
}

/// All leases that the nodes show, each once.
pub(super) fn sightings(found: Vec<(usize, Page)>) -> BTreeMap<(Resource, Mark), Sightings> {
    let mut seen: BTreeMap<(Resource, Mark), Sightings> = BTreeMap::new();
    for (at, page) in found {
        for (index, mut record) in page.leases.into_iter().enumerate() {
            let mark = Tag::take(&mut record.metadata).map_or(Mark::Stray(at, index), Mark::Tag);
            seen.entry((record.resource.clone(), mark)).or_default().0.push((at, record));
        }
    }
    seen
}

/// How many units of a resource are held at least by someone, wherever that is.
pub(super) fn units_taken(found: Vec<(usize, Page)>) -> u64 {
    let most_units =
        |seen: &Sightings| seen.holding().map(|(_, _, record)| record.claim.units()).max().unwrap_or_default();
    sightings(found).values().map(|seen| u64::from(most_units(seen))).sum()
}

pub(super) async fn list(shared: &Shared, filter: &ListFilter) -> Result<Page> {
    let nodes = &shared.nodes;
    let answers = nodes
        .look(|backend| {
            let filter = filter.clone();
            async move { backend.list(&filter).await }
        })
        .await;
    let found = nodes.found("listing on redlock", answers)?;
    let lead = found.first().map_or(0, |(at, _)| *at);
    let silent = nodes.len() - found.len();
    // Past the end of the shortest page, not every node has told what it knows.
    let told_until = found.iter().filter_map(|(_, page)| page.next.clone()).min();

    let seen = sightings(found);
    let known = |name: &Resource| told_until.as_ref().is_none_or(|end| name <= end);
    let names: BTreeSet<Resource> = seen.keys().map(|(name, _)| name.clone()).filter(known).collect();
    let more = told_until.is_some() || names.len() > filter.limit;
    let names: BTreeSet<Resource> = names.into_iter().take(filter.limit).collect();
    let next = if more { names.last().cloned() } else { None };

    let merged = seen
        .into_iter()
        .filter(|((name, _), _)| names.contains(name))
        .filter_map(|(_, seen)| seen.merged(silent, nodes.majority(), lead))
        .collect();
    Ok(Page { leases: in_order(merged), next })
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
