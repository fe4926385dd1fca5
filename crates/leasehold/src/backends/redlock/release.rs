//! Giving leases back on all nodes, the one whose queue is waited in last.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;

use super::{
    Shared,
    fan::Fan,
    leases::{Pauses, Phase, Tracked},
};
use crate::{
    Error, Result,
    lease::{LeaseKey, Moment, Outcome, Released, Ttl},
};

/// Ends a lease, or leaves the queue, on all nodes.
pub(super) async fn everywhere(shared: &Arc<Shared>, key: &LeaseKey, outcome: &Outcome) -> Result<Released> {
    let tracked = shared.leases.get(key.id);
    let turn = match &tracked {
        Some(tracked) => Some(tracked.turn().await),
        None => None,
    };
    let last = match tracked.as_ref().map(|tracked| tracked.phase()) {
        Some(Phase::Waiting { queue } | Phase::Holding { queue, .. }) => queue,
        _ => shared.nodes.lead(),
    };
    let all: Vec<usize> = (0..shared.nodes.len()).collect();
    let answers = in_order(shared, key, outcome, &all, last).await;
    if let Some(tracked) = &tracked {
        shared.leases.forget(tracked);
    }
    drop(turn);

    let (mut freed, mut left, mut failures) = (0, 0, Vec::new());
    for (at, answer) in answers {
        match answer {
            Ok(Released::Freed) => freed += 1,
            Ok(Released::LeftQueue) => left += 1,
            Ok(Released::Gone | Released::Shared) => {}
            Err(error) => failures.push((at, error)),
        }
    }
    let majority = shared.nodes.majority();
    if failures.len() + majority > shared.nodes.len() {
        let words = shared.nodes.words(&format!("the release of {} on redlock", key.resource), &failures);
        return Err(Error::unanswered(words).about(&key.resource));
    }
    let ttl = tracked.map_or(Ttl::DEFAULT, |tracked| tracked.ttl());
    for (at, _) in &failures {
        owe(shared, *at, key, outcome, ttl);
    }
    Ok(match (freed, left) {
        (0, 0) => Released::Gone,
        (freed, _) if freed > 0 && freed + failures.len() >= majority => Released::Freed,
        _ => Released::LeftQueue,
    })
}

/// Gives back what these nodes granted to a lease that goes on without them, or does not go on.
pub(super) async fn free(shared: &Arc<Shared>, tracked: &Tracked, outcome: &Outcome, at: &[usize], last: usize) {
    for (at, answer) in in_order(shared, &tracked.key, outcome, at, last).await {
        if answer.is_err() {
            owe(shared, at, &tracked.key, outcome, tracked.ttl());
        }
    }
}

/// Releases at these nodes: at `last` only when all the others are done.
async fn in_order(
    shared: &Arc<Shared>,
    key: &LeaseKey,
    outcome: &Outcome,
    at: &[usize],
    last: usize,
) -> Vec<(usize, Result<Released>)> {
    let limit = shared.nodes.limit();
    let call = |at: usize| {
        let (node, key, outcome) = (Arc::clone(shared.nodes.get(at)), key.clone(), outcome.clone());
        async move { node.ask(limit, node.backend.release(&key, &outcome)).await }
    };
    let mut others = Fan::new();
    for at in at.iter().copied().filter(|at| *at != last) {
        others.add(at, call(at));
    }
    let mut answers = others.all().await;
    if at.contains(&last) {
        answers.push((last, call(last).await));
    }
    answers
}

/// A release that a node has not heard of yet.
#[derive(Debug)]
struct Debt {
    key: LeaseKey,
    outcome: Outcome,
    until: Moment,
}

/// What is still to be released at one node; one task at a time pays.
#[derive(Debug, Default)]
pub(super) struct Debts(Mutex<Owed>);

#[derive(Debug, Default)]
struct Owed {
    debts: Vec<Debt>,
    paying: bool,
}

impl Debts {
    fn add(&self, debt: Debt) -> bool {
        let mut owed = self.0.lock();
        owed.debts.push(debt);
        !std::mem::replace(&mut owed.paying, true)
    }

    /// The next one that is not over by itself.
    fn next(&self, now: Moment) -> Option<Debt> {
        let mut owed = self.0.lock();
        owed.debts.retain(|debt| debt.until > now);
        let next = owed.debts.pop();
        owed.paying = next.is_some();
        next
    }

    fn put_back(&self, debt: Debt) {
        self.0.lock().debts.push(debt);
    }
}

/// Releases at a node that did not answer, as soon as it does, unless the lease has lapsed by then.
pub(super) fn owe(shared: &Arc<Shared>, at: usize, key: &LeaseKey, outcome: &Outcome, ttl: Ttl) {
    let until = shared.nodes.clock().now().after(ttl.get());
    if shared.debts[at].add(Debt { key: key.clone(), outcome: outcome.clone(), until }) {
        shared.runtime.spawn(pay(Arc::clone(shared), at));
    }
}

async fn pay(shared: Arc<Shared>, at: usize) {
    let clock = Arc::clone(shared.nodes.clock());
    let pauses = |key: &LeaseKey| Pauses::new(key.id, Duration::from_millis(100), Duration::from_secs(2));
    let mut pause: Option<Pauses> = None;
    while let Some(debt) = shared.debts[at].next(clock.now()) {
        let tracked = shared.leases.get(debt.key.id);
        let turn = match &tracked {
            Some(tracked) => Some(tracked.turn().await),
            None => None,
        };
        let wanted_there = match tracked.map_or(Phase::Ended, |tracked| tracked.phase()) {
            Phase::Holding { .. } => true,
            Phase::Waiting { queue } => queue == at,
            Phase::Asked | Phase::Ended => false,
        };
        if wanted_there {
            continue;
        }
        let node = shared.nodes.get(at);
        let released = node.ask(shared.nodes.limit(), node.backend.release(&debt.key, &debt.outcome)).await;
        drop(turn);
        if released.is_ok() {
            pause = None;
        } else {
            let length = pause.get_or_insert_with(|| pauses(&debt.key)).next();
            shared.debts[at].put_back(debt);
            clock.sleep_until(clock.now().after(length)).await;
        }
    }
}
