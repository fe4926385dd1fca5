//! What nodes answer in a round, how the round ends, and one fence on a majority.
//!
//! Each node numbers its grants by itself. A lease is granted under a fence
//! only when a majority has stored exactly that one. Whoever is granted the
//! lease next has a majority too, so one node is in both; there every store is
//! above the one before, so its fence is above. No clock is in this argument,
//! only that no node forgets.
//!
//! A node must not give up by itself what it granted, either. A release that it
//! left unanswered may still arrive, after a later round for the same lease. So
//! such a node no longer counts for this lease, and a lease for which too few
//! nodes count begins anew under another id.

use super::{inspect, round::Round};
use crate::{
    Error, Result,
    lease::{
        Busy, Decision, Family, Fence, Grant, ListFilter, Names, Patience, QueuePosition, Renewal, Shape, Standing,
    },
};

/// How often a fence is proposed before the round is given up.
const PROPOSALS: u64 = 3;

/// What a node answered.
#[derive(Debug)]
pub(super) enum Vote {
    /// Nothing yet.
    Pending,
    /// It was left out: others are enough, or it hangs.
    Unasked,
    Granted(Grant),
    Queued(QueuePosition),
    Busy(Busy),
    WrongShape(Shape),
    /// The lease is not there, or no longer.
    Gone,
    Failed(Error),
}

impl Vote {
    pub(super) fn of_decision(answer: Result<Decision>) -> Self {
        match answer {
            Ok(Decision::Granted(grant)) => Self::Granted(grant),
            Ok(Decision::Queued(position)) => Self::Queued(position),
            Ok(Decision::Busy(busy)) => Self::Busy(busy),
            Ok(Decision::WrongShape { in_force }) => Self::WrongShape(in_force),
            Err(error) => Self::Failed(error),
        }
    }

    pub(super) fn of_standing(answer: Result<Standing>) -> Self {
        match answer {
            Ok(Standing::Holding(grant)) => Self::Granted(grant),
            Ok(Standing::Waiting(position)) => Self::Queued(position),
            Ok(Standing::Gone) => Self::Gone,
            Ok(Standing::Unknown) => Self::Failed(Error::unanswered("could not tell")),
            Err(error) => Self::Failed(error),
        }
    }

    pub(super) fn of_standings(answer: Result<Vec<Standing>>) -> Self {
        Self::of_standing(answer.map(|standings| standings.first().copied().unwrap_or(Standing::Unknown)))
    }
}

/// What is asked of the queue node.
#[derive(Clone, Copy, Debug)]
pub(super) enum QueueNodeCall {
    /// A lease, queueing or not, at the same time as the others.
    Ask(Patience),
    /// Nothing: it granted the lease a moment ago.
    Granted(Grant),
    /// To confirm the lease that it handed over under this fence.
    HandedOver(Fence),
}

/// How a round ended.
#[derive(Debug)]
pub(super) enum RoundEnd {
    /// A majority holds, under one fence.
    Granted(Grant),
    /// The queue node queued it.
    Queued(QueuePosition),
    /// The queue node is busy and was not asked to queue it: the one before it in the list failed meanwhile.
    NotQueued,
    Busy(Busy),
    WrongShape(Shape),
    /// The queue node no longer knows it.
    Gone,
    /// The queue node granted the lease, but too few other nodes did.
    NoMajority(Busy),
    /// Too few nodes can be counted on.
    Unreachable(Error),
}

/// What becomes of grants and of answers that are still to come once a round has ended.
#[derive(Clone, Copy, Debug)]
pub(super) enum Cleanup {
    /// The lease holds: late grants are raised to this fence.
    KeepAll(Fence),
    /// Only its position, or its grant, at the queue node is kept.
    KeepPosition,
    /// Nothing is kept, and the lease is forgotten.
    GiveBack,
    /// Nothing is kept; the lease is remembered as ended until its caller asks.
    End,
}

/// The fence that most have, the lowest of several, and how many have it.
pub(super) fn most_common(fences: &[Fence]) -> Option<(Fence, usize)> {
    let count = |fence: Fence| fences.iter().filter(|other| **other == fence).count();
    fences.iter().map(|fence| (*fence, count(*fence))).max_by_key(|(fence, count)| (*count, std::cmp::Reverse(*fence)))
}

impl Round {
    /// Makes a majority agree on one fence; `None` if too many no longer hold, or refuse.
    pub(super) async fn agree(&mut self) -> Option<Fence> {
        for proposal in 0..=PROPOSALS {
            let fences = self.counted_fences();
            let (fence, agreeing) = most_common(&fences)?;
            if agreeing >= self.shared.nodes.majority() {
                return Some(fence);
            }
            if fences.len() < self.shared.nodes.majority() || proposal == PROPOSALS {
                return None;
            }
            let target = self.target(&fences, proposal);
            self.raise_to(target).await;
        }
        None
    }

    /// The highest fence that was answered; after a refusal one that none can have reached meanwhile.
    fn target(&self, fences: &[Fence], refusals: u64) -> Fence {
        let nodes = &self.shared.nodes;
        // A node whose clock has run away must not make all the others refuse.
        let limit = nodes.fence_limit();
        let in_reach: Vec<Fence> = fences.iter().copied().filter(|fence| *fence <= limit).collect();
        let of = if in_reach.len() >= nodes.majority() { &in_reach } else { fences };
        let highest = of.iter().copied().max().unwrap_or_default();
        match refusals {
            0 => highest,
            _ => Fence::new(highest.max(nodes.proposal().min(limit)).get().saturating_add(refusals * 1000)),
        }
    }

    /// Raises the fence wherever the lease is still held under a lower one: stored exactly or refused.
    pub(super) async fn raise_to(&mut self, target: Fence) {
        let below = self.grants().into_iter().filter(|(_, grant)| grant.fence < target).map(|(at, _)| at);
        let renewal = Renewal::new(self.tracked.key.clone(), self.tracked.ttl()).fence_floor(target);
        let renew = |backend: std::sync::Arc<dyn crate::backend::Backend>| {
            let renewal = &renewal;
            async move { backend.renew(std::slice::from_ref(renewal)).await }
        };
        let answers = self.shared.nodes.ask_each(below.collect::<Vec<_>>(), renew).await;
        for (at, answer) in answers {
            self.votes[at] = Vote::of_standings(answer);
        }
    }

    /// Whether all who hold permits, seen from a majority of the nodes, fit together.
    ///
    /// A majority of nodes that each keep to the capacity is not enough: with a
    /// capacity of 2 on 3 nodes, three clients could each get another pair of
    /// them. So a client that has its majority looks at a majority once more and
    /// steps back if too much is taken. Of several who together exceed the
    /// capacity, the one that looks last sees all the others, since each had its
    /// majority before it looked. Claims of which no two fit on one node need no look.
    pub(super) async fn is_within_capacity(&mut self) -> bool {
        let claim = self.tracked.claim();
        if claim.mode().family() != Family::Permits || claim.units() == claim.capacity() {
            return true;
        }
        let filter = ListFilter::new(Names::Exactly(self.tracked.key.resource.clone()));
        let nodes = &self.shared.nodes;
        let answers = nodes
            .query_all(|backend| {
                let filter = &filter;
                async move { backend.list(filter).await }
            })
            .await;
        let seen: Vec<_> = answers
            .into_iter()
            .filter(|(at, _)| nodes.votes(*at))
            .filter_map(|(at, page)| Some((at, page.ok()?)))
            .collect();
        seen.len() >= nodes.majority() && inspect::units_taken(seen, claim.shape()) <= u64::from(claim.capacity())
    }
}
