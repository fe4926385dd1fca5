//! The locking algorithm: a pure function of state, operation, clocks and presence.
//!
//! A resource is an ordered list of entries. Each entry either waits or holds a
//! number of units of the resource's capacity. To *settle* a resource means to
//! remove the entries that have expired or whose process has died, and then to
//! grant waiting entries, from the front, as long as their units fit. Every operation
//! settles the resource, applies its change and settles the resource again.
//!
//! A waiting entry that lasts as long as its process may be granted by an operation
//! of another process. Such a grant is *provisional*: the entry uses its units at
//! once, but ends after a few seconds unless its own process confirms the grant. A
//! stopped waiter thus delays the others by seconds instead of for ever.
//!
//! This module does no I/O, is not async and reads no clock. It specifies what every
//! backend must do. The memory and file backends run this code. The Redis and Postgres
//! backends port it, and tests compare the ports with it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::lease::{
    Busy, Claim, Decision, EndedLease, Ending, Evicted, Fence, Grant, HeldBy, Holder, LeaseId, LeaseRecord, LeaseState,
    Metadata, Moment, Outcome, Patience, Problem, QueuePosition, Released, Renewal, Request, Resource, Standing,
    Timestamp, Ttl,
};

/// How far ahead of the wall clock a client may raise the fence.
pub const FENCE_LEAD: Duration = Duration::from_secs(10);

/// The time to confirm a provisional grant, unless the ttl is shorter.
pub const CONFIRM_WITHIN: Duration = Duration::from_secs(5);

/// The complete state of one resource.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// The entries that hold or wait, in the order of their requests.
    pub entries: Vec<Entry>,
    /// The newest fence ever issued; it outlives the entries.
    pub last_fence: Fence,
}

/// A lease, or a waiting request for one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// The lease id, chosen by the client.
    pub id: LeaseId,
    /// How many units it takes.
    pub claim: Claim,
    /// The label that others see.
    pub holder: Holder,
    /// A one-line note from the holder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// A JSON object from the holder.
    #[serde(default, skip_serializing_if = "Metadata::is_empty")]
    pub metadata: Metadata,
    /// The ttl of the last request or renewal that extended the lease.
    pub ttl: Ttl,
    /// What ends it if nobody renews it.
    #[serde(default)]
    pub expiry: Expiry,
    /// When its ttl ends; `NEVER` if it lasts as long as its process or connection.
    pub expires_at: Moment,
    /// The lowest fence that its grant may have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fence_floor: Option<Fence>,
    /// When it was first requested.
    pub asked_at: Timestamp,
    /// When it was last requested or renewed.
    pub renewed_at: Timestamp,
    /// Whether it waits or holds.
    #[serde(default, rename = "grant", skip_serializing_if = "EntryState::is_waiting")]
    pub state: EntryState,
}

/// Whether an entry waits or holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, try_from = "Option<GrantFields>")]
pub enum EntryState {
    /// An operation of another process granted it. It uses its units, but ends unless its own process confirms the
    /// grant in time.
    Provisional {
        /// The grant to be confirmed.
        held: Held,
        /// When it expires unless confirmed.
        ends_at: Moment,
    },
    /// It holds its units.
    Holding(Held),
    /// Its turn has not come.
    #[default]
    Waiting,
}

impl EntryState {
    /// Returns the grant, provisional or not; `None` while the entry waits.
    pub const fn held(&self) -> Option<Held> {
        match self {
            Self::Waiting => None,
            Self::Provisional { held, .. } | Self::Holding(held) => Some(*held),
        }
    }

    const fn is_waiting(&self) -> bool {
        matches!(self, Self::Waiting)
    }
}

/// The fields of both kinds of grant: to try one kind after the other would read each of them twice.
#[derive(Deserialize)]
struct GrantFields {
    held: Option<Held>,
    ends_at: Option<Moment>,
    fence: Option<Fence>,
    acquired_at: Option<Timestamp>,
}

impl TryFrom<Option<GrantFields>> for EntryState {
    type Error = &'static str;

