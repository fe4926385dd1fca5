//! Renews the leases of an instance in batches, handles hints about them, and watches their deadlines.
//!
//! Queue positions are leases too: the renewal that keeps a queue position
//! alive also reports the grant, so a lost hint only adds latency.

#[cfg(test)]
mod tests;

use std::{
    fmt,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Waker},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{
    Engine,
    call_in_flight::TakeOver,
    local_lease::{FollowUp, LocalLease, SentCall},
    panics::OnPanic,
    renew_every,
    schedule::Schedule,
    telemetry::{CallKind, Telemetry},
    validity::Loss,
};
use crate::{
    Error,
    backend::{Backend, Hint, HintDelivery},
    clock::Clock,
    lease::{Incarnation, LeaseId, LeaseKey, Moment, Outcome, Renewal, Standing},
    threads::{Task, Threads},
};

/// Renewals that are due within this of each other share a call.
const COALESCE: Duration = Duration::from_secs(1);

/// The renewer of one instance.
pub(crate) struct Renewer {
    engine: Weak<Engine>,
    backend: Arc<dyn Backend>,
    clock: Arc<dyn Clock>,
    threads: Threads,
    renew_batch: usize,
    telemetry: Telemetry,
    schedule: Schedule,
    /// The incarnation of the last answer, once `incarnation_known`; both change under `incarnation_changes`.
    incarnation: AtomicU64,
    incarnation_known: AtomicBool,
    incarnation_changes: Mutex<()>,
    renew_alarm: Alarm,
    deadline_alarm: Alarm,
    /// Held because dropping it stops the hints.
    hints: OnceLock<HintDelivery>,
    stopped: AtomicBool,
}

/// Lets a loop sleep until a moment, and be woken for an earlier one.
struct Alarm {
    wake: Notify,
    /// When the loop wakes by itself, in microseconds. `NEVER` while the loop reads the bounds of the schedule, so that
    /// every `wake_by` in that time notifies it.
    set_for: AtomicU64,
}

impl Alarm {
    fn new() -> Self {
        Self { wake: Notify::new(), set_for: AtomicU64::new(Moment::NEVER.as_micros()) }
    }

    /// Wakes the loop if it would sleep past `moment`.
    fn wake_by(&self, moment: Moment) {
        if moment.as_micros() < self.set_for.load(Ordering::SeqCst) {
            self.wake.notify_one();
        }
    }

    /// Sleeps until the moment that `next` returns, or until it is woken.
    async fn sleep(&self, clock: &dyn Clock, next: impl Fn() -> Moment) {
        // Misses no lease that is scheduled meanwhile: 1. `NEVER` is stored in `set_for`.  2. `next` reads the bounds.
        // 3. A lease lowers a bound.  4. It calls `wake_by`, which finds `NEVER` and wakes the loop.
        self.set_for.store(Moment::NEVER.as_micros(), Ordering::SeqCst);
        let moment = next();
        self.set_for.store(moment.as_micros(), Ordering::SeqCst);
        tokio::select! {
            () = self.wake.notified() => {}
            // `alarm_at` also counts the time that the machine was suspended.
            () = clock.alarm_at(moment), if moment != Moment::NEVER => {}
        }
    }
}

impl Renewer {
    pub(crate) fn new(
        engine: Weak<Engine>,
        threads: Threads,
        backend: Arc<dyn Backend>,
        clock: Arc<dyn Clock>,
        renew_batch: usize,
        telemetry: Telemetry,
    ) -> Arc<Self> {
        let hints = backend.hints();
        let renewer = Arc::new(Self {
            engine,
            backend,
            clock,
            threads,
            renew_batch: renew_batch.max(1),
            telemetry,
            schedule: Schedule::new(),
            incarnation: AtomicU64::new(0),
            incarnation_known: AtomicBool::new(false),
            incarnation_changes: Mutex::default(),
            renew_alarm: Alarm::new(),
            deadline_alarm: Alarm::new(),
            hints: OnceLock::new(),
            stopped: AtomicBool::new(false),
        });
        let listener = Arc::downgrade(&renewer);
        let delivery = hints.deliver_to(move |hint| {
            if let Some(renewer) = listener.upgrade() {
                renewer.on_hint(hint);
            }
        });
        let _first = renewer.hints.set(delivery);
        renewer.threads.io.spawn(renew_when_due(Arc::downgrade(&renewer)));
        renewer.threads.timer.spawn(watch_deadlines(Arc::downgrade(&renewer)));
        renewer
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }

