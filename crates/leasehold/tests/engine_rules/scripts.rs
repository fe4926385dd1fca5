//! Rules 12, 13 and 14, and session belief, on a backend whose answers the test decides.

use std::{
    future::poll_fn,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::Poll,
    time::Duration,
};

use leasehold::{
    ErrorKind, Fence, Guard, LeaseHealth, Leasehold, Loss,
    backend::{Belief, Hint, Session},
    backends::memory::MemoryBackend,
    clock::ManualClock,
    lease::{Grant, LeaseId, QueuePosition, Standing, Timestamp},
};
use leasehold_conformance::BackendCall;
use tokio::task::JoinSet;

use crate::{
    bench::{MARGIN, TTL, leases, locks, run, soon, ticking},
    scripted::Scripted,
};

/// An instance whose backend follows a script, and one that sees the truth.
struct Stage {
    clock: ManualClock,
    script: Arc<Scripted>,
    locks: Leasehold,
    truth: Leasehold,
}

impl Stage {
    fn new() -> Self {
        let clock = ManualClock::new();
        let memory = MemoryBackend::private(Arc::new(clock.clone()));
        let truth = locks(&clock, Arc::new(memory.sibling()));
        let script = Scripted::new(memory);
        let locks = locks(&clock, Arc::clone(&script) as _);
        Self { clock, script, locks, truth }
    }

    async fn hold(&self, name: &str) -> Guard {
        self.locks.mutex(name).ttl(TTL).acquire().await.unwrap()
    }

    /// A waiter for a lock that another instance holds for hours, and its id.
    async fn wait(&self) -> (Waiter, LeaseId) {
        let held = self.truth.mutex("r").ttl(TTL * 100).acquire().await.unwrap();
        let lock = self.locks.mutex("r").ttl(TTL).wait_forever();
        let waiting = JoinSet::from_iter([async move { lock.acquire().await.unwrap() }]);
        soon("it waits", async || leases(&self.truth).await == 2).await;
        (Waiter { waiting, _held: held }, self.script.requested("r")[0])
    }

    /// The same, after the backend has pushed a grant to it.
    async fn wait_and_push(&self, provisional: bool) -> (Waiter, LeaseId) {
        let (waiter, id) = self.wait().await;
        self.script.send(granted(id, provisional));
        (waiter, id)
    }

    /// Waits until the caller has its lease, after this many renewals.
    async fn has_lease_after(&self, waiter: &mut Waiter, renewals: usize) {
        soon("the caller has its lease", async || waiter.returned().await.is_some()).await;
        assert_eq!(self.script.renewals(), renewals);
    }

    async fn renewed(&self, times: usize) {
        soon("it is renewed", async || self.script.renewals() >= times).await;
    }
}

/// Runs a test on a stage of its own.
fn on_stage(test: impl AsyncFnOnce(Stage)) {
    run(async { test(Stage::new()).await });
}

struct Waiter {
    waiting: JoinSet<Guard>,
    _held: Guard,
}

impl Waiter {
    /// Whether `acquire` has returned, given a moment to do so.
    async fn returned(&mut self) -> Option<Guard> {
        tokio::time::timeout(Duration::from_millis(50), self.waiting.join_next())
            .await
            .ok()
            .flatten()
            .map(Result::unwrap)
    }
}

/// Above every fence that the memory backend issues.
const HINTED: Fence = Fence::new(1 << 52);

fn granted(id: LeaseId, provisional: bool) -> Hint {
    Hint::Granted { id, fence: HINTED, provisional }
}

fn holding(_: &leasehold::backend::Renewal, _: Standing) -> Standing {
    Standing::Holding(Grant::new(HINTED, Timestamp::default()))
}

// Rule 12: a provisional grant is no grant until a renewal confirms it.

#[test]
fn a_provisional_hint_alone_makes_no_holder() {
    on_stage(async |stage| {
        let (mut waiter, id) = stage.wait_and_push(true).await;
        stage.renewed(1).await;
        assert!(waiter.returned().await.is_none(), "the renewal found it waiting");

        stage.script.answer_renewals(holding);
        assert!(waiter.returned().await.is_none(), "the hint is used up");
        stage.script.send(granted(id, true));
        stage.has_lease_after(&mut waiter, 2).await;
        assert_eq!(stage.script.requested("r"), [id]);
    });
}

