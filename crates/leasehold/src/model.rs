//! The rule, as a pure function of state, operation, clocks and presence.
//!
//! A resource is an ordered list of entries, each waiting or holding.
//! *Settle*: drop what has expired or died, then from the front turn waiting
//! entries into holding ones while their units fit. Every operation is:
//! settle, apply, settle.
//!
//! No I/O, no async, no clock: this is the specification. Memory and file run
//! it; Redis and Postgres port it and are compared with it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::lease::{
    Busy, Claim, Decision, EndedLease, Ending, Evicted, Fence, Grant, HeldBy, Holder, LeaseId, LeaseRecord, LeaseState,
    Metadata, Moment, Outcome, Patience, Place, Problem, Released, Renewal, Request, Resource, Standing, Timestamp,
    Ttl,
};

/// How far ahead of the wall clock an asker may push the fence.
pub const FENCE_LEAD: Duration = Duration::from_secs(10);

/// All there is to know about one resource.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// Holding and waiting, in the order they came.
    pub entries: Vec<Entry>,
    /// The newest fence ever issued; it outlives the entries.
    pub last_fence: Fence,
}

/// A lease: a place in the queue that holds or does not hold yet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Chosen by the asker.
    pub id: LeaseId,
    /// How much it asks for.
    pub claim: Claim,
    /// Who asks.
    pub holder: Holder,
    /// One line for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// More for programs.
    #[serde(default, skip_serializing_if = "Metadata::is_empty")]
    pub metadata: Metadata,
    /// The length it was given last.
    pub ttl: Ttl,
    /// When it ends; `NEVER` where its process or connection is its life.
    pub expires_at: Moment,
    /// The fence should not be below this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fence_floor: Option<Fence>,
    /// When it came.
    pub asked_at: Timestamp,
    /// When it was last asked for or renewed.
    pub renewed_at: Timestamp,
    /// Set once it holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grant: Option<Held>,
}

/// What an entry has once it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// The number of the grant.
    pub fence: Fence,
    /// When it was granted.
    pub acquired_at: Timestamp,
}

/// Whether the process behind an entry can be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// It can, or the backend cannot know.
    Present,
    /// Not just now: it is passed over when its turn comes and keeps its place.
    Absent,
    /// Never again: the kernel or the server says so.
    Dead,
}

/// What ends an entry that nobody renews.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    /// Its ttl.
    ByClock,
    /// Nothing but its presence.
    ByPresence,
}

/// The inputs that are not the resource's: two clocks and who is there.
#[derive(Clone, Copy)]
pub struct Scene<'a> {
    /// Decides expiry.
    pub now: Moment,
    /// Floors the fence and dates records; decides nothing else.
    pub wall: Timestamp,
    /// The presence of an entry's process.
    pub presence: &'a dyn Fn(&Entry) -> Presence,
}

impl std::fmt::Debug for Scene<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scene").field("now", &self.now).field("wall", &self.wall).finish_non_exhaustive()
    }
}

/// What an operation did to others, for hints, history and events.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Effects {
    /// Entries that began to hold.
    pub granted: Vec<LeaseId>,
    /// The entry that took a place in the queue and stays there.
    pub queued: Option<LeaseId>,
    /// Entries that ended.
    pub ended: Vec<Ended>,
}

impl Effects {
    /// Whether anything at all was changed for others to see.
    pub fn is_empty(&self) -> bool {
        self.granted.is_empty() && self.queued.is_none() && self.ended.is_empty()
    }
}

/// An entry that ended, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct Ended {
    /// The entry as it was last.
    pub entry: Entry,
    /// When it ended.
    pub ended_at: Timestamp,
    /// How.
    pub ending: Ending,
    /// What went wrong, or the reason of an eviction.
    pub problem: Option<Problem>,
}

impl Ended {
    /// The line for the resource's history.
    pub fn into_record(self, resource: Resource) -> EndedLease {
        EndedLease {
            resource,
            holder: self.entry.holder,
            claim: self.entry.claim,
            fence: self.entry.grant.map(|held| held.fence),
            asked_at: self.entry.asked_at,
            acquired_at: self.entry.grant.map(|held| held.acquired_at),
            ended_at: self.ended_at,
            ending: self.ending,
            problem: self.problem,
            note: self.entry.note,
            metadata: self.entry.metadata,
        }
    }
}

impl State {
    /// Drops what has expired or died, then grants from the front while units fit.
    pub fn settle(&mut self, scene: &Scene<'_>, effects: &mut Effects) {
        self.settle_for(None, scene, effects);
    }

