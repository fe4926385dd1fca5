//! The leases requested through this instance, how far each has come, and the tag that identifies one on all nodes.

use std::{collections::HashMap, fmt, sync::Arc};

use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::OwnedMutexGuard;

use crate::{
    clock::Clock,
    lease::{Claim, Fence, Grant, LeaseId, LeaseKey, Lifetime, Metadata, Moment, Patience, Renewal, Request, Ttl},
};

/// The least number of leases that is worth a sweep.
const SWEEP_AFTER: usize = 64;

/// Excludes other rounds for the same lease for as long as it lives.
pub(super) type RoundLock = OwnedMutexGuard<()>;

/// How far a lease has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeasePhase {
    /// Nothing was answered yet.
    New,
    /// It is in the queue of this node, or at the head of it.
    Waiting { queue_node: usize },
    /// A majority holds it.
    Holding { grant: Grant, queue_node: usize },
    /// It is over.
    Ended,
}

/// A lease requested through this instance.
#[derive(Debug)]
pub(super) struct Tracked {
    pub(super) key: LeaseKey,
    round_lock: Arc<tokio::sync::Mutex<()>>,
    state: Mutex<TrackedState>,
}

#[derive(Debug)]
struct TrackedState {
    request: Request,
    phase: LeasePhase,
    /// Whether it ever waited behind others: more may wait behind it.
    waited: bool,
    /// The nodes that may have it, one bit for each.
    may_be_at: u64,
    /// The nodes that left a release of it unanswered, one bit for each.
    may_yet_release: u64,
    /// Whether a task was to release it at some node.
    is_released_later: bool,
    /// When the caller last asked or renewed.
    touched: Moment,
    /// The fence of a hand-off that nobody looked into yet.
    handed_over: Option<Fence>,
    /// Whether a task completes its quorum.
    is_driven: bool,
}

impl Tracked {
    fn new(request: &Request, now: Moment) -> Self {
        let mut request = request.clone();
        Tag::of(request.key.id).put(&mut request.metadata);
        Self {
            key: request.key.clone(),
            round_lock: Arc::default(),
            state: Mutex::new(TrackedState {
                request,
                phase: LeasePhase::New,
                waited: false,
                may_be_at: 0,
                may_yet_release: 0,
                is_released_later: false,
                touched: now,
                handed_over: None,
                is_driven: false,
            }),
        }
    }

    /// Waits until no other round for this lease is under way.
    pub(super) async fn lock_round(&self) -> RoundLock {
        Arc::clone(&self.round_lock).lock_owned().await
    }

    /// Excludes other rounds for this lease; `None` if one is under way.
    pub(super) fn try_lock_round(&self) -> Option<RoundLock> {
        Arc::clone(&self.round_lock).try_lock_owned().ok()
    }

    pub(super) fn phase(&self) -> LeasePhase {
        self.state.lock().phase
    }

    pub(super) fn set_phase(&self, phase: LeasePhase) {
        self.state.lock().phase = phase;
    }

    /// Notes that it waits behind others.
    pub(super) fn on_queued(&self) {
        self.state.lock().waited = true;
    }

    /// Whether it ever waited behind others.
    pub(super) fn waited(&self) -> bool {
        self.state.lock().waited
    }

    /// Notes that this node is asked for it or has it already.
    pub(super) fn on_asked(&self, at: usize) {
        self.state.lock().may_be_at |= bit(at);
    }

    /// Whether this node may have it.
    pub(super) fn may_be_at(&self, at: usize) -> bool {
        self.state.lock().may_be_at & bit(at) != 0
    }

    /// Notes that this node left a release of it unanswered.
    ///
    /// The release may be carried out at any time, whatever is answered later: by another connection, for example. It
    /// would end what the node grants to the same lease meanwhile, so the node no longer counts for this lease.
    pub(super) fn on_release_unanswered(&self, at: usize) {
        self.state.lock().may_yet_release |= bit(at);
    }

    /// Notes that a task will release it at some node, which must exclude rounds for it meanwhile.
    pub(super) fn on_release_later(&self) {
        self.state.lock().is_released_later = true;
    }

    /// Whether this node may still carry out a release that it left unanswered.
    pub(super) fn may_yet_release(&self, at: usize) -> bool {
        self.state.lock().may_yet_release & bit(at) != 0
    }

    /// Whether no process renews it.
    pub(super) fn is_detached(&self) -> bool {
        self.state.lock().request.lifetime == Lifetime::Detached
    }

    pub(super) fn ttl(&self) -> Ttl {
        self.state.lock().request.ttl
    }

    pub(super) fn claim(&self) -> Claim {
        self.state.lock().request.claim
    }

