//! Steps through the races of a sleeping loop: a lease that is scheduled while the loop reads the bounds is never
//! missed.

use std::{
    cell::Cell,
    pin::pin,
    task::{Context, Waker},
};

use super::*;
use crate::clock::ManualClock;

/// The points of the loop at which the lease may act.
const BEFORE: u8 = 0;
const BEFORE_THE_READ: u8 = 1;
const AFTER_THE_READ: u8 = 2;
const ASLEEP: u8 = 3;

/// Lets a lease lower the bound at step `lowers_at` of the loop's turn and call `wake_by` at step `reads_at`.
///
/// Returns whether the loop is awake when the moment of the lease has come.
fn wakes_in_time(lowers_at: u8, reads_at: u8, last_alarm: Duration) -> bool {
    let clock = ManualClock::new();
    let now = clock.now();
    let moment = now.after(Duration::from_secs(2));
    let bound = Cell::new(now.after(Duration::from_secs(60)));
    let alarm = Alarm::new();
    alarm.set_for.store(now.after(last_alarm).as_micros(), Ordering::SeqCst);
    let step = |at| {
        if at == lowers_at {
            bound.set(bound.get().min(moment));
        }
        if at == reads_at {
            alarm.wake_by(moment);
        }
    };
    step(BEFORE);
    let read_bound = || {
        step(BEFORE_THE_READ);
        let next = bound.get();
        step(AFTER_THE_READ);
        next
    };
    let mut context = Context::from_waker(Waker::noop());
    let mut asleep = pin!(alarm.sleep(&clock, read_bound));
    // Woken too early, it reads the bounds once more.
    if asleep.as_mut().poll(&mut context).is_ready() {
        return true;
    }
    step(ASLEEP);
    clock.advance(moment.since(now));
    asleep.as_mut().poll(&mut context).is_ready()
}

#[test]
fn a_lease_that_is_scheduled_while_the_loop_reads_the_bounds_is_seen_or_wakes_it() {
    for last_alarm in [1, 2, 3].map(Duration::from_secs) {
        for lowers_at in BEFORE..=ASLEEP {
            for reads_at in lowers_at..=ASLEEP {
                let awake = wakes_in_time(lowers_at, reads_at, last_alarm);
                assert!(awake, "lowered at {lowers_at}, read at {reads_at}, last alarm after {last_alarm:?}");
            }
        }
    }
}
