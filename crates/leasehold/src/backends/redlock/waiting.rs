//! Waiting in one queue, and completing the quorum when the turn has come.
//!
//! A lease waits in the queue of one node only: places on all of them would
//! split the votes. When that node lets it in, the others are asked without
//! waiting. They are free by then, because a release frees that node last.

use std::{sync::Arc, time::Duration};

use super::{
    Shared,
    leases::{Pauses, Phase, Tracked, Turn},
    pursuit::Pursuit,
    release,
    said::{End, Entry, Tail},
};
use crate::{
    Result,
    backend::{Hint, Hints},
    lease::{Decision, Fence, Grant, LeaseId, Outcome, Patience, QueuePosition},
};

/// Where a lease waits.
#[derive(Debug)]
pub(super) enum Placed {
    /// In the queue of a node.
    Queued { place: QueuePosition },
    /// At the head of the queue of a node: it holds there.
    Head { queue: usize, fence: Fence },
    /// Nowhere: the name is in use as something else.
    Refused(Decision),
}

/// How far a lease whose turn has come got with the other nodes.
#[derive(Debug)]
pub(super) enum Progress {
    /// A majority holds.
    Granted(Grant),
    /// Its turn has not come after all.
    Waiting(QueuePosition),
    /// It stays at the head: others are in the way elsewhere, or cannot be reached.
    NotYet(QueuePosition),
    /// Its place is gone.
    Gone,
}

/// A place with nobody ahead; the fence it will hold under is above `fence` less one.
pub(super) fn head_of_queue(fence: Fence) -> QueuePosition {
    QueuePosition { ahead: 0, last_fence: Fence::new(fence.get().saturating_sub(1)), ask_again_in: None }
}

/// Asks one node for a place in its queue, or about the one it has there.
pub(super) async fn place_at(shared: &Arc<Shared>, tracked: &Tracked, queue: usize) -> Result<Placed> {
    let node = shared.nodes.get(queue);
    let request = tracked.request(Patience::Queue, shared.nodes.proposal());
    let decision = node.ask(shared.nodes.limit(), node.backend.acquire(&request)).await?;
    Ok(match decision {
        Decision::Queued(place) => {
            tracked.enter(Phase::Waiting { queue });
            Placed::Queued { place }
        }
        Decision::Granted(grant) => {
            tracked.enter(Phase::Waiting { queue });
            Placed::Head { queue, fence: grant.fence }
        }
        refused => Placed::Refused(refused),
    })
}

/// Takes a place at the first node in the list that answers.
pub(super) async fn take_place(shared: &Arc<Shared>, tracked: &Tracked) -> Result<Placed> {
    let before = tracked.phase();
    let mut failures = Vec::new();
    for queue in shared.nodes.in_order_of_lead() {
        match place_at(shared, tracked, queue).await {
            Ok(placed) => {
                if let Phase::Waiting { queue: old } = before
                    && old != queue
                {
                    release::owe(shared, old, &tracked.key, &Outcome::Cancelled, tracked.ttl());
                }
                return Ok(placed);
            }
            Err(error) => failures.push((queue, error)),
        }
    }
    Err(shared.nodes.too_few(&tracked.key.resource, &failures))
}

/// Asks the other nodes for a lease that holds at the node it waited at.
pub(super) async fn complete(
    shared: &Arc<Shared>,
    tracked: &Arc<Tracked>,
    queue: usize,
    fence: Fence,
    turn: Turn,
) -> Progress {
    let mut pursuit = Pursuit::begin(shared, tracked, queue, Entry::Held(fence));
    let end = pursuit.decide().await;
    let (progress, tail) = match end {
        End::Granted(grant) => {
            tracked.enter(Phase::Holding { grant, queue });
            pursuit.settle(turn, Tail::Keep(grant.fence));
            return Progress::Granted(grant);
        }
        End::Gone => {
            tracked.enter(Phase::Ended);
            (Progress::Gone, Tail::Lose)
        }
        End::Queued(place) => (Progress::Waiting(place), Tail::KeepPlace),
        _ => {
            pursuit.give_back(Tail::KeepPlace).await;
            pursuit.settle_now(Tail::KeepPlace).await;
            return stay_or_move(shared, tracked, queue, fence).await;
        }
    };
    pursuit.give_back(tail).await;
    pursuit.settle(turn, tail);
    progress
}

