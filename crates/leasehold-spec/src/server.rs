//! The backend: the real rule of `leasehold::backend::model`, hashed and compared by what decides.

use std::{
    hash::{Hash, Hasher},
    sync::LazyLock,
    time::Duration,
};

use leasehold::{
    Holder, Resource, Ttl,
    backend::{
        Decision, Patience, Renewal, Request,
        model::{Context, Effects, Entry, EntryState, Expiry, Presence, State},
    },
    lease::{Claim, LeaseId, LeaseKey, Moment, Outcome, Standing, Timestamp},
};

/// A lease id, small enough to read in a trace: the client and which of its attempts.
pub type Id = u8;

/// How many attempts of a client have ids of their own.
const ATTEMPTS: u8 = 8;

/// The id of a client's attempt.
pub const fn id_of(client: usize, attempt: u8) -> Id {
    client.to_le_bytes()[0] * ATTEMPTS + attempt
}

/// The client whose attempt this is.
pub const fn client_of(id: Id) -> usize {
    (id / ATTEMPTS) as usize
}

/// What the backend answers about one lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ServerVerdict {
    /// It holds, with this fence.
    Holding(u64),
    /// It waits; this is the newest fence of the resource.
    Waiting(u64),
    /// The backend does not know it.
    Gone,
    /// It was refused and left nothing behind.
    Busy,
}

/// What every request of a specification has in common.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// How much of the resource each client asks for.
    pub claim: Claim,
    /// What leases end with.
    pub expiry: Expiry,
    /// The ttl, in ticks of a second.
    pub ttl: u8,
    /// Whether a request queues.
    pub patience: Patience,
    /// How many waiters a request accepts ahead of it.
    pub max_waiters: Option<u32>,
}

/// One resource on one backend.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServerModel {
    state: State,
    /// How often the memory was lost. The wall clock has moved on by then, beyond every fence issued before.
    losses: u8,
}

/// Fences issued between two losses of memory stay below this.
const FENCES_PER_LIFE: u64 = 100;

impl Eq for ServerModel {}

impl Hash for ServerModel {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.losses.hash(hasher);
        self.state.last_fence.hash(hasher);
        for entry in &self.state.entries {
            (entry.id, entry.expires_at).hash(hasher);
            match entry.state {
                EntryState::Waiting => 0.hash(hasher),
                EntryState::Holding(held) => (1, held.fence).hash(hasher),
                EntryState::Provisional { held, ends_at } => (2, held.fence, ends_at).hash(hasher),
            }
        }
    }
}

/// An operation of the rule, at a time and in a company.
pub(crate) struct ServerOperation<'a> {
    /// The backend's clock, in ticks.
    pub(crate) now: u8,
    /// The presence of each client.
    pub(crate) presence: &'a dyn Fn(usize) -> Presence,
}

impl ServerModel {
    /// Acquires, and answers how the lease stands then.
    pub(crate) fn acquire(&mut self, id: Id, terms: &Terms, at: &ServerOperation<'_>) -> (ServerVerdict, Effects) {
        let (decision, effects) =
            self.run(at, |state, context, effects| state.acquire(&request(id, terms), terms.expiry, context, effects));
        let verdict = match decision {
            Decision::Granted(grant) => ServerVerdict::Holding(grant.fence.get()),
            Decision::Queued(place) => ServerVerdict::Waiting(place.last_fence.get()),
            Decision::Busy(_) | Decision::WrongShape { .. } => ServerVerdict::Busy,
        };
        (verdict, effects)
    }

    /// Renews, and answers how the lease stands then.
    pub(crate) fn renew(&mut self, id: Id, terms: &Terms, at: &ServerOperation<'_>) -> (ServerVerdict, Effects) {
        let renewal = Renewal::new(key(id), ttl(terms));
        let (standing, effects) = self.run(at, |state, context, effects| state.renew(&renewal, context, effects));
        let verdict = match standing {
            Standing::Holding(grant) => ServerVerdict::Holding(grant.fence.get()),
            Standing::Waiting(place) => ServerVerdict::Waiting(place.last_fence.get()),
            Standing::Gone | Standing::Unknown => ServerVerdict::Gone,
        };
        (verdict, effects)
    }

