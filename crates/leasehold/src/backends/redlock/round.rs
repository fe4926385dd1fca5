//! One round for one lease: asks nodes at once, more where that is not enough, and ends as soon as the result is certain.
//!
//! One node, the *queue node*, is asked to queue the lease, or holds already for
//! a lease whose turn has come there; the others are asked without waiting.
//! While the queue node answers, nobody gets past its queue.

use std::sync::Arc;

use super::{
    RedlockShared,
    batches::FirstVotes,
    calls::{Calls, NextAnswer},
    errors,
    leases::{RoundLock, Tracked},
    vote::{QueueNodeCall, RoundEnd, Vote, most_common},
};
use crate::{
    Error,
    lease::{Fence, Grant, Patience, Renewal, Request, Standing, Timestamp},
};

type VoteCall = dyn Future<Output = Vote> + Send;

/// One round for one lease.
pub(super) struct Round {
    pub(super) shared: Arc<RedlockShared>,
    pub(super) tracked: Arc<Tracked>,
    pub(super) votes: Vec<Vote>,
    /// The node whose queue counts; another one than at the beginning if that one failed.
    pub(super) queue_node: usize,
    queue_node_call: QueueNodeCall,
    asked_to_queue: usize,
    asked_at: Timestamp,
    /// What the nodes other than the queue node are asked.
    request_to_others: Option<Arc<Request>>,
    /// Whether a grant dates from this round, so that clocks can be compared by it.
    is_first: bool,
    pub(super) calls: Calls<VoteCall>,
    is_extended: bool,
}

impl Round {
    /// A round whose first votes are there; `is_first` if the lease was asked for by no round before.
    pub(super) fn from_first_votes(
        shared: &Arc<RedlockShared>,
        tracked: &Arc<Tracked>,
        patience: Patience,
        first: FirstVotes,
        is_first: bool,
    ) -> (Self, RoundLock) {
        let mut round = Self::new(shared, tracked, first.queue_node, QueueNodeCall::Ask(patience));
        round.is_first = is_first;
        round.asked_at = first.asked_at;
        round.request_to_others = Some(first.request_to_others);
        for (at, vote) in first.votes.into_iter().enumerate() {
            round.on_vote(at, vote);
        }
        // Again, now that all votes are known.
        round.replace_failed_queue_node();
        (round, first.round_lock)
    }

    /// Asks other nodes for a lease that the queue node has granted or handed over.
    pub(super) fn begin(
        shared: &Arc<RedlockShared>,
        tracked: &Arc<Tracked>,
        queue_node: usize,
        queue_node_call: QueueNodeCall,
    ) -> Self {
        let mut round = Self::new(shared, tracked, queue_node, queue_node_call);
        let nodes = &shared.nodes;
        let asked =
            if tracked.is_detached() { nodes.reachable_and(queue_node) } else { nodes.first_choice(queue_node) };
        let one_order_on_all_nodes = nodes.sending.lock();
        let floor = match queue_node_call {
            QueueNodeCall::Ask(_) => nodes.proposal(),
            QueueNodeCall::Granted(grant) => grant.fence,
            QueueNodeCall::HandedOver(fence) => nodes.proposal_from(fence),
        };
        let request_to_others = Arc::new(tracked.request(Patience::Try, floor));
        round.request_to_others = Some(Arc::clone(&request_to_others));
        for at in asked {
            match queue_node_call {
                QueueNodeCall::Granted(grant) if at == queue_node => round.votes[at] = Vote::Granted(grant),
                QueueNodeCall::HandedOver(fence) if at == queue_node => {
                    round.confirm(at, (floor > fence).then_some(floor));
                }
                QueueNodeCall::Ask(_) | QueueNodeCall::Granted(_) | QueueNodeCall::HandedOver(_) => {
                    round.ask(at, Arc::clone(&request_to_others));
                }
            }
        }
        round.calls.send();
        drop(one_order_on_all_nodes);
        round.calls.limit(&nodes.watchdog, nodes.limit());
        round
    }

