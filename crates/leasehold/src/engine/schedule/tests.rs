//! A scan that races with a lease of its shard.

use std::{cell::Cell, iter};

use super::*;
use crate::{backend::Belief, engine::local_lease};

/// Two leases of one shard.
fn neighbours(schedule: &Schedule) -> [Arc<LocalLease>; 2] {
    let lease = || Arc::new(local_lease::tests::held(|_| {}, Belief::Ttl));
    let first = lease();
    let shard = |lease: &LocalLease| std::ptr::from_ref(schedule.shard(lease.key().id));
    let second = iter::repeat_with(lease).find(|second| shard(second) == shard(&first)).unwrap();
    [first, second]
}

#[test]
fn a_lease_that_moves_forward_after_it_was_scanned_is_in_the_new_bound() {
    let schedule = Schedule::new();
    let leases = neighbours(&schedule);
    for lease in &leases {
        schedule.insert(lease);
        schedule.lower_bounds(lease);
    }
    let (soon, scanned) = (Moment::default(), Cell::new(0));
    schedule.due(Moment::NEVER, |lease| {
        scanned.set(scanned.get() + 1);
        for other in leases.iter().filter(|other| scanned.get() == 2 && other.key().id != lease.key().id) {
            let _scheduled = other.make_renewal_due(soon);
            schedule.lower_bounds(other);
        }
        false
    });
    assert_eq!((scanned.get(), schedule.next_due()), (2, soon));
}
