//! Runs threads that use one lease in many random interleavings, and checks the invariants of the lease.
//!
//! `random_transitions` tries orders of whole transitions. Here, threads also switch inside transitions, at each use of
//! an atomic or a mutex. This covers `check`, `lost` and the schedule, which read without locking the state.

use std::{
    future::poll_fn,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst},
    },
};

use shuttle::{future::block_on, thread};

use super::{
    tests::{at, grant, held, lease, position},
    *,
};
use crate::engine::{
    schedule::Schedule,
    sync::{explore, step},
};

const INTERLEAVINGS: usize = 3_000;
/// How long one answer is valid: the ttl of 30 s minus its margin.
const VALID_FOR: Duration = Duration::from_millis(29_400);

/// A lease, a clock that its threads share, and what they found.
struct Harness {
    lease: LocalLease,
    /// Seconds, as `at` counts them.
    now: AtomicU64,
    /// When the newest answered renewal was sent.
    last_answered_send: AtomicU64,
    /// How often a transition lost or released the lease.
    ends: AtomicU32,
    /// Whether a check found that the lease is not held.
    check_failed: AtomicBool,
    /// A renewal that was sent before the threads began.
    in_flight: Option<(Renewal, SentCall)>,
}

impl Harness {
    fn new(lease: LocalLease, in_flight: Option<(Renewal, SentCall)>) -> Arc<Self> {
        let (now, last_answered_send, ends) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU32::new(0));
        let check_failed = AtomicBool::new(false);
        Arc::new(Self { lease, now, last_answered_send, ends, check_failed, in_flight })
    }

    fn now(&self) -> Moment {
        step();
        at(self.now.load(SeqCst))
    }

    fn follow(&self, follow_up: FollowUp) {
        if matches!(follow_up, FollowUp::Lost | FollowUp::Release) {
            self.ends.fetch_add(1, SeqCst);
        }
    }

    /// Sends a renewal, if one is due, and answers it with `standing`.
    fn renew(&self, standing: Standing) {
        let Some(renewal) = self.lease.begin_renewal() else { return };
        let seconds = self.now.load(SeqCst);
        let call = self.lease.number_call(at(seconds));
        let now = self.now();
        if matches!(standing, Standing::Holding(_)) {
            self.last_answered_send.fetch_max(seconds, SeqCst);
        }
        self.follow(self.lease.on_standing(standing, &renewal, call, &Belief::Ttl, now));
    }

    fn check(&self) -> bool {
        let now = self.now();
        match self.lease.check(now) {
            Ok(()) => {
                let sent_at = at(self.last_answered_send.load(SeqCst));
                assert!(now < sent_at.after(VALID_FOR), "valid for longer than the answer proves");
                true
            }
            Err(follow_up) => {
                self.check_failed.store(true, SeqCst);
                self.follow(follow_up);
                false
            }
        }
    }

    /// After all threads: it is either renewed, or ended once.
    fn assert_sound(&self) {
        let (loss, ends) = (self.lease.validity.loss(), self.ends.load(SeqCst));
        if loss.is_some() {
            assert_eq!((ends, self.lease.renew_at()), (1, Moment::NEVER), "{loss:?}: ended once, and not renewed");
            assert!(self.lease.check(at(0)).is_err(), "nothing revives it");
        } else {
            assert_eq!(ends, 0, "released while it is held");
            assert!(!self.check_failed.load(SeqCst), "a check of a lease that is held failed");
            assert_ne!(self.lease.renew_at(), Moment::NEVER, "nobody will ask again");
        }
    }
}

/// Runs each as a thread, and waits for all of them.
fn together(harness: &Arc<Harness>, threads: &[fn(&Harness)]) {
    let running: Vec<_> = threads
        .iter()
        .map(|&work| {
            let harness = Arc::clone(harness);
            thread::spawn(move || work(&harness))
        })
        .collect();
    for thread in running {
        thread.join().expect("its assertions hold");
    }
}

/// Explores the interleavings of these threads on a lease that is held.
fn race<const N: usize>(threads: [fn(&Harness); N]) {
    explore(INTERLEAVINGS, move || {
        let harness = Harness::new(held(|_| {}, Belief::Ttl), None);
        together(&harness, &threads);
        harness.assert_sound();
    });
}

/// A renewal that finds the lease held.
fn renew(harness: &Harness) {
    harness.renew(Standing::Holding(grant(7)));
}

fn release(harness: &Harness) {
    let now = harness.now();
    harness.follow(harness.lease.on_release(now));
}