    fn ask(&mut self, at: usize, request: Arc<Request>) {
        let node = Arc::clone(self.shared.nodes.get(at));
        self.votes[at] = Vote::Pending;
        self.tracked.on_asked(at);
        let call = Box::pin(async move {
            let answer = match node.backend() {
                Ok(backend) => node.on_answer(backend.acquire(&request).await),
                Err(error) => Err(error),
            };
            Vote::of_decision(answer)
        });
        self.calls.push(at, call);
    }

    fn confirm(&mut self, at: usize, floor: Option<Fence>) {
        let node = Arc::clone(self.shared.nodes.get(at));
        let mut renewal = Renewal::new(self.tracked.key.clone(), self.tracked.ttl());
        renewal.fence_floor = floor;
        self.votes[at] = Vote::Pending;
        let call = Box::pin(async move {
            let answer = match node.backend() {
                Ok(backend) => node.on_answer(backend.renew(std::slice::from_ref(&renewal)).await),
                Err(error) => Err(error),
            };
            Vote::of_standings(answer)
        });
        self.calls.push(at, call);
    }

    /// Asks nodes that were left out after all; `false` when there are none.
    fn ask_left_out(&mut self, left_out: &[usize]) -> bool {
        if left_out.is_empty() {
            return false;
        }
        let Some(mut request) = self.request_to_others.clone() else { return false };
        if let Some(fence) = self.likely_fence() {
            Arc::make_mut(&mut request).fence_floor = Some(fence);
        }
        self.asked_at = self.shared.nodes.clock().wall();
        for at in left_out {
            self.ask(*at, Arc::clone(&request));
        }
        self.replace_failed_queue_node();
        self.calls.send();
        self.calls.limit(&self.shared.nodes.watchdog, self.shared.nodes.limit());
        true
    }

    /// The nodes whose vote satisfies the predicate.
    fn nodes_where(&self, predicate: fn(&Vote) -> bool) -> Vec<usize> {
        (0..self.votes.len()).filter(|at| predicate(&self.votes[*at])).collect()
    }

    /// The nodes that were left out, whether they hang or not.
    fn left_out(&self) -> Vec<usize> {
        self.nodes_where(|vote| matches!(vote, Vote::Unasked))
    }

    /// The nodes that were left out and are likely to answer.
    fn left_out_reachable(&self) -> Vec<usize> {
        self.left_out().into_iter().filter(|at| !self.shared.nodes.get(*at).is_unreachable()).collect()
    }

    /// A round that is over: how a lease that holds stands on each node.
    pub(super) fn of_holders(
        shared: &Arc<RedlockShared>,
        tracked: &Arc<Tracked>,
        queue_node: usize,
        standings: &[(usize, Standing)],
    ) -> Self {
        let mut round = Self::new(shared, tracked, queue_node, QueueNodeCall::Ask(Patience::Try));
        for (at, standing) in standings {
            round.votes[*at] = Vote::of_standing(Ok(*standing));
        }
        round
    }

    fn new(
        shared: &Arc<RedlockShared>,
        tracked: &Arc<Tracked>,
        queue_node: usize,
        queue_node_call: QueueNodeCall,
    ) -> Self {
        let clock = shared.nodes.clock();
        Self {
            shared: Arc::clone(shared),
            tracked: Arc::clone(tracked),
            votes: shared.nodes.iter().map(|_| Vote::Unasked).collect(),
            queue_node,
            queue_node_call,
            asked_to_queue: queue_node,
            asked_at: clock.wall(),
            request_to_others: None,
            is_first: false,
            calls: Calls::new(),
            is_extended: false,
        }
    }

    /// The grant at the queue node, if it holds there.
    pub(super) fn grant_at_queue_node(&self) -> Option<Grant> {
        self.grant_at(self.queue_node)
    }