    /// The asker of the current call is present, whatever else is known of it.
    fn settle_for(&mut self, asker: Option<LeaseId>, scene: &Scene<'_>, effects: &mut Effects) {
        let presence = |entry: &Entry| {
            if asker == Some(entry.id) { Presence::Present } else { (scene.presence)(entry) }
        };
        let mut absent = Vec::new();
        self.entries.retain(|entry| {
            if entry.expires_at <= scene.now {
                let ended_at = scene.wall.before(scene.now.since(entry.expires_at));
                effects.ended.push(ended(entry, ended_at, Ending::Expired, None));
                return false;
            }
            match presence(entry) {
                Presence::Present => {}
                Presence::Absent => absent.push(entry.id),
                Presence::Dead => {
                    effects.ended.push(ended(entry, scene.wall, Ending::Disconnected, None));
                    return false;
                }
            }
            true
        });

        let mut used: u64 = self.holding().map(|(entry, _)| u64::from(entry.claim.units())).sum();
        for entry in &mut self.entries {
            if entry.grant.is_some() || absent.contains(&entry.id) {
                continue;
            }
            used += u64::from(entry.claim.units());
            if used > u64::from(entry.claim.capacity()) {
                break;
            }
            self.last_fence = next_fence(self.last_fence, scene.wall, entry.fence_floor);
            entry.grant = Some(Held { fence: self.last_fence, acquired_at: scene.wall });
            effects.granted.push(entry.id);
        }
    }

    /// Asks once: grants, queues, or leaves nothing behind.
    pub fn acquire(&mut self, request: &Request, expiry: Expiry, scene: &Scene<'_>, effects: &mut Effects) -> Decision {
        let id = request.key.id;
        self.settle_for(Some(id), scene, effects);

        if let Some(known) = self.find(id) {
            known.prolong(request.ttl, scene);
        } else {
            if let Some(first) = self.entries.first()
                && first.claim.shape() != request.claim.shape()
            {
                return Decision::WrongShape { in_force: first.claim.shape() };
            }
            self.entries.push(Entry {
                id,
                claim: request.claim,
                holder: request.holder.clone(),
                note: request.note.clone(),
                metadata: request.metadata.clone(),
                ttl: request.ttl,
                expires_at: match expiry {
                    Expiry::ByClock => scene.now.after(request.ttl.get()),
                    Expiry::ByPresence => Moment::NEVER,
                },
                fence_floor: request.fence_floor,
                asked_at: scene.wall,
                renewed_at: scene.wall,
                grant: None,
            });
            self.settle_for(Some(id), scene, effects);
            if request.patience == Patience::Try && self.find(id).is_some_and(|entry| entry.grant.is_none()) {
                self.entries.retain(|entry| entry.id != id);
                return Decision::Busy(self.busy(scene));
            }
            if self.find(id).is_some_and(|entry| entry.grant.is_none()) {
                effects.queued = Some(id);
            }
        }

        match self.standing(id, scene) {
            Standing::Holding(grant) => Decision::Granted(grant),
            Standing::Waiting(place) => Decision::Queued(place),
            Standing::Gone | Standing::Unknown => Decision::Busy(self.busy(scene)),
        }
    }

    /// Moves the end to now + ttl, never earlier, and applies what comes along.
    pub fn renew(&mut self, renewal: &Renewal, scene: &Scene<'_>, effects: &mut Effects) -> Standing {
        let id = renewal.key.id;
        self.settle_for(Some(id), scene, effects);
        let fence_limit = fence_limit(self.last_fence, scene.wall);
        let last_fence = self.last_fence;
        let Some(entry) = self.find(id) else {
            return Standing::Gone;
        };
        entry.prolong(renewal.ttl, scene);
        if let Some(metadata) = &renewal.metadata {
            entry.metadata.clone_from(metadata);
        }
        if let Some(less) = renewal.downgrade
            && less.shape() == entry.claim.shape()
            && less.units() <= entry.claim.units()
        {
            entry.claim = less;
        }
        if let (Some(floor), Some(held)) = (renewal.fence_floor, &mut entry.grant)
            && floor > last_fence
            && floor <= fence_limit
        {
            held.fence = floor;
            self.last_fence = floor;
        }
        self.settle_for(Some(id), scene, effects);
        self.standing(id, scene)
    }

    /// Ends a lease or leaves the queue.
    pub fn release(&mut self, id: LeaseId, outcome: &Outcome, scene: &Scene<'_>, effects: &mut Effects) -> Released {
        self.settle_for(Some(id), scene, effects);
        let Some(at) = self.entries.iter().position(|entry| entry.id == id) else {
            return Released::Gone;
        };
        let entry = self.entries.remove(at);
        let held = entry.grant.is_some();
        let ending = match outcome.ending() {
            Ending::Released if !held => Ending::Cancelled,
            ending => ending,
        };
        let problem = match outcome {
            Outcome::Failed(problem) => Some(problem.clone()),
            _ => None,
        };
        effects.ended.push(Ended { entry, ended_at: scene.wall, ending, problem });
        self.settle(scene, effects);
        if held { Released::Freed } else { Released::LeftQueue }
    }

