//! Applies answers, hints, clock steps and callers in random order, and checks the invariants of a lease after each
//! step.
//!
//! A transition changes the state under one lock, so most interleavings of threads are equivalent to some order of
//! transitions, and random orders cover them. `interleavings` covers what is read or changed without the lock.

use std::collections::VecDeque;

use proptest::{
    collection::vec,
    prelude::{Just, Strategy, prop_oneof, proptest},
};

use super::{
    tests::{at, grant, lease, position},
    *,
};

/// One step of a test. A step that is impossible when its turn comes is skipped.
#[derive(Clone, Copy, Debug)]
enum Step {
    AdvanceClock(u64),
    /// The request is answered: granted with this fence, queued behind it, or busy.
    Grant(u64),
    Queue(u64),
    Refuse,
    FailRequest,
    /// The renewer sends what is due.
    SendRenewal,
    /// Answers the first renewal in flight. There may be two: a push can grant the lease while one is in flight, and
    /// the renewer may then send another.
    Answer(StandingKind),
    FailRenewal,
    /// The answers to renewals come in another order.
    Overtake,
    HintGrant(u64, bool),
    HintEviction,
    MissHints,
    CheckDeadline,
    PollCaller,
    DropCaller,
    Close,
    Release,
}

#[derive(Clone, Copy, Debug)]
enum StandingKind {
    Holding(u64),
    Waiting(u64),
    Gone,
    Unknown,
}

fn step() -> impl Strategy<Value = Step> {
    let fence = || 1..5_u64;
    // Steps that end a lease are rare, so that most leases live through many steps.
    prop_oneof![
        6 => (1..20_u64).prop_map(Step::AdvanceClock),
        3 => fence().prop_map(Step::Grant),
        6 => fence().prop_map(Step::Queue),
        1 => Just(Step::Refuse),
        1 => Just(Step::FailRequest),
        6 => Just(Step::SendRenewal),
        4 => fence().prop_map(|fence| Step::Answer(StandingKind::Holding(fence))),
        4 => fence().prop_map(|fence| Step::Answer(StandingKind::Waiting(fence))),
        1 => Just(Step::Answer(StandingKind::Gone)),
        2 => Just(Step::Answer(StandingKind::Unknown)),
        2 => Just(Step::FailRenewal),
        2 => Just(Step::Overtake),
        6 => (fence(), proptest::bool::ANY).prop_map(|(fence, provisional)| Step::HintGrant(fence, provisional)),
        2 => Just(Step::HintEviction),
        2 => Just(Step::MissHints),
        3 => Just(Step::CheckDeadline),
        6 => Just(Step::PollCaller),
        1 => Just(Step::DropCaller),
        1 => Just(Step::Close),
        1 => Just(Step::Release),
    ]
}

/// The lease under test and a model of backend, renewer and caller.
struct Harness {
    lease: LocalLease,
    belief: Belief,
    now: Moment,
    request: Option<SentCall>,
    renewals: VecDeque<(Renewal, SentCall)>,
    may_exist_at_backend: bool,
    releases: u32,
    /// The fences from answers and from pushes that are not provisional.
    confirmed_fences: Vec<Fence>,
    /// When the newest answered request or renewal was sent.
    last_answered_send: Option<Moment>,
    caller: bool,
    guard: bool,
}

impl Harness {
    fn new(belief: Belief) -> Self {
        let lease = lease(|_| {});
        let request = Some(lease.number_call(at(0)));
        Self {
            lease,
            belief,
            now: at(0),
            request,
            renewals: VecDeque::new(),
            may_exist_at_backend: true,
            releases: 0,
            confirmed_fences: Vec::new(),
            last_answered_send: None,
            caller: true,
            guard: false,
        }
    }

    fn follow(&mut self, follow_up: FollowUp) {
        self.releases += u32::from(follow_up == FollowUp::Release);
    }

    fn decide(&mut self, decision: Decision) {
        let Some(call) = self.request.take() else { return };
        match &decision {
            Decision::Granted(grant) => self.confirmed_fences.push(grant.fence),
            Decision::Queued(_) => {}
            _ => self.may_exist_at_backend = false,
        }
        if self.may_exist_at_backend {
            self.last_answered_send = Some(call.sent_at);
        }
        let follow_up = self.lease.on_decision(decision, call, self.belief.clone(), self.now);
        self.follow(follow_up);
    }

    fn answer(&mut self, kind: StandingKind) {
        let Some((renewal, call)) = self.renewals.pop_front() else { return };
        let standing = match kind {
            StandingKind::Holding(fence) => {
                self.confirmed_fences.push(Fence::new(fence));
                Standing::Holding(grant(fence))
            }
            StandingKind::Waiting(last_fence) => Standing::Waiting(position(last_fence)),
            StandingKind::Gone => Standing::Gone,
            StandingKind::Unknown => Standing::Unknown,
        };
        match standing {
            Standing::Gone => self.may_exist_at_backend = false,
            Standing::Unknown => {}
            Standing::Holding(_) | Standing::Waiting(_) => {
                self.last_answered_send = self.last_answered_send.max(Some(call.sent_at));
            }
        }
        let follow_up = self.lease.on_standing(standing, &renewal, call, &self.belief, self.now);
        self.follow(follow_up);
    }