    fn try_from(fields: Option<GrantFields>) -> Result<Self, Self::Error> {
        match fields {
            None => Ok(Self::Waiting),
            Some(GrantFields { held: Some(held), ends_at: Some(ends_at), .. }) => {
                Ok(Self::Provisional { held, ends_at })
            }
            Some(GrantFields { fence: Some(fence), acquired_at: Some(acquired_at), .. }) => {
                Ok(Self::Holding(Held { fence, acquired_at }))
            }
            Some(_) => Err("a grant lacks its fence or a date"),
        }
    }
}

/// The grant of an entry that holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// The fence of the grant.
    pub fence: Fence,
    /// When it was granted.
    pub acquired_at: Timestamp,
}

/// Whether the process behind an entry can be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// It is the process that performs the operation.
    Own,
    /// It is another process, which the backend considers reachable.
    Present,
    /// It cannot be reached now. The entry is skipped when its turn comes, but keeps its queue position.
    Absent,
    /// It is dead, as reported by the kernel or the server.
    Dead,
}

/// What ends an entry that nobody renews.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Expiry {
    /// Its ttl. Grants to such an entry are never provisional: a stopped waiter delays the others by at most one ttl.
    #[default]
    ByClock,
    /// The death of its process or connection.
    ByPresence,
}

/// The inputs of an operation besides the state: clocks and presence.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    /// The steady clock, which decides expiry.
    pub now: Moment,
    /// The wall clock, which dates records and gives new fences a lower bound. It never decides expiry.
    pub wall: Timestamp,
    /// Returns the presence of an entry's process. The answer must not change during one operation.
    pub presence: &'a dyn Fn(&Entry) -> Presence,
}

impl std::fmt::Debug for Context<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").field("now", &self.now).field("wall", &self.wall).finish_non_exhaustive()
    }
}

/// What an operation changed, to be reported as hints, history and events.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Effects {
    /// Entries that were granted, provisionally or not.
    pub granted: Vec<Granted>,
    /// The new entry, if it has to wait.
    pub queued: Option<LeaseId>,
    /// Entries that ended.
    pub ended: Vec<Ended>,
}

impl Effects {
    /// Returns whether there is nothing to report.
    pub fn is_empty(&self) -> bool {
        self.granted.is_empty() && self.queued.is_none() && self.ended.is_empty()
    }
}

/// An entry that was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// The entry.
    pub id: LeaseId,
    /// The fence of the grant.
    pub fence: Fence,
    /// Whether its process still has to confirm the grant.
    pub provisional: bool,
}

/// An entry that ended, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct Ended {
    /// The entry in its last state.
    pub entry: Entry,
    /// When it ended.
    pub ended_at: Timestamp,
    /// How it ended.
    pub ending: Ending,
    /// What went wrong, or the reason for an eviction.
    pub problem: Option<Problem>,
}

impl Ended {
    /// Returns the record for the resource's history.
    pub fn into_record(self, resource: Resource) -> EndedLease {
        let held = self.entry.held();
        EndedLease {
            resource,
            holder: self.entry.holder,
            claim: self.entry.claim,
            fence: held.map(|held| held.fence),
            asked_at: self.entry.asked_at,
            acquired_at: held.map(|held| held.acquired_at),
            ended_at: self.ended_at,
            ending: self.ending,
            problem: self.problem,
            note: self.entry.note,
            metadata: self.entry.metadata,
        }
    }
}

impl State {
    /// Removes the entries that have ended, then grants waiting entries.
    ///
    /// An entry has ended if it has expired or its process has died. Waiting entries are granted from the front, as
    /// long as their units fit.
    pub fn settle(&mut self, context: &Context<'_>, effects: &mut Effects) {
        self.settle_for(None, context, effects);
    }

