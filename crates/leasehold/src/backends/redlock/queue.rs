//! Waiting in one queue, and completing the quorum when the turn has come.
//!
//! A lease waits in the queue of one node only: waiting on all of them would
//! split the votes. When that node lets it in, the others are asked without
//! waiting. They are free by then, because a release frees that node last.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;

use super::{
    RedlockShared,
    leases::{LeasePhase, RoundLock, Tracked},
    release, repair,
    round::Round,
    vote::{Cleanup, QueueNodeCall, RoundEnd},
};
use crate::{
    Result,
    backend::{Backoff, Hint, Hints},
    lease::{Decision, Fence, Grant, LeaseId, Outcome, Patience, QueuePosition, Resource},
};

/// Result of asking the other nodes for a lease its queue node granted.
#[derive(Debug)]
pub(super) enum Progress {
    /// A majority holds.
    Granted(Grant),
    /// Its turn has not come after all.
    Waiting(QueuePosition),
    /// It stays at the head: others are in the way elsewhere, or cannot be reached.
    NotYet(QueuePosition),
    /// Its position is gone.
    Gone,
}

/// The position with nobody ahead of a lease that will hold under at least this fence.
pub(super) fn head_of_queue(fence: Fence) -> QueuePosition {
    QueuePosition { ahead: 0, last_fence: Fence::new(fence.get().saturating_sub(1)), ask_again_in: None }
}

/// Requests a lease at one node alone, or asks for its position in that node's queue.
pub(super) async fn ask_at(
    shared: &Arc<RedlockShared>,
    tracked: &Tracked,
    queue_node: usize,
    patience: Patience,
) -> Result<Decision> {
    let node = shared.nodes.get(queue_node);
    let request = tracked.request(patience, shared.nodes.proposal());
    tracked.on_asked(queue_node);
    let decision = node.answer_within(shared.nodes.limit(), node.backend()?.acquire(&request)).await?;
    if matches!(decision, Decision::Queued(_) | Decision::Granted(_)) {
        tracked.set_phase(LeasePhase::Waiting { queue_node });
    }
    Ok(decision)
}

/// Asks the first node in the list that answers alone: returns its index and decision.
pub(super) async fn ask_first(
    shared: &Arc<RedlockShared>,
    tracked: &Tracked,
    patience: Patience,
) -> Result<(usize, Decision)> {
    let before = tracked.phase();
    let mut failures = Vec::new();
    for queue_node in shared.nodes.queue_node_candidates() {
        match ask_at(shared, tracked, queue_node, patience).await {
            Ok(decision) => {
                if let LeasePhase::Waiting { queue_node: old } = before
                    && old != queue_node
                {
                    release::later(shared, old, &tracked.key, &Outcome::Cancelled, tracked.ttl());
                }
                return Ok((queue_node, decision));
            }
            // What a node cannot do, the others cannot do either.
            Err(error) if !error.is_retryable() => return Err(error),
            Err(error) => {
                if error.outcome_unknown() {
                    release::later(shared, queue_node, &tracked.key, &Outcome::Cancelled, tracked.ttl());
                }
                failures.push((queue_node, error));
            }
        }
    }
    Err(shared.nodes.too_few(&tracked.key.resource, &failures))
}

/// Asks the other nodes for a lease that its queue node granted.
pub(super) async fn complete(
    shared: &Arc<RedlockShared>,
    tracked: &Arc<Tracked>,
    queue_node: usize,
    queue_node_call: QueueNodeCall,
    round_lock: RoundLock,
) -> Progress {
    let mut round = Round::begin(shared, tracked, queue_node, queue_node_call);
    let end = round.decide().await;
    let (progress, cleanup) = match end {
        RoundEnd::Granted(grant) => {
            tracked.set_phase(LeasePhase::Holding { grant, queue_node });
            repair::spread_soon(shared, tracked);
            round.settle_later(round_lock, Cleanup::KeepAll(grant.fence));
            return Progress::Granted(grant);
        }
        RoundEnd::Gone => {
            tracked.set_phase(LeasePhase::Ended);
            (Progress::Gone, Cleanup::End)
        }
        RoundEnd::Queued(position) => (Progress::Waiting(position), Cleanup::KeepPosition),
        _ => {
            let fence = round.grant_at_queue_node().map(|grant| grant.fence);
            round.give_back(Cleanup::KeepPosition).await;
            round.settle(Cleanup::KeepPosition).await;
            let fence = fence.unwrap_or(match queue_node_call {
                QueueNodeCall::HandedOver(fence) => fence,
                QueueNodeCall::Granted(grant) => grant.fence,
                QueueNodeCall::Ask(_) => Fence::default(),
            });
            return stay_or_move(shared, tracked, queue_node, fence).await;
        }
    };
    round.give_back(cleanup).await;
    round.settle_later(round_lock, cleanup);
    progress
}

/// Stays at the head of a queue, unless a node before it in the list answers again or this one does not:
/// two who wait at the heads of two queues would be in each other's way for good.
async fn stay_or_move(shared: &Arc<RedlockShared>, tracked: &Tracked, queue_node: usize, fence: Fence) -> Progress {
    if shared.nodes.queue_node() == queue_node {
        return Progress::NotYet(head_of_queue(fence));
    }
    match ask_first(shared, tracked, Patience::Queue).await {
        Ok((_, Decision::Queued(position))) => Progress::Waiting(position),
        Ok((_, Decision::Granted(grant))) => Progress::NotYet(head_of_queue(grant.fence)),
        Ok((_, Decision::Busy(_) | Decision::WrongShape { .. })) | Err(_) => Progress::NotYet(head_of_queue(fence)),
    }
}

