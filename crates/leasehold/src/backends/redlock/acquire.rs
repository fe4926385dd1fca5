//! Requesting a lease: a round for a new one, a question at the queue for one that waits.

use std::sync::Arc;

use super::{
    RedlockShared,
    leases::{LeasePhase, RoundLock, Tracked},
    queue::{self, Progress},
    release, repair,
    round::Round,
    vote::{Cleanup, QueueNodeCall, RoundEnd},
};
use crate::{
    Result,
    lease::{Busy, Decision, Outcome, Patience, Request},
};

/// Requests a lease once.
///
/// # Cancel safety
/// If the future is dropped, a task gives everything back.
pub(super) async fn acquire(shared: &Arc<RedlockShared>, request: &Request) -> Result<Decision> {
    shared.nodes.options().check_ttl(request.ttl, &request.key.resource)?;
    shared.agreement.check(&shared.nodes).await?;
    let undo = release::Undo::new(shared, &request.key, &Outcome::Cancelled);
    let (tracked, round_lock) = shared.leases.lock_round(request).await;
    let patience = request.patience;
    let asking = Asking { shared, tracked: &tracked, patience, round_lock };
    let decision = match tracked.phase() {
        LeasePhase::Waiting { queue_node } => asking.at_queue(queue_node).await,
        LeasePhase::New if shared.contention.asks_queue_first(&request.key.resource, patience) => {
            asking.queue_first().await
        }
        LeasePhase::New | LeasePhase::Holding { .. } | LeasePhase::Ended => asking.all().await,
    };
    undo.disarm();
    if let Ok(decision) = &decision {
        if matches!(decision, Decision::Queued(_)) {
            tracked.on_queued();
        }
        let busy = !matches!(decision, Decision::Granted(_)) || tracked.waited();
        shared.contention.note(&request.key.resource, patience, busy);
    }
    decision
}

/// A request for a lease, and the lock that keeps others from a round for it.
struct Asking<'a> {
    shared: &'a Arc<RedlockShared>,
    tracked: &'a Arc<Tracked>,
    patience: Patience,
    round_lock: RoundLock,
}

