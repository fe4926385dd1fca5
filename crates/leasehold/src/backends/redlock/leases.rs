//! The leases asked for through this instance, and how far each has come.

use std::{collections::HashMap, fmt, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;

use super::tag;
use crate::{
    clock::Clock,
    lease::{Claim, Fence, Grant, LeaseId, LeaseKey, Moment, Patience, Renewal, Request, Ttl},
};

/// A sweep waits for at least so many leases.
const SWEEP_AFTER: usize = 64;

/// Keeps other rounds for the same lease out for as long as it lives.
pub(super) type Turn = OwnedMutexGuard<()>;

/// How far a lease has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Nothing was answered yet.
    Asked,
    /// It has a place in the queue of this node, or is at the head of it.
    Waiting { queue: usize },
    /// A majority holds it.
    Holding { grant: Grant, queue: usize },
    /// It is over.
    Ended,
}

/// A lease asked for through this instance.
#[derive(Debug)]
pub(super) struct Tracked {
    pub(super) key: LeaseKey,
    turn: Arc<tokio::sync::Mutex<()>>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    request: Request,
    phase: Phase,
    /// When the caller last asked or renewed.
    touched: Moment,
    /// The fence of a hand-off that nobody looked into yet.
    hinted: Option<Fence>,
    /// Whether a task completes its quorum.
    driven: bool,
}

impl Tracked {
    fn new(request: &Request, now: Moment) -> Self {
        Self {
            key: request.key.clone(),
            turn: Arc::default(),
            state: Mutex::new(State {
                request: tag::tagged(request),
                phase: Phase::Asked,
                touched: now,
                hinted: None,
                driven: false,
            }),
        }
    }

    /// Waits until no other round for this lease is under way.
    pub(super) async fn turn(&self) -> Turn {
        Arc::clone(&self.turn).lock_owned().await
    }

    pub(super) fn phase(&self) -> Phase {
        self.state.lock().phase
    }

    pub(super) fn enter(&self, phase: Phase) {
        self.state.lock().phase = phase;
    }

    pub(super) fn ttl(&self) -> Ttl {
        self.state.lock().request.ttl
    }

    pub(super) fn claim(&self) -> Claim {
        self.state.lock().request.claim
    }

    /// What to ask a node.
    pub(super) fn request(&self, patience: Patience, floor: Fence) -> Request {
        let request = self.state.lock().request.clone();
        Request { patience, fence_floor: request.fence_floor.max(Some(floor)), ..request }
    }

    fn touch(&self, now: Moment, ttl: Ttl) {
        let mut state = self.state.lock();
        state.touched = now;
        state.request.ttl = state.request.ttl.max(ttl);
    }

    /// Remembers what a renewal changes, for nodes that are asked later.
    pub(super) fn apply(&self, renewal: &Renewal, now: Moment) {
        self.touch(now, renewal.ttl);
        let mut state = self.state.lock();
        if let Some(metadata) = &renewal.metadata {
            state.request.metadata.clone_from(metadata);
        }
        if let Some(less) = renewal.downgrade
            && less.shape() == state.request.claim.shape()
            && less.units() <= state.request.claim.units()
        {
            state.request.claim = less;
        }
    }

    /// Whether its caller has gone without a word.
    pub(super) fn is_abandoned(&self, now: Moment) -> bool {
        let state = self.state.lock();
        now > state.touched.after(state.request.ttl.get())
    }

    /// Notes a hand-off; tells whether a task has to be started to look into it.
    pub(super) fn hint(&self, fence: Fence) -> bool {
        let mut state = self.state.lock();
        state.hinted = Some(fence);
        !std::mem::replace(&mut state.driven, true)
    }

    /// What to look into next; the task that is told `None` is the lease's no longer.
    pub(super) fn next_hint(&self) -> Option<Fence> {
        let mut state = self.state.lock();
        state.driven = state.hinted.is_some();
        state.hinted.take()
    }
}

/// The leases asked for through this instance.
pub(super) struct Leases {
    clock: Arc<dyn Clock>,
    known: Mutex<Known>,
}

struct Known {
    leases: HashMap<LeaseId, Arc<Tracked>>,
    sweep_at: usize,
}

impl Leases {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, known: Mutex::new(Known { leases: HashMap::new(), sweep_at: SWEEP_AFTER }) }
    }

    /// The lease of this request, known from before or new, when no other round for it is under way.
    pub(super) async fn in_turn(&self, request: &Request) -> (Arc<Tracked>, Turn) {
        loop {
            let tracked = self.enter(request);
            let turn = tracked.turn().await;
            // The round before may have ended it and forgotten all about it.
            if self.get(request.key.id).is_some_and(|known| Arc::ptr_eq(&known, &tracked)) {
                return (tracked, turn);
            }
        }
    }

    fn enter(&self, request: &Request) -> Arc<Tracked> {
        let now = self.clock.now();
        let mut known = self.known.lock();
        known.sweep_now_and_then(now);
        let id = request.key.id;
        let tracked = known.leases.entry(id).or_insert_with(|| Arc::new(Tracked::new(request, now)));
        tracked.touch(now, request.ttl);
        Arc::clone(tracked)
    }

    pub(super) fn get(&self, id: LeaseId) -> Option<Arc<Tracked>> {
        self.known.lock().leases.get(&id).cloned()
    }

    /// It is over: nothing about it is kept.
    pub(super) fn forget(&self, tracked: &Tracked) {
        tracked.enter(Phase::Ended);
        let mut known = self.known.lock();
        if known.leases.get(&tracked.key.id).is_some_and(|known| std::ptr::eq(Arc::as_ptr(known), tracked)) {
            known.leases.remove(&tracked.key.id);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.known.lock().leases.len()
    }
}

impl Known {
    /// Forgets what was left to lapse, so that it costs nothing for ever.
    fn sweep_now_and_then(&mut self, now: Moment) {
        if self.leases.len() >= self.sweep_at {
            self.leases.retain(|_, tracked| !tracked.is_abandoned(now));
            self.sweep_at = (self.leases.len() * 2).max(SWEEP_AFTER);
        }
    }
}

impl fmt::Debug for Leases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leases").field("len", &self.len()).finish_non_exhaustive()
    }
}

/// Pauses that double, each a part of the span that differs from lease to lease: two who got in each
/// other's way part.
#[derive(Debug)]
pub(super) struct Pauses {
    span: Duration,
    most: Duration,
    chance: u64,
}

impl Pauses {
    pub(super) fn new(id: LeaseId, first: Duration, most: Duration) -> Self {
        Self { span: first.min(most), most, chance: tag::mixed(id) }
    }

    pub(super) fn next(&mut self) -> Duration {
        self.chance = self.chance.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        let part = u32::try_from(self.chance >> 54).unwrap_or(0) + 1;
        let pause = self.span * part / 1024;
        self.span = (self.span * 2).min(self.most);
        pause
    }
}
