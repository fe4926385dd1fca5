//! One fence on a majority: what makes fences of a quorum rise.
//!
//! Each node numbers its grants by itself. A lease is told to be granted under
//! a fence only when a majority has stored exactly that one. Whoever is granted
//! the lease next has a majority too, so one node is in both; there every
//! store is above the one before, so its fence is above. No clock is in this
//! argument, only that no node forgets.

use std::sync::Arc;

use super::{
    fan::Fan,
    pursuit::Pursuit,
    said::{Said, most_common},
};
use crate::lease::{Family, Fence, ListFilter, Names, Renewal};

/// How often a fence is proposed before the round is given up.
const PROPOSALS: u64 = 3;

impl Pursuit {
    /// Makes a majority agree on one fence; `None` if so many no longer hold, or refuse.
    pub(super) async fn agree(&mut self) -> Option<Fence> {
        for proposal in 0..=PROPOSALS {
            let votes = self.votes();
            let (fence, agreeing) = most_common(&votes)?;
            if agreeing >= self.shared.nodes.majority() {
                return Some(fence);
            }
            if votes.len() < self.shared.nodes.majority() || proposal == PROPOSALS {
                return None;
            }
            let target = self.target(&votes, proposal);
            self.raise_to(target).await;
        }
        None
    }

    /// The highest fence that was answered; after a refusal one that none can have reached meanwhile.
    fn target(&self, votes: &[Fence], refusals: u64) -> Fence {
        let nodes = &self.shared.nodes;
        // A node whose clock has run away must not make all the others refuse.
        let limit = nodes.fence_limit();
        let in_reach: Vec<Fence> = votes.iter().copied().filter(|fence| *fence <= limit).collect();
        let of = if in_reach.len() >= nodes.majority() { &in_reach } else { votes };
        let highest = of.iter().copied().max().unwrap_or_default();
        match refusals {
            0 => highest,
            _ => highest.max(nodes.proposal().min(limit)).raised_by(refusals * 1000),
        }
    }

    /// Raises the fence wherever the lease is still held under a lower one: stored exactly or refused.
    pub(super) async fn raise_to(&mut self, target: Fence) {
        let limit = self.shared.nodes.limit();
        let mut fan = Fan::new();
        for (at, grant) in self.grants() {
            if grant.fence < target {
                let node = Arc::clone(self.shared.nodes.get(at));
                let mut renewal = Renewal::new(self.tracked.key.clone(), self.tracked.ttl());
                renewal.fence_floor = Some(target);
                fan.add(at, async move {
                    let call = node.backend.renew(std::slice::from_ref(&renewal));
                    Said::stands(node.ask(limit, call).await)
                });
            }
        }
        for (at, said) in fan.all().await {
            self.said[at] = said;
        }
    }

    /// Whether all who hold permits, seen from a majority of the nodes, fit together.
    ///
    /// A majority of nodes that each keep to the capacity is not enough: with a
    /// capacity of 2 on 3 nodes, three askers could each get another pair of
    /// them. So an asker that has its majority looks at a majority once more and
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
            .look(|backend| {
                let filter = filter.clone();
                async move { backend.list(&filter).await }
            })
            .await;
        let seen: Vec<_> = answers
            .into_iter()
            .filter(|(at, _)| nodes.votes(*at))
            .filter_map(|(at, page)| Some((at, page.ok()?)))
            .collect();
        if seen.len() < nodes.majority() {
            return false;
        }
        super::listing::units_taken(seen) <= u64::from(claim.capacity())
    }
}

impl Fence {
    fn raised_by(self, micros: u64) -> Self {
        Self::new(self.get().saturating_add(micros))
    }
}
