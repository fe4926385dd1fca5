//! Runs one operation: takes the latch, reads the record, runs the model, replaces the record; then notifies other
//! processes.

use std::{
    cell::RefCell,
    collections::HashMap,
    fs::File,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use uuid::Uuid;

use super::{
    death_watch::DeathWatch,
    death_watch_targets,
    directory::Directory,
    event_watchers::Watchers,
    history::HistoryLog,
    latch::{self, Latch, LatchWait, Latches},
    notifications::{Notification, NotificationInbox},
    presence::{self, OwnPresence, Visibility},
    record::{self, Change, LatchedPath, Record, Times, ends_with_process},
    spares::{Spare, Spares},
};
use crate::{
    Result,
    backend::{Audience, Hint, publish},
    clock::Clock,
    lease::{EndedLease, Event, LeaseId, Moment, Resource},
    model::{Context, Effects, Entry, EntryState, Expiry, Presence, State},
};

/// If the last operation took longer than this, the next one runs on a blocking thread instead of the caller's.
const SLOW: Duration = Duration::from_millis(2);
/// How many FIFOs an operation keeps open for its notifications. A long queue has more FIFOs than a process may open.
const OPEN_FIFOS: usize = 4;

/// An open instance of the file backend: everything that its operations use.
#[derive(Debug)]
pub(super) struct FileInstance {
    pub(super) directory: Arc<Directory>,
    pub(super) latches: Latches,
    pub(super) spares: Spares,
    pub(super) death_watch: DeathWatch,
    pub(super) watchers: Arc<Watchers>,
    pub(super) history: HistoryLog,
    pub(super) own_presence: Arc<OwnPresence>,
    pub(super) inbox: Arc<NotificationInbox>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) boot: String,
    /// The machine-wide directory, if it did not exist when this instance opened.
    pub(super) missing_machine_directory: Option<PathBuf>,
    /// Whether the last operation was slow.
    pub(super) slow: AtomicBool,
}

/// What an operation works on, and how it waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct OperationScope<'a> {
    pub(super) resource: &'a Resource,
    /// The ids of the leases that the operation acts on.
    pub(super) lease_ids: &'a [LeaseId],
    pub(super) wait: LatchWait,
    pub(super) if_removed: IfRemoved,
}

/// What to do once the presence of this instance was removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IfRemoved {
    /// Fail: nothing new can be acquired.
    Refuse,
    /// Treat our leases as those of a dead process, as others do: a renewal or release then finds them gone.
    CountAsDead,
}

/// The answer of an operation, and the work to do after the latch is unlocked for other processes. Notifications wait
/// until then, because the processes that receive them take the latch next. Threads of this instance wait until all is
/// done, which keeps its notifications and its history in the order of the operations.
struct OperationResult<T> {
    answer: T,
    notifications: Vec<(Uuid, Notification)>,
    ended: Vec<EndedLease>,
    to_remove: Option<Spare>,
    began: Moment,
    /// A process ahead of our waiters died before it could be watched.
    ask_again: bool,
    seen: SeenPresences,
}

/// The presence of other instances, cached so that an operation checks each only once.
#[derive(Default)]
struct SeenPresences {
    presences: HashMap<Uuid, Presence>,
    /// The FIFOs of the first instances that were checked: these are the ones most likely to be notified.
    fifos: Vec<(Uuid, File)>,
}

impl SeenPresences {
    fn presence_of(&mut self, directory: &Directory, id: Uuid) -> Presence {
        if let Some(presence) = self.presences.get(&id) {
            return *presence;
        }
        let (presence, fifo) = presence::presence_and_fifo(directory, id);
        self.presences.insert(id, presence);
        if self.fifos.len() < OPEN_FIFOS {
            self.fifos.extend(fifo.map(|fifo| (id, fifo)));
        }
        presence
    }

    /// Writes a line to another instance.
    fn send(&self, directory: &Directory, to: Uuid, line: &[u8]) {
        match self.fifos.iter().find(|(id, _)| *id == to) {
            Some((_, fifo)) => presence::write(fifo, to, line),
            None => presence::send(directory, to, line),
        };
    }
}