    /// Ends both loops: the instance is gone.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        self.renew_alarm.wake.notify_one();
        self.deadline_alarm.wake.notify_one();
    }

    /// Registers a lease before its request is sent, so that no hint about it is missed.
    pub(crate) fn register(&self, lease: &Arc<LocalLease>) {
        self.schedule.insert(lease);
    }

    /// Does what a transition of the lease asks for. If this releases the lease, history records it as cancelled, or as
    /// `MaxHold` if that is why it was lost.
    pub(crate) fn follow_up(&self, lease: &Arc<LocalLease>, follow_up: FollowUp) {
        self.follow_up_as(lease, follow_up, Outcome::Cancelled);
    }

    /// Like `follow_up`, but history records a release with `outcome` instead of as cancelled.
    pub(crate) fn follow_up_as(&self, lease: &Arc<LocalLease>, follow_up: FollowUp, outcome: Outcome) {
        match follow_up {
            FollowUp::Nothing => {}
            FollowUp::Schedule => {
                let (due_at, deadline) = self.schedule.lower_bounds(lease);
                self.renew_alarm.wake_by(due_at);
                self.deadline_alarm.wake_by(deadline);
            }
            FollowUp::Forget => self.schedule.remove(lease.key().id),
            FollowUp::Lost => {
                self.schedule.remove(lease.key().id);
                self.report_loss(lease);
            }
            FollowUp::Release => {
                self.schedule.remove(lease.key().id);
                let Some(engine) = self.engine.upgrade() else { return };
                let loss = lease.validity.loss();
                if loss.is_some() {
                    self.report_loss(lease);
                }
                engine.spawn_release(lease, if loss == Some(Loss::MaxHold) { Outcome::MaxHold } else { outcome });
            }
            FollowUp::ReleaseLost => {
                if let Some(engine) = self.engine.upgrade() {
                    engine.spawn_release(lease, outcome);
                }
            }
        }
    }

    /// Logs and counts a loss, away from the timer's thread: a tracing subscriber may block.
    fn report_loss(&self, lease: &Arc<LocalLease>) {
        let (lease, telemetry, clock) = (Arc::clone(lease), self.telemetry.clone(), Arc::clone(&self.clock));
        self.threads.io.spawn(async move { telemetry.record_loss(&lease, clock.now()) });
    }

    /// Leaves every queue now, since a waiting caller may never be polled again before the process exits.
    pub(crate) fn leave_queues(&self) {
        for lease in self.schedule.all(|_| true) {
            self.follow_up(&lease, lease.on_closed());
        }
    }

    /// All leases that are held.
    pub(crate) fn held(&self) -> Vec<Arc<LocalLease>> {
        self.schedule.all(LocalLease::is_held)
    }

    /// Records the incarnation of the backend, a number that changes when leases may have been lost. If the last answer
    /// came from another incarnation, renews every lease.
    pub(crate) fn on_incarnation(&self, incarnation: Incarnation) {
        if self.incarnation.load(Ordering::Relaxed) == incarnation.0 && self.incarnation_known.load(Ordering::Relaxed) {
            return;
        }
        let changing = self.incarnation_changes.lock();
        let before = self.incarnation.swap(incarnation.0, Ordering::SeqCst);
        let is_known = self.incarnation_known.swap(true, Ordering::SeqCst);
        drop(changing);
        if is_known && before != incarnation.0 {
            tracing::warn!(
                target: "leasehold::renew",
                backend = self.backend.guarantees().kind,
                "the backend was restarted or replaced; verifying every lease"
            );
            self.renew_now(|_| true);
        }
    }

    pub(crate) fn make_renewal_due(&self, lease: &Arc<LocalLease>) {
        self.follow_up(lease, lease.make_renewal_due(self.clock.now()));
    }

    /// Renews on this thread if the backend answers at once; otherwise, the I/O thread finishes the renewal.
    pub(crate) fn renew_on_this_thread(self: &Arc<Self>, lease: &Arc<LocalLease>) {
        let Some(renewal) = lease.begin_renewal() else { return };
        let mut task: Task = Box::pin(Arc::clone(self).renew(vec![(Arc::clone(lease), renewal)]));
        if self.threads.poll_on_this_thread(&mut task, &mut Context::from_waker(Waker::noop())).is_pending() {
            self.threads.io.spawn(task);
        }
    }

    /// Moves a request or release that its caller polls to the I/O thread.
    pub(crate) fn take_over(&self, lease: &LocalLease) {
        if let Some(task) = lease.call_in_flight.take_over() {
            self.threads.io.spawn(task);
        }
    }

    /// Like `take_over`, for a call whose time has come. Never waits for its caller.
    fn take_over_if_due(&self, lease: &Arc<LocalLease>, now: Moment) {
        match lease.call_in_flight.take_over_if_due(now) {
            TakeOver::Nothing => {}
            TakeOver::Later => self.follow_up(lease, FollowUp::Schedule),
            TakeOver::Now(task) => drop(self.threads.io.spawn(task)),
        }
    }

    /// Finds a lease that this instance holds.
    pub(crate) fn find_held(&self, key: &LeaseKey) -> Option<Arc<LocalLease>> {
        self.schedule.find(key.id).filter(|lease| lease.key() == key && lease.is_held())
    }

    /// Moves every call that a caller polls to the I/O thread.
    pub(crate) fn take_over_all(&self) {
        for lease in self.schedule.all(|_| true) {
            self.take_over(&lease);
        }
    }

    fn renew_now(&self, wanted: impl Fn(&LocalLease) -> bool) {
        for lease in self.schedule.all(wanted) {
            self.make_renewal_due(&lease);
        }
    }

    /// Called by the backend on any thread. Must not block: it updates state and wakes loops and callers.
    fn on_hint(&self, hint: Hint) {
        let now = self.clock.now();
        let update = |id: LeaseId, change: &dyn Fn(&LocalLease) -> FollowUp| {
            if let Some(lease) = self.schedule.find(id) {
                self.follow_up(&lease, change(&lease));
            }
        };
        match hint {
            Hint::Granted { id, fence, provisional } => {
                let wall = self.clock.wall();
                update(id, &|lease| lease.on_grant_hint(fence, provisional, now, wall));
            }
            Hint::Evicted { id } => update(id, &|lease| lease.on_evict_hint(now)),
            Hint::Changed { resource } => {
                self.renew_now(|lease| lease.key().resource == resource && lease.could_be_waiting());
            }
            Hint::Missed => {
                for lease in self.schedule.all(|_| true) {
                    self.follow_up(&lease, lease.on_hints_missed(now));
                }
            }
        }
    }

    /// Finds the leases to renew now or soon, and those whose call in flight is to be taken over.
    fn due(&self) -> Vec<Arc<LocalLease>> {
        let now = self.clock.now();
        if self.schedule.next_due() > now {
            return Vec::new();
        }
        let is_due = |lease: &LocalLease| {
            let soon = COALESCE.min(renew_every(lease.ttl()) / 8);
            lease.renew_at() <= now.after(soon) || lease.call_in_flight.take_over_at() <= now
        };
        // No lease is taken earlier than `COALESCE` before its time, so later shards need no scan.
        let horizon = now.after(COALESCE);
        self.schedule.due(horizon, is_due)
    }

    async fn renew(self: Arc<Self>, chunk: Vec<(Arc<LocalLease>, Renewal)>) {
        let sent_at = self.clock.now();
        let mut leases: Vec<(Arc<LocalLease>, SentCall)> = Vec::with_capacity(chunk.len());
        let mut renewals = Vec::with_capacity(chunk.len());
        for (lease, renewal) in chunk {
            let call = lease.number_call(sent_at);
            leases.push((lease, call));
            renewals.push(renewal);
        }
        let timeout = renewals.iter().map(|renewal| renew_every(renewal.ttl)).min().unwrap_or_default();
        let on_panic = OnPanic::new(|| {
            for (lease, _) in &leases {
                self.follow_up(lease, lease.on_renew_failed(self.clock.now()));
            }
        });
        let answer = tokio::select! {
            biased;
            answer = self.backend.renew(&renewals) => answer,
            () = self.clock.sleep_until(sent_at.after(timeout)) => Err(Error::unanswered("no answer in time")),
        };
        let now = self.clock.now();
        self.telemetry.record_answer(CallKind::Renew, &answer, sent_at, || now);
        match answer {
            Ok(answer) => {
                // A backend that answers too few leaves the rest unknown.
                let standings = answer.value.into_iter().chain(std::iter::repeat(Standing::Unknown));
                for (((lease, call), renewal), standing) in leases.iter().zip(&renewals).zip(standings) {
                    self.telemetry.record_renewal(lease, standing, sent_at, now);
                    let follow_up = lease.on_standing(standing, renewal, *call, &answer.belief, now);
                    self.follow_up(lease, follow_up);
                }
                self.on_incarnation(answer.incarnation);
            }
            Err(error) => {
                for (lease, _) in &leases {
                    self.telemetry.record_renew_failure(lease, &error, sent_at, now);
                    self.follow_up(lease, lease.on_renew_failed(now));
                }
            }
        }
        on_panic.disarm();
    }
}

