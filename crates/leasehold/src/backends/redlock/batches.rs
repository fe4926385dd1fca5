//! First rounds and releases of many leases at once: one call to each node for all of them.
//!
//! What arrives while two batches are on their way leaves with the next one.
//! A fence is proposed when its batch leaves, not before: the longer a proposal
//! is under way, the more likely is it that other processes make nodes pass it,
//! some of them and not the others.

use std::sync::{Arc, Weak};

use tokio::runtime::Handle;

use super::{
    RedlockShared,
    calls::{Calls, NextAnswer},
    errors,
    leases::{RoundLock, Tracked},
    vote::Vote,
};
use crate::{
    Error, Result,
    backend::{Coalescer, Operation, Performed},
    lease::{Outcome, Patience, Released, Request, Timestamp},
};

const MAX_JOBS: usize = 64;
const IN_FLIGHT: usize = 2;

/// Gathers first rounds and releases.
#[derive(Debug)]
pub(super) struct Batches(Coalescer<LeaseJob, Done>);

/// What is to be done about one lease.
enum LeaseJob {
    /// To ask for it.
    Acquire(Arc<Tracked>, Patience, RoundLock),
    /// To release it wherever it was asked for.
    Release(Arc<Tracked>, Outcome),
}

enum Done {
    Asked(FirstVotes),
    Released(Vec<(usize, Result<Released>)>),
}

/// What the nodes that were asked first answered.
#[derive(Debug)]
pub(super) struct FirstVotes {
    pub(super) queue_node: usize,
    pub(super) asked_at: Timestamp,
    /// What the nodes other than the queue node were asked.
    pub(super) request_to_others: Arc<Request>,
    pub(super) votes: Vec<Vote>,
    /// Dropped with the answers even if the caller is gone, so no release overtakes the request.
    pub(super) round_lock: RoundLock,
}

impl Batches {
    pub(super) fn new(shared: Weak<RedlockShared>, runtime: Handle) -> Self {
        Self(Coalescer::new(runtime, MAX_JOBS, IN_FLIGHT, move |jobs| {
            let shared = shared.upgrade();
            async move {
                match shared {
                    Some(shared) => Batch::send(&shared, jobs).finish(&shared).await,
                    None => Vec::new(),
                }
            }
        }))
    }

    /// Asks a majority for a lease.
    pub(super) async fn acquire(
        &self,
        tracked: &Arc<Tracked>,
        patience: Patience,
        round_lock: RoundLock,
    ) -> Result<FirstVotes> {
        match self.0.call(LeaseJob::Acquire(Arc::clone(tracked), patience, round_lock)).await? {
            Done::Asked(first) => Ok(first),
            Done::Released(_) => Err(Error::unanswered("the nodes replied to a different request")),
        }
    }

    /// Releases a lease at all nodes that were asked for it, in any order.
    pub(super) async fn release(
        &self,
        tracked: &Arc<Tracked>,
        outcome: &Outcome,
    ) -> Result<Vec<(usize, Result<Released>)>> {
        match self.0.call(LeaseJob::Release(Arc::clone(tracked), outcome.clone())).await? {
            Done::Released(answers) => Ok(answers),
            Done::Asked(_) => Err(Error::unanswered("the nodes replied to a different request")),
        }
    }
}

type BatchCall = dyn Future<Output = Vec<Result<Performed>>> + Send;

/// Calls to nodes about several leases.
struct Batch {
    done: Vec<Done>,
    /// For each node, which jobs it was asked about, in the order of its answers.
    asked: Vec<Vec<usize>>,
    pending: Vec<usize>,
    calls: Calls<BatchCall>,
}

