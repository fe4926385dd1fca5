//! What the instances on one place share: its shards, its clock, its followers.

use std::{
    array,
    cmp::Reverse,
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    sync::{
        Arc, LazyLock, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;

use super::{events::Events, shard::Shard};
use crate::{
    backend::{EventStream, HintSender},
    clock::Clock,
    lease::{
        Decision, EndedLease, Evicted, Fence, HistoryFilter, Incarnation, LeaseKey, LeaseRecord, ListFilter, Moment,
        Names, Outcome, Page, Released, Renewal, Request, Resource, Standing,
    },
    model::{Context, Effects, Expiry, Presence, State},
};

/// So many latches that two tasks on different resources seldom share one.
const SHARDS: usize = 64;

/// A place in memory.
pub(super) struct Store {
    shards: [Mutex<Shard>; SHARDS],
    spread: RandomState,
    clock: Arc<dyn Clock>,
    events: Events,
    incarnation: Incarnation,
    made_at: Moment,
}

impl Store {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        static LIVES: AtomicU64 = AtomicU64::new(1);
        Self {
            shards: array::from_fn(|_| Mutex::default()),
            spread: RandomState::new(),
            made_at: clock.now(),
            clock,
            events: Events::new(),
            incarnation: Incarnation(LIVES.fetch_add(1, Ordering::Relaxed)),
        }
    }

    /// The one store of this name and namespace, made when nobody has it yet.
    pub(super) fn shared(name: &str, namespace: &str, clock: Arc<dyn Clock>) -> Arc<Self> {
        static PLACES: LazyLock<Mutex<HashMap<[String; 2], Weak<Store>>>> = LazyLock::new(Mutex::default);
        let key = [name.to_owned(), namespace.to_owned()];
        let mut places = PLACES.lock();
        if let Some(store) = places.get(&key).and_then(Weak::upgrade) {
            return store;
        }
        places.retain(|_, store| store.strong_count() > 0);
        let store = Arc::new(Self::new(clock));
        places.insert(key, Arc::downgrade(&store));
        store
    }

    pub(super) fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    pub(super) fn age(&self) -> Duration {
        self.clock.now().since(self.made_at)
    }

    pub(super) fn kept(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().kept()).sum()
    }

    pub(super) fn acquire(&self, request: &Request, hints: &HintSender) -> Decision {
        let id = request.key.id;
        self.enter(&request.key.resource, |shard, context| {
            shard.operate(&request.key.resource, Some(id), context, &self.events, |slot, effects| {
                let decision = slot.state.acquire(request, Expiry::ByClock, context, effects);
                if matches!(decision, Decision::Granted(_) | Decision::Queued(_)) {
                    slot.tell_at(id, hints);
                }
                decision
            })
        })
    }

    pub(super) fn renew(&self, renewal: &Renewal) -> Standing {
        self.apply(&renewal.key, |state, context, effects| state.renew(renewal, context, effects))
    }

    pub(super) fn release(&self, key: &LeaseKey, outcome: &Outcome) -> Released {
        self.apply(key, |state, context, effects| state.release(key.id, outcome, context, effects))
    }

    pub(super) fn evict(&self, resource: &Resource, expected: Fence, reason: &str) -> Evicted {
        self.enter(resource, |shard, context| {
            shard.operate(resource, None, context, &self.events, |slot, effects| {
                slot.state.evict(expected, reason, context, effects)
            })
        })
    }

    pub(super) fn list(&self, filter: &ListFilter) -> Page {
        let mut names = self.names(&filter.names);
        if let Some(after) = &filter.after {
            names.retain(|name| name > after);
        }
        names.sort_unstable();
        let more = names.len() > filter.limit;
        names.truncate(filter.limit);
        let leases = names.iter().flat_map(|name| self.records(name)).collect();
        Page { leases, next: if more { names.pop() } else { None } }
    }

    pub(super) fn history(&self, filter: &HistoryFilter) -> Vec<EndedLease> {
        let mut found: Vec<EndedLease> = match &filter.names {
            Names::Exactly(resource) => self.shard(resource).lock().ended(filter),
            Names::All | Names::Prefix(_) => self.shards.iter().flat_map(|shard| shard.lock().ended(filter)).collect(),
        };
        found.sort_by_key(|ended| Reverse(ended.ended_at));
        found.truncate(filter.limit);
        found
    }

    pub(super) fn watch(&self, names: Names) -> EventStream {
        self.events.follow(names)
    }

    /// Runs one operation of the model on the resource of a lease.
    fn apply<T>(&self, key: &LeaseKey, rule: impl FnOnce(&mut State, &Context<'_>, &mut Effects) -> T) -> T {
        self.enter(&key.resource, |shard, context| {
            shard.operate(&key.resource, Some(key.id), context, &self.events, |slot, effects| {
                rule(&mut slot.state, context, effects)
            })
        })
    }

    /// Takes the latch, then reads the clocks: operations on a resource see them in the order they happen.
    fn enter<T>(&self, resource: &Resource, work: impl FnOnce(&mut Shard, &Context<'_>) -> T) -> T {
        let mut shard = self.shard(resource).lock();
        let context = Context { now: self.clock.now(), wall: self.clock.wall(), presence: &|_| Presence::Present };
        let done = work(&mut shard, &context);
        shard.sweep_now_and_then(&context, &self.events);
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
        self.enter(resource, |shard, context| {
            shard.operate(resource, None, context, &self.events, |slot, effects| {
                slot.state.settle(context, effects);
                slot.state.records(resource, context)
            })
        })
    }

    fn shard(&self, resource: &Resource) -> &Mutex<Shard> {
        let hash = self.spread.hash_one(resource);
        let at = usize::try_from(hash % SHARDS as u64).expect("a remainder by 64 fits");
        &self.shards[at]
    }
}
