//! Asking for a lease: a round for a new one, a word at the queue for one that waits.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::{
    Shared,
    leases::{Phase, Tracked, Turn},
    pursuit::Pursuit,
    release,
    said::{End, Entry, Tail},
    waiting::{self, Placed, Progress},
};
use crate::{
    Error, Result,
    lease::{Decision, Outcome, Patience, Request},
};

/// Asks for a lease once.
///
/// # Cancel safety
/// The round is run by a task. If the caller is gone when it ends, the task gives everything back.
pub(super) async fn acquire(shared: &Arc<Shared>, request: &Request) -> Result<Decision> {
    shared.nodes.options().check_ttl(request.ttl, &request.key.resource)?;
    let (caller, answer) = oneshot::channel();
    shared.runtime.spawn(run(Arc::clone(shared), request.clone(), caller));
    match answer.await {
        Ok(handover) => Handover::accept(handover),
        Err(_) => Err(Error::unavailable("the runtime that this quorum was made on is gone")),
    }
}

async fn run(shared: Arc<Shared>, request: Request, caller: oneshot::Sender<Handover>) {
    let (tracked, turn) = shared.leases.in_turn(&request).await;
    let reply = {
        let (shared, tracked) = (Arc::clone(&shared), Arc::clone(&tracked));
        move |decision| drop(caller.send(Handover { shared, tracked, decision: Some(decision) }))
    };
    match tracked.phase() {
        Phase::Waiting { queue } => ask_at_queue(&shared, &tracked, queue, turn, reply).await,
        Phase::Asked | Phase::Holding { .. } | Phase::Ended => {
            ask_all(&shared, &tracked, request.patience, turn, reply).await;
        }
    }
}

/// A round for a lease that is new, or that a majority holds already.
async fn ask_all(
    shared: &Arc<Shared>,
    tracked: &Arc<Tracked>,
    patience: Patience,
    turn: Turn,
    reply: impl FnOnce(Result<Decision>),
) {
    let mut pursuit = Pursuit::begin(shared, tracked, shared.nodes.lead(), Entry::Ask(patience));
    let end = pursuit.decide().await;
    let gate = pursuit.gate();
    let (decision, tail) = match end {
        End::Granted(grant) => {
            tracked.enter(Phase::Holding { grant, queue: gate });
            (Ok(Decision::Granted(grant)), Tail::Keep(grant.fence))
        }
        End::Queued(place) => {
            tracked.enter(Phase::Waiting { queue: gate });
            (Ok(Decision::Queued(place)), Tail::KeepPlace)
        }
        End::Short(_) if patience == Patience::Queue && pursuit.fence_at_gate().is_some() => {
            let fence = pursuit.fence_at_gate().unwrap_or_default();
            tracked.enter(Phase::Waiting { queue: gate });
            waiting::drive_later(shared, tracked, fence);
            (Ok(Decision::Queued(waiting::head_of_queue(fence))), Tail::KeepPlace)
        }
        End::NoPlace | End::Short(_) if patience == Patience::Queue => {
            pursuit.give_back(Tail::GiveBack).await;
            pursuit.settle_now(Tail::KeepPlace).await;
            return ask_for_place(shared, tracked, turn, reply).await;
        }
        End::Busy(busy) | End::Short(busy) => (Ok(Decision::Busy(busy)), Tail::GiveBack),
        End::NoPlace | End::Gone => (Ok(Decision::Busy(crate::lease::Busy::default())), Tail::GiveBack),
        End::WrongShape(in_force) => (Ok(Decision::WrongShape { in_force }), Tail::GiveBack),
        End::Unreachable(error) => (Err(error), Tail::GiveBack),
    };
    if let Tail::Keep(_) = tail {
        reply(decision);
        return pursuit.settle(turn, tail);
    }
    // Answers that are still to come are waited for, at most for the limit: what they grant is in the way of others.
    pursuit.give_back(tail).await;
    pursuit.settle_now(tail).await;
    reply(decision);
}

/// One that waits is asked for again: its place is looked at, and completed if it has come to hold.
async fn ask_at_queue(
    shared: &Arc<Shared>,
    tracked: &Arc<Tracked>,
    queue: usize,
    turn: Turn,
    reply: impl FnOnce(Result<Decision>),
) {
    match waiting::place_at(shared, tracked, queue).await {
        Ok(placed) => go_on(shared, tracked, placed, turn, reply).await,
        Err(_) => ask_for_place(shared, tracked, turn, reply).await,
    }
}

/// Takes a place at the first node that answers.
async fn ask_for_place(shared: &Arc<Shared>, tracked: &Arc<Tracked>, turn: Turn, reply: impl FnOnce(Result<Decision>)) {
    match waiting::take_place(shared, tracked).await {
        Ok(placed) => go_on(shared, tracked, placed, turn, reply).await,
        Err(error) => {
            shared.leases.forget(tracked);
            reply(Err(error));
        }
    }
}

async fn go_on(
    shared: &Arc<Shared>,
    tracked: &Arc<Tracked>,
    placed: Placed,
    turn: Turn,
    reply: impl FnOnce(Result<Decision>),
) {
    let decision = match placed {
        Placed::Queued { place, .. } => Decision::Queued(place),
        Placed::Refused(decision) => {
            shared.leases.forget(tracked);
            decision
        }
        Placed::Head { queue, fence } => match waiting::complete(shared, tracked, queue, fence, turn).await {
            Progress::Granted(grant) => Decision::Granted(grant),
            Progress::Waiting(place) => Decision::Queued(place),
            Progress::NotYet(place) => {
                waiting::drive_later(shared, tracked, fence);
                Decision::Queued(place)
            }
            Progress::Gone => Decision::Busy(crate::lease::Busy::default()),
        },
    };
    reply(Ok(decision));
}

/// A decision on its way to the caller. If it does not arrive, nothing is kept.
struct Handover {
    shared: Arc<Shared>,
    tracked: Arc<Tracked>,
    decision: Option<Result<Decision>>,
}

impl Handover {
    fn accept(mut self) -> Result<Decision> {
        self.decision.take().unwrap_or_else(|| Err(Error::unavailable("no decision was made")))
    }
}

impl Drop for Handover {
    fn drop(&mut self) {
        if matches!(self.decision, Some(Ok(Decision::Granted(_) | Decision::Queued(_)))) {
            let (shared, key) = (Arc::clone(&self.shared), self.tracked.key.clone());
            self.shared.runtime.spawn(async move {
                let _given_back = release::everywhere(&shared, &key, &Outcome::Cancelled).await;
            });
        }
    }
}
