//! One round for one lease: all nodes are asked at once, and the answer is given as soon as it is certain.
//!
//! One node, the *gate*, is asked for a place in its queue, or holds already
//! for a lease whose turn has come there; the others are asked without
//! waiting. While the gate answers, nobody gets past its queue.

use std::sync::Arc;

use super::{
    Shared,
    fan::Fan,
    leases::{Phase, Tracked, Turn},
    release,
    said::{End, Entry, Said, Tail, most_common},
};
use crate::{
    Error,
    lease::{Fence, Grant, Outcome, Patience, Renewal, Standing, Timestamp},
};

/// One round for one lease.
pub(super) struct Pursuit {
    pub(super) shared: Arc<Shared>,
    pub(super) tracked: Arc<Tracked>,
    pub(super) said: Vec<Said>,
    gate: usize,
    entry: Entry,
    asked_to_queue: usize,
    asked_at: Timestamp,
    first_time: bool,
    fan: Fan<Said>,
}

impl Pursuit {
    pub(super) fn begin(shared: &Arc<Shared>, tracked: &Arc<Tracked>, gate: usize, entry: Entry) -> Self {
        let nodes = &shared.nodes;
        let limit = nodes.limit();
        let floor = match entry {
            Entry::Ask(_) => nodes.proposal(),
            Entry::Held(fence) => nodes.proposal_from(fence),
        };
        let mut fan = Fan::new();
        let mut said: Vec<Said> = nodes.iter().map(|_| Said::Unasked).collect();
        let mut awake = nodes.awake();
        if !awake.contains(&gate) {
            awake.push(gate);
        }
        for at in awake {
            said[at] = Said::Pending;
            let node = Arc::clone(nodes.get(at));
            match entry {
                Entry::Held(fence) if at == gate => {
                    let mut renewal = Renewal::new(tracked.key.clone(), tracked.ttl());
                    renewal.fence_floor = (floor > fence).then_some(floor);
                    fan.add(at, async move {
                        let call = node.backend.renew(std::slice::from_ref(&renewal));
                        Said::stands(node.ask(limit, call).await)
                    });
                }
                Entry::Ask(_) | Entry::Held(_) => {
                    let patience = match entry {
                        Entry::Ask(patience) if at == gate => patience,
                        _ => Patience::Try,
                    };
                    let request = tracked.request(patience, floor);
                    fan.add(at, async move { Said::decided(node.ask(limit, node.backend.acquire(&request)).await) });
                }
            }
        }
        Self {
            shared: Arc::clone(shared),
            tracked: Arc::clone(tracked),
            said,
            gate,
            entry,
            asked_to_queue: gate,
            asked_at: nodes.clock().wall(),
            first_time: tracked.phase() == Phase::Asked,
            fan,
        }
    }

    /// A round that is over: what the nodes said of a lease that holds.
    pub(super) fn of_holders(
        shared: &Arc<Shared>,
        tracked: &Arc<Tracked>,
        gate: usize,
        standings: &[(usize, Standing)],
    ) -> Self {
        let mut said: Vec<Said> = shared.nodes.iter().map(|_| Said::Unasked).collect();
        for (at, standing) in standings {
            said[*at] = Said::stands(Ok(vec![*standing]));
        }
        Self {
            shared: Arc::clone(shared),
            tracked: Arc::clone(tracked),
            said,
            gate,
            entry: Entry::Ask(Patience::Try),
            asked_to_queue: gate,
            asked_at: shared.nodes.clock().wall(),
            first_time: false,
            fan: Fan::new(),
        }
    }

    /// The node that stands for the queue; another one than at the beginning if that one failed.
    pub(super) fn gate(&self) -> usize {
        self.gate
    }

    /// The fence under which the gate holds, if it does.
    pub(super) fn fence_at_gate(&self) -> Option<Fence> {
        self.grant_at(self.gate).map(|grant| grant.fence)
    }

    /// Takes answers until the end is certain.
    pub(super) async fn decide(&mut self) -> End {
        loop {
            if let Some(end) = self.verdict() {
                return match end {
                    Verdict::Majority => self.conclude().await,
                    Verdict::End(end) => end,
                };
            }
            match self.fan.next().await {
                Some((at, said)) => self.note(at, said),
                None => return self.short(),
            }
        }
    }

    fn note(&mut self, at: usize, said: Said) {
        let new_here = self.first_time || (matches!(self.entry, Entry::Held(_)) && at != self.gate);
        if let Said::Granted(grant) = &said
            && new_here
        {
            self.shared.nodes.get(at).compare_clocks(grant, self.asked_at);
        }
        self.said[at] = said;
        if at == self.gate && matches!(self.said[at], Said::Failed(_)) && matches!(self.entry, Entry::Ask(_)) {
            let nodes = &self.shared.nodes;
            let answers = |at: &usize| !matches!(self.said[*at], Said::Failed(_) | Said::Unasked);
            self.gate = nodes.in_order_of_lead().into_iter().find(answers).unwrap_or(self.gate);
        }
    }

