//! Giving leases back on all nodes: the one whose queue is waited in last, those that hang later.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use parking_lot::Mutex;

use super::{
    RedlockShared, errors,
    leases::{LeasePhase, RoundLock, Tracked},
    round::Round,
    vote::{Cleanup, Vote},
};
use crate::{
    Error, Result,
    backend::{Backend, Backoff},
    lease::{LeaseKey, Moment, Outcome, Released, Ttl},
};

/// Ends a lease, or leaves the queue, on all nodes.
///
/// # Cancel safety
/// If the future is dropped, a task does it again.
pub(super) async fn everywhere(shared: &Arc<RedlockShared>, key: &LeaseKey, outcome: &Outcome) -> Result<Released> {
    let undo = Undo::new(shared, key, outcome);
    let tracked = shared.leases.get(key.id);
    let round_lock = match &tracked {
        Some(tracked) => Some(tracked.lock_round().await),
        None => None,
    };
    let queue_node = match tracked.as_ref().map(|tracked| tracked.phase()) {
        Some(LeasePhase::Waiting { queue_node } | LeasePhase::Holding { queue_node, .. }) => queue_node,
        _ => shared.nodes.queue_node(),
    };
    // Where nobody waits, the order does not matter, and all at once takes half the time.
    let others_may_wait = shared.contention.is_busy(&key.resource) || tracked.as_ref().is_none_or(|one| one.waited());
    let answers = match &tracked {
        Some(tracked) if !others_may_wait => {
            let answers = shared.batches.release(tracked, outcome).await;
            note_unanswered(Some(tracked), answers.as_deref().unwrap_or_default());
            answers
        }
        _ => Ok({
            let may_have_it = |at: &usize| tracked.as_ref().is_none_or(|tracked| tracked.may_be_at(*at));
            let asked: Vec<usize> = (0..shared.nodes.len()).filter(may_have_it).collect();
            at_nodes(shared, key, tracked.as_deref(), outcome, &asked, Some(queue_node)).await
        }),
    };
    if let Some(tracked) = &tracked {
        shared.leases.forget(tracked);
    }
    drop(round_lock);
    undo.disarm();

    let (mut freed, mut left, mut failures) = (0, 0, Vec::new());
    for (at, answer) in answers? {
        match answer {
            Ok(Released::Freed) => freed += 1,
            Ok(Released::LeftQueue) => left += 1,
            Ok(Released::Gone | Released::Shared) => {}
            Err(error) => failures.push((at, error)),
        }
    }
    let majority = shared.nodes.majority();
    if failures.len() + majority > shared.nodes.len() {
        let message = shared.nodes.message(&format!("the release of {} on redlock", key.resource), &failures);
        return Err(Error::unanswered(message).about(&key.resource));
    }
    let ttl = tracked.map_or(Ttl::DEFAULT, |tracked| tracked.ttl());
    for (at, _) in &failures {
        later(shared, *at, key, outcome, ttl);
    }
    Ok(match (freed, left) {
        (0, 0) => Released::Gone,
        (freed, _) if freed > 0 && freed + failures.len() >= majority => Released::Freed,
        _ => Released::LeftQueue,
    })
}

/// Releases these nodes' grants, whether or not the lease continues on others.
pub(super) async fn free(shared: &Arc<RedlockShared>, tracked: &Tracked, outcome: &Outcome, at: &[usize], last: usize) {
    if at.is_empty() {
        return;
    }
    for (at, answer) in at_nodes(shared, &tracked.key, Some(tracked), outcome, at, Some(last)).await {
        if answer.is_err() {
            later(shared, at, &tracked.key, outcome, tracked.ttl());
        }
    }
}

/// Releases at these nodes; at `last` only when all the others have answered. Those that hang are not waited for.
async fn at_nodes(
    shared: &Arc<RedlockShared>,
    key: &LeaseKey,
    tracked: Option<&Tracked>,
    outcome: &Outcome,
    at: &[usize],
    last: Option<usize>,
) -> Vec<(usize, Result<Released>)> {
    let call = |backend: Arc<dyn Backend>| async move { backend.release(key, outcome).await };
    let reachable = shared.nodes.reachable();
    let (asked, hanging): (Vec<usize>, Vec<usize>) = at.iter().partition(|at| reachable.contains(at));
    let (last, others): (Vec<usize>, Vec<usize>) = asked.into_iter().partition(|at| Some(*at) == last);
    let mut answers = shared.nodes.ask_each(others, call).await;
    if !last.is_empty() {
        answers.extend(shared.nodes.ask_each(last, call).await);
    }
    note_unanswered(tracked, &answers);
    answers.extend(hanging.into_iter().map(|at| (at, Err(errors::hangs()))));
    answers
}

fn note_unanswered(tracked: Option<&Tracked>, answers: &[(usize, Result<Released>)]) {
    for (at, answer) in answers {
        if let (Some(tracked), Err(error)) = (tracked, answer)
            && error.outcome_unknown()
        {
            tracked.on_release_unanswered(*at);
        }
    }
}

/// Releases a lease if it is dropped: the future that would have gone on was dropped.
pub(super) struct Undo {
    of: Option<(Arc<RedlockShared>, LeaseKey, Outcome)>,
}

impl Undo {
    pub(super) fn new(shared: &Arc<RedlockShared>, key: &LeaseKey, outcome: &Outcome) -> Self {
        Self { of: Some((Arc::clone(shared), key.clone(), outcome.clone())) }
    }

    pub(super) fn disarm(mut self) {
        self.of = None;
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        if let Some((shared, key, outcome)) = self.of.take() {
            everywhere_later(shared, key, outcome);
        }
    }
}