    pub(crate) fn release(&mut self, id: Id, at: &ServerOperation<'_>) -> Effects {
        let id = lease_id(id);
        self.run(at, |state, context, effects| state.release(id, &Outcome::Completed, context, effects)).1
    }

    /// Evicts the first holder.
    pub(crate) fn evict(&mut self, at: &ServerOperation<'_>) -> Option<Effects> {
        let fence = self.state.entries.iter().find_map(Entry::held)?.fence;
        Some(self.run(at, |state, context, effects| state.evict(fence, "stuck", context, effects)).1)
    }

    pub(crate) fn settle(&mut self, at: &ServerOperation<'_>) -> Effects {
        self.run(at, State::settle).1
    }

    /// Restarts with an empty memory, on a wall clock beyond every fence issued before.
    pub(crate) fn forget(&mut self) {
        *self = Self { state: State::default(), losses: self.losses + 1 };
    }

    fn run<T>(
        &mut self,
        at: &ServerOperation<'_>,
        rule: impl FnOnce(&mut State, &Context<'_>, &mut Effects) -> T,
    ) -> (T, Effects) {
        let presence = |entry: &Entry| (at.presence)(client_of(small(entry.id)));
        let wall = Timestamp::from_micros(u64::from(self.losses) * FENCES_PER_LIFE);
        let mut effects = Effects::default();
        let answer = rule(&mut self.state, &Context { now: moment(at.now), wall, presence: &presence }, &mut effects);
        (answer, effects)
    }

    /// The entries whose end has not come, in order.
    pub(crate) fn alive(&self, now: u8) -> impl Iterator<Item = (Id, EntryState)> {
        let alive = self.state.entries.iter().filter(move |entry| entry.ends_at() > moment(now));
        alive.map(|entry| (small(entry.id), entry.state))
    }

    /// Whether there is an entry with this id, also one whose end has come.
    pub(crate) fn knows(&self, id: Id) -> bool {
        self.state.entries.iter().any(|entry| entry.id == lease_id(id))
    }

    /// Whether the clock has ended an entry that no operation has dropped yet.
    pub(crate) fn has_expired(&self, now: u8) -> bool {
        self.state.entries.iter().any(|entry| entry.ends_at() <= moment(now))
    }

    /// The first entry that holds, if any.
    pub(crate) fn first_holder(&self) -> Option<Id> {
        self.state.entries.iter().find(|entry| !entry.is_waiting()).map(|entry| small(entry.id))
    }

    /// Whether an entry that may take its turn waits ahead of one of these.
    pub(crate) fn overtaken_by(&self, effects: &Effects) -> bool {
        let granted = |entry: &Entry| effects.granted.iter().any(|granted| granted.id == entry.id);
        let mut after_a_waiter = self.state.entries.iter().skip_while(|entry| !entry.is_waiting());
        after_a_waiter.any(granted)
    }
}

/// A tick of the backend's clock as the rule's time.
fn moment(tick: u8) -> Moment {
    Moment::from_micros(0).after(Duration::from_secs(tick.into()))
}

fn ttl(terms: &Terms) -> Ttl {
    Ttl::new(Duration::from_secs(terms.ttl.into())).expect("a ttl of seconds is in range")
}

fn lease_id(id: Id) -> LeaseId {
    LeaseId::from_u128(id.into())
}

/// The small id behind a lease id of the rule.
pub(crate) fn small(id: LeaseId) -> Id {
    Id::try_from(id.as_u128()).expect("the specification makes small ids")
}

fn key(id: Id) -> LeaseKey {
    static RESOURCE: LazyLock<Resource> = LazyLock::new(|| Resource::new("r").expect("a good name"));
    LeaseKey::new(RESOURCE.clone(), lease_id(id))
}

fn request(id: Id, terms: &Terms) -> Request {
    static HOLDER: LazyLock<Holder> = LazyLock::new(|| Holder::new("h").expect("a good label"));
    let mut request = Request::new(key(id), terms.claim, HOLDER.clone()).ttl(ttl(terms)).patience(terms.patience);
    request.max_waiters = terms.max_waiters;
    request
}
