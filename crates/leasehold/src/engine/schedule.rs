//! The leases of one instance, and when each needs attention next.
//!
//! Nothing is sorted. Each shard keeps two lower bounds: of the moment at which
//! the renewer must next handle one of its leases, and of its earliest deadline.
//! When a bound is reached, the shard is scanned and the bound recomputed. An
//! uncontended lock costs one insertion, two comparisons and one removal, and a
//! renewal that moves a deadline later wakes nobody.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use hashbrown::HashTable;

use super::{
    local_lease::LocalLease,
    sync::{AtomicU64, Mutex, Ordering},
};
use crate::lease::{LeaseId, Moment};

const SHARDS: usize = 16;

/// The leases of one instance.
#[derive(Debug)]
pub(super) struct Schedule {
    shards: [ScheduleShard; SHARDS],
}

#[derive(Debug)]
struct ScheduleShard {
    leases: Mutex<HashTable<Arc<LocalLease>>>,
    due_bound: Bound,
    deadline_bound: Bound,
}

/// A lower bound: never later than the moment at which the renewer must handle a lease of the shard, or than the
/// earliest deadline.
#[derive(Debug)]
struct Bound(AtomicU64);

impl Bound {
    fn none() -> Self {
        Self(AtomicU64::new(Moment::NEVER.as_micros()))
    }

    fn get(&self) -> Moment {
        Moment::from_micros(self.0.load(Ordering::SeqCst))
    }

    fn lower_to(&self, moment: Moment) {
        if moment.as_micros() < self.0.load(Ordering::SeqCst) {
            self.0.fetch_min(moment.as_micros(), Ordering::SeqCst);
        }
    }

    fn clear(&self) {
        self.0.store(Moment::NEVER.as_micros(), Ordering::SeqCst);
    }
}

/// XORs the halves, because six bits of a UUID are constant.
#[allow(clippy::cast_possible_truncation, reason = "half of the bits are enough")]
fn hash(id: LeaseId) -> u64 {
    let bits = id.as_u128();
    (bits ^ bits >> 64) as u64
}

impl Schedule {
    pub(super) fn new() -> Self {
        let shard =
            || ScheduleShard { leases: Mutex::default(), due_bound: Bound::none(), deadline_bound: Bound::none() };
        Self { shards: std::array::from_fn(|_| shard()) }
    }

    pub(super) fn insert(&self, lease: &Arc<LocalLease>) {
        let id = lease.key().id;
        self.shard(id).leases.lock().insert_unique(hash(id), Arc::clone(lease), |lease| hash(lease.key().id));
    }

    pub(super) fn remove(&self, id: LeaseId) {
        let shard = self.shard(id);
        // This may be the last reference to the lease: it is dropped after the lock.
        let _removed = match shard.leases.lock().find_entry(hash(id), |lease| lease.key().id == id) {
            Ok(found) => Some(found.remove().0),
            Err(_) => None,
        };
    }

    pub(super) fn find(&self, id: LeaseId) -> Option<Arc<LocalLease>> {
        self.shard(id).leases.lock().find(hash(id), |lease| lease.key().id == id).cloned()
    }

    /// Returns every lease for which `wanted` is true.
    pub(super) fn all(&self, wanted: impl Fn(&LocalLease) -> bool) -> Vec<Arc<LocalLease>> {
        let of_shard = |shard: &ScheduleShard| -> Vec<_> {
            shard.leases.lock().iter().filter(|lease| wanted(lease)).cloned().collect()
        };
        self.shards.iter().flat_map(of_shard).collect()
    }

    /// Lowers the bounds of the lease's shard to when the lease is due and to its deadline; returns these two moments.
    pub(super) fn lower_bounds(&self, lease: &LocalLease) -> (Moment, Moment) {
        let shard = self.shard(lease.key().id);
        let (due_at, deadline) = (lease.due_at(), lease.deadline_to_watch());
        shard.due_bound.lower_to(due_at);
        shard.deadline_bound.lower_to(deadline);
        (due_at, deadline)
    }

    pub(super) fn next_due(&self) -> Moment {
        self.shards.iter().map(|shard| shard.due_bound.get()).min().unwrap_or(Moment::NEVER)
    }

    pub(super) fn next_deadline(&self) -> Moment {
        self.shards.iter().map(|shard| shard.deadline_bound.get()).min().unwrap_or(Moment::NEVER)
    }

    /// Scans the shards whose bound is at most `horizon`; returns the leases for which `due` is true.
    pub(super) fn due(&self, horizon: Moment, due: impl Fn(&LocalLease) -> bool) -> Vec<Arc<LocalLease>> {
        let shards = self.shards.iter().filter(|shard| shard.due_bound.get() <= horizon);
        shards.flat_map(|shard| shard.scan(&shard.due_bound, LocalLease::due_at, &due)).collect()
    }

    /// Returns the leases whose deadline has passed.
    pub(super) fn past_deadline(&self, now: Moment) -> Vec<Arc<LocalLease>> {
        let shards = self.shards.iter().filter(|shard| shard.deadline_bound.get() <= now);
        let past = |lease: &LocalLease| lease.deadline_to_watch() <= now;
        shards.flat_map(|shard| shard.scan(&shard.deadline_bound, LocalLease::deadline_to_watch, past)).collect()
    }

    fn shard(&self, id: LeaseId) -> &ScheduleShard {
        let index = usize::try_from(id.as_u128() >> 64 & 0xf).unwrap_or(0);
        &self.shards[index]
    }
}

impl ScheduleShard {
    /// Collects the leases that are due, and recomputes the bound from the others. Those it returns are in no bound
    /// until `lower_bounds` is called for them again.
    ///
    /// A lease that changes during the scan is either seen in its new state, or lowers the bound after it was cleared:
    /// 1. the bound is cleared  2. the shard is scanned  3. the bound is lowered to what the scan found.
    fn scan(
        &self,
        bound: &Bound,
        moment: impl Fn(&LocalLease) -> Moment,
        due: impl Fn(&LocalLease) -> bool,
    ) -> Vec<Arc<LocalLease>> {
        bound.clear();
        let mut found = Vec::new();
        let mut next = Moment::NEVER;
        for lease in self.leases.lock().iter() {
            if due(lease) {
                found.push(Arc::clone(lease));
            } else {
                next = next.min(moment(lease));
            }
        }
        bound.lower_to(next);
        found
    }
}
