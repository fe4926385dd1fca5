//! Makes histories: a resource, some clients, two clocks, and what may happen to them.

use std::{collections::BTreeMap, time::Duration};

use leasehold::{
    Fence, Holder, Resource, Ttl,
    backend::{
        Decision, Patience, Renewal, Request,
        model::{Context, Effects, Entry, Expiry, Presence, State},
    },
    lease::{Claim, Evicted, LeaseId, LeaseKey, Metadata, Moment, Outcome, Released, Standing, Timestamp},
};
use proptest::prelude::*;

/// Something that happens. Small numbers choose among the few things there are.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    Acquire {
        who: u8,
        claim: u8,
        patience: Patience,
        max_waiters: Option<u32>,
        expiry: Expiry,
        ttl: u8,
        floor: Option<i8>,
    },
    Renew {
        who: u8,
        ttl: u8,
        downgrade: Option<u8>,
        floor: Option<i8>,
        metadata: bool,
    },
    Release {
        who: u8,
        outcome: u8,
    },
    Evict {
        holder: u8,
        stale: bool,
    },
    Settle,
    Pass {
        seconds: u8,
    },
    SetWall {
        seconds: i8,
    },
    Presence {
        who: u8,
        presence: Presence,
    },
    ForgetAll,
}

impl Op {
    pub(crate) fn any() -> impl Strategy<Value = Self> {
        let who = || 0..7u8;
        let floor = || proptest::option::weighted(0.2, -15..15i8);
        let max_waiters = proptest::option::weighted(0.2, 0..3u32);
        let expiry = prop_oneof![2 => Just(Expiry::ByClock), 1 => Just(Expiry::ByPresence)];
        let patience = prop_oneof![2 => Just(Patience::Queue), 1 => Just(Patience::Try)];
        let presence = prop_oneof![
            2 => Just(Presence::Own),
            2 => Just(Presence::Present),
            2 => Just(Presence::Absent),
            1 => Just(Presence::Dead)
        ];
        prop_oneof![
            12 => (who(), 0..20u8, patience, max_waiters, expiry, 1..40u8, floor()).prop_map(
                |(who, claim, patience, max_waiters, expiry, ttl, floor)|
                    Self::Acquire { who, claim, patience, max_waiters, expiry, ttl, floor }),
            5 => (who(), 1..40u8, proptest::option::weighted(0.4, 0..20u8), floor(), any::<bool>()).prop_map(
                |(who, ttl, downgrade, floor, metadata)| Self::Renew { who, ttl, downgrade, floor, metadata }),
            6 => (who(), 0..5u8).prop_map(|(who, outcome)| Self::Release { who, outcome }),
            2 => (0..4u8, any::<bool>()).prop_map(|(holder, stale)| Self::Evict { holder, stale }),
            1 => Just(Self::Settle),
            3 => (0..25u8).prop_map(|seconds| Self::Pass { seconds }),
            1 => (-40..40i8).prop_map(|seconds| Self::SetWall { seconds }),
            3 => (who(), presence).prop_map(|(who, presence)| Self::Presence { who, presence }),
            1 => Just(Self::ForgetAll),
        ]
    }
}

/// What the rule answered.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Said {
    Nothing,
    Decision(Decision),
    Standing(Standing),
    Released(Released),
    Evicted(Evicted),
}

/// One operation with all that went in and came out.
#[derive(Debug)]
pub(crate) struct Step {
    pub asked: Asked,
    pub before: State,
    pub after: State,
    pub effects: Effects,
    pub said: Said,
    pub now: Moment,
    pub wall: Timestamp,
    /// No fence issued so far, in this life or in one that was forgotten, is above.
    pub newest_fence: Fence,
    presence: BTreeMap<LeaseId, Presence>,
}

/// The operation as the rule was asked it.
#[derive(Clone, Debug)]
pub(crate) enum Asked {
    Acquire(Request, Expiry),
    Renew(Renewal),
    Release(LeaseKey, Outcome),
    Evict(Fence),
    Settle,
}

