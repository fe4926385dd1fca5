//! Renews every lease of an instance, in batches, and tells which are lost.
//!
//! Places in a queue are leases too: the renewal that keeps a place alive also
//! tells when it has come to hold, so lost hints cost latency and nothing else.

use std::{
    collections::{BTreeSet, HashMap},
    fmt,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{runtime::Handle, sync::Notify};

use super::{
    Engine,
    backoff::Backoff,
    kept::{Kept, News},
    renew_every,
    validity::Loss,
};
use crate::{
    Error,
    backend::{Backend, Hint, Hints},
    clock::Clock,
    lease::{Incarnation, LeaseId, Moment, Outcome, Renewal, Standing, Ttl},
    telemetry,
};

/// Renewals due within this of each other share a call.
const COALESCE: Duration = Duration::from_secs(1);

/// The one renewer of an instance.
pub(crate) struct Keeper {
    backend: Arc<dyn Backend>,
    clock: Arc<dyn Clock>,
    runtime: Handle,
    pushes: bool,
    renew_batch: usize,
    shards: Vec<Mutex<Shard>>,
    incarnation: Mutex<Option<Incarnation>>,
    wake: Notify,
    /// When it wakes by itself, as micros; `NEVER` while it looks.
    wakes_at: AtomicU64,
    stopped: AtomicBool,
    engine: OnceLock<Weak<Engine>>,
}

#[derive(Default)]
struct Shard {
    tended: HashMap<LeaseId, Tended>,
    by_due: BTreeSet<(Moment, LeaseId)>,
}

/// A lease and when to look after it next.
struct Tended {
    kept: Arc<Kept>,
    renew_at: Moment,
    /// An ask or a renewal is under way: until it ends only the deadline matters.
    under_way: bool,
    /// Something was heard meanwhile: what is under way may not know of it.
    hurried: bool,
    due: Moment,
    retry: Option<Backoff>,
}

impl Tended {
    /// What was under way has ended; the next renewal is at `renew_at`.
    fn settle(&mut self, renew_at: Moment, now: Moment) {
        self.under_way = false;
        self.renew_at = if std::mem::take(&mut self.hurried) { now } else { renew_at };
    }

    fn hurry(&mut self, now: Moment) {
        if self.under_way {
            self.hurried = true;
        } else {
            self.renew_at = now;
        }
    }

    fn next(&self) -> Moment {
        let renew_at = if self.under_way { Moment::NEVER } else { self.renew_at };
        match self.kept.hold() {
            Some(hold) => renew_at.min(hold.validity.deadline()),
            None => renew_at,
        }
    }
}

impl Shard {
    fn reschedule(&mut self, id: LeaseId, change: impl FnOnce(&mut Tended)) {
        if let Some(tended) = self.tended.get_mut(&id) {
            self.by_due.remove(&(tended.due, id));
            change(tended);
            tended.due = tended.next();
            self.by_due.insert((tended.due, id));
        }
    }

    fn earliest(&self) -> Moment {
        self.by_due.first().map_or(Moment::NEVER, |(due, _)| *due)
    }

    fn remove(&mut self, id: LeaseId) -> Option<Arc<Kept>> {
        let tended = self.tended.remove(&id)?;
        self.by_due.remove(&(tended.due, id));
        Some(tended.kept)
    }
}

impl Keeper {
    pub(crate) fn start(runtime: &Handle, backend: Arc<dyn Backend>, clock: Arc<dyn Clock>) -> Arc<Self> {
        let guarantees = backend.guarantees();
        let hints = backend.hints();
        let keeper = Arc::new(Self {
            backend,
            clock,
            runtime: runtime.clone(),
            pushes: guarantees.pushes,
            renew_batch: guarantees.renew_batch.max(1),
            shards: (0..16).map(|_| Mutex::default()).collect(),
            incarnation: Mutex::new(None),
            wake: Notify::new(),
            wakes_at: AtomicU64::new(Moment::NEVER.as_micros()),
            stopped: AtomicBool::new(false),
            engine: OnceLock::new(),
        });
        runtime.spawn(Arc::clone(&keeper).run(hints));
        keeper
    }

    /// Whose leases these are: what has been held for too long is given back through it.
    pub(crate) fn belongs_to(&self, engine: &Arc<Engine>) {
        let _once = self.engine.set(Arc::downgrade(engine));
    }

    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        self.wake.notify_one();
    }

    /// Keeps what is heard of a lease while it is being asked for.
    pub(crate) fn expect(&self, kept: &Arc<Kept>) {
        self.shard(kept.key.id).lock().tended.insert(
            kept.key.id,
            Tended {
                kept: Arc::clone(kept),
                renew_at: Moment::NEVER,
                under_way: true,
                hurried: false,
                due: Moment::NEVER,
                retry: None,
            },
        );
    }

    /// Looks after a lease that was answered for: it is renewed at `renew_at` first.
    ///
    /// Tells whether it does: not if the lease was heard to be gone meanwhile.
    pub(crate) fn keep(&self, kept: &Arc<Kept>, renew_at: Moment) -> bool {
        let id = kept.key.id;
        let now = self.clock.now();
        let mut shard = self.shard(id).lock();
        if !shard.tended.contains_key(&id) {
            return false;
        }
        shard.reschedule(id, |tended| tended.settle(renew_at, now));
        let due = shard.earliest();
        drop(shard);
        // Most leases are due after the alarm that is set already: then nobody is woken for them.
        if due.as_micros() < self.wakes_at.load(Ordering::SeqCst) {
            self.wake.notify_one();
        }
        true
    }

    /// Looks after it no longer.
    pub(crate) fn forget(&self, kept: &Kept) {
        self.shard(kept.key.id).lock().remove(kept.key.id);
    }

    /// Renews it as soon as can be.
    pub(crate) fn hurry(&self, id: LeaseId) {
        let now = self.clock.now();
        self.shard(id).lock().reschedule(id, |tended| tended.hurry(now));
        self.wake.notify_one();
    }

    fn hurry_where(&self, concerned: impl Fn(&Kept) -> bool) {
        for shard in &self.shards {
            let ids: Vec<LeaseId> = {
                let shard = shard.lock();
                shard
                    .tended
                    .values()
                    .filter(|tended| concerned(&tended.kept))
                    .map(|tended| tended.kept.key.id)
                    .collect()
            };
            for id in ids {
                self.hurry(id);
            }
        }
    }

    /// All leases that hold.
    pub(crate) fn holding(&self) -> Vec<Arc<Kept>> {
        let holds = |tended: &Tended| tended.kept.hold().is_some().then(|| Arc::clone(&tended.kept));
        self.shards
            .iter()
            .flat_map(|shard| shard.lock().tended.values().filter_map(holds).collect::<Vec<_>>())
            .collect()
    }

    /// An answer came from this life of the backend; another life may have forgotten all.
    pub(crate) fn answered_by(&self, incarnation: Incarnation) {
        let before = self.incarnation.lock().replace(incarnation);
        if before.is_some_and(|before| before != incarnation) {
            tracing::warn!("the backend was restarted or replaced; verifying every lease");
            self.hurry_where(|_| true);
        }
    }

    fn shard(&self, id: LeaseId) -> &Mutex<Shard> {
        let at = usize::try_from(id.as_u128() >> 8 & 0xf).unwrap_or(0);
        &self.shards[at]
    }

    async fn run(self: Arc<Self>, mut hints: Hints) {
        let mut hints_end = false;
        let mut alarm_for = Moment::NEVER;
        let mut alarm = self.clock.alarm_at(alarm_for);
        loop {
            let due = self.take_due();
            for chunk in due.chunks(self.renew_batch) {
                self.runtime.spawn(Arc::clone(&self).renew(chunk.to_vec()));
            }
            // A lease that comes while we look is either seen, or finds that nothing is set and wakes us once more:
            // 1. nothing is set  2. we look at its shard  3. it is put there  4. it reads what is set.
            self.wakes_at.store(Moment::NEVER.as_micros(), Ordering::SeqCst);
            let next = self.next_due();
            self.wakes_at.store(next.as_micros(), Ordering::SeqCst);
            if next != alarm_for {
                alarm_for = next;
                alarm = self.clock.alarm_at(next);
            }
            tokio::select! {
                () = self.wake.notified() => {}
                () = &mut alarm, if next != Moment::NEVER => alarm_for = Moment::NEVER,
                hint = hints.next(), if !hints_end => match hint {
                    Some(hint) => self.take_hint(hint),
                    None => hints_end = true,
                },
            }
            if self.stopped.load(Ordering::SeqCst) {
                return;
            }
        }
    }

    fn next_due(&self) -> Moment {
        self.shards.iter().map(|shard| shard.lock().earliest()).min().unwrap_or(Moment::NEVER)
    }

    /// Ends what is over and takes what is to be renewed.
    fn take_due(&self) -> Vec<Arc<Kept>> {
        let now = self.clock.now();
        if self.next_due() > now {
            return Vec::new();
        }
        let mut renew = Vec::new();
        for shard in &self.shards {
            let mut shard = shard.lock();
            let soon: Vec<LeaseId> = shard
                .by_due
                .range(..=(now.after(COALESCE), LeaseId::from_u128(u128::MAX)))
                .map(|(_, id)| *id)
                .collect();
            for id in soon {
                let Some(tended) = shard.tended.get(&id) else { continue };
                let kept = Arc::clone(&tended.kept);
                if self.is_over(&kept, now) {
                    shard.remove(id);
                } else if !tended.under_way && tended.renew_at <= now.after(COALESCE.min(renew_every(kept.ttl()) / 8)) {
                    shard.reschedule(id, |tended| tended.under_way = true);
                    renew.push(kept);
                } else {
                    shard.reschedule(id, |_| {});
                }
            }
        }
        renew
    }

    /// Whether a lease that holds has come to its end, and if so tells it.
    fn is_over(&self, kept: &Arc<Kept>, now: Moment) -> bool {
        let Some(hold) = kept.hold() else { return false };
        if hold.validity.check(now).is_ok() {
            return false;
        }
        telemetry::lost(kept, hold);
        // What ran out ends by itself; what was held for too long is renewed until now.
        if hold.validity.loss() == Some(Loss::MaxHold)
            && let Some(engine) = self.engine.get().and_then(Weak::upgrade)
        {
            engine.give_back(kept, Outcome::MaxHold);
        }
        true
    }

    fn take_hint(&self, hint: Hint) {
        match hint {
            Hint::Granted { id, fence } => {
                if let Some(kept) = self.find(id) {
                    kept.hinted(fence);
                }
            }
            Hint::Evicted { id } => {
                if let Some(kept) = self.find(id) {
                    kept.evicted.store(true, Ordering::SeqCst);
                    self.hurry(id);
                }
            }
            Hint::Changed { resource } => {
                self.hurry_where(|kept| kept.hold().is_none() && kept.key.resource == resource);
            }
            Hint::Missed => {
                for kept in self.holding() {
                    self.lose_if_severed(&kept);
                }
                self.hurry_where(|_| true);
            }
        }
    }

    /// Whether what a request sent at `from` proved ended with the connection it lived by.
    pub(crate) fn is_severed(&self, kept: &Kept, from: Moment) -> bool {
        kept.lives_by_connection() && self.backend.severed_at().is_some_and(|at| from <= at)
    }

    fn lose_if_severed(&self, kept: &Arc<Kept>) -> bool {
        let Some(hold) = kept.hold().filter(|hold| self.is_severed(kept, hold.from)) else { return false };
        if hold.validity.lose(Loss::Gone) {
            telemetry::lost(kept, hold);
        }
        self.forget(kept);
        true
    }

    fn find(&self, id: LeaseId) -> Option<Arc<Kept>> {
        self.shard(id).lock().tended.get(&id).map(|tended| Arc::clone(&tended.kept))
    }

    async fn renew(self: Arc<Self>, chunk: Vec<Arc<Kept>>) {
        let renewals: Vec<Renewal> = chunk.iter().map(|kept| kept.renewal()).collect();
        let patience = renewals.iter().map(|renewal| renew_every(renewal.ttl)).min().unwrap_or_default();
        let sent = self.clock.now();
        let answer = tokio::select! {
            biased;
            answer = self.backend.renew(&renewals) => answer,
            () = self.clock.sleep_until(sent.after(patience)) => Err(Error::unanswered("no answer in time")),
        };
        match answer {
            Ok(answer) => {
                let standings = answer.value.into_iter().chain(std::iter::repeat(Standing::Unknown));
                for ((kept, renewal), standing) in chunk.iter().zip(&renewals).zip(standings) {
                    self.heard(kept, standing, sent, renewal.ttl);
                }
                self.answered_by(answer.incarnation);
            }
            Err(error) => chunk.iter().for_each(|kept| self.unheard(kept, Some(&error))),
        }
        self.wake.notify_one();
    }

    /// Acts on what a renewal for `ttl`, sent at `sent`, told about one lease.
    fn heard(&self, kept: &Arc<Kept>, standing: Standing, sent: Moment, ttl: Ttl) {
        let now = self.clock.now();
        let again = match (standing, kept.hold()) {
            (Standing::Unknown, _) => return self.unheard(kept, None),
            (Standing::Holding(_), Some(hold)) => {
                telemetry::renewed(kept, hold, now);
                if !hold.validity.extend(now, kept.deadline(sent, ttl)) {
                    telemetry::lost(kept, hold);
                    return self.forget(kept);
                }
                kept.renew_at(sent)
            }
            (Standing::Holding(grant), None) => {
                kept.tell(News::Granted { grant, from: sent, pushed: false });
                kept.renew_at(sent)
            }
            (Standing::Waiting(place), None) => {
                kept.answered(sent, &place);
                self.ask_again_at(kept, sent, place.ask_again_in)
            }
            (Standing::Gone, None) => {
                kept.tell(News::Gone);
                return self.forget(kept);
            }
            // 1. A renewal is answered: waiting. 2. It is granted, and the push is heard. 3. The answer is heard.
            // Where pushes and answers come by different connections, what was said first may come last.
            (Standing::Waiting(place), Some(hold)) if place.last_fence < hold.grant.fence => now,
            (Standing::Gone | Standing::Waiting(_), Some(hold)) => {
                let loss = if kept.evicted.load(Ordering::SeqCst) { Loss::Evicted } else { Loss::Gone };
                if hold.validity.lose(loss) {
                    telemetry::lost(kept, hold);
                }
                return self.forget(kept);
            }
        };
        self.shard(kept.key.id).lock().reschedule(kept.key.id, |tended| {
            tended.retry = None;
            tended.settle(again, now);
        });
    }

    /// When a waiting lease is asked about next, if nothing is heard before.
    pub(crate) fn ask_again_at(&self, kept: &Kept, sent: Moment, first_end: Option<Duration>) -> Moment {
        let now = self.clock.now();
        let pause = if self.pushes { first_end } else { Some(kept.pause()) };
        let pause = pause.map(|pause| now.after(pause.max(Duration::from_millis(1))));
        pause.unwrap_or(Moment::NEVER).min(kept.renew_at(sent))
    }

    /// A renewal was not answered: the lease is in doubt until one is, or the deadline comes.
    fn unheard(&self, kept: &Arc<Kept>, error: Option<&Error>) {
        if self.lose_if_severed(kept) {
            return;
        }
        if let Some(hold) = kept.hold() {
            hold.validity.doubt();
            telemetry::renew_failed(kept, hold, self.clock.now(), error);
        }
        let now = self.clock.now();
        let most = renew_every(kept.ttl()) / 3;
        self.shard(kept.key.id).lock().reschedule(kept.key.id, |tended| {
            let retry = tended.retry.get_or_insert(Backoff::new(Duration::from_millis(50), most));
            let again = now.after(retry.pause());
            tended.settle(again, now);
        });
    }
}

impl fmt::Debug for Keeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keeper").field("backend", &self.backend).finish_non_exhaustive()
    }
}