/// Keeps the head of a queue, unless a node before it in the list answers again or this one does not:
/// two who wait at the heads of two queues would be in each other's way for good.
async fn stay_or_move(shared: &Arc<Shared>, tracked: &Tracked, queue: usize, fence: Fence) -> Progress {
    if shared.nodes.lead() == queue {
        return Progress::NotYet(head_of_queue(fence));
    }
    match take_place(shared, tracked).await {
        Ok(Placed::Queued { place }) => Progress::Waiting(place),
        Ok(Placed::Head { fence, .. }) => Progress::NotYet(head_of_queue(fence)),
        Ok(Placed::Refused(_)) | Err(_) => Progress::NotYet(head_of_queue(fence)),
    }
}

/// Completes the quorum in the background and tells when it is done.
pub(super) fn drive(shared: &Arc<Shared>, tracked: &Arc<Tracked>, fence: Fence) {
    if tracked.hint(fence) {
        shared.runtime.spawn(run(Arc::clone(shared), Arc::clone(tracked), None));
    }
}

/// The same, after a pause: others are in the way.
pub(super) fn drive_later(shared: &Arc<Shared>, tracked: &Arc<Tracked>, fence: Fence) {
    if tracked.hint(fence) {
        let pause = pauses(tracked.key.id).next();
        shared.runtime.spawn(run(Arc::clone(shared), Arc::clone(tracked), Some(pause)));
    }
}

/// Nothing tells when the others' nodes become free, so they are asked again after 1 ms to 1 s.
fn pauses(id: LeaseId) -> Pauses {
    Pauses::new(id, Duration::from_millis(10), Duration::from_secs(1))
}

async fn run(shared: Arc<Shared>, tracked: Arc<Tracked>, mut pause: Option<Duration>) {
    let mut pauses = pauses(tracked.key.id);
    while let Some(fence) = tracked.next_hint() {
        let mut fence = fence;
        loop {
            if let Some(pause) = pause.take() {
                let clock = shared.nodes.clock();
                clock.sleep_until(clock.now().after(pause)).await;
            }
            let turn = tracked.turn().await;
            let Phase::Waiting { queue } = tracked.phase() else { break };
            if tracked.is_abandoned(shared.nodes.clock().now()) {
                drop(turn);
                let _lapses = release::everywhere(&shared, &tracked.key, &Outcome::Cancelled).await;
                break;
            }
            match complete(&shared, &tracked, queue, fence, turn).await {
                Progress::Granted(grant) => {
                    shared.hints.send(Hint::granted(tracked.key.id, grant.fence));
                    break;
                }
                Progress::NotYet(place) => {
                    fence = Fence::new(place.last_fence.get() + 1);
                    pause = Some(pauses.next());
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

/// Hears what a node has to say for as long as it has.
pub(super) async fn listen(shared: std::sync::Weak<Shared>, at: usize, mut hints: Hints) {
    while let Some(hint) = hints.next().await {
        let Some(shared) = shared.upgrade() else { return };
        match hint {
            Hint::Granted { id, fence, .. } => granted(&shared, at, id, fence),
            Hint::Evicted { id } if shared.leases.get(id).is_none() => {}
            hint => shared.hints.send(hint),
        }
    }
}

/// A node says that a lease holds there: the others are asked. If it does not wait there, it is no news.
fn granted(shared: &Arc<Shared>, at: usize, id: LeaseId, fence: Fence) {
    if let Some(tracked) = shared.leases.get(id)
        && matches!(tracked.phase(), Phase::Asked | Phase::Waiting { .. })
        && !matches!(tracked.phase(), Phase::Waiting { queue } if queue != at)
    {
        drive(shared, &tracked, fence);
    }
}