    /// Takes answers until the end is certain.
    pub(super) async fn decide(&mut self) -> RoundEnd {
        loop {
            match self.conclusion() {
                Some(Conclusion::Majority) if !self.agrees() && self.ask_left_out(&self.left_out_reachable()) => {}
                Some(Conclusion::Majority) => return self.conclude().await,
                Some(Conclusion::End(RoundEnd::NoMajority(_))) if self.ask_left_out(&self.left_out_reachable()) => {}
                Some(Conclusion::End(RoundEnd::Unreachable(_))) if self.ask_left_out(&self.left_out()) => {}
                Some(Conclusion::End(end)) => return end,
                None if self.next(self.missing()).await => {}
                None => return self.no_majority(),
            }
        }
    }

    /// Takes one more answer, or gives up on all that are missing; `false` when none is missing.
    ///
    /// Sleeps until `enough` more have answered.
    pub(super) async fn next(&mut self, enough: usize) -> bool {
        match self.calls.next(enough).await {
            NextAnswer::Answer(at, vote) => self.on_vote(at, vote),
            // Nobody waits for a slow minority, but a slow majority gets more time.
            NextAnswer::Elapsed if self.is_extended || self.missing() == 0 || self.can_do_without_pending() => {
                self.calls.clear();
                let shared = Arc::clone(&self.shared);
                for at in self.pending() {
                    let error = shared.nodes.get(at).on_timeout(shared.nodes.limit());
                    self.on_vote(at, Vote::Failed(error));
                }
            }
            NextAnswer::Elapsed => {
                self.is_extended = true;
                self.calls.limit(&self.shared.nodes.watchdog, self.shared.nodes.limit() * 3);
            }
            NextAnswer::Done => return false,
        }
        true
    }

    fn pending(&self) -> Vec<usize> {
        self.nodes_where(|vote| matches!(vote, Vote::Pending))
    }

    /// Whether those that have answered and those that were left out are enough.
    fn can_do_without_pending(&self) -> bool {
        self.shared.nodes.suffice_without(&self.pending())
    }

    /// How many answers are missing for a majority of answers; little is certain before.
    fn missing(&self) -> usize {
        let answered = self.votes.iter().filter(|vote| !matches!(vote, Vote::Pending | Vote::Unasked)).count();
        self.shared.nodes.majority().saturating_sub(answered)
    }

    fn on_vote(&mut self, at: usize, vote: Vote) {
        let nodes = &self.shared.nodes;
        if let Vote::Granted(grant) = &vote {
            nodes.on_fence(grant.fence);
            if self.is_first || (!matches!(self.queue_node_call, QueueNodeCall::Ask(_)) && at != self.queue_node) {
                nodes.get(at).compare_clocks(grant, self.asked_at);
            }
        }
        self.votes[at] = vote;
        if at == self.queue_node {
            self.replace_failed_queue_node();
        }
    }

    /// If the queue node failed, the first node that was asked and did not fail takes its place.
    fn replace_failed_queue_node(&mut self) {
        if matches!(self.votes[self.queue_node], Vote::Failed(_))
            && matches!(self.queue_node_call, QueueNodeCall::Ask(_))
        {
            let answers = |at: &usize| !matches!(self.votes[*at], Vote::Failed(_) | Vote::Unasked);
            self.queue_node =
                self.shared.nodes.queue_node_candidates().into_iter().find(answers).unwrap_or(self.queue_node);
        }
    }