/// The clock passes the deadline, and the timer checks it.
fn let_time_pass(harness: &Harness) {
    for seconds in [15, 29, 30, 60] {
        harness.now.store(seconds, SeqCst);
        let now = harness.now();
        harness.follow(harness.lease.on_deadline(now));
    }
}

fn see_the_loss(harness: &Harness) {
    block_on(harness.lease.validity.lost());
    assert!(!harness.check(), "a lease that is lost is not held");
}

#[test]
fn an_answer_races_with_the_deadline() {
    race([let_time_pass, renew, |harness| while harness.check() {}, see_the_loss]);
}

/// 1. The renewer reads the clock. 2. The deadline comes. 3. A check finds it passed. 4. The answer extends the lease.
#[test]
fn an_answer_races_with_a_check_at_the_deadline() {
    let let_the_deadline_come = |harness: &Harness| {
        for seconds in [15, 29, 30] {
            step();
            harness.now.store(seconds, SeqCst);
        }
    };
    race([let_the_deadline_come, renew, |harness| while harness.check() && harness.now() < at(30) {}]);
}

#[test]
fn an_answer_races_with_the_release() {
    let release_and_check = |harness: &Harness| {
        release(harness);
        assert!(!harness.check(), "it was released");
    };
    race([renew, release_and_check, see_the_loss]);
}

#[test]
fn an_eviction_races_with_renewals_and_the_release() {
    let evict = |harness: &Harness| {
        let now = harness.now();
        harness.follow(harness.lease.on_evict_hint(now));
        harness.renew(Standing::Gone);
    };
    race([evict, renew, release, see_the_loss]);
}

#[test]
fn a_pushed_grant_races_with_an_older_answer_and_wakes_the_caller() {
    explore(INTERLEAVINGS, || {
        let lease = lease(|_| {});
        let call = lease.number_call(at(0));
        assert_scheduled(lease.on_decision(Decision::Queued(position(7)), call, Belief::Ttl, at(0)));
        let renewal = lease.begin_renewal().expect("it is renewed");
        let call = lease.number_call(at(0));
        let harness = Harness::new(lease, Some((renewal, call)));
        let push = |harness: &Harness| {
            let now = harness.now();
            harness.follow(harness.lease.on_grant_hint(Fence::new(8), false, now, Timestamp::default()));
        };
        let answer = |harness: &Harness| {
            let (renewal, call) = harness.in_flight.as_ref().expect("a renewal is in flight");
            let (standing, now) = (Standing::Waiting(position(7)), harness.now());
            harness.follow(harness.lease.on_standing(standing, renewal, *call, &Belief::Ttl, now));
        };
        let acquire = |harness: &Harness| {
            let poll = |context: &mut Context<'_>| harness.lease.poll_result(context, at(0), harness.now());
            let step = block_on(poll_fn(poll));
            let held = matches!(step, CallerStep::Finish(RequestResult::Held, FollowUp::Schedule));
            assert!(held && harness.check(), "the push granted it");
        };
        together(&harness, &[push, answer, acquire]);
        harness.assert_sound();
    });
}

fn assert_scheduled(follow_up: FollowUp) {
    assert_eq!(follow_up, FollowUp::Schedule);
}

#[test]
fn a_renewal_that_becomes_due_races_with_the_scan_of_the_schedule() {
    explore(INTERLEAVINGS, || {
        let lease = Arc::new(held(|_| {}, Belief::Ttl));
        let schedule = Arc::new(Schedule::new());
        schedule.insert(&lease);
        schedule.lower_bounds(&lease);
        let hinting = {
            let (lease, schedule) = (Arc::clone(&lease), Arc::clone(&schedule));
            thread::spawn(move || {
                assert_scheduled(lease.on_evict_hint(at(1)));
                schedule.lower_bounds(&lease);
            })
        };
        let found = schedule.due(at(20), |lease| lease.due_at() <= at(1));
        hinting.join().expect("it does not fail");
        assert!(!found.is_empty() || schedule.next_due() <= at(1), "nobody will renew it");
    });
}

/// Checks the harness: a check that compares the deadline alone may pass after `lost` has completed.
#[test]
#[should_panic(expected = "a lease that is lost is not held")]
fn the_harness_detects_a_check_of_the_deadline_alone() {
    let see_the_loss = |harness: &Harness| {
        block_on(harness.lease.validity.lost());
        assert!(harness.now() >= harness.lease.validity.deadline(), "a lease that is lost is not held");
    };
    race([release, see_the_loss]);
}