/// Leases share a call only if their timeouts differ by at most a factor of four: the shortest one ends it for all.
fn timeout_class(lease: &LocalLease) -> u32 {
    lease.ttl().get().as_millis().max(1).ilog2() / 2
}

/// Runs on the I/O thread until the instance is gone.
async fn renew_when_due(renewer: Weak<Renewer>) {
    let Some(renewer) = renewer.upgrade() else { return };
    while !renewer.is_stopped() {
        let mut due = renewer.due();
        let now = renewer.clock.now();
        for lease in &due {
            renewer.take_over_if_due(lease, now);
        }
        // Cached, because a ttl may change meanwhile.
        due.sort_by_cached_key(|lease| timeout_class(lease));
        let alike = due.chunk_by(|one, other| timeout_class(one) == timeout_class(other));
        for leases in alike.flat_map(|leases| leases.chunks(renewer.renew_batch)) {
            let begin = |lease: &Arc<LocalLease>| lease.begin_renewal().map(|renewal| (Arc::clone(lease), renewal));
            let renewals: Vec<_> = leases.iter().filter_map(begin).collect();
            if !renewals.is_empty() {
                renewer.threads.io.spawn(Arc::clone(&renewer).renew(renewals));
                // Lets a backend that answers at once finish this batch before the next one is allocated.
                tokio::task::yield_now().await;
            }
        }
        renewer.renew_alarm.sleep(&*renewer.clock, || renewer.schedule.next_due()).await;
    }
    drop_elsewhere(renewer);
}

/// Runs on the timer's thread until the instance is gone: it sleeps, compares and wakes.
async fn watch_deadlines(renewer: Weak<Renewer>) {
    let Some(renewer) = renewer.upgrade() else { return };
    while !renewer.is_stopped() {
        let now = renewer.clock.now();
        for lease in renewer.schedule.past_deadline(now) {
            renewer.follow_up(&lease, lease.on_deadline(now));
        }
        renewer.deadline_alarm.sleep(&*renewer.clock, || renewer.schedule.next_deadline()).await;
    }
    drop_elsewhere(renewer);
}

/// Drops the renewer. The last reference, which also drops the backend, goes to a blocking thread: that may take long, and
/// a slow disk must not delay other instances.
fn drop_elsewhere(renewer: Arc<Renewer>) {
    if let Some(last) = Arc::into_inner(renewer) {
        let io = last.threads.io.clone();
        drop(io.spawn_blocking(move || drop(last)));
    }
}

impl fmt::Debug for Renewer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Renewer").field("backend", &self.backend).finish_non_exhaustive()
    }
}
