//! One operation: under the latch read, run the rule, replace; then tell those concerned.

use std::{
    cell::RefCell,
    collections::{BTreeMap, HashMap},
};

use uuid::Uuid;

use super::{
    FileBackend, deaths,
    doorbell::Line,
    history,
    latch::{self, Latch},
    presence,
    record::{self, Stored, Times},
};
use crate::{
    Error, Result,
    backend::Hint,
    lease::{EndedLease, Ending, Event, EventKind, LeaseId, Resource},
    model::{Context, Effects, Entry, Expiry, Granted, Presence, State},
};

/// A line to be written to a process.
struct Call {
    to: Uuid,
    line: Line,
}

/// What an operation answers, and whom to call once the latch is free.
struct Done<T> {
    answer: T,
    calls: Vec<Call>,
}

impl FileBackend {
    /// Runs the rule on one resource for these leases of ours; refuses once our presence was removed.
    ///
    /// # Cancel safety
    /// The only wait is for the latch: a dropped call did nothing, or all of it.
    pub(super) async fn operate<T>(
        &self,
        resource: &Resource,
        askers: &[LeaseId],
        rule: impl FnOnce(&mut State, &Context<'_>, &mut Effects) -> T + Send,
    ) -> Result<T> {
        let latch = self.latches.take(latch::number(resource)).await;
        self.refuse_removed().map_err(|error| error.about(resource))?;
        self.finish(latch.map_err(|error| error.about(resource))?, resource, askers, rule)
    }

    /// Runs the rule for leases that were granted before. Once our presence was removed we count as dead here too,
    /// so that the answer is the one that others would get.
    ///
    /// # Cancel safety
    /// As `operate`.
    pub(super) async fn operate_for_known<T>(
        &self,
        resource: &Resource,
        askers: &[LeaseId],
        rule: impl FnOnce(&mut State, &Context<'_>, &mut Effects) -> T + Send,
    ) -> Result<T> {
        let latch = self.latches.take(latch::number(resource)).await.map_err(|error| error.about(resource))?;
        self.is_removed();
        self.finish(latch, resource, askers, rule)
    }

    fn finish<T>(
        &self,
        latch: Latch,
        resource: &Resource,
        askers: &[LeaseId],
        rule: impl FnOnce(&mut State, &Context<'_>, &mut Effects) -> T,
    ) -> Result<T> {
        let done = self.perform(&latch, resource, askers, rule)?;
        // Whoever is called wants the latch next.
        drop(latch);
        self.make(done.calls);
        Ok(done.answer)
    }

    /// Whether our presence was removed; the first to see it has every lease asked about.
    pub(super) fn is_removed(&self) -> bool {
        let known = self.own.was_removed();
        let removed = self.own.is_removed();
        if removed && !known {
            tracing::error!(error = %self.removal(), "every lease of this instance is lost");
            self.hints.send(Hint::Missed);
        }
        removed
    }

    pub(super) fn refuse_removed(&self) -> Result<()> {
        if self.is_removed() { Err(self.removal()) } else { Ok(()) }
    }

    fn removal(&self) -> Error {
        Error::unavailable(format!(
            "the presence of this instance, {}, was removed, so that others take it for dead and may hold what it \
             held; connect again, and keep rm and cleaners of temporary files away from the directory",
            self.directory.presence(self.own.id()).display()
        ))
    }

    fn make(&self, calls: Vec<Call>) {
        for Call { to, line } in calls {
            if to == self.own.id() {
                line.deliver(&self.hints, &self.watchers);
            } else {
                presence::ring(&self.directory, to, &line.to_string());
            }
        }
    }

    fn perform<T>(
        &self,
        latch: &Latch,
        resource: &Resource,
        askers: &[LeaseId],
        rule: impl FnOnce(&mut State, &Context<'_>, &mut Effects) -> T,
    ) -> Result<Done<T>> {
        let times = self.times();
        let before = record::load(&self.directory, resource, latch, &times)?;
        let mut after = Stored { revived: false, ..before.clone() };
        for id in askers {
            after.presence.entry(*id).or_insert(self.own.id());
        }
        let mut effects = Effects::default();
        let answer = self.run(&mut after, &times, &mut effects, rule);
        after.prune();
        keep_unrenewed(&before.state, &mut after.state);
        if after != before {
            let aside = self.own.aside(latch::number(resource));
            record::replace(&self.directory, resource, after.clone(), latch, &aside, &times)?;
        }

        let calls = self.calls(resource, askers, &before, &after, &effects);
        self.watchers.tell(events(resource, &after, &effects, &times));
        let ended: Vec<EndedLease> =
            effects.ended.into_iter().map(|ended| ended.into_record(resource.clone())).collect();
        history::record(&self.directory, &ended);
        self.deaths.follow(resource, deaths::in_the_way_of(self.own.id(), &after));
        Ok(Done { answer, calls })
    }

    fn run<T>(
        &self,
        stored: &mut Stored,
        times: &Times<'_>,
        effects: &mut Effects,
        rule: impl FnOnce(&mut State, &Context<'_>, &mut Effects) -> T,
    ) -> T {
        let Stored { state, presence, .. } = stored;
        let seen = RefCell::new(HashMap::new());
        let look = |entry: &Entry| self.presence_of(entry, presence, &mut seen.borrow_mut());
        rule(state, &Context { now: times.now, wall: times.wall, presence: &look }, effects)
    }

    /// Each process is looked at once per operation.
    fn presence_of(
        &self,
        entry: &Entry,
        presence: &BTreeMap<LeaseId, Uuid>,
        seen: &mut HashMap<Uuid, Presence>,
    ) -> Presence {
        match record::bound_to(entry, presence) {
            None => Presence::Present,
            Some(id) if id == self.own.id() && self.own.was_removed() => Presence::Dead,
            Some(id) if id == self.own.id() => Presence::Own,
            Some(id) => *seen.entry(id).or_insert_with(|| presence::look(&self.directory, id)),
        }
    }

    /// Whom to call. The askers have the answer.
    fn calls(
        &self,
        resource: &Resource,
        askers: &[LeaseId],
        before: &Stored,
        after: &Stored,
        effects: &Effects,
    ) -> Vec<Call> {
        let whose = |id: &LeaseId| after.presence.get(id).or_else(|| before.presence.get(id)).copied();
        let mut calls = Vec::new();
        let mut call = |id: &LeaseId, line| calls.extend(whose(id).map(|to| Call { to, line }));
        for Granted { id, fence, .. } in effects.granted.iter().filter(|granted| !askers.contains(&granted.id)) {
            call(id, Line::Granted(*id, *fence));
        }
        for ended in effects.ended.iter().filter(|ended| ended.ending == Ending::Evicted) {
            call(&ended.entry.id, Line::Evicted(ended.entry.id));
        }
        for id in deaths::behind_someone_new(before, after) {
            // Our own entries are followed already.
            if whose(&id) != Some(self.own.id()) {
                call(&id, Line::Changed(resource.clone()));
            }
        }
        calls
    }

    pub(super) fn times(&self) -> Times<'_> {
        Times { now: self.clock.now(), wall: self.clock.wall(), boot: &self.boot }
    }
}

/// A lease that lives by its process gains nothing by a renewal, and a date alone is not worth a write.
fn keep_unrenewed(before: &State, after: &mut State) {
    for entry in after.entries.iter_mut().filter(|entry| entry.expiry == Expiry::ByPresence) {
        if let Some(known) = before.entries.iter().find(|known| known.id == entry.id) {
            entry.renewed_at = known.renewed_at;
        }
    }
}

fn events(resource: &Resource, after: &Stored, effects: &Effects, times: &Times<'_>) -> Vec<Event> {
    let event = |entry: &Entry, at, kind| Event {
        at,
        resource: resource.clone(),
        holder: entry.holder.clone(),
        claim: entry.claim,
        kind,
    };
    let ended = effects.ended.iter().map(|ended| {
        let fence = ended.entry.held().map(|held| held.fence);
        event(&ended.entry, ended.ended_at, EventKind::Ended { ending: ended.ending, fence })
    });
    let entries = &after.state.entries;
    let find = |id: &LeaseId| entries.iter().find(|entry| entry.id == *id);
    let waiting = effects.queued.iter().filter_map(find).map(|entry| event(entry, times.wall, EventKind::Waiting));
    let acquired = effects.granted.iter().filter_map(|Granted { id, fence, .. }| {
        Some(event(find(id)?, times.wall, EventKind::Acquired { fence: *fence }))
    });
    ended.chain(waiting).chain(acquired).collect()
}
