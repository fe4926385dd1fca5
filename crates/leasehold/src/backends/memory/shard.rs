//! Some of the resources of a store, under one latch.

use std::collections::VecDeque;

use hashbrown::{HashTable, hash_table::Entry};

use crate::{
    backend::{Audience, EventHub, Hint, publish},
    lease::{EndedLease, Event, Fence, HistoryFilter, LeaseId, Names, Resource},
    model::{Context, Effects, State},
};

/// How many ended leases a shard remembers.
const HISTORY: usize = 256;

/// A sweep waits for at least this many operations.
const SWEEP_AFTER: usize = 64;

/// Some of the resources. A resource without leases has no slot.
pub(super) struct Shard {
    slots: HashTable<ResourceSlot>,
    /// The newest fence of all removed slots. A new slot starts from it, so that fences rise although
    /// the names of removed slots are forgotten.
    fence_floor: Fence,
    history: VecDeque<EndedLease>,
    /// Operations left until the next sweep.
    sweep_in: usize,
    /// The buffers of a slot that was removed, for the next one.
    spare: (State, Vec<(LeaseId, InstanceId)>),
    effects: Effects,
}

impl Default for Shard {
    fn default() -> Self {
        Self {
            slots: HashTable::new(),
            fence_floor: Fence::default(),
            history: VecDeque::new(),
            sweep_in: SWEEP_AFTER,
            spare: Default::default(),
            effects: Effects::default(),
        }
    }
}

/// The number of an instance on the store.
pub(super) type InstanceId = u64;

/// One resource, and the instances that requested its leases.
pub(super) struct ResourceSlot {
    resource: Resource,
    hash: u64,
    pub(super) state: State,
    callers: Vec<(LeaseId, InstanceId)>,
}

impl ResourceSlot {
    /// Hints about this lease go to the instance that requested it last.
    pub(super) fn hint_at(&mut self, id: LeaseId, instance: InstanceId) {
        if let Some((_, caller)) = self.callers.iter_mut().find(|(known, _)| *known == id) {
            *caller = instance;
            return;
        }
        if self.callers.is_empty() {
            self.callers.reserve_exact(1);
        }
        self.callers.push((id, instance));
    }
}

/// Hints to send once the latch is free, since the waiter that they wake takes it next.
pub(super) type PendingHints = Vec<(InstanceId, Hint)>;

/// Receives the effects of an operation on one resource.
struct OperationAudience<'a> {
    callers: &'a mut Vec<(LeaseId, InstanceId)>,
    hints: &'a mut PendingHints,
    events: &'a EventHub,
    history: &'a mut VecDeque<EndedLease>,
}

impl Audience for OperationAudience<'_> {
    fn hint(&mut self, id: LeaseId, hint: Hint) {
        if let Some((_, instance)) = self.callers.iter().find(|(known, _)| *known == id) {
            self.hints.push((*instance, hint));
        }
    }

    fn wants_events(&self) -> bool {
        !self.events.is_idle()
    }

    fn event(&mut self, event: Event) {
        self.events.send(&event);
    }

    fn ended(&mut self, id: LeaseId, ended: EndedLease) {
        self.callers.retain(|(known, _)| *known != id);
        if self.history.len() == HISTORY {
            self.history.pop_front();
        }
        self.history.push_back(ended);
    }
}

impl Shard {
    /// Runs an operation on one resource and reports what it did to others.
    pub(super) fn operate<T>(
        &mut self,
        (resource, hash): (&Resource, u64),
        caller: &[LeaseId],
        context: &Context<'_>,
        events: &EventHub,
        hints: &mut PendingHints,
        work: impl FnOnce(&mut ResourceSlot, &mut Effects) -> T,
    ) -> T {
        let Self { slots, fence_floor, history, spare, effects, .. } = self;
        let mut found = match slots.entry(hash, |slot| slot.resource == *resource, |slot| slot.hash) {
            Entry::Occupied(found) => found,
            Entry::Vacant(place) => {
                let (mut state, callers) = std::mem::take(spare);
                state.last_fence = *fence_floor;
                place.insert(ResourceSlot { resource: resource.clone(), hash, state, callers })
            }
        };
        let slot = found.get_mut();
        let done = work(slot, effects);
        let ResourceSlot { state, callers, .. } = slot;
        publish(resource, state, effects, caller, context, &mut OperationAudience { callers, hints, events, history });
        if state.entries.is_empty() {
            *fence_floor = (*fence_floor).max(state.last_fence);
            let (ResourceSlot { state, callers, .. }, _) = found.remove();
            *spare = (state, callers);
        }
        done
    }

    /// Ends expired leases that nobody touches.
    ///
    /// After a sweep that looked at `n` entries, the next one comes `n` operations later, so that each operation
    /// pays for one entry.
    pub(super) fn sweep_now_and_then(&mut self, context: &Context<'_>, events: &EventHub, hints: &mut PendingHints) {
        self.sweep_in -= 1;
        if self.sweep_in > 0 {
            return;
        }
        let Self { slots, fence_floor, history, effects, .. } = self;
        let mut seen = 0;
        slots.retain(|ResourceSlot { resource, state, callers, .. }| {
            seen += state.entries.len();
            state.settle(context, effects);
            publish(resource, state, effects, &[], context, &mut OperationAudience { callers, hints, events, history });
            if state.entries.is_empty() {
                *fence_floor = (*fence_floor).max(state.last_fence);
            }
            !state.entries.is_empty()
        });
        self.slots.shrink_to(self.slots.len() * 4, |slot| slot.hash);
        self.sweep_in = seen.max(SWEEP_AFTER);
    }

    pub(super) fn names<'a>(&'a self, wanted: &'a Names) -> impl Iterator<Item = Resource> + 'a {
        self.slots.iter().map(|slot| &slot.resource).filter(|name| wanted.include(name)).cloned()
    }

    /// How many resources have a slot: those with a live lease, and expired ones not yet swept.
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Newest first.
    pub(super) fn ended(&self, filter: &HistoryFilter) -> Vec<EndedLease> {
        self.history.iter().rev().filter(|ended| filter.include(ended)).cloned().collect()
    }
}