/// Ends a lease, or leaves the queue, on all nodes, in the background.
pub(super) fn everywhere_later(shared: Arc<RedlockShared>, key: LeaseKey, outcome: Outcome) {
    let runtime = shared.runtime.clone();
    runtime.spawn(async move { everywhere(&shared, &key, &outcome).await });
}

impl Round {
    /// Gives back what was granted so far, except at the queue node if the cleanup keeps the position there.
    pub(super) async fn give_back(&mut self, cleanup: Cleanup) {
        let spared = matches!(cleanup, Cleanup::KeepPosition).then_some(self.queue_node);
        let granted: Vec<usize> =
            self.grants().into_iter().map(|(at, _)| at).filter(|at| Some(*at) != spared).collect();
        for at in &granted {
            self.votes[*at] = Vote::Gone;
        }
        free(&self.shared, &self.tracked, &Outcome::Cancelled, &granted, self.queue_node).await;
    }

    /// Handles the answers that are still to come, in the background, and unlocks the round then.
    pub(super) fn settle_later(mut self, round_lock: RoundLock, cleanup: Cleanup) {
        if self.calls.is_empty() && matches!(cleanup, Cleanup::KeepAll(_) | Cleanup::KeepPosition) {
            return self.queue_uncertain_releases(cleanup);
        }
        let runtime = self.shared.runtime.clone();
        runtime.spawn(async move {
            self.settle(cleanup).await;
            drop(round_lock);
        });
    }

    /// Handles the answers that are still to come.
    pub(super) async fn settle(&mut self, cleanup: Cleanup) {
        while self.next(self.votes.len()).await {}
        match cleanup {
            Cleanup::KeepAll(fence) => self.raise_to(fence).await,
            Cleanup::KeepPosition | Cleanup::GiveBack | Cleanup::End => self.give_back(cleanup).await,
        }
        self.queue_uncertain_releases(cleanup);
        if matches!(cleanup, Cleanup::GiveBack) {
            self.shared.leases.forget(&self.tracked);
        }
    }

    /// Queues releases at nodes that may have granted without answering, for when they can be reached again.
    fn queue_uncertain_releases(&mut self, cleanup: Cleanup) {
        if matches!(cleanup, Cleanup::KeepAll(_)) {
            return;
        }
        for at in 0..self.votes.len() {
            if matches!(&self.votes[at], Vote::Failed(error) if error.outcome_unknown())
                && !(at == self.queue_node && matches!(cleanup, Cleanup::KeepPosition))
            {
                later(&self.shared, at, &self.tracked.key, &Outcome::Cancelled, self.tracked.ttl());
            }
        }
    }
}

/// A release that a node has not answered yet.
#[derive(Debug)]
struct PendingRelease {
    key: LeaseKey,
    outcome: Outcome,
    until: Moment,
}

/// What is still to be released at one node; one task at a time does it.
#[derive(Debug, Default)]
pub(super) struct PendingReleases(Mutex<Pending>);

#[derive(Debug, Default)]
struct Pending {
    /// Those that were tried longest ago come first, so that one that is refused holds up no other.
    releases: VecDeque<PendingRelease>,
    /// Whether a task is sending them.
    is_driven: bool,
}

impl PendingReleases {
    /// Adds one; returns whether a task has to be started.
    fn add(&self, release: PendingRelease) -> bool {
        let mut pending = self.0.lock();
        pending.releases.push_back(release);
        !std::mem::replace(&mut pending.is_driven, true)
    }

    /// The next one whose lease has not lapsed; on `None` the task that asked must end.
    fn next(&self, now: Moment) -> Option<PendingRelease> {
        let mut pending = self.0.lock();
        pending.releases.retain(|release| release.until > now);
        let next = pending.releases.pop_front();
        pending.is_driven = next.is_some();
        next
    }

    fn put_back(&self, release: PendingRelease) {
        self.0.lock().releases.push_back(release);
    }
}

/// Releases at a node that did not answer as soon as it does, unless the lease has lapsed by then.
pub(super) fn later(shared: &Arc<RedlockShared>, at: usize, key: &LeaseKey, outcome: &Outcome, ttl: Ttl) {
    if let Some(tracked) = shared.leases.get(key.id) {
        tracked.on_release_later();
    }
    let until = shared.nodes.clock().now().after(ttl.get());
    if shared.pending_releases[at].add(PendingRelease { key: key.clone(), outcome: outcome.clone(), until }) {
        shared.runtime.spawn(catch_up(Arc::clone(shared), at));
    }
}

async fn catch_up(shared: Arc<RedlockShared>, at: usize) {
    let clock = Arc::clone(shared.nodes.clock());
    let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));
    while let Some(release) = shared.pending_releases[at].next(clock.now()) {
        let tracked = shared.leases.get(release.key.id);
        let round_lock = match &tracked {
            Some(tracked) => Some(tracked.lock_round().await),
            None => None,
        };
        let is_wanted_there = match tracked.as_ref().map_or(LeasePhase::Ended, |tracked| tracked.phase()) {
            LeasePhase::Holding { .. } => true,
            LeasePhase::Waiting { queue_node } => queue_node == at,
            LeasePhase::New | LeasePhase::Ended => false,
        };
        if is_wanted_there {
            continue;
        }
        let call = |backend: Arc<dyn Backend>| {
            let PendingRelease { key, outcome, .. } = &release;
            async move { backend.release(key, outcome).await }
        };
        let answers = shared.nodes.ask_each([at], call).await;
        note_unanswered(tracked.as_deref(), &answers);
        let released = answers.iter().all(|(_, answer)| answer.is_ok());
        drop(round_lock);
        if released {
            backoff.reset();
        } else {
            shared.pending_releases[at].put_back(release);
            clock.sleep_until(clock.now().after(backoff.pause())).await;
        }
    }
}