    fn poll(&mut self) {
        if !self.caller {
            return;
        }
        let context = Context::from_waker(Waker::noop());
        let Poll::Ready(step) = self.lease.poll_result(&context, at(0), self.now) else { return };
        let CallerStep::Finish(result, follow_up) = step else {
            let renewal = self.lease.begin_renewal().expect("the caller has something to confirm");
            return self.renewals.push_back((renewal, self.lease.number_call(self.now)));
        };
        self.caller = false;
        self.guard = matches!(result, RequestResult::Held);
        self.follow(follow_up);
        if self.guard {
            let fence = self.lease.hold().expect("it is held").grant.fence;
            assert!(self.confirmed_fences.contains(&fence), "relied on a grant that was only provisional");
        }
    }

    fn take(&mut self, step: Step) {
        let wall = Timestamp::default();
        match step {
            Step::AdvanceClock(seconds) => self.now = self.now.after(Duration::from_secs(seconds)),
            Step::Grant(fence) => self.decide(Decision::Granted(grant(fence))),
            Step::Queue(last_fence) => self.decide(Decision::Queued(position(last_fence))),
            Step::Refuse => self.decide(Decision::WrongShape { in_force: Claim::EXCLUSIVE.shape() }),
            Step::FailRequest => {
                if self.request.take().is_some() {
                    let follow_up = self.lease.on_request_failed(Error::unanswered("no answer"));
                    self.follow(follow_up);
                }
            }
            Step::SendRenewal => {
                if let Some(renewal) = self.lease.begin_renewal() {
                    self.renewals.push_back((renewal, self.lease.number_call(self.now)));
                }
            }
            Step::Answer(kind) => self.answer(kind),
            Step::FailRenewal => {
                if self.renewals.pop_front().is_some() {
                    let follow_up = self.lease.on_renew_failed(self.now);
                    self.follow(follow_up);
                }
            }
            Step::Overtake => self.renewals.make_contiguous().reverse(),
            Step::HintGrant(fence, provisional) => {
                if !provisional {
                    self.confirmed_fences.push(Fence::new(fence));
                }
                let follow_up = self.lease.on_grant_hint(Fence::new(fence), provisional, self.now, wall);
                self.follow(follow_up);
            }
            Step::HintEviction => {
                let follow_up = self.lease.on_evict_hint(self.now);
                self.follow(follow_up);
            }
            Step::MissHints => {
                let follow_up = self.lease.on_hints_missed(self.now);
                self.follow(follow_up);
            }
            Step::CheckDeadline => {
                let follow_up = self.lease.on_deadline(self.now);
                self.follow(follow_up);
            }
            Step::PollCaller => self.poll(),
            Step::DropCaller => {
                if std::mem::take(&mut self.caller) {
                    let follow_up = self.lease.on_caller_left();
                    self.follow(follow_up);
                }
            }
            Step::Close => {
                let follow_up = self.lease.on_closed();
                self.follow(follow_up);
            }
            Step::Release => {
                if std::mem::take(&mut self.guard) {
                    let follow_up = self.lease.on_release(self.now);
                    self.follow(follow_up);
                }
            }
        }
    }

    fn assert_sound(&self) {
        let lease = &self.lease;
        let phase = &lease.state.lock().phase;
        assert!(self.releases <= 1, "released twice");
        match phase {
            Phase::Requested => assert!(self.request.is_some(), "nobody will answer"),
            Phase::Waiting | Phase::Granted { .. } | Phase::Held(_) => {
                assert!(!self.renewals.is_empty() || lease.renew_at() != Moment::NEVER, "nobody will ask again");
                assert_eq!(self.releases, 0, "released while it is wanted");
            }
            Phase::Refused(_) | Phase::Ended(_) => {
                assert_eq!(lease.renew_at(), Moment::NEVER, "somebody renews what has ended");
                let ran_out = lease.validity.loss() == Some(Loss::RenewTimeout);
                assert!(!self.may_exist_at_backend || ran_out || self.releases == 1, "it is left at the backend");
            }
        }
        if matches!((phase, &self.belief), (Phase::Held(_), Belief::Ttl)) {
            let sent_at = self.last_answered_send.expect("an answer proved it");
            assert!(
                lease.validity.deadline() < sent_at.after(lease.ttl().get()),
                "valid for longer than the answer proves"
            );
        } else {
            assert!(lease.validity.loss().is_some() || lease.validity.deadline() == Moment::NEVER);
        }
        assert_eq!(lease.validity.loss().is_some(), matches!(phase, Phase::Ended(_)));
    }
}

proptest! {
    #[test]
    fn in_any_order_a_lease_is_renewed_or_released(
        steps in vec(step(), 0..30),
        belief in prop_oneof![Just(Belief::Ttl), Just(Belief::Process)],
    ) {
        let mut harness = Harness::new(belief);
        for step in steps {
            harness.take(step);
            harness.assert_sound();
        }
    }
}