impl Batch {
    fn send(shared: &RedlockShared, jobs: Vec<LeaseJob>) -> Self {
        let nodes = &shared.nodes;
        let (queue_node, reachable) = (nodes.queue_node(), nodes.reachable());
        let chosen = nodes.first_choice(queue_node);
        let all = nodes.reachable_and(queue_node);
        let mut batch = Self {
            done: Vec::with_capacity(jobs.len()),
            asked: vec![Vec::new(); nodes.len()],
            pending: Vec::new(),
            calls: Calls::new(),
        };
        let mut operations: Vec<Vec<Operation>> = nodes.iter().map(|_| Vec::new()).collect();
        let mut add = |at: usize, job: usize, operation: Operation| {
            batch.asked[at].push(job);
            operations[at].push(operation);
        };
        let one_order_on_all_nodes = nodes.sending.lock();
        let asked_at = nodes.clock().wall();
        for (index, job) in jobs.into_iter().enumerate() {
            batch.done.push(match job {
                LeaseJob::Acquire(tracked, patience, round_lock) => {
                    let floor = nodes.proposal();
                    let request_to_others = Arc::new(tracked.request(Patience::Try, floor));
                    let mut votes: Vec<Vote> = nodes.iter().map(|_| Vote::Unasked).collect();
                    // A detached lease may have no process left to spread it, so ask all reachable nodes now.
                    for at in if tracked.is_detached() { &all } else { &chosen } {
                        let queues = *at == queue_node && patience == Patience::Queue;
                        let request = if queues {
                            Arc::new(tracked.request(patience, floor))
                        } else {
                            Arc::clone(&request_to_others)
                        };
                        tracked.on_asked(*at);
                        votes[*at] = Vote::Pending;
                        add(*at, index, Operation::Acquire(request));
                    }
                    Done::Asked(FirstVotes { queue_node, asked_at, request_to_others, votes, round_lock })
                }
                LeaseJob::Release(tracked, outcome) => {
                    let mut answers = Vec::new();
                    for at in (0..nodes.len()).filter(|at| tracked.may_be_at(*at)) {
                        if reachable.contains(&at) {
                            add(at, index, Operation::Release(tracked.key.clone(), outcome.clone()));
                        } else {
                            answers.push((at, Err(errors::hangs())));
                        }
                    }
                    Done::Released(answers)
                }
            });
        }
        for (at, operations) in operations.into_iter().enumerate().filter(|(_, operations)| !operations.is_empty()) {
            batch.ask(shared, at, operations);
        }
        batch.calls.send();
        drop(one_order_on_all_nodes);
        batch
    }

    fn ask(&mut self, shared: &RedlockShared, at: usize, operations: Vec<Operation>) {
        let node = Arc::clone(shared.nodes.get(at));
        self.pending.push(at);
        let call = async move {
            match node.backend() {
                Ok(backend) => {
                    let asked = operations.len();
                    let mut answers = node.on_answers(backend.perform(operations).await);
                    answers.resize_with(asked, || Err(Error::unanswered("the node left a call unanswered")));
                    answers
                }
                Err(error) => operations.iter().map(|_| Err(Error::unavailable(error.to_string()))).collect(),
            }
        };
        self.calls.push(at, Box::pin(call));
    }

    /// Waits for the answers of all nodes; no longer than the limit for those that others can stand in for.
    async fn finish(mut self, shared: &RedlockShared) -> Vec<Result<Done>> {
        let nodes = &shared.nodes;
        self.calls.limit(&nodes.watchdog, nodes.limit());
        let mut is_extended = false;
        loop {
            // One that hangs must not hide the progress of the others for longer than the limit.
            match self.calls.next(if is_extended { 1 } else { self.pending.len() }).await {
                NextAnswer::Answer(at, answers) => self.on_answers(at, answers),
                NextAnswer::Elapsed if is_extended || nodes.suffice_without(&self.pending) => {
                    for at in std::mem::take(&mut self.pending) {
                        let error = nodes.get(at).on_timeout(nodes.limit());
                        let lost = self.asked[at].iter().map(|_| Err(Error::unanswered(error.to_string()))).collect();
                        self.on_answers(at, lost);
                    }
                    break;
                }
                NextAnswer::Elapsed => {
                    is_extended = true;
                    self.calls.limit(&nodes.watchdog, nodes.limit() * 3);
                }
                NextAnswer::Done => break,
            }
        }
        self.done.into_iter().map(Ok).collect()
    }

    fn on_answers(&mut self, at: usize, answers: Vec<Result<Performed>>) {
        self.pending.retain(|other| *other != at);
        for (job, answer) in self.asked[at].iter().zip(answers) {
            match (&mut self.done[*job], answer) {
                (Done::Asked(first), Ok(Performed::Acquired(decision))) => {
                    first.votes[at] = Vote::of_decision(Ok(decision));
                }
                (Done::Asked(first), Err(error)) => first.votes[at] = Vote::Failed(error),
                (Done::Released(answers), Ok(Performed::Released(released))) => answers.push((at, Ok(released))),
                (Done::Released(answers), Err(error)) => answers.push((at, Err(error))),
                (Done::Asked(_), Ok(Performed::Released(_))) | (Done::Released(_), Ok(Performed::Acquired(_))) => {}
            }
        }
    }
}
