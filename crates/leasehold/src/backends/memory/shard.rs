//! Some of a place's resources, under one latch.

use std::collections::{HashMap, VecDeque};

use super::events::Events;
use crate::{
    backend::{Hint, HintSender},
    lease::{EndedLease, Ending, Fence, HistoryFilter, LeaseId, Names, Resource},
    model::{Context, Effects, Granted, State},
};

/// Ended leases kept per shard.
const HISTORY: usize = 1000;

/// A sweep waits for at least so many operations.
const SWEEP_AFTER: usize = 64;

/// Some of a place's resources. A resource that nobody wants has no slot.
pub(super) struct Shard {
    slots: HashMap<Resource, Slot>,
    /// The newest fence among the slots that were removed: new ones start from it,
    /// so that no fence falls and no name has to be remembered.
    fence_floor: Fence,
    history: VecDeque<EndedLease>,
    /// Operations left until the next sweep.
    sweep_in: usize,
}

impl Default for Shard {
    fn default() -> Self {
        Self { slots: HashMap::new(), fence_floor: Fence::default(), history: VecDeque::new(), sweep_in: SWEEP_AFTER }
    }
}

/// One resource, and where to tell the askers of its leases.
pub(super) struct Slot {
    pub(super) state: State,
    told_at: Vec<(LeaseId, HintSender)>,
}

impl Slot {
    fn new(fence_floor: Fence) -> Self {
        Self { state: State { entries: Vec::new(), last_fence: fence_floor }, told_at: Vec::new() }
    }

    /// Hints about this lease go to the instance that asked for it last.
    pub(super) fn tell_at(&mut self, id: LeaseId, hints: &HintSender) {
        self.told_at.retain(|(known, _)| *known != id);
        self.told_at.push((id, hints.clone()));
    }

    fn tell(&self, id: LeaseId, hint: Hint) {
        if let Some((_, hints)) = self.told_at.iter().find(|(known, _)| *known == id) {
            hints.send(hint);
        }
    }

    /// Tells the instances concerned. The asker learns of its own lease from the answer.
    fn hint(&mut self, asker: Option<LeaseId>, effects: &Effects) {
        for &Granted { id, fence, .. } in effects.granted.iter().filter(|granted| asker != Some(granted.id)) {
            self.tell(id, Hint::Granted { id, fence });
        }
        for ended in &effects.ended {
            let id = ended.entry.id;
            if ended.ending == Ending::Evicted {
                self.tell(id, Hint::Evicted { id });
            }
            self.told_at.retain(|(known, _)| *known != id);
        }
    }
}

impl Shard {
    /// Runs an operation on one resource and tells everyone what it did to others.
    pub(super) fn operate<T>(
        &mut self,
        resource: &Resource,
        asker: Option<LeaseId>,
        context: &Context<'_>,
        events: &Events,
        work: impl FnOnce(&mut Slot, &mut Effects) -> T,
    ) -> T {
        let fence_floor = self.fence_floor;
        let slot = self.slots.entry(resource.clone()).or_insert_with(|| Slot::new(fence_floor));
        let mut effects = Effects::default();
        let done = work(slot, &mut effects);
        slot.hint(asker, &effects);
        events.publish(resource, &slot.state, &effects, context);
        if slot.state.entries.is_empty() {
            self.fence_floor = fence_floor.max(slot.state.last_fence);
            self.slots.remove(resource);
        }
        record(&mut self.history, resource, effects);
        done
    }

    /// Ends expired leases that nobody touches.
    ///
    /// As many operations as the last sweep had entries to look at pass between
    /// two sweeps, so that each operation pays for one entry.
    pub(super) fn sweep_now_and_then(&mut self, context: &Context<'_>, events: &Events) {
        self.sweep_in -= 1;
        if self.sweep_in > 0 {
            return;
        }
        let Self { slots, fence_floor, history, .. } = self;
        let mut seen = 0;
        slots.retain(|resource, slot| {
            seen += slot.state.entries.len();
            let mut effects = Effects::default();
            slot.state.settle(context, &mut effects);
            slot.hint(None, &effects);
            events.publish(resource, &slot.state, &effects, context);
            record(history, resource, effects);
            let wanted = !slot.state.entries.is_empty();
            if !wanted {
                *fence_floor = (*fence_floor).max(slot.state.last_fence);
            }
            wanted
        });
        self.slots.shrink_to(self.slots.len() * 4);
        self.sweep_in = seen.max(SWEEP_AFTER);
    }

    pub(super) fn kept(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn names<'a>(&'a self, wanted: &'a Names) -> impl Iterator<Item = Resource> + 'a {
        self.slots.keys().filter(|name| wanted.include(name)).cloned()
    }

    /// Newest first.
    pub(super) fn ended(&self, filter: &HistoryFilter) -> Vec<EndedLease> {
        self.history.iter().rev().filter(|ended| filter.include(ended)).cloned().collect()
    }
}

fn record(history: &mut VecDeque<EndedLease>, resource: &Resource, effects: Effects) {
    for ended in effects.ended {
        if history.len() == HISTORY {
            history.pop_front();
        }
        history.push_back(ended.into_record(resource.clone()));
    }
}