    /// The caller's process is not absent, since its call has just arrived. It may be dead all the same: anyone who was
    /// given the handle knows the lease id.
    fn settle_for(&mut self, caller: Option<LeaseId>, context: &Context<'_>, effects: &mut Effects) {
        let presence = |entry: &Entry| match (context.presence)(entry) {
            Presence::Absent if caller == Some(entry.id) => Presence::Present,
            presence => presence,
        };
        self.entries.retain(|entry| {
            let (ended_at, ending) = if entry.ends_at() <= context.now {
                (context.wall.before(context.now.since(entry.ends_at())), Ending::Expired)
            } else if presence(entry) == Presence::Dead {
                (context.wall, Ending::Disconnected)
            } else {
                return true;
            };
            effects.ended.push(Ended { entry: entry.clone(), ended_at, ending, problem: None });
            false
        });

        let mut used: u64 = self.holding().map(|(entry, _)| u64::from(entry.claim.units())).sum();
        for entry in self.entries.iter_mut().filter(|entry| entry.is_waiting()) {
            let presence = presence(entry);
            if presence == Presence::Absent {
                continue;
            }
            used += u64::from(entry.claim.units());
            if used > u64::from(entry.claim.capacity()) {
                break;
            }
            self.last_fence = next_fence(self.last_fence, context.wall, entry.fence_floor);
            entry.state = entry.hand_over(self.last_fence, presence, context);
            let provisional = matches!(entry.state, EntryState::Provisional { .. });
            effects.granted.push(Granted { id: entry.id, fence: self.last_fence, provisional });
        }
    }

    /// Requests a lease: grants it, queues it, or refuses it without leaving an entry.
    pub fn acquire(
        &mut self,
        request: &Request,
        expiry: Expiry,
        context: &Context<'_>,
        effects: &mut Effects,
    ) -> Decision {
        let id = request.key.id;
        self.settle_for(Some(id), context, effects);

        if let Some(known) = self.find(id) {
            known.prolong(request.ttl, context);
        } else {
            if let Some(first) = self.entries.first()
                && first.claim.shape() != request.claim.shape()
            {
                return Decision::WrongShape { in_force: first.claim.shape() };
            }
            let entry = Entry::new(request, expiry, context);
            if (context.presence)(&entry) == Presence::Dead {
                return Decision::Busy(self.busy(context));
            }
            if self.entries.is_empty() {
                // Most resources have one entry, and a million of them should fit in memory.
                self.entries.reserve_exact(1);
            }
            self.entries.push(entry);
            self.settle_for(Some(id), context, effects);
            if self.entries.last().is_some_and(Entry::is_waiting) {
                let ahead = count(self.waiting()) - 1;
                if request.patience == Patience::Try || request.max_waiters.is_some_and(|most| ahead > most) {
                    self.entries.pop();
                    return Decision::Busy(self.busy(context));
                }
                effects.queued = Some(id);
            }
        }

        match self.standing(id, context) {
            Standing::Holding(grant) => Decision::Granted(grant),
            Standing::Waiting(position) => Decision::Queued(position),
            Standing::Gone | Standing::Unknown => Decision::Busy(self.busy(context)),
        }
    }

    /// Extends the lease to now + ttl and applies the other changes of the renewal.
    ///
    /// A renewal also confirms a provisional grant. It never shortens a lease, but one that ends with its process may be
    /// given an end instead, by that process.
    pub fn renew(&mut self, renewal: &Renewal, context: &Context<'_>, effects: &mut Effects) -> Standing {
        let id = renewal.key.id;
        self.settle_for(Some(id), context, effects);
        let fence_limit = fence_limit(self.last_fence, context.wall);
        let last_fence = self.last_fence;
        let Some(entry) = self.find(id) else {
            return Standing::Gone;
        };
        entry.prolong(renewal.ttl, context);
        if renewal.detach && (context.presence)(entry) == Presence::Own {
            entry.detach(renewal.ttl, context);
        }
        if let Some(metadata) = &renewal.metadata {
            entry.metadata.clone_from(metadata);
        }
        if let Some(less) = renewal.downgrade
            && less.shape() == entry.claim.shape()
            && less.units() <= entry.claim.units()
        {
            entry.claim = less;
        }
        if let (Some(floor), Some(held)) = (renewal.fence_floor, entry.held_mut())
            && floor > last_fence
            && floor <= fence_limit
        {
            held.fence = floor;
            self.last_fence = floor;
            effects.granted.iter_mut().filter(|granted| granted.id == id).for_each(|granted| granted.fence = floor);
        }
        self.settle_for(Some(id), context, effects);
        self.standing(id, context)
    }