    /// What to ask a node; only the one that may queue it needs to know how many waiters it accepts.
    pub(super) fn request(&self, patience: Patience, floor: Fence) -> Request {
        let mut request = self.state.lock().request.clone();
        request.patience = patience;
        request.fence_floor = request.fence_floor.max(Some(floor));
        if patience == Patience::Try {
            request.max_waiters = None;
        }
        request
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
        if let Some(downgrade) = renewal.downgrade
            && downgrade.shape() == state.request.claim.shape()
            && downgrade.units() <= state.request.claim.units()
        {
            state.request.claim = downgrade;
        }
    }

    /// Whether its caller has neither asked nor renewed for a whole ttl.
    pub(super) fn is_abandoned(&self, now: Moment) -> bool {
        let state = self.state.lock();
        now > state.touched.after(state.request.ttl.get())
    }

    /// Notes a hand-off; returns whether a task has to be started for it.
    pub(super) fn on_hand_over(&self, fence: Fence) -> bool {
        let mut state = self.state.lock();
        state.handed_over = Some(fence);
        !std::mem::replace(&mut state.is_driven, true)
    }

    /// The next hand-off to look into; on `None` the task that asked must end.
    pub(super) fn next_hand_over(&self) -> Option<Fence> {
        let mut state = self.state.lock();
        state.is_driven = state.handed_over.is_some();
        state.handed_over.take()
    }
}

/// The bit of a node; all beyond the 63rd share one, so that all of them may have it if one was asked.
fn bit(at: usize) -> u64 {
    1 << at.min(63)
}

/// The leases requested through this instance.
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
    pub(super) async fn lock_round(&self, request: &Request) -> (Arc<Tracked>, RoundLock) {
        loop {
            let tracked = self.track(request);
            let round_lock = tracked.lock_round().await;
            // The round before may have ended and forgotten it.
            if self.get(request.key.id).is_some_and(|known| Arc::ptr_eq(&known, &tracked)) {
                return (tracked, round_lock);
            }
        }
    }

    fn track(&self, request: &Request) -> Arc<Tracked> {
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

    /// Drops all memory of a lease that is over, unless a release of it may be under way: if its caller asks for it
    /// again, that must not be overlooked.
    pub(super) fn forget(&self, tracked: &Tracked) {
        {
            let mut state = tracked.state.lock();
            state.phase = LeasePhase::Ended;
            if state.is_released_later || state.may_yet_release != 0 {
                return;
            }
        }
        let mut known = self.known.lock();
        if known.leases.get(&tracked.key.id).is_some_and(|known| std::ptr::eq(Arc::as_ptr(known), tracked)) {
            known.leases.remove(&tracked.key.id);
        }
    }
}

impl Known {
    /// Forgets what was left to lapse, so that it does not pile up.
    fn sweep_now_and_then(&mut self, now: Moment) {
        if self.leases.len() >= self.sweep_at {
            self.leases.retain(|_, tracked| !tracked.is_abandoned(now));
            self.sweep_at = (self.leases.len() * 2).max(SWEEP_AFTER);
        }
    }
}

impl fmt::Debug for Leases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leases").field("len", &self.known.lock().leases.len()).finish_non_exhaustive()
    }
}

/// The tag by which one lease is known on all nodes.
///
/// What a node shows of a lease does not contain its id, which is a secret, and
/// its fence may differ from node to node. So each node stores a one-way hash
/// of the id with the metadata, which is removed again before anyone sees it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Tag(String);

impl Tag {
    const KEY: &'static str = "leasehold.redlock";

    pub(super) fn of(id: LeaseId) -> Self {
        // 64 bits out of 122 random ones: nobody gets back to the id.
        let mix = |bits: u64| {
            let bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            bits ^ (bits >> 31)
        };
        let half = |bits: u128| u64::try_from(bits & u128::from(u64::MAX)).unwrap_or(0);
        Self(format!("{:016x}", mix(mix(half(id.as_u128() >> 64)) ^ half(id.as_u128()))))
    }

    /// Removes the tag; `None` where there is none.
    pub(super) fn take(metadata: &mut Metadata) -> Option<Self> {
        match metadata.remove(Self::KEY)? {
            Value::String(tag) => Some(Self(tag)),
            _ => None,
        }
    }

    fn put(self, metadata: &mut Metadata) {
        metadata.insert(Self::KEY.to_owned(), Value::String(self.0));
    }
}

/// The renewal, with the tag where it replaces the metadata.
pub(super) fn tagged(mut renewal: Renewal) -> Renewal {
    if let Some(metadata) = &mut renewal.metadata {
        Tag::of(renewal.key.id).put(metadata);
    }
    renewal
}