    /// The end, once no answer that is still missing can change it.
    fn conclusion(&self) -> Option<Conclusion> {
        let nodes = &self.shared.nodes;
        let end = |end| Some(Conclusion::End(end));
        let countable = |(at, vote): (usize, &Vote)| match vote {
            Vote::Failed(_) | Vote::Unasked => false,
            Vote::Pending => true,
            _ => nodes.votes_for(&self.tracked, at),
        };
        if self.votes.iter().enumerate().filter(|vote| countable(*vote)).count() < nodes.majority() {
            return end(RoundEnd::Unreachable(self.unreachable()));
        }
        match &self.votes[self.queue_node] {
            Vote::Pending => None,
            Vote::Queued(position) => end(RoundEnd::Queued(*position)),
            Vote::Busy(_) if self.queues() && self.queue_node != self.asked_to_queue => end(RoundEnd::NotQueued),
            Vote::Busy(busy) => end(RoundEnd::Busy(busy.clone())),
            Vote::WrongShape(shape) => end(RoundEnd::WrongShape(*shape)),
            Vote::Gone => end(RoundEnd::Gone),
            Vote::Unasked | Vote::Failed(_) => end(self.no_majority()),
            Vote::Granted(_) => {
                let pending = self.votes.iter().filter(|vote| matches!(vote, Vote::Pending)).count();
                let fences = self.counted_fences();
                if fences.len() + pending < nodes.majority() {
                    return end(self.no_majority());
                }
                let (_, agreeing) = most_common(&fences)?;
                let agree = agreeing >= nodes.majority();
                let may_still_agree = agreeing + pending >= nodes.majority();
                (agree || (fences.len() >= nodes.majority() && !may_still_agree)).then_some(Conclusion::Majority)
            }
        }
    }

    /// Whether a majority answered with the same fence.
    fn agrees(&self) -> bool {
        most_common(&self.counted_fences()).is_some_and(|(_, agreeing)| agreeing >= self.shared.nodes.majority())
    }

    /// The fence that more nodes may agree on: what several answered, or else the highest. Those that were not asked yet
    /// take part in fewer grants, so that they are likely to store just that; raising it elsewhere would cost more.
    fn likely_fence(&self) -> Option<Fence> {
        let fences = self.counted_fences();
        match most_common(&fences) {
            Some((_, 1)) => fences.into_iter().max(),
            most => most.map(|(fence, _)| fence),
        }
    }

    fn queues(&self) -> bool {
        matches!(self.queue_node_call, QueueNodeCall::Ask(Patience::Queue))
    }

    /// The fences of the grants that count.
    pub(super) fn counted_fences(&self) -> Vec<Fence> {
        let counts = |at: usize| self.shared.nodes.votes_for(&self.tracked, at);
        self.grants().into_iter().filter(|(at, _)| counts(*at)).map(|(_, grant)| grant.fence).collect()
    }

    /// What was granted where, whether it counts or not.
    pub(super) fn grants(&self) -> Vec<(usize, Grant)> {
        (0..self.votes.len()).filter_map(|at| self.grant_at(at).map(|grant| (at, grant))).collect()
    }

    fn grant_at(&self, at: usize) -> Option<Grant> {
        match self.votes[at] {
            Vote::Granted(grant) => Some(grant),
            _ => None,
        }
    }

    /// A majority holds: agrees on one fence, checks permits, then grants.
    async fn conclude(&mut self) -> RoundEnd {
        let Some(fence) = self.agree().await else { return self.no_majority() };
        if !self.is_within_capacity().await {
            return self.no_majority();
        }
        let acquired_at = self.grants().first().map(|(_, grant)| grant.acquired_at).unwrap_or_default();
        RoundEnd::Granted(Grant { fence, acquired_at })
    }

    fn no_majority(&self) -> RoundEnd {
        let busy = self.votes.iter().find_map(|vote| match vote {
            Vote::Busy(busy) => Some(busy.clone()),
            _ => None,
        });
        RoundEnd::NoMajority(busy.unwrap_or_default())
    }

    fn unreachable(&self) -> Error {
        let failure = |(at, vote): (usize, &Vote)| match vote {
            Vote::Failed(error) => Some((at, Error::unanswered(format!("{error:#}")))),
            Vote::Unasked => Some((at, errors::hangs())),
            _ => None,
        };
        let failures: Vec<(usize, Error)> = self.votes.iter().enumerate().filter_map(failure).collect();
        self.shared.nodes.too_few(&self.tracked.key.resource, &failures)
    }
}

enum Conclusion {
    /// Enough hold that it can be concluded.
    Majority,
    End(RoundEnd),
}