/// A renewal by the renewer would need the clock to move on.
#[test]
fn a_caller_confirms_its_grant_itself_where_the_backend_is_on_this_machine() {
    on_stage(async |stage| {
        stage.script.believe(Belief::Process);
        stage.script.answer_renewals(holding);
        let (mut waiter, _) = stage.wait_and_push(true).await;
        stage.has_lease_after(&mut waiter, 1).await;
    });
}

#[test]
fn the_grant_of_a_caller_that_is_not_polled_is_confirmed_all_the_same() {
    on_stage(async |stage| {
        stage.script.believe(Belief::Process);
        stage.script.answer_renewals(holding);
        let _held = stage.truth.mutex("r").ttl(TTL * 100).acquire().await.unwrap();
        let lock = stage.locks.mutex("r").ttl(TTL).wait_forever();
        let mut waiting = pin!(lock.acquire());
        assert!(poll_fn(|context| Poll::Ready(waiting.as_mut().poll(context))).await.is_pending());
        stage.script.send(granted(stage.script.requested("r")[0], true));
        assert_eq!(stage.script.renewals(), 0, "the caller has a moment");
        stage.clock.advance(Duration::from_millis(50));
        stage.renewed(1).await;
        assert!(waiting.await.is_ok());
        assert_eq!(stage.script.renewals(), 1);
    });
}

#[test]
fn a_provisional_grant_that_is_gone_makes_the_waiter_ask_under_a_new_id() {
    on_stage(async |stage| {
        let (mut waiter, id) = stage.wait().await;
        stage.script.answer_renewals(|_, _| Standing::Gone);
        stage.script.send(granted(id, true));
        let again = soon("it asks again", async || stage.script.requested("r").len() == 2);
        ticking(&stage.clock, Duration::from_millis(10), again).await;
        assert_ne!(stage.script.requested("r")[1], id);
        assert!(waiter.returned().await.is_none());
    });
}

#[test]
fn a_grant_that_no_clock_ends_in_doubt_is_believed_without_a_renewal() {
    on_stage(async |stage| {
        let (mut waiter, _) = stage.wait_and_push(false).await;
        stage.has_lease_after(&mut waiter, 0).await;
    });
}

// Rule 13: every answer goes through the same transitions.

#[test]
fn a_holder_that_the_backend_made_a_waiter_loses_at_once_and_leaves_the_queue() {
    on_stage(async |stage| {
        let guard = stage.hold("r").await;
        let id = stage.script.requested("r")[0];
        stage.script.answer_renewals(|_, _| Standing::Waiting(QueuePosition::new(0, Fence::default(), None)));
        stage.clock.advance(TTL / 3);
        assert_eq!(guard.lost().await, Loss::Gone);
        soon("its position is given back", async || stage.script.released(id)).await;
        for _ in 0..20 {
            stage.clock.advance(Duration::from_millis(200));
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        assert_eq!(stage.script.renewals(), 1, "nobody renews what is lost");
    });
}

#[test]
fn an_explicit_renewal_finds_an_eviction() {
    on_stage(async |stage| {
        let guard = stage.hold("r").await;
        let id = stage.script.requested("r")[0];
        let longer = TTL * 2;
        // Only the explicit renewal gets to know: the renewer's own are not answered.
        stage.script.answer_renewals(
            move |renewal, _| {
                if renewal.ttl.get() == longer { Standing::Gone } else { Standing::Unknown }
            },
        );
        stage.script.send(Hint::Evicted { id });
        let error = guard.renew(longer).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Lost);
        assert_eq!(guard.lost().await, Loss::Evicted);
    });
}

#[test]
fn an_explicit_renewal_moves_the_deadline_and_clears_doubt() {
    on_stage(async |stage| {
        let guard = stage.hold("r").await;
        stage.script.answer_renewals(|_, _| Standing::Unknown);
        stage.clock.advance(TTL / 3);
        soon("it is in doubt", async || guard.health() == LeaseHealth::InDoubt).await;
        assert!(guard.renew(TTL).await.unwrap_err().outcome_unknown());
        stage.script.answer_renewals(|_, standing| standing);
        guard.renew(TTL).await.unwrap();
        assert_eq!(guard.health(), LeaseHealth::Held);
        assert_eq!(guard.remaining(), Some(TTL - MARGIN));
    });
}