impl Step {
    /// The client of the operation, who is not absent because it asks.
    pub(crate) fn caller(&self) -> Option<LeaseId> {
        match &self.asked {
            Asked::Acquire(request, _) => Some(request.key.id),
            Asked::Renew(renewal) => Some(renewal.key.id),
            Asked::Release(key, _) => Some(key.id),
            Asked::Evict(_) | Asked::Settle => None,
        }
    }

    pub(crate) fn presence(&self, entry: &Entry) -> Presence {
        match self.known_presence(entry) {
            Presence::Absent if self.caller() == Some(entry.id) => Presence::Present,
            presence => presence,
        }
    }

    fn known_presence(&self, entry: &Entry) -> Presence {
        self.presence_of(entry.id)
    }

    pub(crate) fn presence_of(&self, id: LeaseId) -> Presence {
        self.presence.get(&id).copied().unwrap_or(Presence::Present)
    }

    /// Settles another state, at the same time and in the same company.
    pub(crate) fn settle(&self, state: &mut State) {
        let presence = |entry: &Entry| self.known_presence(entry);
        let context = Context { now: self.now, wall: self.wall, presence: &presence };
        state.settle(&context, &mut Effects::default());
    }

    /// Asks the same of another state, at the same time and in the same company.
    pub(crate) fn ask(&self, state: &mut State) -> (Said, Effects) {
        let presence = |entry: &Entry| self.known_presence(entry);
        let context = Context { now: self.now, wall: self.wall, presence: &presence };
        let mut effects = Effects::default();
        let said = match &self.asked {
            Asked::Acquire(request, expiry) => Said::Decision(state.acquire(request, *expiry, &context, &mut effects)),
            Asked::Renew(renewal) => Said::Standing(state.renew(renewal, &context, &mut effects)),
            Asked::Release(key, outcome) => Said::Released(state.release(key.id, outcome, &context, &mut effects)),
            Asked::Evict(fence) => Said::Evicted(state.evict(*fence, "stuck", &context, &mut effects)),
            Asked::Settle => {
                state.settle(&context, &mut effects);
                Said::Nothing
            }
        };
        (said, effects)
    }
}

/// A resource and its surroundings.
pub(crate) struct World {
    family: Vec<Claim>,
    state: State,
    now: Moment,
    wall: Timestamp,
    presence: BTreeMap<LeaseId, Presence>,
    newest_fence: Fence,
    /// The wall clock went back or was outrun by a floor: after a loss, fences may fall.
    fence_may_fall: bool,
}

impl World {
    pub(crate) const SHAPES: usize = 4;

    pub(crate) fn new(shape: usize) -> Self {
        Self {
            family: families().swap_remove(shape),
            state: State::default(),
            now: Moment::from_micros(1_000_000_000),
            wall: Timestamp::from_micros(1_790_000_000_000_000),
            presence: BTreeMap::new(),
            newest_fence: Fence::default(),
            fence_may_fall: false,
        }
    }

    /// Lets one thing happen; what is not an operation is followed by a settle.
    pub(crate) fn step(&mut self, op: &Op) -> Step {
        let asked = self.asked(op);
        let mut step = Step {
            asked,
            before: self.state.clone(),
            after: State::default(),
            effects: Effects::default(),
            said: Said::Nothing,
            now: self.now,
            wall: self.wall,
            newest_fence: self.newest_fence,
            presence: self.presence.clone(),
        };
        (step.said, step.effects) = step.ask(&mut self.state);
        step.after = self.state.clone();
        self.newest_fence = self.newest_fence.max(step.after.last_fence);
        self.fence_may_fall |= self.newest_fence.get() > self.wall.as_micros() + 999;
        step
    }

