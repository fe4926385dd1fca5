//! Giving a lease that a majority holds to the other nodes, too.
//!
//! A lease that is held by a bare majority is lost with the next node that
//! fails. Two things leave one at that: a new lease asks a majority first, and
//! a node may have been away or have forgotten it. Those that are held for more
//! than a moment are put on the nodes that were not asked, and a node that
//! answers a renewal with "gone" is there again, so it is asked like any other,
//! without waiting. It numbers that grant higher, which changes nothing: the
//! fence is what a majority stored first, and whoever is granted the resource
//! there later is above both.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use futures_util::{StreamExt, stream};
use parking_lot::Mutex;

use super::{
    Shared,
    leases::{Phase, Tracked, Turn},
    renew,
};
use crate::{
    backend::Backend,
    lease::{Moment, Patience, Renewal, Ttl},
};

/// How long a lease is held before the nodes that were not asked get it: most are over by then.
const SPREAD_AFTER: Duration = Duration::from_millis(20);
/// How many leases are put on other nodes at a time: a node that comes back has enough to do.
const AT_A_TIME: usize = 16;
/// How many leases are looked after in one call.
const MOST_RENEWALS: usize = 500;

/// A lease that a majority holds, and the nodes that do not have it.
pub(super) struct Missing {
    pub(super) tracked: Arc<Tracked>,
    pub(super) at: Vec<usize>,
}

/// Leases that were granted a moment ago by a majority, in that order; one task at a time looks after them.
#[derive(Debug, Default)]
pub(super) struct NewLeases(Mutex<New>);

#[derive(Debug, Default)]
struct New {
    leases: VecDeque<(Moment, Arc<Tracked>)>,
    is_driven: bool,
}

impl NewLeases {
    /// Adds one; returns whether a task has to be started.
    fn add(&self, granted: Moment, tracked: Arc<Tracked>) -> bool {
        let mut new = self.0.lock();
        new.leases.push_back((granted, tracked));
        !std::mem::replace(&mut new.is_driven, true)
    }

    /// Those that are due, and since when; on `None` the task that asked must end.
    fn due(&self, now: Moment) -> Option<Vec<(Moment, Arc<Tracked>)>> {
        let mut new = self.0.lock();
        new.is_driven = !new.leases.is_empty();
        let later = new.leases.partition_point(|(granted, _)| granted.after(SPREAD_AFTER) <= now);
        new.is_driven.then(|| new.leases.drain(..later).collect())
    }
}

/// Gives a new lease to the nodes that were not asked, if it is held for more than a moment.
pub(super) fn spread_soon(shared: &Arc<Shared>, tracked: &Arc<Tracked>) {
    let nodes = &shared.nodes;
    if (0..nodes.len()).all(|at| tracked.was_asked(at)) {
        return;
    }
    if shared.new_leases.add(nodes.clock().now(), Arc::clone(tracked)) {
        shared.runtime.spawn(spread(Arc::clone(shared)));
    }
}

/// Renews what is due, which finds the nodes that lack it, but never gives it to them if it was released elsewhere or
/// evicted meanwhile. No lease lives longer by that: it is renewed for less than is left of it.
async fn spread(shared: Arc<Shared>) {
    let clock = Arc::clone(shared.nodes.clock());
    while let Some(due) = shared.new_leases.due(clock.now()) {
        let now = clock.now();
        let renewal = |(granted, tracked): &(Moment, Arc<Tracked>)| {
            // A release waits meanwhile: a lease that half of the nodes have released looks like one that is lost.
            let turn = tracked.turn_at_once()?;
            let past = now.since(*granted) + shared.nodes.limit();
            let left = Ttl::new(tracked.ttl().get().checked_sub(past)?).ok()?;
            let is_held = matches!(tracked.phase(), Phase::Holding { .. });
            is_held.then(|| (Renewal::new(tracked.key.clone(), left), turn))
        };
        let renewals: Vec<(Renewal, Turn)> = due.iter().filter_map(renewal).collect();
        for batch in renewals.chunks(MOST_RENEWALS) {
            let batch = batch.iter().map(|(renewal, _)| renewal.clone()).collect();
            // What fails here is left to the next renewal.
            let _standings = renew::renew(&shared, batch).await;
        }
        drop(renewals);
        clock.sleep_until(clock.now().after(SPREAD_AFTER / 2)).await;
    }
}

/// Gives leases to nodes that lack them, in the background.
pub(super) fn give_later(shared: &Arc<Shared>, missing: Vec<Missing>) {
    if !missing.is_empty() {
        let runtime = shared.runtime.clone();
        let shared = Arc::clone(shared);
        runtime.spawn(async move { give(&shared, missing).await });
    }
}

async fn give(shared: &Arc<Shared>, missing: Vec<Missing>) {
    stream::iter(missing).for_each_concurrent(AT_A_TIME, |missing| give_one(shared, missing)).await;
}

async fn give_one(shared: &Arc<Shared>, Missing { tracked, at }: Missing) {
    // A release waits for its turn too, so that nothing is put back behind it.
    let _turn = tracked.turn().await;
    let Phase::Holding { grant, .. } = tracked.phase() else { return };
    for at in &at {
        tracked.on_asked(*at);
    }
    let request = tracked.request(Patience::Try, grant.fence);
    let acquire = |backend: Arc<dyn Backend>| {
        let request = &request;
        async move { backend.acquire(request).await }
    };
    // Where it is refused, the next renewal asks again.
    shared.nodes.ask_each(at, acquire).await;
}