    /// Ends a lease, or removes it from the queue if it still waits.
    pub fn release(
        &mut self,
        id: LeaseId,
        outcome: &Outcome,
        context: &Context<'_>,
        effects: &mut Effects,
    ) -> Released {
        self.settle_for(Some(id), context, effects);
        let Some(at) = self.entries.iter().position(|entry| entry.id == id) else {
            return Released::Gone;
        };
        let held = !self.entries[at].is_waiting();
        let ending = match outcome.ending() {
            Ending::Released if !held => Ending::Cancelled,
            ending => ending,
        };
        let problem = match outcome {
            Outcome::Failed(problem) => Some(problem.clone()),
            _ => None,
        };
        effects.ended.push(Ended { entry: self.entries.remove(at), ended_at: context.wall, ending, problem });
        self.settle(context, effects);
        if held { Released::Freed } else { Released::LeftQueue }
    }

    /// Takes the lease with this fence away from its holder.
    pub fn evict(&mut self, expected: Fence, reason: &str, context: &Context<'_>, effects: &mut Effects) -> Evicted {
        self.settle(context, effects);
        let holds = |entry: &Entry| entry.held().is_some_and(|held| held.fence == expected);
        let Some(at) = self.entries.iter().position(holds) else {
            return Evicted::NoSuchFence { current: self.holding().map(|(_, held)| held.fence).collect() };
        };
        let entry = self.entries.remove(at);
        let holder = entry.holder.clone();
        let problem = Problem { kind: String::from("evicted"), details: reason.to_owned() };
        effects.ended.push(Ended { entry, ended_at: context.wall, ending: Ending::Evicted, problem: Some(problem) });
        self.settle(context, effects);
        Evicted::Evicted { holder }
    }

    /// Returns whether a lease is held, waits or is gone, without changing anything.
    pub fn standing(&self, id: LeaseId, context: &Context<'_>) -> Standing {
        let Some(at) = self.entries.iter().position(|entry| entry.id == id) else {
            return Standing::Gone;
        };
        if let Some(held) = self.entries[at].held() {
            return Standing::Holding(Grant { fence: held.fence, acquired_at: held.acquired_at });
        }
        // A holder may sit behind: it came later and passed this entry while its process was absent.
        let (ahead, behind) = self.entries.split_at(at);
        let in_the_way = ahead.iter().chain(behind.iter().filter(|entry| !entry.is_waiting()));
        let first_end = in_the_way.map(Entry::ends_at).min().filter(|end| *end != Moment::NEVER);
        Standing::Waiting(QueuePosition {
            ahead: count(ahead.iter().filter(|entry| entry.is_waiting())),
            last_fence: self.last_fence,
            ask_again_in: first_end.map(|end| end.since(context.now)),
        })
    }

    /// Returns the holders and the number of waiters.
    pub fn busy(&self, context: &Context<'_>) -> Busy {
        let holders = self
            .holding()
            .map(|(entry, held)| HeldBy {
                holder: entry.holder.clone(),
                note: entry.note.clone(),
                mode: entry.claim.mode(),
                fence: held.fence,
                held_for: context.wall.since(held.acquired_at),
            })
            .collect();
        Busy { holders, waiting: count(self.waiting()) }
    }

    /// Returns the entries without their secret ids. Holders come first, then waiters in queue order.
    pub fn records(&self, resource: &Resource, context: &Context<'_>) -> Vec<LeaseRecord> {
        let waiting = self.waiting().zip(0..).map(|(entry, ahead)| {
            let state = LeaseState::Waiting { ahead, waiting_for: context.wall.since(entry.asked_at) };
            entry.record(resource, state, context)
        });
        let holding = self.holding().map(|(entry, held)| {
            let state = LeaseState::Holding {
                fence: held.fence,
                acquired_at: held.acquired_at,
                held_for: context.wall.since(held.acquired_at),
            };
            entry.record(resource, state, context)
        });
        holding.chain(waiting).collect()
    }

    fn holding(&self) -> impl Iterator<Item = (&Entry, Held)> {
        self.entries.iter().filter_map(|entry| Some((entry, entry.held()?)))
    }

    fn waiting(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(|entry| entry.is_waiting())
    }

    fn find(&mut self, id: LeaseId) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|entry| entry.id == id)
    }
}

