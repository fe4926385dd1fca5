//! What the instances of one store share: its shards, its clock, its watchers.

use std::{
    array,
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    sync::{
        Arc, LazyLock, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;

use super::shard::{InstanceId, PendingHints, ResourceSlot, Shard};
use crate::{
    backend::{EventHub, EventStream, HintSender, RunTable, Selection},
    clock::Clock,
    lease::{
        Decision, EndedLease, Evicted, Fence, HistoryFilter, Incarnation, LeaseId, LeaseKey, LeasePage, LeaseRecord,
        ListFilter, Moment, Names, Outcome, Released, Renewal, Request, Resource, RunRecord, RunReport, Standing,
    },
    model::{Context, Effects, Expiry, Presence},
};

/// Enough mutexes that two tasks on different resources seldom share one.
const SHARDS: usize = 64;

/// A store of leases in memory.
pub(super) struct Store {
    shards: [Mutex<Shard>; SHARDS],
    hasher: RandomState,
    clock: Arc<dyn Clock>,
    events: EventHub,
    runs: Mutex<RunTable>,
    /// Where the hints of each instance go.
    instances: Mutex<HashMap<InstanceId, HintSender>>,
    incarnation: Incarnation,
    made_at: Moment,
}

impl Store {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        static NEXT_INCARNATION: AtomicU64 = AtomicU64::new(1);
        Self {
            shards: array::from_fn(|_| Mutex::default()),
            hasher: RandomState::new(),
            made_at: clock.now(),
            clock,
            events: EventHub::new(),
            runs: Mutex::default(),
            instances: Mutex::default(),
            incarnation: Incarnation(NEXT_INCARNATION.fetch_add(1, Ordering::Relaxed)),
        }
    }

    /// Returns the store of this name and namespace; creates it if no instance has it.
    pub(super) fn shared(name: &str, namespace: &str, clock: Arc<dyn Clock>) -> Arc<Self> {
        /// By process, name and namespace: a forked child shares no store with its parent.
        type StoreKey = (u32, String, String);
        static STORES: LazyLock<Mutex<HashMap<StoreKey, Weak<Store>>>> = LazyLock::new(Mutex::default);
        let key = (leasehold_fork::generation(), name.to_owned(), namespace.to_owned());
        let mut stores = STORES.lock();
        if let Some(store) = stores.get(&key).and_then(Weak::upgrade) {
            return store;
        }
        stores.retain(|_, store| store.strong_count() > 0);
        let store = Arc::new(Self::new(clock));
        stores.insert(key, Arc::downgrade(&store));
        store
    }

    /// Adds an instance; hints about leases that it requests go to `hints`.
    pub(super) fn join(&self, hints: HintSender) -> InstanceId {
        static NEXT_INSTANCE: AtomicU64 = AtomicU64::new(1);
        let instance = NEXT_INSTANCE.fetch_add(1, Ordering::Relaxed);
        self.instances.lock().insert(instance, hints);
        instance
    }

    /// Removes an instance that is gone. Its leases stay until they expire, or the store goes with its last instance.
    pub(super) fn leave(&self, instance: InstanceId) {
        self.instances.lock().remove(&instance);
    }

    pub(super) fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    pub(super) fn age(&self) -> Duration {
        self.clock.now().since(self.made_at)
    }

    /// How many names the store has.
    pub(super) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    pub(super) fn acquire(&self, request: &Request, instance: InstanceId) -> Decision {
        let id = request.key.id;
        self.operate(&request.key.resource, &[id], |slot, context, effects| {
            let decision = slot.state.acquire(request, Expiry::ByClock, context, effects);
            if matches!(decision, Decision::Granted(_) | Decision::Queued(_)) {
                slot.send_hints_to(id, instance);
            }
            decision
        })
    }

    pub(super) fn renew(&self, renewal: &Renewal) -> Standing {
        let key = &renewal.key;
        self.operate(&key.resource, &[key.id], |slot, context, effects| slot.state.renew(renewal, context, effects))
    }

    pub(super) fn release(&self, key: &LeaseKey, outcome: &Outcome) -> Released {
        self.operate(&key.resource, &[key.id], |slot, context, effects| {
            slot.state.release(key.id, outcome, context, effects)
        })
    }

    pub(super) fn evict(&self, resource: &Resource, expected: Fence, reason: &str) -> Evicted {
        self.operate(resource, &[], |slot, context, effects| slot.state.evict(expected, reason, context, effects))
    }

    pub(super) fn list(&self, filter: &ListFilter) -> LeasePage {
        let Selection { names, next } = filter.select(self.names(&filter.names));
        LeasePage::new(names.iter().flat_map(|name| self.records(name)).collect(), next)
    }

    pub(super) fn history(&self, filter: &HistoryFilter) -> Vec<EndedLease> {
        let found = match &filter.names {
            Names::Exactly(resource) => self.shard(self.hasher.hash_one(resource)).lock().ended(filter),
            Names::All | Names::Prefix(_) => self.shards.iter().flat_map(|shard| shard.lock().ended(filter)).collect(),
        };
        filter.select(found)
    }

    pub(super) fn record_runs(&self, reports: &[RunReport]) {
        let now = self.clock.wall();
        let mut runs = self.runs.lock();
        for report in reports {
            runs.add(report.record(now));
        }
        runs.trim(now);
    }

    pub(super) fn runs(&self, names: &Names) -> Vec<RunRecord> {
        self.runs.lock().select(names, self.clock.wall())
    }

    pub(super) fn watch(&self, names: Names) -> EventStream {
        self.events.watch(names)
    }

    /// Runs one operation of the model on a resource, then sends its hints.
    ///
    /// The clocks are read under the mutex, so that operations on a resource see them in the order they happen.
    fn operate<T>(
        &self,
        resource: &Resource,
        own: &[LeaseId],
        work: impl FnOnce(&mut ResourceSlot, &Context<'_>, &mut Effects) -> T,
    ) -> T {
        let mut hints = PendingHints::default();
        let hash = self.hasher.hash_one(resource);
        let mut shard = self.shard(hash).lock();
        let (now, wall) = self.clock.now_and_wall();
        // Entries end by the clock, so it matters only that none is absent or dead.
        let context = Context { now, wall, presence: &|_| Presence::Present };
        let operation = |slot: &mut ResourceSlot, effects: &mut Effects| work(slot, &context, effects);
        let done = shard.operate((resource, hash), own, &context, &self.events, &mut hints, operation);
        shard.sweep_now_and_then(&context, &self.events, &mut hints);
        drop(shard);
        for (instance, hint) in hints {
            let sender = self.instances.lock().get(&instance).cloned();
            if let Some(sender) = sender {
                sender.send(hint);
            }
        }
        done
    }

    fn names(&self, wanted: &Names) -> Vec<Resource> {
        match wanted {
            Names::Exactly(resource) => vec![resource.clone()],
            Names::All | Names::Prefix(_) => {
                self.shards.iter().flat_map(|shard| shard.lock().names(wanted).collect::<Vec<_>>()).collect()
            }
        }
    }

    fn records(&self, resource: &Resource) -> Vec<LeaseRecord> {
        self.operate(resource, &[], |slot, context, effects| {
            slot.state.settle(context, effects);
            slot.state.records(resource, context)
        })
    }

    fn shard(&self, hash: u64) -> &Mutex<Shard> {
        let at = usize::try_from(hash % SHARDS as u64).expect("a remainder by 64 fits");
        &self.shards[at]
    }
}