// Rule 14: one bad record spoils only itself.

#[test]
fn a_lease_that_the_backend_cannot_tell_about_spoils_no_other() {
    on_stage(async |stage| {
        let (good, bad, other) = (stage.hold("good").await, stage.hold("bad").await, stage.hold("other").await);
        stage.script.answer_renewals(
            |renewal, standing| {
                if renewal.key.resource.as_str() == "bad" { Standing::Unknown } else { standing }
            },
        );
        stage.clock.advance(TTL / 3);
        for lease in [&good, &other] {
            soon("the others are renewed", async || lease.remaining() == Some(TTL - MARGIN)).await;
            assert_eq!(lease.health(), LeaseHealth::Held);
        }
        soon("the bad one is in doubt", async || bad.health() == LeaseHealth::InDoubt).await;
        bad.check().unwrap();
        stage.script.answer_renewals(|_, standing| standing);
        let renewed = soon("it is asked about again", async || bad.health() == LeaseHealth::Held);
        ticking(&stage.clock, Duration::from_millis(20), renewed).await;
    });
}

// A session's end is the end of what it proved.

#[test]
fn what_a_session_proved_ends_with_it() {
    on_stage(async |stage| {
        let session = Session::new(TTL);
        stage.script.believe(Belief::Session(session.clone()));
        let (checked, watched, released) = (stage.hold("a").await, stage.hold("b").await, stage.hold("c").await);
        stage.script.believe(Belief::Session(Session::new(TTL)));
        let other = stage.hold("d").await;
        checked.check().unwrap();

        session.end();
        assert_eq!(checked.check().unwrap_err().kind(), ErrorKind::Lost, "no hint is needed");
        assert_eq!(checked.loss(), Some(Loss::Gone));
        assert_eq!(released.release().await.unwrap(), leasehold::lease::Released::Gone);
        stage.script.send(Hint::Missed);
        let lost = tokio::time::timeout(Duration::from_secs(10), watched.lost());
        assert_eq!(lost.await.expect("the hint ends it"), Loss::Gone);
        other.check().unwrap();
    });
}

#[test]
fn a_pushed_grant_is_not_believed_by_the_proof_of_a_session_that_ended() {
    on_stage(async |stage| {
        let session = Session::new(TTL);
        stage.script.believe(Belief::Session(session.clone()));
        let (mut waiter, id) = stage.wait().await;
        session.end();
        stage.script.believe(Belief::Session(Session::new(TTL)));
        stage.script.send(granted(id, false));
        stage.renewed(1).await;
        assert!(waiter.returned().await.is_none(), "the renewal found it waiting");
        stage.script.send(granted(id, false));
        soon("the new session proves it", async || waiter.returned().await.is_some()).await;
    });
}

#[test]
fn a_lease_with_a_long_ttl_is_not_renewed_in_a_call_with_the_timeout_of_a_short_one() {
    on_stage(async |stage| {
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&calls);
        stage.script.after_calls(move |call| {
            counted.fetch_add(usize::from(call == BackendCall::Renew), Ordering::SeqCst);
        });
        let short = stage.hold("short").await;
        let long = stage.locks.mutex("long").ttl(TTL * 100).acquire().await.unwrap();
        stage.script.send(Hint::Missed);
        stage.renewed(2).await;
        assert_eq!(calls.load(Ordering::SeqCst), 2);
        short.check().unwrap();
        long.check().unwrap();
    });
}

#[test]
fn a_silence_limit_below_the_ttl_bounds_the_belief() {
    on_stage(async |stage| {
        let limit = Duration::from_secs(5);
        let margin = Duration::from_millis(100);
        stage.script.believe(Belief::Session(Session::new(limit)));
        let guard = stage.hold("r").await;
        assert_eq!(guard.remaining(), Some(limit - margin));
        stage.clock.advance(limit / 3);
        soon("it is renewed within the limit", async || guard.remaining() == Some(limit - margin)).await;
        stage.script.answer_renewals(|_, _| Standing::Unknown);
        stage.clock.advance(limit - margin);
        assert_eq!(guard.lost().await, Loss::RenewTimeout);
    });
}