/// Completes the quorum in the background and sends a hint when that is done.
pub(super) fn complete_in_background(shared: &Arc<RedlockShared>, tracked: &Arc<Tracked>, fence: Fence) {
    if tracked.on_hand_over(fence) {
        shared.runtime.spawn(completion_task(Arc::clone(shared), Arc::clone(tracked), None));
    }
}

/// The same after a pause, because others are in the way.
pub(super) fn complete_after_pause(shared: &Arc<RedlockShared>, tracked: &Arc<Tracked>, fence: Fence) {
    if tracked.on_hand_over(fence) {
        let pause = backoff().pause();
        shared.runtime.spawn(completion_task(Arc::clone(shared), Arc::clone(tracked), Some(pause)));
    }
}

/// Nothing reports when the other nodes become free. A collision clears within two round trips; a real holder is polled
/// ever less often.
fn backoff() -> Backoff {
    Backoff::new(Duration::from_millis(2), Duration::from_millis(250))
}

async fn completion_task(shared: Arc<RedlockShared>, tracked: Arc<Tracked>, mut pause: Option<Duration>) {
    let mut backoff = backoff();
    while let Some(fence) = tracked.next_hand_over() {
        let mut fence = fence;
        loop {
            if let Some(pause) = pause.take() {
                let clock = shared.nodes.clock();
                clock.sleep_until(clock.now().after(pause)).await;
            }
            let round_lock = tracked.lock_round().await;
            let LeasePhase::Waiting { queue_node } = tracked.phase() else { break };
            if tracked.is_abandoned(shared.nodes.clock().now()) || !shared.nodes.may_grant(&tracked) {
                drop(round_lock);
                let _lapses = release::everywhere(&shared, &tracked.key, &Outcome::Cancelled).await;
                // Its caller, if it is there, may begin anew under another id.
                shared.hints.send(Hint::Changed { resource: tracked.key.resource.clone() });
                break;
            }
            match complete(&shared, &tracked, queue_node, QueueNodeCall::HandedOver(fence), round_lock).await {
                Progress::Granted(grant) => {
                    shared.hints.send(Hint::granted(tracked.key.id, grant.fence));
                    break;
                }
                Progress::NotYet(position) => {
                    fence = Fence::new(position.last_fence.get() + 1);
                    pause = Some(backoff.pause());
                }
                Progress::Waiting(_) => break,
                Progress::Gone => {
                    shared.hints.send(Hint::Changed { resource: tracked.key.resource.clone() });
                    break;
                }
            }
        }
    }
}

/// Handles the hints of one node for as long as it sends any.
pub(super) async fn listen(shared: Weak<RedlockShared>, at: usize, mut hints: Hints) {
    while let Some(hint) = hints.next().await {
        let Some(shared) = shared.upgrade() else { return };
        match hint {
            Hint::Granted { id, fence, .. } => on_grant(&shared, at, id, fence),
            Hint::Evicted { id } if shared.leases.get(id).is_none() => {}
            hint => shared.hints.send(hint),
        }
    }
}

/// Asks the other nodes for a lease that this node has granted, if it is the lease's queue node. At any other node, the
/// grant is an answer to a round that is under way.
fn on_grant(shared: &Arc<RedlockShared>, at: usize, id: LeaseId, fence: Fence) {
    if let Some(tracked) = shared.leases.get(id) {
        match tracked.phase() {
            LeasePhase::New => complete_in_background(shared, &tracked, fence),
            LeasePhase::Waiting { queue_node } if queue_node == at => complete_in_background(shared, &tracked, fence),
            LeasePhase::Waiting { .. } | LeasePhase::Holding { .. } | LeasePhase::Ended => {}
        }
    }
}

/// Which names were last seen busy, so that asking for them does not obstruct their queues.
///
/// Asking all nodes at once takes those beside the queue node for a moment even where that one refuses, and the head
/// of the queue needs them. So the queue node is asked alone, first, for a name that was busy, and by a try that knows
/// nothing of its name: callers that try usually compete with others.
#[derive(Debug, Default)]
pub(super) struct Contention(Mutex<HashMap<Resource, bool>>);

impl Contention {
    /// More names than this are forgotten together; each costs one round trip then.
    const MAX_NAMES: usize = 10_000;

    pub(super) fn asks_queue_first(&self, name: &Resource, patience: Patience) -> bool {
        self.0.lock().get(name).copied().unwrap_or(patience == Patience::Try)
    }

    pub(super) fn is_busy(&self, name: &Resource) -> bool {
        self.0.lock().get(name).copied().unwrap_or(false)
    }

    pub(super) fn note(&self, name: &Resource, patience: Patience, busy: bool) {
        let mut names = self.0.lock();
        if let Some(known) = names.get_mut(name) {
            *known = busy;
        } else if busy || patience == Patience::Try {
            if names.len() >= Self::MAX_NAMES {
                names.clear();
            }
            names.insert(name.clone(), busy);
        }
    }
}
