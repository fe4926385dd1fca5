//! One history out of the histories of all nodes, and the events of the queue node.
//!
//! A lease that ended is shown once, as most nodes have it. What some nodes held
//! for a moment and was given back, because a round did not get its majority or
//! its caller was gone, is left out.

use std::{
    cmp::Reverse,
    collections::BTreeMap,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures_core::Stream;

use super::{RedlockShared, agreement, inspect::LeaseIdentity, leases::Tag, node::probe_renewal, vote::most_common};
use crate::{
    Result,
    backend::{EventStream, Missed},
    lease::{EndedLease, Ending, Event, Fence, HistoryFilter, Names, Resource},
    model::FENCE_LEAD,
};

/// How far apart nodes may date one ending: message delay and clock skew.
const SPREAD: Duration = FENCE_LEAD;

pub(super) async fn history(shared: &RedlockShared, filter: &HistoryFilter) -> Result<Vec<EndedLease>> {
    let nodes = &shared.nodes;
    // Records just outside the time asked for may belong to leases inside it, and the other way round.
    let ended = filter.ended.start.before(SPREAD)..filter.ended.end.after(SPREAD);
    let mut wider = HistoryFilter { ended, ..filter.clone() };
    loop {
        let answers = nodes
            .query_all(|backend| {
                let filter = &wider;
                async move { backend.history(filter).await }
            })
            .await;
        let found = nodes.require_majority("the history on redlock", answers)?;
        let cut_short = found.iter().any(|(_, records)| records.len() >= wider.limit);
        let mut endings = each_once(shared, found);
        endings.retain(|ended| filter.include(ended));
        endings.sort_by_key(|ended| Reverse(ended.ended_at));
        if endings.len() < filter.limit && cut_short && wider.limit < MAX_RECORDS {
            wider.limit = wider.limit.saturating_mul(4);
            continue;
        }
        endings.truncate(filter.limit);
        return Ok(endings);
    }
}

/// A node is asked for no more than this.
const MAX_RECORDS: usize = 100_000;

fn each_once(shared: &RedlockShared, found: Vec<(usize, Vec<EndedLease>)>) -> Vec<EndedLease> {
    let nodes = &shared.nodes;
    let silent = nodes.len() - found.len();
    let mut seen: BTreeMap<(Resource, LeaseIdentity), Vec<EndedLease>> = BTreeMap::new();
    for (at, records) in found {
        let shown = records.into_iter().filter(|ended| ended.resource.as_str() != agreement::NAME);
        for (index, mut ended) in shown.enumerate() {
            let identity =
                Tag::take(&mut ended.metadata).map_or(LeaseIdentity::Untagged(at, index), LeaseIdentity::Tagged);
            seen.entry((ended.resource.clone(), identity)).or_default().push(ended);
        }
    }
    seen.into_values().filter_map(|records| merged(records, silent, nodes.majority())).collect()
}

/// What the nodes have of one lease, in the order of the nodes.
fn merged(mut records: Vec<EndedLease>, silent: usize, majority: usize) -> Option<EndedLease> {
    // A cancelled grant was given back before its caller learned of it.
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

/// Follows all nodes and passes on the events of the queue node: each thing happens on several of them.
///
/// That node reports a grant when it makes it. Whether a majority follows is seen in a listing, and so is the fence in
/// the rare case that it was raised. A queue node that was away reports a lease that it is given back as a grant. When
/// another node takes its place, events may have been missed.
pub(super) async fn watch(shared: &Arc<RedlockShared>, names: Names) -> Result<EventStream> {
    let answers = shared
        .nodes
        .query_all(|backend| {
            let names = names.clone();
            async move { backend.watch(names).await }
        })
        .await;
    let streams = shared.nodes.require_majority("following events on redlock", answers)?;
    let look = look(Arc::clone(shared));
    let mut follower = Follower { shared: Arc::clone(shared), streams, followed: None, look };
    follower.followed = follower.queue_node();
    Ok(Box::pin(follower))
}

/// How often a follower looks which nodes answer: the stream of a node that is away is silent until it is back.
const LOOK_EVERY: Duration = Duration::from_secs(2);

type Look = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Waits a while, then asks all nodes, so that it is known which of them answer.
fn look(shared: Arc<RedlockShared>) -> Look {
    Box::pin(async move {
        let clock = shared.nodes.clock();
        clock.sleep_until(clock.now().after(LOOK_EVERY)).await;
        let Some(renewal) = probe_renewal() else { return };
        let renewals = std::slice::from_ref(&renewal);
        shared.nodes.query_all(|backend| async move { backend.renew(renewals).await }).await;
    })
}

struct Follower {
    shared: Arc<RedlockShared>,
    streams: Vec<(usize, EventStream)>,
    /// The node whose events are passed on.
    followed: Option<usize>,
    look: Look,
}

impl Follower {
    /// The first node that answers, among those whose streams go on.
    fn queue_node(&self) -> Option<usize> {
        let is_streaming = |at: &usize| self.streams.iter().any(|(streaming, _)| streaming == at);
        self.shared.nodes.queue_node_candidates().into_iter().find(is_streaming)
    }
}

impl Stream for Follower {
    type Item = Result<Event, Missed>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let follower = &mut *self;
        while follower.look.as_mut().poll(context).is_ready() {
            follower.look = look(Arc::clone(&follower.shared));
        }
        let mut index = 0;
        loop {
            let queue_node = follower.queue_node();
            if queue_node.is_none() {
                return Poll::Ready(None);
            }
            if follower.followed != queue_node {
                // What happened since the other one went silent may not have been passed on.
                follower.followed = queue_node;
                return Poll::Ready(Some(Err(Missed)));
            }
            let Some((at, stream)) = follower.streams.get_mut(index) else { return Poll::Pending };
            match stream.as_mut().poll_next(context) {
                Poll::Ready(Some(event)) if Some(*at) == queue_node && is_shown(&event) => {
                    return Poll::Ready(Some(event));
                }
                Poll::Ready(Some(_)) => {}
                Poll::Ready(None) => drop(follower.streams.remove(index)),
                Poll::Pending => index += 1,
            }
        }
    }
}

fn is_shown(event: &Result<Event, Missed>) -> bool {
    event.as_ref().map_or(true, |event| event.resource.as_str() != agreement::NAME)
}