    /// Takes the lease with this fence away.
    pub fn evict(&mut self, expected: Fence, reason: &str, scene: &Scene<'_>, effects: &mut Effects) -> Evicted {
        self.settle(scene, effects);
        let holds = |entry: &Entry| entry.grant.is_some_and(|held| held.fence == expected);
        let Some(at) = self.entries.iter().position(holds) else {
            return Evicted::NoSuchFence { current: self.holding().map(|(_, held)| held.fence).collect() };
        };
        let entry = self.entries.remove(at);
        let holder = entry.holder.clone();
        let problem = Problem { kind: String::from("evicted"), details: reason.to_owned() };
        effects.ended.push(Ended { entry, ended_at: scene.wall, ending: Ending::Evicted, problem: Some(problem) });
        self.settle(scene, effects);
        Evicted::Evicted { holder }
    }

    /// How a lease stands, without changing anything.
    pub fn standing(&self, id: LeaseId, scene: &Scene<'_>) -> Standing {
        let Some(at) = self.entries.iter().position(|entry| entry.id == id) else {
            return Standing::Gone;
        };
        let ahead = &self.entries[..at];
        match self.entries[at].grant {
            Some(held) => Standing::Holding(Grant { fence: held.fence, acquired_at: held.acquired_at }),
            None => Standing::Waiting(Place {
                ahead: count(ahead.iter().filter(|entry| entry.grant.is_none())),
                last_fence: self.last_fence,
                ask_again_in: ahead
                    .iter()
                    .map(|entry| entry.expires_at)
                    .min()
                    .filter(|end| *end != Moment::NEVER)
                    .map(|end| end.since(scene.now)),
            }),
        }
    }

    /// Who is in the way of one more.
    pub fn busy(&self, scene: &Scene<'_>) -> Busy {
        let holders = self
            .holding()
            .map(|(entry, held)| HeldBy {
                holder: entry.holder.clone(),
                note: entry.note.clone(),
                mode: entry.claim.mode(),
                fence: held.fence,
                held_for: scene.wall.since(held.acquired_at),
            })
            .collect();
        Busy { holders, waiting: count(self.entries.iter().filter(|entry| entry.grant.is_none())) }
    }

    /// The entries as others may see them: holders first, then the queue.
    pub fn records(&self, resource: &Resource, scene: &Scene<'_>) -> Vec<LeaseRecord> {
        let waiting = self.entries.iter().filter(|entry| entry.grant.is_none()).zip(0..).map(|(entry, ahead)| {
            let state = LeaseState::Waiting { ahead, waiting_for: scene.wall.since(entry.asked_at) };
            entry.record(resource, state, scene)
        });
        let holding = self.holding().map(|(entry, held)| {
            let state = LeaseState::Holding {
                fence: held.fence,
                acquired_at: held.acquired_at,
                held_for: scene.wall.since(held.acquired_at),
            };
            entry.record(resource, state, scene)
        });
        holding.chain(waiting).collect()
    }

    fn holding(&self) -> impl Iterator<Item = (&Entry, Held)> {
        self.entries.iter().filter_map(|entry| entry.grant.map(|held| (entry, held)))
    }

    fn find(&mut self, id: LeaseId) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|entry| entry.id == id)
    }
}

impl Entry {
    /// End = now + ttl, never shorter than the end already given.
    fn prolong(&mut self, ttl: Ttl, scene: &Scene<'_>) {
        self.renewed_at = scene.wall;
        let end = scene.now.after(ttl.get());
        if end > self.expires_at {
            self.expires_at = end;
            self.ttl = ttl;
        }
    }

    fn record(&self, resource: &Resource, state: LeaseState, scene: &Scene<'_>) -> LeaseRecord {
        LeaseRecord {
            resource: resource.clone(),
            holder: self.holder.clone(),
            claim: self.claim,
            state,
            asked_at: self.asked_at,
            renewed_ago: scene.wall.since(self.renewed_at),
            ttl: self.ttl,
            expires_in: (self.expires_at != Moment::NEVER).then(|| self.expires_at.since(scene.now)),
            note: self.note.clone(),
            metadata: self.metadata.clone(),
        }
    }
}

fn ended(entry: &Entry, ended_at: Timestamp, ending: Ending, problem: Option<Problem>) -> Ended {
    Ended { entry: entry.clone(), ended_at, ending, problem }
}

/// Above the last one, not below the wall clock, not below a floor within reason.
fn next_fence(last: Fence, wall: Timestamp, floor: Option<Fence>) -> Fence {
    let floor = floor.map_or(0, |floor| floor.get().min(wall.after(FENCE_LEAD).as_micros()));
    Fence::new((last.get() + 1).max(wall.as_micros()).max(floor))
}

/// The highest fence that an asker may write back.
fn fence_limit(last: Fence, wall: Timestamp) -> Fence {
    Fence::new(last.get().max(wall.as_micros())).max(Fence::new(wall.after(FENCE_LEAD).as_micros()))
}

fn count<T>(items: impl Iterator<Item = T>) -> u32 {
    u32::try_from(items.count()).unwrap_or(u32::MAX)
}
