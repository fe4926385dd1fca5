//! Turns the effects of an operation on the model into hints, events and history.

use super::{EventHub, Hint};
use crate::{
    lease::{EndedLease, Ending, Event, EventKind, LeaseId, Resource, Timestamp},
    model::{Context, Effects, Ended, Entry, Granted, State},
};

/// Receives the effects of an operation, in the order in which they happened.
pub trait Audience {
    /// Sends a hint to the instance that requested this lease.
    fn hint(&mut self, id: LeaseId, hint: Hint);

    /// Returns whether anyone watches. If not, [`publish()`] creates no events.
    fn wants_events(&self) -> bool;

    /// Publishes an event to watchers.
    fn event(&mut self, event: Event);

    /// Records a lease that ended.
    fn ended(&mut self, id: LeaseId, ended: EndedLease);
}

/// An [`Audience`] that collects hints, events and history records, to be sent once the write has succeeded.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct CollectedEffects {
    watched: bool,
    /// Hints, each to be sent to the instance that requested the lease with this id.
    pub hints: Vec<(LeaseId, Hint)>,
    /// Events, if anyone watches.
    pub events: Vec<Event>,
    /// History records of the leases that ended.
    pub ended: Vec<(LeaseId, EndedLease)>,
}

impl CollectedEffects {
    /// Creates an empty collection. It collects events only if somebody watches `events`.
    pub fn new(events: &EventHub) -> Self {
        Self { watched: !events.is_idle(), ..Self::default() }
    }
}

impl Audience for CollectedEffects {
    fn hint(&mut self, id: LeaseId, hint: Hint) {
        self.hints.push((id, hint));
    }

    fn wants_events(&self) -> bool {
        self.watched
    }

    fn event(&mut self, event: Event) {
        self.events.push(event);
    }

    fn ended(&mut self, id: LeaseId, ended: EndedLease) {
        self.ended.push((id, ended));
    }
}

/// Reports the effects of an operation on `resource`, then clears `effects`.
///
/// `own` are the leases that the operation was called for. Their clients learn the result
/// from the answer, so they get no hint about a grant.
pub fn publish(
    resource: &Resource,
    state: &State,
    effects: &mut Effects,
    own: &[LeaseId],
    context: &Context<'_>,
    audience: &mut impl Audience,
) {
    for Granted { id, fence, provisional } in effects.granted.iter().copied() {
        // The client learns of its own lease from the answer; a lease that ended at once needs no hint.
        if !own.contains(&id) && !effects.ended.iter().any(|ended| ended.entry.id == id) {
            audience.hint(id, Hint::Granted { id, fence, provisional });
        }
    }
    if audience.wants_events() {
        events(resource, state, effects, context.wall, audience);
    }
    effects.granted.clear();
    effects.queued = None;
    for ended in effects.ended.drain(..) {
        let id = ended.entry.id;
        if ended.ending == Ending::Evicted {
            audience.hint(id, Hint::Evicted { id });
        }
        audience.ended(id, ended.into_record(resource.clone()));
    }
}

fn events(resource: &Resource, state: &State, effects: &Effects, wall: Timestamp, audience: &mut impl Audience) {
    let mut send = |entry: &Entry, at, kind| {
        audience.event(Event::new(at, resource.clone(), entry.holder.clone(), entry.claim, kind));
    };
    let entry_of = |id: LeaseId| {
        let ended = effects.ended.iter().map(|ended| &ended.entry);
        state.entries.iter().chain(ended).find(|entry| entry.id == id)
    };
    let acquired = |granted: &[Granted], send: &mut dyn FnMut(&Entry, Timestamp, EventKind)| {
        for Granted { id, fence, .. } in granted {
            if let Some(entry) = entry_of(*id)
                && let Some(held) = entry.held()
            {
                send(entry, held.acquired_at, EventKind::Acquired { fence: *fence });
            }
        }
    };

    let mut granted = effects.granted.as_slice();
    for Ended { entry, ended_at, ending, .. } in &effects.ended {
        // A lease that one operation granted and ended was granted first.
        if let Some(at) = granted.iter().position(|granted| granted.id == entry.id) {
            let (before, rest) = granted.split_at(at + 1);
            acquired(before, &mut send);
            granted = rest;
        }
        let fence = entry.held().map(|held| held.fence);
        send(entry, *ended_at, EventKind::Ended { ending: *ending, fence });
    }
    acquired(granted, &mut send);
    if let Some(entry) = effects.queued.and_then(|id| state.entries.iter().find(|entry| entry.id == id)) {
        send(entry, wall, EventKind::Waiting);
    }
}