impl Entry {
    fn new(request: &Request, expiry: Expiry, context: &Context<'_>) -> Self {
        Self {
            id: request.key.id,
            claim: request.claim,
            holder: request.holder.clone(),
            note: request.note.clone(),
            metadata: request.metadata.clone(),
            ttl: request.ttl,
            expiry,
            expires_at: match expiry {
                Expiry::ByClock => context.now.after(request.ttl.get()),
                Expiry::ByPresence => Moment::NEVER,
            },
            fence_floor: request.fence_floor,
            asked_at: context.wall,
            renewed_at: context.wall,
            state: EntryState::Waiting,
        }
    }

    /// Returns the grant, provisional or not; `None` while the entry waits.
    pub const fn held(&self) -> Option<Held> {
        self.state.held()
    }

    fn held_mut(&mut self) -> Option<&mut Held> {
        match &mut self.state {
            EntryState::Waiting => None,
            EntryState::Provisional { held, .. } | EntryState::Holding(held) => Some(held),
        }
    }

    /// Returns whether the entry waits.
    pub const fn is_waiting(&self) -> bool {
        self.state.is_waiting()
    }

    /// Returns when the entry expires unless its process renews or confirms it.
    ///
    /// `NEVER` if only the death of the process ends it.
    pub fn ends_at(&self) -> Moment {
        match self.state {
            EntryState::Provisional { ends_at, .. } => ends_at.min(self.expires_at),
            EntryState::Waiting | EntryState::Holding(_) => self.expires_at,
        }
    }

    /// What the entry becomes when its turn comes.
    fn hand_over(&self, fence: Fence, presence: Presence, context: &Context<'_>) -> EntryState {
        let held = Held { fence, acquired_at: context.wall };
        match (self.expiry, presence) {
            (Expiry::ByClock, _) | (Expiry::ByPresence, Presence::Own) => EntryState::Holding(held),
            (Expiry::ByPresence, _) => {
                EntryState::Provisional { held, ends_at: context.now.after(self.ttl.get().min(CONFIRM_WITHIN)) }
            }
        }
    }

    /// End = now + ttl, never shorter than the end already given. Its own process thereby confirms a hand-off.
    fn prolong(&mut self, ttl: Ttl, context: &Context<'_>) {
        self.renewed_at = context.wall;
        let end = context.now.after(ttl.get());
        if end > self.expires_at {
            self.expires_at = end;
            self.ttl = ttl;
        }
        if let EntryState::Provisional { held, .. } = self.state
            && (context.presence)(self) == Presence::Own
        {
            self.state = EntryState::Holding(held);
        }
    }

    /// Gives a lease that ends with its process an end of its own.
    fn detach(&mut self, ttl: Ttl, context: &Context<'_>) {
        if self.expiry == Expiry::ByPresence && matches!(self.state, EntryState::Holding(_)) {
            (self.expiry, self.ttl) = (Expiry::ByClock, ttl);
            self.expires_at = context.now.after(ttl.get());
        }
    }

    fn record(&self, resource: &Resource, state: LeaseState, context: &Context<'_>) -> LeaseRecord {
        LeaseRecord {
            resource: resource.clone(),
            holder: self.holder.clone(),
            claim: self.claim,
            state,
            asked_at: self.asked_at,
            renewed_ago: context.wall.since(self.renewed_at),
            ttl: self.ttl,
            expires_in: (self.ends_at() != Moment::NEVER).then(|| self.ends_at().since(context.now)),
            note: self.note.clone(),
            metadata: self.metadata.clone(),
        }
    }
}

/// The next fence: above the last one, not below the wall clock, and not below the floor, which is bounded.
fn next_fence(last: Fence, wall: Timestamp, floor: Option<Fence>) -> Fence {
    let floor = floor.map_or(0, |floor| floor.get().min(wall.after(FENCE_LEAD).as_micros()));
    Fence::new((last.get() + 1).max(wall.as_micros()).max(floor))
}

/// The highest fence that a client may write back.
fn fence_limit(last: Fence, wall: Timestamp) -> Fence {
    Fence::new(last.get().max(wall.as_micros())).max(Fence::new(wall.after(FENCE_LEAD).as_micros()))
}

fn count<T>(items: impl Iterator<Item = T>) -> u32 {
    u32::try_from(items.count()).unwrap_or(u32::MAX)
}
