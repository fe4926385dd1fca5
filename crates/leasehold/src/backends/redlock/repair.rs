//! Giving a lease that a majority holds to the other nodes, too.
//!
//! A lease that is held by a bare majority is lost with the next node that
//! fails. Two things leave one at that: a new lease asks a majority first, and
//! a node may have been away or have forgotten it. So a lease that has been held
//! for a moment is given to the nodes that were not asked, and one that a node
//! no longer knows is given back to it. The node numbers that grant higher,
//! which changes nothing: the fence is what a majority stored first, and whoever
//! is granted the resource there later is above both.
//!
//! Someone else may release or evict the lease meanwhile. So it is renewed once
//! it was given: if a majority no longer has it, what was given is taken back.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use parking_lot::Mutex;

use super::{
    RedlockShared,
    leases::{LeasePhase, Tracked},
    release, renew,
};
use crate::{
    backend::Operation,
    lease::{Moment, Outcome, Patience, Renewal, Standing, Ttl},
};

/// How long a lease is held before the nodes that were not asked get it: most are over by then.
const SPREAD_AFTER: Duration = Duration::from_millis(20);
/// How many leases are given to other nodes in one call.
const MAX_LEASES: usize = 64;

/// A lease that a majority holds, and the nodes that do not have it.
pub(super) struct Missing {
    pub(super) tracked: Arc<Tracked>,
    pub(super) at: Vec<usize>,
    /// When a majority was last asked for it.
    pub(super) since: Moment,
}

/// Leases that a majority granted a moment ago, in that order; one task at a time looks after them.
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
pub(super) fn spread_soon(shared: &Arc<RedlockShared>, tracked: &Arc<Tracked>) {
    let nodes = &shared.nodes;
    if (0..nodes.len()).all(|at| tracked.may_be_at(at)) {
        return;
    }
    if shared.new_leases.add(nodes.clock().now(), Arc::clone(tracked)) {
        shared.runtime.spawn(spread(Arc::clone(shared)));
    }
}

async fn spread(shared: Arc<RedlockShared>) {
    let clock = Arc::clone(shared.nodes.clock());
    while let Some(due) = shared.new_leases.due(clock.now()) {
        let missing = due.into_iter().map(|(since, tracked)| {
            let at = (0..shared.nodes.len()).filter(|at| !tracked.may_be_at(*at)).collect();
            Missing { tracked, at, since }
        });
        give(&shared, missing.collect()).await;
        clock.sleep_until(clock.now().after(SPREAD_AFTER / 2)).await;
    }
}

/// Gives leases to nodes that lack them, in the background.
pub(super) fn give_later(shared: &Arc<RedlockShared>, missing: Vec<Missing>) {
    if !missing.is_empty() {
        let runtime = shared.runtime.clone();
        let shared = Arc::clone(shared);
        runtime.spawn(async move { give(&shared, missing).await });
    }
}

/// Gives leases to nodes that lack them. Where that fails, the next renewal tries again.
async fn give(shared: &Arc<RedlockShared>, missing: Vec<Missing>) {
    for some in missing.chunks(MAX_LEASES) {
        give_some(shared, some).await;
    }
}

async fn give_some(shared: &Arc<RedlockShared>, missing: &[Missing]) {
    let nodes = &shared.nodes;
    let mut operations: Vec<Vec<Operation>> = nodes.iter().map(|_| Vec::new()).collect();
    let (mut given, mut renewals, mut round_locks) = (Vec::new(), Vec::new(), Vec::new());
    for one in missing {
        let tracked = &one.tracked;
        // A release takes the round lock too: a lease that some nodes have released already looks like one that is lost.
        let Some(round_lock) = tracked.try_lock_round() else { continue };
        let LeasePhase::Holding { grant, .. } = tracked.phase() else { continue };
        // The renewal is shorter than the time left, so it extends nothing.
        let past = nodes.clock().now().since(one.since) + nodes.limit() * 2;
        let Some(left) = tracked.ttl().get().checked_sub(past).and_then(|left| Ttl::new(left).ok()) else { continue };
        let request = Arc::new(tracked.request(Patience::Try, grant.fence));
        for at in &one.at {
            tracked.on_asked(*at);
            operations[*at].push(Operation::Acquire(Arc::clone(&request)));
        }
        renewals.push(Renewal::new(tracked.key.clone(), left));
        given.push(one);
        round_locks.push(round_lock);
    }
    if given.is_empty() {
        return;
    }
    nodes.perform_each(&operations).await;
    // What cannot be told now is left to the next renewal.
    let standings = renew::confirm(shared, renewals).await.unwrap_or_default();
    for (Missing { tracked, at, .. }, standing) in given.into_iter().zip(standings) {
        if standing == Standing::Gone {
            for at in at {
                release::later(shared, *at, &tracked.key, &Outcome::Cancelled, tracked.ttl());
            }
        }
    }
}