impl Asking<'_> {
    /// A round for a lease that is new, or that a majority holds already.
    async fn all(self) -> Result<Decision> {
        let Self { shared, tracked, patience, round_lock } = self;
        let is_first = tracked.phase() == LeasePhase::New;
        let first = match shared.batches.acquire(tracked, patience, round_lock).await {
            Ok(first) => first,
            Err(error) => {
                shared.leases.forget(tracked);
                // Some nodes may have granted it before the batch failed.
                release::everywhere_later(Arc::clone(shared), tracked.key.clone(), Outcome::Cancelled);
                return Err(error);
            }
        };
        let (mut round, round_lock) = Round::from_first_votes(shared, tracked, patience, first, is_first);
        let end = round.decide().await;
        let queue_node = round.queue_node;
        let (decision, cleanup) = match end {
            RoundEnd::Granted(grant) => {
                tracked.set_phase(LeasePhase::Holding { grant, queue_node });
                repair::spread_soon(shared, tracked);
                round.settle_later(round_lock, Cleanup::KeepAll(grant.fence));
                return Ok(Decision::Granted(grant));
            }
            RoundEnd::Queued(position) => {
                tracked.set_phase(LeasePhase::Waiting { queue_node });
                (Ok(Decision::Queued(position)), Cleanup::KeepPosition)
            }
            RoundEnd::NotQueued | RoundEnd::NoMajority(_) if patience == Patience::Queue => {
                if let Some(grant) = round.grant_at_queue_node() {
                    tracked.set_phase(LeasePhase::Waiting { queue_node });
                    queue::complete_after_pause(shared, tracked, grant.fence);
                    (Ok(Decision::Queued(queue::head_of_queue(grant.fence))), Cleanup::KeepPosition)
                } else {
                    round.give_back(Cleanup::GiveBack).await;
                    round.settle(Cleanup::KeepPosition).await;
                    return Self { shared, tracked, patience, round_lock }.queue_first().await;
                }
            }
            RoundEnd::Busy(busy) | RoundEnd::NoMajority(busy) => (Ok(Decision::Busy(busy)), Cleanup::GiveBack),
            RoundEnd::NotQueued | RoundEnd::Gone => (Ok(Decision::Busy(Busy::default())), Cleanup::GiveBack),
            RoundEnd::WrongShape(in_force) => (Ok(Decision::WrongShape { in_force }), Cleanup::GiveBack),
            RoundEnd::Unreachable(error) => (Err(error), Cleanup::GiveBack),
        };
        // Waits for the answers that are still to come, at most for the limit: what they grant is in the way of others.
        round.give_back(cleanup).await;
        round.settle(cleanup).await;
        decision
    }

    /// A lease that waits is requested again: looks at its position, and completes the quorum if its turn has come.
    async fn at_queue(self, queue_node: usize) -> Result<Decision> {
        let patient = Self { patience: Patience::Queue, ..self };
        match queue::ask_at(patient.shared, patient.tracked, queue_node, Patience::Queue).await {
            Ok(decision) => patient.go_on(queue_node, decision).await,
            Err(_) => patient.queue_first().await,
        }
    }

    /// Asks the first node that answers alone, and the others only if it grants the lease.
    async fn queue_first(self) -> Result<Decision> {
        match queue::ask_first(self.shared, self.tracked, self.patience).await {
            Ok((queue_node, decision)) => self.go_on(queue_node, decision).await,
            Err(error) => {
                self.shared.leases.forget(self.tracked);
                Err(error)
            }
        }
    }

    /// Continues after the first answer of the queue.
    async fn go_on(self, queue_node: usize, decision: Decision) -> Result<Decision> {
        let grant = match decision {
            Decision::Granted(grant) => grant,
            Decision::Queued(position) => return Ok(Decision::Queued(position)),
            refused => {
                self.shared.leases.forget(self.tracked);
                return Ok(refused);
            }
        };
        if self.patience == Patience::Try {
            return self.finish_try(queue_node, QueueNodeCall::Granted(grant)).await;
        }
        let Self { shared, tracked, round_lock, .. } = self;
        Ok(match queue::complete(shared, tracked, queue_node, QueueNodeCall::Granted(grant), round_lock).await {
            Progress::Granted(grant) => Decision::Granted(grant),
            Progress::Waiting(position) => Decision::Queued(position),
            Progress::NotYet(position) => {
                queue::complete_after_pause(shared, tracked, grant.fence);
                Decision::Queued(position)
            }
            Progress::Gone => Decision::Busy(Busy::default()),
        })
    }

    /// A try that the queue's node granted asks the others, and gives everything back if too few follow.
    async fn finish_try(self, queue_node: usize, queue_node_call: QueueNodeCall) -> Result<Decision> {
        let Self { shared, tracked, round_lock, .. } = self;
        let mut round = Round::begin(shared, tracked, queue_node, queue_node_call);
        let decision = match round.decide().await {
            RoundEnd::Granted(grant) => {
                tracked.set_phase(LeasePhase::Holding { grant, queue_node });
                repair::spread_soon(shared, tracked);
                round.settle_later(round_lock, Cleanup::KeepAll(grant.fence));
                return Ok(Decision::Granted(grant));
            }
            RoundEnd::Unreachable(error) => Err(error),
            RoundEnd::Busy(busy) | RoundEnd::NoMajority(busy) => Ok(Decision::Busy(busy)),
            RoundEnd::WrongShape(in_force) => Ok(Decision::WrongShape { in_force }),
            RoundEnd::Queued(_) | RoundEnd::NotQueued | RoundEnd::Gone => Ok(Decision::Busy(Busy::default())),
        };
        round.give_back(Cleanup::GiveBack).await;
        round.settle(Cleanup::GiveBack).await;
        decision
    }
}