    /// The end, once no answer that is still missing can change it.
    fn verdict(&self) -> Option<Verdict> {
        let nodes = &self.shared.nodes;
        let end = |end| Some(Verdict::End(end));
        let countable = |(at, said): (usize, &Said)| match said {
            Said::Failed(_) | Said::Unasked => false,
            Said::Pending => true,
            _ => nodes.votes(at),
        };
        if self.said.iter().enumerate().filter(|said| countable(*said)).count() < nodes.majority() {
            return end(End::Unreachable(self.unreachable()));
        }
        match &self.said[self.gate] {
            Said::Pending => None,
            Said::Queued(place) => end(End::Queued(*place)),
            Said::Busy(_) if self.waits() && self.gate != self.asked_to_queue => end(End::NoPlace),
            Said::Busy(busy) => end(End::Busy(busy.clone())),
            Said::WrongShape(shape) => end(End::WrongShape(*shape)),
            Said::Gone => end(End::Gone),
            Said::Unasked | Said::Failed(_) => end(self.short()),
            Said::Granted(_) => {
                let pending = self.said.iter().filter(|said| matches!(said, Said::Pending)).count();
                let votes = self.votes();
                if votes.len() + pending < nodes.majority() {
                    return end(self.short());
                }
                let (_, agreeing) = most_common(&votes)?;
                let agree = agreeing >= nodes.majority();
                let may_still_agree = agreeing + pending >= nodes.majority();
                (agree || (votes.len() >= nodes.majority() && !may_still_agree)).then_some(Verdict::Majority)
            }
        }
    }

    fn waits(&self) -> bool {
        matches!(self.entry, Entry::Ask(Patience::Queue))
    }

    /// The fences of the grants that count.
    pub(super) fn votes(&self) -> Vec<Fence> {
        let grants = self.grants();
        grants.into_iter().filter(|(at, _)| self.shared.nodes.votes(*at)).map(|(_, grant)| grant.fence).collect()
    }

    /// What was granted where, whether it counts or not.
    pub(super) fn grants(&self) -> Vec<(usize, Grant)> {
        (0..self.said.len()).filter_map(|at| self.grant_at(at).map(|grant| (at, grant))).collect()
    }

    fn grant_at(&self, at: usize) -> Option<Grant> {
        match self.said[at] {
            Said::Granted(grant) => Some(grant),
            _ => None,
        }
    }

    /// A majority holds: makes the fence one, counts permits, and only then is it granted.
    async fn conclude(&mut self) -> End {
        let Some(fence) = self.agree().await else { return self.short() };
        if !self.is_within_capacity().await {
            return self.short();
        }
        let acquired_at = self.grants().first().map(|(_, grant)| grant.acquired_at).unwrap_or_default();
        End::Granted(Grant { fence, acquired_at })
    }

    fn short(&self) -> End {
        let busy = self.said.iter().find_map(|said| match said {
            Said::Busy(busy) => Some(busy.clone()),
            _ => None,
        });
        End::Short(busy.unwrap_or_default())
    }

    fn unreachable(&self) -> Error {
        let failure = |(at, said): (usize, &Said)| match said {
            Said::Failed(error) => Some((at, Error::unanswered(error.to_string()))),
            Said::Unasked => Some((at, Error::unanswered("did not answer a moment ago"))),
            _ => None,
        };
        let failures: Vec<(usize, Error)> = self.said.iter().enumerate().filter_map(failure).collect();
        self.shared.nodes.too_few(&self.tracked.key.resource, &failures)
    }

    /// Gives back what was granted so far, but for the place at the gate if that is kept.
    pub(super) async fn give_back(&mut self, tail: Tail) {
        let place = matches!(tail, Tail::KeepPlace).then_some(self.gate);
        let granted: Vec<usize> = self.grants().into_iter().map(|(at, _)| at).filter(|at| Some(*at) != place).collect();
        for at in &granted {
            self.said[*at] = Said::Gone;
        }
        release::free(&self.shared, &self.tracked, &Outcome::Cancelled, &granted, self.gate).await;
    }

    /// Sees to the answers that are still to come, in the background, and ends the turn then.
    pub(super) fn settle(mut self, turn: Turn, tail: Tail) {
        if self.fan.is_empty() && matches!(tail, Tail::Keep(_) | Tail::KeepPlace) {
            return self.owe(tail);
        }
        let runtime = self.shared.runtime.clone();
        runtime.spawn(async move {
            self.settle_now(tail).await;
            drop(turn);
        });
    }

    /// Sees to the answers that are still to come.
    pub(super) async fn settle_now(&mut self, tail: Tail) {
        while let Some((at, said)) = self.fan.next().await {
            self.said[at] = said;
        }
        match tail {
            Tail::Keep(fence) => self.raise_to(fence).await,
            Tail::KeepPlace | Tail::GiveBack | Tail::Lose => self.give_back(tail).await,
        }
        self.owe(tail);
        if matches!(tail, Tail::GiveBack) {
            self.shared.leases.forget(&self.tracked);
        }
    }

    /// What a node may have granted without saying so is given back when it can be reached again.
    fn owe(&mut self, tail: Tail) {
        if matches!(tail, Tail::Keep(_)) {
            return;
        }
        for at in 0..self.said.len() {
            if matches!(&self.said[at], Said::Failed(error) if error.outcome_unknown())
                && !(at == self.gate && matches!(tail, Tail::KeepPlace))
            {
                release::owe(&self.shared, at, &self.tracked.key, &Outcome::Cancelled, self.tracked.ttl());
            }
        }
    }
}

enum Verdict {
    /// So many hold that it can be concluded.
    Majority,
    End(End),
}
