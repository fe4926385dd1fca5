//! Some of the resources of a store, under one mutex.

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
    removed_fence: Fence,
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
            removed_fence: Fence::default(),
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
    requested_by: Vec<(LeaseId, InstanceId)>,
}

impl ResourceSlot {
    /// Hints about this lease go to the instance that requested it last.
    pub(super) fn send_hints_to(&mut self, id: LeaseId, instance: InstanceId) {
        if let Some((_, known_instance)) = self.requested_by.iter_mut().find(|(known, _)| *known == id) {
            *known_instance = instance;
            return;
        }
        // Most names have one lease: do not reserve for four.
        if self.requested_by.is_empty() {
            self.requested_by.reserve_exact(1);
        }
        self.requested_by.push((id, instance));
    }
}

/// Hints to send once the mutex is free, since the waiter that they wake takes it next.
pub(super) type PendingHints = Vec<(InstanceId, Hint)>;

/// Receives the effects of an operation on one resource.
struct OperationAudience<'a> {
    requested_by: &'a mut Vec<(LeaseId, InstanceId)>,
    hints: &'a mut PendingHints,
    events: &'a EventHub,
    history: &'a mut VecDeque<EndedLease>,
}

impl Audience for OperationAudience<'_> {
    fn hint(&mut self, id: LeaseId, hint: Hint) {
        if let Some((_, instance)) = self.requested_by.iter().find(|(known, _)| *known == id) {
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
        self.requested_by.retain(|(known, _)| *known != id);
        if self.history.len() == HISTORY {
            self.history.pop_front();
        }
        self.history.push_back(ended);
    }
}

impl Shard {
    /// Runs an operation on one resource, then records its hints, events and history.
    pub(super) fn operate<T>(
        &mut self,
        (resource, hash): (&Resource, u64),
        own: &[LeaseId],
        context: &Context<'_>,
        events: &EventHub,
        hints: &mut PendingHints,
        work: impl FnOnce(&mut ResourceSlot, &mut Effects) -> T,
    ) -> T {
        let Self { slots, removed_fence, history, spare, effects, .. } = self;
        let mut found = match slots.entry(hash, |slot| slot.resource == *resource, |slot| slot.hash) {
            Entry::Occupied(found) => found,
            Entry::Vacant(place) => {
                // Both are empty: the slot had no entries, and every ended lease has left `requested_by`.
                let (mut state, requested_by) = std::mem::take(spare);
                state.last_fence = *removed_fence;
                place.insert(ResourceSlot { resource: resource.clone(), hash, state, requested_by })
            }
        };
        let slot = found.get_mut();
        let done = work(slot, effects);
        let ResourceSlot { state, requested_by, .. } = slot;
        publish(
            resource,
            state,
            effects,
            own,
            context,
            &mut OperationAudience { requested_by, hints, events, history },
        );
        if state.entries.is_empty() {
            *removed_fence = (*removed_fence).max(state.last_fence);
            let (ResourceSlot { state, requested_by, .. }, _) = found.remove();
            *spare = (state, requested_by);
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
        let Self { slots, removed_fence, history, effects, .. } = self;
        let mut seen = 0;
        slots.retain(|ResourceSlot { resource, state, requested_by, .. }| {
            seen += state.entries.len();
            // Settling ends only what has expired, and grants what that frees.
            state.settle(context, effects);
            publish(
                resource,
                state,
                effects,
                &[],
                context,
                &mut OperationAudience { requested_by, hints, events, history },
            );
            if state.entries.is_empty() {
                *removed_fence = (*removed_fence).max(state.last_fence);
            }
            !state.entries.is_empty()
        });
        // A table that was once large gives its memory back.
        self.slots.shrink_to(self.slots.len() * 4, |slot| slot.hash);
        self.sweep_in = seen.max(SWEEP_AFTER);
    }

    pub(super) fn names<'a>(&'a self, wanted: &'a Names) -> impl Iterator<Item = Resource> + 'a {
        self.slots.iter().map(|slot| &slot.resource).filter(|name| wanted.include(name)).cloned()
    }

    /// How many names have a lease or a waiter, counting those that have expired but were not swept.
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Newest first.
    pub(super) fn ended(&self, filter: &HistoryFilter) -> Vec<EndedLease> {
        self.history.iter().rev().filter(|ended| filter.include(ended)).cloned().collect()
    }
}
