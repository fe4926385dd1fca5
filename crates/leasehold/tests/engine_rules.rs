//! The rules of belief, each with a test that fails when the rule is broken.
//!
//! Time is injected: nothing here sleeps to let a lease run out, except where
//! a real thread must be blocked.
#![cfg(feature = "memory")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::unchecked_time_subtraction, reason = "of constants, larger less smaller")]
#![allow(clippy::disallowed_methods, reason = "tests bound what they wait for in real time")]

use std::{
    future::Future,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use leasehold::{
    ErrorKind, Guard, LeaseHealth, Leasehold, Loss,
    backend::Backend,
    backends::memory::MemoryBackend,
    clock::ManualClock,
    lease::{Ending, HistoryFilter, ListFilter, Names, Released},
};
use leasehold_conformance::{Call, Faulty};

const TTL: Duration = Duration::from_secs(30);
/// 2 % of the ttl.
const MARGIN: Duration = Duration::from_millis(600);

/// One instance behind faults, another that sees the truth, and a clock that moves when told.
struct Bench {
    clock: ManualClock,
    faulty: Arc<Faulty>,
    locks: Leasehold,
    truth: Leasehold,
}

impl Bench {
    fn new() -> Self {
        let clock = ManualClock::new();
        let memory = MemoryBackend::private(Arc::new(clock.clone()));
        let truth = locks(&clock, Arc::new(memory.sibling()));
        let faulty = Faulty::new(Arc::new(memory));
        let locks = locks(&clock, Arc::clone(&faulty) as Arc<dyn Backend>);
        Self { clock, faulty, locks, truth }
    }

    async fn hold(&self) -> Guard {
        self.locks.mutex("r").ttl(TTL).acquire().await.unwrap()
    }

    async fn free_for_others(&self) -> bool {
        match self.truth.mutex("r").try_acquire().await.unwrap() {
            Some(guard) => guard.release().await.unwrap() == Released::Freed,
            None => false,
        }
    }
}

fn locks(clock: &ManualClock, backend: Arc<dyn Backend>) -> Leasehold {
    Leasehold::builder().clock(Arc::new(clock.clone())).backend(backend).unwrap()
}

async fn leases(locks: &Leasehold) -> usize {
    locks.list(&ListFilter::new(Names::All)).await.unwrap().leases.len()
}

/// Waits, in real time and bounded, for what other threads bring about.
async fn soon(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let started = Instant::now();
    while !holds().await {
        assert!(started.elapsed() < Duration::from_secs(10), "not within 10 s: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test);
}

// Rule 1: from the instant before sending, less the margin.

#[test]
fn belief_counts_from_sending_not_from_receipt() {
    run(async {
        let bench = Bench::new();
        let _no_renewal = bench.faulty.hold_requests_of(Call::Renew);
        let gate = bench.faulty.hold_replies_of(Call::Acquire);
        let lock = bench.locks.mutex("r").ttl(TTL).wait_forever();
        let acquiring = tokio::task::JoinSet::from_iter([async move { lock.acquire().await }]);
        soon("the ask is sent", async || bench.faulty.count(Call::Acquire) == 1).await;
        bench.clock.advance(Duration::from_secs(20));
        gate.open();
        let guard = acquiring.join_all().await.remove(0).unwrap();
        assert_eq!(guard.remaining(), Some(TTL - MARGIN - Duration::from_secs(20)));
    });
}

#[test]
fn a_renewal_counts_from_sending_too() {
    run(async {
        let bench = Bench::new();
        let guard = bench.hold().await;
        let gate = bench.faulty.hold_replies_of(Call::Renew);
        bench.clock.advance(Duration::from_secs(10));
        soon("the renewal is sent", async || bench.faulty.count(Call::Renew) == 1).await;
        bench.clock.advance(Duration::from_secs(5));
        gate.open();
        let expected = TTL - MARGIN - Duration::from_secs(5);
        soon("the deadline moved", async || guard.remaining() == Some(expected)).await;
    });
}

#[test]
fn an_answer_that_took_longer_than_the_lease_lives_is_no_grant() {
    run(async {
        let bench = Bench::new();
        let gate = bench.faulty.hold_replies_of(Call::Acquire);
        let lock = bench.locks.mutex("r").ttl(TTL);
        let trying = tokio::task::JoinSet::from_iter([async move { lock.try_acquire().await }]);
        soon("the ask is sent", async || bench.faulty.count(Call::Acquire) == 1).await;
        bench.clock.advance(TTL);
        gate.open();
        let error = trying.join_all().await.remove(0).unwrap_err();
        assert!(error.outcome_unknown(), "{error:?}");
        soon("nothing is left behind", async || leases(&bench.truth).await == 0).await;
    });
}

// Rule 2: a clock that runs through suspend. Rule 3: validity on use.

#[test]
fn a_process_that_slept_through_its_lease_knows_on_first_use() {
    run(async {
        let bench = Bench::new();
        let guard = bench.hold().await;
        bench.faulty.cut();
        // Everything stood still for an hour; no task of ours has run since.
        bench.clock.advance(Duration::from_secs(3600));
        assert_eq!(guard.check().unwrap_err().kind(), ErrorKind::Lost);
        assert_eq!(guard.lost().await, Loss::RenewTimeout);
    });
}

#[test]
fn the_loss_is_told_before_another_can_be_granted() {
    run(async {
        let bench = Bench::new();
        let guard = bench.hold().await;
        bench.faulty.cut();
        bench.clock.advance(TTL - MARGIN - Duration::from_millis(1));
        assert!(guard.check().is_ok());
        bench.clock.advance(Duration::from_millis(1));
        assert_eq!(guard.lost().await, Loss::RenewTimeout);
        assert!(!bench.free_for_others().await, "the margin is not over at the backend");
        bench.clock.advance(MARGIN);
        assert!(bench.free_for_others().await);
    });
}

#[test]
fn a_late_reply_revives_nothing() {
    run(async {
        let bench = Bench::new();
        let guard = bench.hold().await;
        let gate = bench.faulty.hold_replies_of(Call::Renew);
        bench.clock.advance(Duration::from_secs(10));
        soon("the renewal is sent", async || bench.faulty.count(Call::Renew) >= 1).await;
        bench.clock.advance(TTL - MARGIN - Duration::from_secs(10));
        assert_eq!(guard.lost().await, Loss::RenewTimeout);
        gate.open();
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(guard.check().is_err());
        assert_eq!(guard.release().await.unwrap(), Released::Gone);
    });
}

#[test]
fn lost_is_told_again_and_again_and_survives_being_dropped() {
    run(async {
        let bench = Bench::new();
        let guard = bench.hold().await;
        {
            let lost = guard.lost();
            tokio::pin!(lost);
            assert!(tokio::time::timeout(Duration::from_millis(10), &mut lost).await.is_err());
        }
        bench.faulty.cut();
        bench.clock.advance(TTL);
        assert_eq!(guard.lost().await, Loss::RenewTimeout);
        assert_eq!(guard.lease().clone().lost().await, Loss::RenewTimeout);
    });
}

// Rule 4: four states.

#[test]
fn held_in_doubt_held_lost_and_released() {
    run(async {
        let bench = Bench::new();
        let guard = bench.hold().await;
        assert_eq!(guard.health(), LeaseHealth::Held);
        bench.faulty.cut();
        bench.clock.advance(Duration::from_secs(10));
        soon("renewals fail", async || guard.health() == LeaseHealth::InDoubt).await;
        assert!(guard.check().is_ok(), "in doubt is still held");
        bench.faulty.heal();
        soon("a retry is answered", async || {
            bench.clock.advance(Duration::from_millis(20));
            guard.health() == LeaseHealth::Held
        })
        .await;
        let lease = guard.lease().clone();
        assert_eq!(guard.release().await.unwrap(), Released::Freed);
        assert_eq!(lease.health(), LeaseHealth::Released);
        let guard = bench.hold().await;
        bench.faulty.cut();
        bench.clock.advance(TTL);
        assert_eq!(guard.health(), LeaseHealth::Lost);
    });
}

// Rule 5 is the suite's cancellation sweep. Rule 6: dropping a guard.

#[test]
fn a_guard_can_be_dropped_where_no_runtime_is_and_while_the_backend_hangs() {
    let bench = Bench::new();
    let guard = leasehold::blocking::wait(bench.locks.mutex("r").ttl(TTL).acquire()).unwrap();
    let gate = bench.faulty.hold_replies_of(Call::Release);
    let started = Instant::now();
    thread::spawn(move || drop(guard)).join().unwrap();
    assert!(started.elapsed() < Duration::from_secs(2), "the drop waited for the backend");
    gate.open();
    run(async {
        soon("it was released", async || leases(&bench.truth).await == 0).await;
    });
}

#[test]
fn a_drop_while_panicking_is_recorded_as_a_failure() {
    let bench = Bench::new();
    let guard = leasehold::blocking::wait(bench.locks.mutex("r").acquire()).unwrap();
    let panicked = thread::spawn(move || {
        let _guard = guard;
        panic!("on purpose");
    });
    panicked.join().unwrap_err();
    run(async {
        soon("it was released", async || leases(&bench.truth).await == 0).await;
        let ended = bench.truth.history(&HistoryFilter::new(Names::All)).await.unwrap().remove(0);
        assert_eq!(ended.ending, Ending::Failed);
        assert_eq!(ended.problem.unwrap().kind, "panic");
    });
}

#[test]
fn a_release_that_was_not_answered_is_tried_again() {
    run(async {
        let bench = Bench::new();
        let guard = bench.hold().await;
        bench.faulty.drop_requests(1);
        assert!(guard.release().await.unwrap_err().is_retryable());
        soon("the second try freed it", async || {
            bench.clock.advance(Duration::from_millis(20));
            leases(&bench.truth).await == 0
        })
        .await;
        let ended = bench.truth.history(&HistoryFilter::new(Names::All)).await.unwrap().remove(0);
        assert_eq!(ended.ending, Ending::Released, "it did not run out, it was given back");
    });
}

// Rule 7: the keeper.

#[test]
fn a_blocked_runtime_does_not_starve_renewals() {
    run(async {
        let locks = Leasehold::connect("memory:blocked").await.unwrap();
        let guard = locks.mutex("r").ttl(Duration::from_millis(300)).acquire().await.unwrap();
        thread::sleep(Duration::from_millis(1200));
        guard.check().unwrap();
        assert_eq!(guard.release().await.unwrap(), Released::Freed);
    });
}

#[test]
fn a_shorter_lease_is_renewed_in_time_though_the_keeper_sleeps_for_a_longer_one() {
    run(async {
        let bench = Bench::new();
        // Renewed after 20 minutes; nothing is due before that.
        let long = bench.locks.mutex("long").ttl(Duration::from_secs(3600)).acquire().await.unwrap();
        for round in 0..20 {
            let renewed = bench.faulty.count(Call::Renew);
            let short = bench.hold().await;
            bench.clock.advance(TTL / 3 + Duration::from_secs(1));
            soon("it is renewed", async || bench.faulty.count(Call::Renew) > renewed).await;
            soon("it is held on", async || short.remaining() == Some(TTL - MARGIN)).await;
            short.release().await.unwrap_or_else(|error| panic!("round {round}: {error}"));
        }
        long.check().unwrap();
    });
}

#[test]
fn many_leases_are_renewed_in_few_calls() {
    run(async {
        let bench = Bench::new();
        let mut guards = Vec::new();
        for n in 0..5000 {
            guards.push(bench.locks.mutex(format!("job:{n}")).ttl(TTL).acquire().await.unwrap());
        }
        let in_time = |guard: &Guard| guard.remaining().unwrap() > Duration::from_secs(18);
        for _ in 0..30 {
            bench.clock.advance(Duration::from_secs(1));
            soon("all are renewed in time", async || guards.iter().all(in_time)).await;
        }
        let calls = bench.faulty.count(Call::Renew);
        assert!(calls <= 200, "{calls} calls renewed 5000 leases over three intervals");
    });
}

#[test]
fn max_hold_ends_a_guard_that_would_renew_for_ever() {
    run(async {
        let bench = Bench::new();
        let guard = bench.locks.mutex("r").max_hold(Duration::from_secs(60)).acquire().await.unwrap();
        for second in 1..60 {
            bench.clock.advance(Duration::from_secs(1));
            let least = Duration::from_secs(18.min(60 - second));
            soon("it is renewed in time", async || guard.remaining().unwrap() >= least).await;
        }
        guard.check().unwrap();
        bench.clock.advance(Duration::from_secs(1));
        assert_eq!(guard.lost().await, Loss::MaxHold);
        soon("it is free for others", async || bench.free_for_others().await).await;
        let history = bench.truth.history(&HistoryFilter::new(Names::All)).await.unwrap();
        assert!(history.iter().any(|ended| ended.ending == Ending::MaxHold), "{history:?}");
    });
}

// Rule 8: by id, never by name; an id lives once.

#[test]
fn a_late_release_does_not_end_anothers_lease() {
    run(async {
        let bench = Bench::new();
        let late = bench.hold().await;
        bench.faulty.cut();
        bench.clock.advance(TTL);
        let other = bench.truth.mutex("r").acquire().await.unwrap();
        bench.faulty.heal();
        let handle = late.handle();
        assert_eq!(late.release().await.unwrap(), Released::Gone);
        // Nor does one that does not know it is late.
        let released = bench.truth.release(&handle, leasehold::Outcome::Completed).await.unwrap();
        assert_eq!(released, Released::Gone);
        other.check().unwrap();
        assert!(!bench.free_for_others().await);
    });
}

#[test]
fn a_waiter_whose_place_ran_out_asks_again_under_a_new_id() {
    run(async {
        let bench = Bench::new();
        let holder = bench.truth.mutex("r").acquire().await.unwrap();
        let lock = bench.locks.mutex("r").ttl(TTL).wait_forever();
        let waiting = tokio::task::JoinSet::from_iter([async move { lock.acquire().await }]);
        soon("it waits", async || leases(&bench.truth).await == 2).await;
        bench.faulty.cut();
        for _ in 0..31 {
            bench.clock.advance(Duration::from_secs(1));
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        assert_eq!(leases(&bench.truth).await, 1, "its place ran out");
        bench.faulty.heal();
        soon("it waits again", async || {
            bench.clock.advance(Duration::from_millis(50));
            leases(&bench.truth).await == 2
        })
        .await;
        holder.release().await.unwrap();
        waiting.join_all().await.remove(0).unwrap().check().unwrap();
    });
}

/// Pushes and answers may come by different ways: what was answered first may be heard last.
#[test]
fn an_answer_from_before_the_grant_does_not_end_it() {
    run(async {
        let bench = Bench::new();
        let other = bench.truth.mutex("r").ttl(TTL * 10).acquire().await.unwrap();
        let lock = bench.locks.mutex("r").ttl(TTL).wait_forever();
        let acquiring = tokio::task::JoinSet::from_iter([async move { lock.acquire().await }]);
        soon("it waits", async || leases(&bench.truth).await == 2).await;
        // 1. A renewal is answered: waiting. 2. The lease is granted and the push is heard. 3. The answer is heard.
        let gate = bench.faulty.hold_replies_of(Call::Renew);
        bench.clock.advance(Duration::from_secs(10));
        soon("a renewal is sent", async || bench.faulty.count(Call::Renew) == 1).await;
        other.release().await.unwrap();
        let guard = acquiring.join_all().await.remove(0).unwrap();
        gate.open();
        for _ in 0..2 {
            soon("it is renewed", async || guard.remaining() == Some(TTL - MARGIN)).await;
            bench.clock.advance(Duration::from_secs(10));
        }
        soon("it is renewed", async || guard.remaining() == Some(TTL - MARGIN)).await;
        guard.check().unwrap();
    });
}

#[test]
fn doubled_and_lost_hints_make_no_second_holder_and_no_stuck_waiter() {
    run(async {
        for (doubled, dropped) in [(true, false), (false, true)] {
            let bench = Bench::new();
            bench.faulty.double_hints(doubled);
            bench.faulty.drop_hints(dropped);
            let holder = bench.truth.mutex("r").acquire().await.unwrap();
            let mut fence = holder.fence();
            let lock = bench.locks.mutex("r").ttl(TTL).wait_forever();
            let mut waiting = tokio::task::JoinSet::new();
            for _ in 0..5 {
                let lock = lock.clone();
                waiting.spawn(async move { lock.acquire().await.unwrap() });
            }
            soon("all wait", async || leases(&bench.truth).await == 6).await;
            holder.release().await.unwrap();
            for _ in 0..5 {
                let ticking = async {
                    loop {
                        bench.clock.advance(Duration::from_millis(250));
                        tokio::time::sleep(Duration::from_millis(2)).await;
                    }
                };
                let guard = tokio::select! {
                    guard = waiting.join_next() => guard.unwrap().unwrap(),
                    () = ticking => unreachable!("it ticks for ever"),
                };
                guard.check().unwrap();
                assert!(guard.fence() > fence);
                fence = guard.fence();
                assert_eq!(guard.release().await.unwrap(), Released::Freed);
            }
        }
    });
}

// Rule 9: backoff only where nothing pushes.

#[test]
fn a_waiter_asks_at_intervals_only_where_nothing_pushes() {
    run(async {
        for pushes in [true, false] {
            let bench = Bench::new();
            if !pushes {
                bench.faulty.push_nothing();
            }
            let locks = locks(&bench.clock, Arc::clone(&bench.faulty) as Arc<dyn Backend>);
            let holder = bench.truth.mutex("r").ttl(Duration::from_secs(3600)).acquire().await.unwrap();
            let lock = locks.mutex("r").ttl(TTL).wait_forever();
            let lock = lock.backoff(Duration::from_millis(100), Duration::from_millis(400));
            let mut waiting = tokio::task::JoinSet::from_iter([async move { lock.acquire().await }]);
            soon("it waits", async || leases(&bench.truth).await == 2).await;
            for _ in 0..80 {
                bench.clock.advance(Duration::from_millis(100));
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            let asks = bench.faulty.count(Call::Renew);
            assert_eq!(asks == 0, pushes, "{asks} asks within 8 s");
            waiting.shutdown().await;
            holder.release().await.unwrap();
        }
    });
}

#[test]
fn max_tries_bounds_the_asks_where_nothing_pushes() {
    run(async {
        let bench = Bench::new();
        bench.faulty.push_nothing();
        let locks = locks(&bench.clock, Arc::clone(&bench.faulty) as Arc<dyn Backend>);
        let _holder = bench.truth.mutex("r").acquire().await.unwrap();
        let lock = locks.mutex("r").backoff(Duration::from_millis(10), Duration::from_millis(10)).max_tries(5);
        let waiting = async move { lock.wait_forever().acquire().await };
        let ticking = async {
            loop {
                bench.clock.advance(Duration::from_millis(10));
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        let error = tokio::select! {
            outcome = waiting => outcome.unwrap_err(),
            () = ticking => unreachable!("it ticks for ever"),
        };
        assert_eq!(error.kind(), ErrorKind::WaitElapsed);
        assert_eq!(error.holders().len(), 1, "{error}");
    });
}

// A restarted backend is asked about every lease at once.

#[test]
fn another_life_of_the_backend_makes_it_verify_every_lease() {
    run(async {
        let bench = Bench::new();
        let _first = bench.locks.mutex("a").acquire().await.unwrap();
        assert_eq!(bench.faulty.count(Call::Renew), 0);
        bench.faulty.begin_another_life();
        let _second = bench.locks.mutex("b").acquire().await.unwrap();
        soon("the leases were verified", async || bench.faulty.count(Call::Renew) >= 1).await;
    });
}

// What is unknown stays unknown until it is settled, and closing does not wait for it.

#[test]
fn a_lost_reply_and_a_refusal_after_it_leave_nothing_behind() {
    run(async {
        let bench = Bench::new();
        bench.faulty.drop_replies_of(Call::Acquire, 1);
        let lock = bench.locks.mutex("r").ttl(TTL);
        let trying = tokio::task::JoinSet::from_iter([async move { lock.try_acquire().await }]);
        soon("the first ask is done", async || leases(&bench.truth).await == 1).await;
        bench.faulty.cut();
        let ticking = async {
            loop {
                bench.clock.advance(Duration::from_millis(10));
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let error = tokio::select! {
            mut outcome = trying.join_all() => outcome.remove(0).unwrap_err(),
            () = ticking => unreachable!("it ticks for ever"),
        };
        assert!(error.outcome_unknown(), "{error:?}");
        bench.faulty.heal();
        soon("it was given back", async || {
            bench.clock.advance(Duration::from_millis(20));
            leases(&bench.truth).await == 0
        })
        .await;
        let ended = bench.truth.history(&HistoryFilter::new(Names::All)).await.unwrap().remove(0);
        assert_eq!(ended.ending, Ending::Cancelled, "it did not run out, it was given back");
    });
}

#[test]
fn closing_waits_neither_for_an_ask_nor_for_a_renewal_that_hangs() {
    run(async {
        let bench = Bench::new();
        let guard = bench.hold().await;
        let _asks = bench.faulty.hold_requests_of(Call::Acquire);
        let _renewals = bench.faulty.hold_requests_of(Call::Renew);
        let lock = bench.locks.mutex("other").ttl(TTL).wait_forever();
        let asking = tokio::task::JoinSet::from_iter([async move { lock.acquire().await }]);
        let lease = guard.lease().clone();
        let renewing = tokio::task::JoinSet::from_iter([async move { lease.renew(TTL).await }]);
        soon("both are sent", async || bench.faulty.count(Call::Acquire) == 2 && bench.faulty.count(Call::Renew) == 1)
            .await;
        let ticking = async {
            loop {
                bench.clock.advance(Duration::from_millis(100));
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::select! {
            closed = tokio::time::timeout(Duration::from_secs(10), bench.locks.close()) => closed.unwrap().unwrap(),
            () = ticking => unreachable!("it ticks for ever"),
        }
        assert_eq!(asking.join_all().await.remove(0).unwrap_err().kind(), ErrorKind::Closed);
        assert!(renewing.join_all().await.remove(0).is_err());
    });
}

#[test]
fn nobody_goes_on_asking_for_a_caller_that_is_gone() {
    run(async {
        let locks = {
            let memory = Arc::new(MemoryBackend::private(Arc::new(leasehold::clock::SystemClock)));
            let faulty = Faulty::new(memory);
            // Every grant takes longer to arrive than the lease lives.
            faulty.delay(Duration::from_millis(70));
            Leasehold::builder().backend(faulty).unwrap()
        };
        let lock = locks.mutex("r").ttl(Duration::from_millis(100)).wait_forever();
        assert!(tokio::time::timeout(Duration::from_millis(300), lock.acquire()).await.is_err());
        tokio::time::timeout(Duration::from_secs(5), locks.close()).await.expect("nothing goes on").unwrap();
    });
}

#[test]
fn the_longest_hold_is_checked_on_use() {
    run(async {
        let bench = Bench::new();
        let guard = bench.locks.mutex("r").max_hold(Duration::from_secs(5)).acquire().await.unwrap();
        let _no_renewal = bench.faulty.hold_requests_of(Call::Renew);
        bench.clock.advance(Duration::from_secs(6));
        assert_eq!(guard.check().unwrap_err().kind(), ErrorKind::Lost);
        assert_eq!(guard.loss(), Some(Loss::MaxHold));
        let refused = bench.locks.mutex("s").max_hold(TTL).acquire_detached().await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidConfig);
    });
}

#[test]
fn what_is_given_up_by_a_downgrade_is_given_up_before_it_is_asked_for() {
    run(async {
        let bench = Bench::new();
        let guard = bench.locks.rwlock("r").ttl(TTL).write().await.unwrap();
        bench.faulty.drop_replies_of(Call::Renew, 1);
        assert!(guard.downgrade().await.unwrap_err().outcome_unknown());
        assert_eq!(guard.mode(), leasehold::lease::Mode::Shared);
        let reader = bench.truth.rwlock("r").try_read().await.unwrap().expect("readers are let in");
        reader.release().await.unwrap();
        guard.release().await.unwrap();

        let lock = bench.locks.rwlock("r").reentrant();
        let (outer, inner) = (lock.write().await.unwrap(), lock.write().await.unwrap());
        assert_eq!(outer.downgrade().await.unwrap_err().kind(), ErrorKind::Unsupported);
        assert!(bench.truth.rwlock("r").try_read().await.unwrap().is_none(), "the inner guard may be writing");
        inner.release().await.unwrap();
        outer.downgrade().await.unwrap();
    });
}

#[cfg(feature = "file")]
#[test]
fn where_no_clock_ends_a_lease_its_release_is_tried_until_it_is_done() {
    use leasehold::backends::file::{FileBackend, FileOptions};

    run(async {
        let folder = tempfile::tempdir().unwrap();
        let clock = ManualClock::new();
        let url = format!("file://{}", folder.path().join("locks").display());
        let options = FileOptions::from_url(&url, "default", Arc::new(clock.clone())).unwrap();
        let faulty = Faulty::new(Arc::new(FileBackend::open(options).await.unwrap()));
        let locks = locks(&clock, Arc::clone(&faulty) as Arc<dyn Backend>);
        let guard = locks.mutex("r").ttl(TTL).acquire().await.unwrap();
        faulty.cut();
        guard.release().await.unwrap_err();
        for _ in 0..20 {
            clock.advance(TTL);
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        faulty.heal();
        soon("it was given back", async || {
            clock.advance(Duration::from_secs(1));
            leases(&locks).await == 0
        })
        .await;
    });
}