impl FileInstance {
    /// Runs the model on one resource; `None` when the latch is not free within the wait.
    pub(super) fn operate<T>(
        &self,
        scope: &OperationScope<'_>,
        decide: impl FnOnce(&mut State, &Context<'_>, &mut Effects) -> T,
    ) -> Result<Option<T>> {
        let taken = self.latches.take(latch::number(scope.resource), scope.wait);
        let Some(mut latch) = taken.map_err(|error| error.about(scope.resource))? else { return Ok(None) };
        let found = self.own_presence.check().map_err(|error| error.about(scope.resource))?;
        let done = match found {
            Visibility::Removed { .. } if scope.if_removed == IfRemoved::Refuse => {
                Err(self.own_presence.removed_error().about(scope.resource))
            }
            _ => self.with_latch(&mut latch, scope, decide),
        };
        latch.unlock();
        self.on_removal(found);
        let OperationResult { answer, notifications, ended, to_remove, began, ask_again, seen } = done?;
        for (to, notification) in notifications {
            if to == self.own_presence.id() {
                self.inbox.deliver(notification);
            } else {
                seen.send(&self.directory, to, notification.to_string().as_bytes());
            }
        }
        if ask_again {
            self.inbox.deliver(Notification::Changed(scope.resource.clone()));
        }
        if let Some(spare) = to_remove {
            spare.remove();
        }
        self.history.add(&ended, self.clock.now());
        self.slow.store(self.clock.now().since(began) > SLOW, Ordering::Relaxed);
        Ok(Some(answer))
    }

    /// Removes what only this instance uses.
    pub(super) fn remove_files(&self) {
        self.spares.remove_all();
        self.own_presence.remove();
    }

    /// Returns whether operations are fast enough to run on a caller's thread.
    pub(super) fn is_fast(&self) -> bool {
        !self.directory.fsync && !self.slow.load(Ordering::Relaxed)
    }

    /// Returns whether our presence was removed.
    pub(super) fn is_removed(&self) -> bool {
        self.own_presence.check().is_ok_and(|found| {
            self.on_removal(found);
            found != Visibility::Visible
        })
    }

    /// When the removal is first detected, makes the engine renew every lease, which finds them all lost.
    fn on_removal(&self, found: Visibility) {
        if found == (Visibility::Removed { first: true }) {
            tracing::error!(error = %self.own_presence.removed_error(), "every lease of this instance is lost");
            self.inbox.hints.send(Hint::Missed);
        }
    }

    fn with_latch<T>(
        &self,
        latch: &mut Latch<'_>,
        scope: &OperationScope<'_>,
        decide: impl FnOnce(&mut State, &Context<'_>, &mut Effects) -> T,
    ) -> Result<OperationResult<T>> {
        let OperationScope { resource, lease_ids, .. } = *scope;
        let times = self.times();
        let path = self.directory.record(resource);
        let mut latched = LatchedPath { directory: &self.directory, resource, latch, path };
        let (mut record, mut file) = record::load(&mut latched, &times)?;
        let before = EntriesBefore::new(&record.state, lease_ids);
        let fence_before = record.state.last_fence;
        let mut effects = Effects::default();
        let mut seen = SeenPresences::default();
        let answer = self.run_model(&mut record, &times, &mut effects, &mut seen, decide);

        let changed = before.changed(&mut record.state, &effects);
        let mut to_remove = None;
        // Before `replace`, which brings the lines up to date.
        let retargeted = if effects.granted.is_empty() && effects.ended.is_empty() {
            Vec::new()
        } else {
            death_watch_targets::with_new_watch_targets(&record)
        };
        if record.from_earlier_boot || !changed.is_empty() || !effects.is_empty() {
            let change = Change { entries: &changed, fence_issued: record.state.last_fence > fence_before };
            to_remove = record::replace(&mut latched, &self.spares, &mut record, &mut file, &change, &times)?;
            record.from_earlier_boot = false;
        }

        let (notifications, ended) = self.publish(resource, lease_ids, &mut record, &mut effects, &retargeted, &times);
        let ask_again =
            self.death_watch.set_watched(resource, death_watch_targets::watched_by(self.own_presence.id(), &record));
        record::keep(latched.latch, resource, record, file);
        Ok(OperationResult { answer, notifications, ended, to_remove, began: times.now, ask_again, seen })
    }

    fn run_model<T>(
        &self,
        record: &mut Record,
        times: &Times<'_>,
        effects: &mut Effects,
        seen: &mut SeenPresences,
        decide: impl FnOnce(&mut State, &Context<'_>, &mut Effects) -> T,
    ) -> T {
        let Record { state, owners, .. } = record;
        let seen = RefCell::new(seen);
        let presence = |entry: &Entry| {
            if !ends_with_process(entry) {
                return Presence::Present;
            }
            match owners.get(&entry.id) {
                Some(owner) if *owner != self.own_presence.id() => {
                    seen.borrow_mut().presence_of(&self.directory, *owner)
                }
                // Our own entry, or the one without an owner that this operation adds:
                _ if self.own_presence.was_removed() => Presence::Dead,
                _ => Presence::Own,
            }
        };
        let answer = decide(state, &Context { now: times.now, wall: times.wall, presence: &presence }, effects);
        // A new entry is always the last.
        if let Some(last) = state.entries.last() {
            owners.entry(last.id).or_insert(self.own_presence.id());
        }
        answer
    }

    /// Reports what the operation did: events now, notifications and history for later.
    fn publish(
        &self,
        resource: &Resource,
        lease_ids: &[LeaseId],
        record: &mut Record,
        effects: &mut Effects,
        retargeted: &[LeaseId],
        times: &Times<'_>,
    ) -> (Vec<(Uuid, Notification)>, Vec<EndedLease>) {
        if effects.is_empty() {
            return Default::default();
        }
        let handed_over = effects.granted.iter().any(|granted| granted.provisional);
        let mut audience = OperationAudience {
            owners: &record.owners,
            watching: self.watchers.list(),
            watchers: &self.watchers,
            notifications: Vec::new(),
            ended: Vec::new(),
            ended_ids: Vec::new(),
        };
        // `publish` never checks who is present.
        let context = Context { now: times.now, wall: times.wall, presence: &|_| Presence::Present };
        publish(resource, &record.state, effects, lease_ids, &context, &mut audience);
        let OperationAudience { mut notifications, ended, ended_ids, .. } = audience;
        for id in ended_ids {
            record.owners.remove(&id);
        }

        let mut notify = |id: &LeaseId, notification| {
            notifications.extend(record.owners.get(id).map(|owner| (*owner, notification)));
        };
        for id in retargeted {
            // Our own need no notification: `with_latch` updates the death watch for them.
            if record.owners.get(id) != Some(&self.own_presence.id()) {
                notify(id, Notification::Changed(resource.clone()));
            }
        }
        if handed_over
            && let Some(next) = record.state.entries.iter().find(|entry| entry.is_waiting())
            && let Some(length) = time_left_to_confirm(&record.state, times)
        {
            notify(&next.id, Notification::Provisional(length, resource.clone()));
        }
        (notifications, ended)
    }

    pub(super) fn times(&self) -> Times<'_> {
        Times { now: self.clock.now(), wall: self.clock.wall(), boot: &self.boot }
    }
}

/// How long the next in line must wait until the time to confirm a provisional grant is over.
fn time_left_to_confirm(state: &State, times: &Times<'_>) -> Option<Duration> {
    let ends = state.entries.iter().filter_map(|entry| match entry.state {
        EntryState::Provisional { ends_at, .. } => Some(ends_at),
        EntryState::Holding(_) | EntryState::Waiting => None,
    });
    // One millisecond more, since it is sent in whole milliseconds and must not end before the grant does.
    ends.min().map(|end| end.since(times.now) + Duration::from_millis(1))
}

/// The entries that the operation acts on, as they were before it ran, sorted by id.
struct EntriesBefore(Vec<Entry>);

impl EntriesBefore {
    fn new(state: &State, lease_ids: &[LeaseId]) -> Self {
        let mut ids = lease_ids.to_vec();
        ids.sort_unstable();
        let is_acted_on = |entry: &&Entry| ids.binary_search(&entry.id).is_ok();
        let mut before: Vec<Entry> = state.entries.iter().filter(is_acted_on).cloned().collect();
        before.sort_unstable_by_key(|entry| entry.id);
        Self(before)
    }

    /// Which entries the operation changed, sorted: those that it acts on, and those that it granted or queued.
    ///
    /// For a lease that ends with its process, a new `renewed_at` alone is not worth a write: sets it back.
    fn changed(self, state: &mut State, effects: &Effects) -> Vec<LeaseId> {
        let mut changed: Vec<LeaseId> =
            effects.granted.iter().map(|granted| granted.id).chain(effects.queued).collect();
        for after in &mut state.entries {
            let Ok(at) = self.0.binary_search_by_key(&after.id, |before| before.id) else { continue };
            let before = &self.0[at];
            if after.expiry == Expiry::ByPresence {
                after.renewed_at = before.renewed_at;
            }
            if after != before {
                changed.push(before.id);
            }
        }
        changed.sort_unstable();
        changed
    }
}

/// Collects the notifications and history that an operation causes, and sends its events.
struct OperationAudience<'a> {
    owners: &'a HashMap<LeaseId, Uuid>,
    watching: Vec<Uuid>,
    watchers: &'a Watchers,
    notifications: Vec<(Uuid, Notification)>,
    ended: Vec<EndedLease>,
    ended_ids: Vec<LeaseId>,
}

impl Audience for OperationAudience<'_> {
    fn hint(&mut self, id: LeaseId, hint: Hint) {
        if let (Some(owner), Some(notification)) = (self.owners.get(&id), Notification::from_hint(hint)) {
            self.notifications.push((*owner, notification));
        }
    }

    fn wants_events(&self) -> bool {
        !self.watching.is_empty()
    }

    /// Under the latch, so that events of one resource arrive in their order.
    fn event(&mut self, event: Event) {
        self.watchers.send(event, &self.watching);
    }

    fn ended(&mut self, id: LeaseId, ended: EndedLease) {
        self.ended_ids.push(id);
        self.ended.push(ended);
    }
}