    fn asked(&mut self, op: &Op) -> Asked {
        match *op {
            Op::Acquire { who, claim, patience, max_waiters, expiry, ttl, floor } => {
                let holder = Holder::new(format!("worker-{who}")).unwrap();
                let mut request =
                    Request::new(key(who), self.claim(claim), holder).ttl(seconds(ttl)).patience(patience);
                request.max_waiters = max_waiters;
                request.note = (who % 2 == 0).then(|| format!("note of {who}"));
                request.fence_floor = floor.map(|offset| self.fence_near(offset));
                Asked::Acquire(request, expiry)
            }
            Op::Renew { who, ttl, downgrade, floor, metadata } => {
                let mut renewal = Renewal::new(key(who), seconds(ttl));
                renewal.fence_floor = floor.map(|offset| self.fence_near(offset));
                renewal.downgrade = downgrade.map(|claim| self.claim(claim));
                renewal.metadata = metadata.then(|| Metadata::from_iter([(String::from("ttl"), ttl.into())]));
                Asked::Renew(renewal)
            }
            Op::Release { who, outcome } => Asked::Release(
                key(who),
                match outcome {
                    0 => Outcome::failed("Timeout", "the till did not answer"),
                    1 => Outcome::MaxHold,
                    2 => Outcome::Cancelled,
                    _ => Outcome::Completed,
                },
            ),
            Op::Evict { holder, stale } => Asked::Evict(self.fence_of(holder, stale)),
            _ => {
                self.disturb(op);
                Asked::Settle
            }
        }
    }

    fn disturb(&mut self, op: &Op) {
        match *op {
            Op::Pass { seconds } => self.pass(Duration::from_secs(seconds.into())),
            Op::SetWall { seconds } => {
                if seconds < 0 {
                    // What was forgotten rests on the wall clock alone.
                    self.newest_fence = self.state.last_fence;
                    self.fence_may_fall = true;
                }
                self.wall = moved(self.wall, seconds);
            }
            Op::Presence { who, presence } => {
                self.presence.insert(key(who).id, presence);
            }
            Op::ForgetAll => {
                // A restart takes longer than there were grants in the last microseconds.
                self.pass(Duration::from_millis(1));
                self.state = State::default();
                if std::mem::take(&mut self.fence_may_fall) {
                    self.newest_fence = Fence::default();
                }
            }
            _ => {}
        }
    }

    fn pass(&mut self, length: Duration) {
        self.now = self.now.after(length);
        self.wall = self.wall.after(length);
    }

    /// Mostly of the family, now and then of another.
    fn claim(&self, choice: u8) -> Claim {
        match usize::from(choice) {
            at @ 0..18 => self.family[at % self.family.len()],
            at => families()[at % Self::SHAPES][0],
        }
    }

    fn fence_near(&self, seconds: i8) -> Fence {
        Fence::new(moved(self.wall, seconds).as_micros())
    }

    fn fence_of(&self, holder: u8, stale: bool) -> Fence {
        let holding: Vec<Fence> = self.state.entries.iter().filter_map(|entry| Some(entry.held()?.fence)).collect();
        match holding.get(usize::from(holder) % holding.len().max(1)) {
            Some(fence) if !stale => *fence,
            Some(fence) => Fence::new(fence.get() - 1),
            None => self.state.last_fence,
        }
    }
}

fn families() -> Vec<Vec<Claim>> {
    let permits = |units, limit| Claim::permits(units, limit).unwrap();
    vec![
        vec![Claim::EXCLUSIVE, Claim::SHARED, Claim::SHARED],
        vec![permits(1, 3), permits(2, 3), permits(3, 3)],
        vec![Claim::LEADER],
        vec![permits(1, 2), permits(2, 2)],
    ]
}

fn key(who: u8) -> LeaseKey {
    LeaseKey::new(Resource::new("order:42").unwrap(), LeaseId::from_u128(u128::from(who) + 1))
}

fn seconds(count: u8) -> Ttl {
    Ttl::new(Duration::from_secs(count.into())).unwrap()
}

fn moved(time: Timestamp, seconds: i8) -> Timestamp {
    let length = Duration::from_secs(seconds.unsigned_abs().into());
    if seconds < 0 { time.before(length) } else { time.after(length) }
}
