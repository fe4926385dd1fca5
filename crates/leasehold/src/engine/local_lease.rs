//! The state machine of one lease that this process waits for or holds.
//!
//! Every answer about a lease goes through the transitions here, whether it
//! comes from the request, a renewal, an explicit `renew`, a hint or the clock.
//! A transition changes the state and wakes callers. It never calls the
//! backend, so it may run on any thread, including the timer thread. It returns
//! what the engine must do next as a [`FollowUp`].
//!
//! A grant is *provisional* if the backend takes it back within seconds unless
//! a renewal confirms it.
//!
//! Belief: each answer of a backend says how long this process may rely on it
//! ([`Belief`]: for the ttl, for a session, or until the process ends). The
//! deadline follows from the last answer (`deadlines.rs`); once it has passed, or
//! the lease is lost or released, the lease is never valid again ([`Validity`]).

mod deadlines;
#[cfg(test)]
mod interleavings;
#[cfg(test)]
mod random_transitions;
#[cfg(test)]
pub(super) mod tests;

use std::{
    task::{Context, Poll, Waker},
    time::Duration,
};

use super::{
    acquire::AcquireOptions,
    call_in_flight::CallInFlight,
    renew_every,
    sync::{AtomicBool, AtomicU64, AtomicUsize, Mutex, MutexGuard, Ordering},
    telemetry::HoldReport,
    validity::{Loss, Validity},
};
use crate::{
    Error, Result,
    backend::{Backoff, Belief},
    lease::{
        Busy, Claim, Decision, Fence, Grant, LeaseKey, Lifetime, Metadata, Moment, QueuePosition, Released, Renewal,
        Request, Shape, Standing, Timestamp, Ttl, micros,
    },
};

/// How long the caller of `acquire` has to confirm a provisional grant itself before the renewer does.
const CALLER_CONFIRM_WINDOW: Duration = Duration::from_millis(50);

/// A lease that this process waits for or holds.
#[derive(Debug)]
pub(crate) struct LocalLease {
    /// The original request. The ttl, the claim and the metadata may have changed since.
    pub(crate) request: Request,
    /// Whether the backend pushes grants to waiters.
    pushes: bool,
    max_hold: Option<Duration>,
    ttl_micros: AtomicU64,
    /// When the renewer sends the next renewal. `NEVER` while none is to be sent:
    /// - a request or renewal is in flight, and no push has granted the lease meanwhile;
    /// - the lease has ended, or its request was refused;
    /// - the lease is detached and held, and its holder has not renewed it.
    renew_at: AtomicU64,
    pub(crate) call_in_flight: CallInFlight,
    /// How many guards share the lease; more than one only with `shared_by_holder`.
    pub(crate) guards: AtomicUsize,
    /// Whether the lease also ends when its session ends, even before its deadline.
    by_session: AtomicBool,
    pub(crate) validity: Validity,
    /// Whether the backend no longer knew the lease when it was released.
    released_too_late: AtomicBool,
    /// What tracing and metrics know of this hold.
    pub(crate) report: HoldReport,
    state: Mutex<LocalState>,
}

#[derive(Debug)]
struct LocalState {
    phase: Phase,
    /// The claim; smaller than the requested one after a downgrade.
    claim: Claim,
    /// The metadata that replaced the metadata of the request.
    metadata: Option<Box<Metadata>>,
    /// The last answer that confirmed the grant or the queue position.
    last_answer: Option<LastAnswer>,
    /// The newest fence of the resource that an answer reported with the queue position. A grant hint with an equal or
    /// lower fence is stale.
    last_fence: Fence,
    /// A pushed grant that is not applied yet: the answer to the request has still to arrive, or a renewal has still to
    /// be sent to confirm a provisional grant.
    hint: Option<GrantHint>,
    /// A hint arrived during a request or renewal, or the backend was replaced: renew once more after the answer.
    renew_again: bool,
    /// Whether a push said that the lease was evicted; a renewal checks it.
    evicted: bool,
    /// How many requests and renewals were sent.
    sent_count: u64,
    /// The newest answered renewal, by the number that `number_call` gave it; 0 if there is none.
    last_answered_call: u64,
    /// The same for those that set the ttl.
    last_ttl_call: u64,
    /// The same for those that set the metadata.
    last_metadata_call: u64,
    /// The pauses after failed renewals.
    renew_retry: Option<Box<Backoff>>,
    /// The pauses between polls of a backend that does not push grants.
    backoff: Option<Box<Backoff>>,
    /// How many answers said that the lease still waits.
    waiting_answers: u32,
    /// The waker of the caller that awaits `acquire` or `release`.
    caller: Option<Waker>,
    caller_left: bool,
    /// The answer to the release, for the caller that awaits it.
    released: Option<Result<Released>>,
}

type LockedState<'a> = MutexGuard<'a, LocalState>;

#[derive(Debug)]
enum Phase {
    /// The request is in flight.
    Requested,
    Waiting,
    /// Granted; the caller of `acquire` has not taken it yet.
    Granted {
        grant: Grant,
        /// As in [`Hold`].
        sent_before: u64,
    },
    Held(Hold),
    /// Not granted: busy, refused, failed or gone. The caller of `acquire` takes the reason; `None` once it was taken,
    /// or if nobody will take it: the caller left, or the grant ran out.
    Refused(Option<Refusal>),
    /// Lost or released.
    Ended(Hold),
}

/// The grant of a held lease, and how long the caller waited for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hold {
    pub(crate) grant: Grant,
    pub(crate) waited: Duration,
    /// How many requests and renewals were sent before the grant; their answers may be stale.
    sent_before: u64,
}

/// A request or renewal that was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SentCall {
    pub(crate) sent_at: Moment,
    /// Its number among the calls of the lease, which begin with 1.
    number: u64,
}

/// When the request or renewal of the last answer was sent, and how long this process may rely on that answer.
#[derive(Clone, Debug)]
struct LastAnswer {
    sent_at: Moment,
    belief: Belief,
}

#[derive(Clone, Copy, Debug)]
struct GrantHint {
    fence: Fence,
    provisional: bool,
    arrived_at: Timestamp,
}

/// Why a request was not granted.
#[derive(Debug)]
pub(crate) enum Refusal {
    Busy(Busy),
    WrongShape(Shape),
    Failed(Error),
    /// The queue position or the grant is gone, or the caller took the grant too late; the engine may try again with a
    /// new lease id.
    Gone,
}

/// What the engine does after a transition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum FollowUp {
    Nothing,
    /// `renew_at` or the deadline may be earlier now: wake the renewer or the timer if it would sleep too long.
    Schedule,
    /// Remove the lease from the schedule.
    Forget,
    /// Remove the lease from the schedule, and release it in the background: the backend may still know it. If it was
    /// lost, report that too.
    Release,
    /// Remove the lease from the schedule, and report the loss to the log and the metrics.
    Lost,
    /// Release a lease whose loss has been reported: the backend still has it.
    ReleaseLost,
}

/// The result of a request, for the caller of `acquire`.
pub(crate) enum RequestResult {
    Held,
    Refused(Refusal),
}

/// What the caller of `acquire` does next.
pub(crate) enum CallerStep {
    /// Take the result, after the follow-up.
    Finish(RequestResult, FollowUp),
    /// Send a renewal to confirm a provisional grant, then poll again.
    ConfirmGrant,
}

impl LocalLease {
    /// A lease whose first request is sent at `now`.
    pub(crate) fn new(request: Request, options: &AcquireOptions<'_>, pushes: bool, now: Moment) -> (Self, SentCall) {
        let lease = Self {
            pushes,
            max_hold: options.max_hold,
            ttl_micros: AtomicU64::new(micros(request.ttl.get())),
            renew_at: AtomicU64::new(Moment::NEVER.as_micros()),
            call_in_flight: CallInFlight::none(),
            guards: AtomicUsize::new(1),
            by_session: AtomicBool::new(false),
            validity: Validity::new(),
            released_too_late: AtomicBool::new(false),
            report: HoldReport::default(),
            state: Mutex::new(LocalState {
                phase: Phase::Requested,
                claim: request.claim,
                metadata: None,
                last_answer: None,
                last_fence: Fence::default(),
                hint: None,
                renew_again: false,
                evicted: false,
                sent_count: 1,
                last_answered_call: 0,
                last_ttl_call: 0,
                last_metadata_call: 0,
                renew_retry: None,
                backoff: (!pushes).then(|| Box::new(options.backoff)),
                waiting_answers: 0,
                caller: None,
                caller_left: false,
                released: None,
            }),
            request,
        };
        (lease, SentCall { sent_at: now, number: 1 })
    }

    pub(crate) fn key(&self) -> &LeaseKey {
        &self.request.key
    }

    pub(crate) fn ttl(&self) -> Ttl {
        Ttl::new(Duration::from_micros(self.ttl_micros.load(Ordering::Relaxed))).unwrap_or(Ttl::MIN)
    }

    pub(crate) fn claim(&self) -> Claim {
        self.state.lock().claim
    }

    pub(crate) fn metadata(&self) -> Metadata {
        self.state.lock().metadata.as_deref().unwrap_or(&self.request.metadata).clone()
    }

    /// The grant, once the caller has taken it.
    pub(crate) fn hold(&self) -> Option<Hold> {
        match &self.state.lock().phase {
            Phase::Held(hold) | Phase::Ended(hold) => Some(*hold),
            _ => None,
        }
    }

    /// Returns whether the lease is detached: it is not renewed automatically, and ends when its ttl runs out.
    pub(crate) fn is_detached(&self) -> bool {
        self.request.lifetime == Lifetime::Detached
    }

    /// When the renewer must handle it next: to renew it, or to take over a call in flight.
    pub(crate) fn due_at(&self) -> Moment {
        self.renew_at().min(self.call_in_flight.take_over_at())
    }

    /// The deadline for the timer; `NEVER` once the lease has ended.
    pub(crate) fn deadline_to_watch(&self) -> Moment {
        if self.validity.loss().is_some() { Moment::NEVER } else { self.validity.deadline() }
    }

    /// When to send the next renewal.
    pub(crate) fn renew_at(&self) -> Moment {
        Moment::from_micros(self.renew_at.load(Ordering::SeqCst))
    }

    /// Returns whether it could be waiting: it waits, or an answer that says so may be on its way.
    pub(crate) fn could_be_waiting(&self) -> bool {
        matches!(self.state.lock().phase, Phase::Requested | Phase::Waiting)
    }

    pub(crate) fn is_held(&self) -> bool {
        matches!(self.state.lock().phase, Phase::Held(_))
    }

    /// A renewal to send; `None` if one is in flight or nothing is left to renew.
    pub(crate) fn begin_renewal(&self) -> Option<Renewal> {
        let mut state = self.state.lock();
        let renewable = matches!(state.phase, Phase::Waiting | Phase::Granted { .. } | Phase::Held(_));
        if !renewable || self.renew_at() == Moment::NEVER {
            return None;
        }
        self.pause_renewals();
        state.hint = None;
        state.renew_again = false;
        Some(self.plain_renewal())
    }

    /// Numbers a request or renewal that is sent at `now`.
    pub(crate) fn number_call(&self, now: Moment) -> SentCall {
        let mut state = self.state.lock();
        state.sent_count += 1;
        SentCall { sent_at: now, number: state.sent_count }
    }

    /// A renewal that only extends the lease.
    pub(crate) fn plain_renewal(&self) -> Renewal {
        Renewal::new(self.request.key.clone(), self.ttl())
    }

    /// Makes a renewal due now, or right after the one in flight.
    pub(crate) fn make_renewal_due(&self, now: Moment) -> FollowUp {
        let mut state = self.state.lock();
        self.make_renewal_due_locked(&mut state, now);
        FollowUp::Schedule
    }

    /// `renew_again` stays set until a renewal begins, because the answer to an older call may overwrite `renew_at` first.
    fn make_renewal_due_locked(&self, state: &mut LocalState, now: Moment) {
        state.renew_again = true;
        if self.renew_at() != Moment::NEVER {
            self.set_renew_at(now);
        }
    }

    /// The backend answered the request.
    pub(crate) fn on_decision(&self, decision: Decision, call: SentCall, belief: Belief, now: Moment) -> FollowUp {
        let mut state = self.state.lock();
        if !matches!(state.phase, Phase::Requested) {
            return FollowUp::Nothing;
        }
        let refusal = match decision {
            Decision::Granted(grant) => {
                state.last_answer = Some(LastAnswer { sent_at: call.sent_at, belief });
                return self.grant(state, grant, now);
            }
            Decision::Queued(position) => {
                state.phase = Phase::Waiting;
                return self.on_position(state, position, call.sent_at, belief, now);
            }
            Decision::Busy(busy) => Refusal::Busy(busy),
            Decision::WrongShape { in_force } => Refusal::WrongShape(in_force),
        };
        self.refuse(state, refusal, FollowUp::Forget)
    }

    /// The request failed for good.
    pub(crate) fn on_request_failed(&self, error: Error) -> FollowUp {
        let state = self.state.lock();
        if !matches!(state.phase, Phase::Requested) {
            return FollowUp::Nothing;
        }
        let follow_up = if error.outcome_unknown() { FollowUp::Release } else { FollowUp::Forget };
        self.refuse(state, Refusal::Failed(error), follow_up)
    }

    /// Applies the answer to a renewal.
    pub(crate) fn on_standing(
        &self,
        standing: Standing,
        renewal: &Renewal,
        call: SentCall,
        belief: &Belief,
        now: Moment,
    ) -> FollowUp {
        let mut state = self.state.lock();
        let (fence, sent_before) = match &state.phase {
            Phase::Waiting => return self.on_standing_while_waiting(state, standing, call, belief, now),
            Phase::Granted { grant, sent_before } => (grant.fence, *sent_before),
            Phase::Held(hold) => (hold.grant.fence, hold.sent_before),
            // The timer ended the lease before this answer came, but the backend has just extended it: release it
            // there.
            Phase::Ended(_)
                if matches!(standing, Standing::Holding(_)) && self.validity.loss() == Some(Loss::RenewTimeout) =>
            {
                return FollowUp::ReleaseLost;
            }
            Phase::Requested | Phase::Refused(_) | Phase::Ended(_) => return FollowUp::Nothing,
        };
        match standing {
            Standing::Unknown => self.on_unanswered(state, now),
            // The backend lost its data and granted the same lease id again. Another client may have held the lock in
            // between.
            Standing::Holding(grant) if grant.fence != fence => self.lose_and_release(state, Loss::Gone),
            // Overtaken by a newer answer. It still counts if it asked for a longer ttl.
            Standing::Holding(_) if call.number < state.last_answered_call => {
                if matches!(state.phase, Phase::Held(_)) && !belief.has_ended() {
                    let answer = LastAnswer { sent_at: call.sent_at, belief: belief.clone() };
                    let _in_time = self.validity.extend(now, self.deadline_after(&answer, renewal.ttl));
                    // Since `now` was read, the timer may have found the old deadline passed, and its bound no longer
                    // covers this lease.
                    return FollowUp::Schedule;
                }
                FollowUp::Nothing
            }
            Standing::Holding(_) => {
                state.last_answered_call = call.number;
                state.last_answer = Some(LastAnswer { sent_at: call.sent_at, belief: belief.clone() });
                state.renew_retry = None;
                let deadline = self.deadline_of_last_answer(&state, renewal.ttl);
                if self.session_ended(&state) {
                    return self.lose(state, Loss::Gone);
                }
                if matches!(state.phase, Phase::Held(_)) && !self.validity.extend(now, deadline) {
                    // Too late for us, but the backend extended the lease.
                    return self.lose_and_release(state, self.validity.reason_at(now));
                }
                let renew_at = self.renew_time(&state, call.sent_at);
                self.schedule_renewal(&state, renew_at, now);
                FollowUp::Schedule
            }
            // 1. A renewal is sent. 2. The backend answers: waiting. 3. It grants, and the push arrives here.
            // 4. The answer arrives. Only an answer to a renewal that was sent after 3 takes the grant away.
            Standing::Waiting(_) if call.number <= sent_before => {
                self.schedule_renewal(&state, now, now);
                FollowUp::Schedule
            }
            // The backend demoted a holder to a waiter: release its position too.
            Standing::Waiting(_) => self.lose_and_release(state, Loss::Gone),
            Standing::Gone => {
                let loss = if state.evicted {
                    Loss::Evicted
                } else if now >= self.validity.deadline() {
                    // The lease ran out before this answer came, though the timer has not found that out yet.
                    self.validity.reason_at(now)
                } else {
                    Loss::Gone
                };
                self.lose_and_forget(state, loss)
            }
        }
    }

    fn on_standing_while_waiting(
        &self,
        mut state: LockedState<'_>,
        standing: Standing,
        call: SentCall,
        belief: &Belief,
        now: Moment,
    ) -> FollowUp {
        match standing {
            Standing::Unknown => self.on_unanswered(state, now),
            Standing::Holding(grant) => {
                state.last_answer = Some(LastAnswer { sent_at: call.sent_at, belief: belief.clone() });
                self.grant(state, grant, now)
            }
            Standing::Waiting(position) => self.on_position(state, position, call.sent_at, belief.clone(), now),
            Standing::Gone => self.refuse(state, Refusal::Gone, FollowUp::Forget),
        }
    }

    /// A renewal was not answered: the lease is in doubt until a renewal is answered, or the deadline comes.
    pub(crate) fn on_renew_failed(&self, now: Moment) -> FollowUp {
        let state = self.state.lock();
        self.on_unanswered(state, now)
    }

    fn on_unanswered(&self, mut state: LockedState<'_>, now: Moment) -> FollowUp {
        if !matches!(state.phase, Phase::Waiting | Phase::Granted { .. } | Phase::Held(_)) {
            return FollowUp::Nothing;
        }
        // A queue position survives the end of a session; a lease that was held is lost with it.
        if !matches!(state.phase, Phase::Waiting) && self.session_ended(&state) {
            return self.lose(state, Loss::Gone);
        }
        self.validity.mark_in_doubt();
        let max = renew_every(self.ttl()) / 3;
        let pause =
            state.renew_retry.get_or_insert_with(|| Box::new(Backoff::new(Duration::from_millis(50), max))).pause();
        self.schedule_renewal(&state, now.after(pause), now);
        FollowUp::Schedule
    }

    /// A push says that the lease was granted.
    pub(crate) fn on_grant_hint(
        &self,
        fence: Fence,
        provisional: bool,
        now: Moment,
        arrived_at: Timestamp,
    ) -> FollowUp {
        let mut state = self.state.lock();
        state.hint = Some(GrantHint { fence, provisional, arrived_at });
        match state.phase {
            Phase::Waiting => self.apply_grant_hint(state, now),
            _ => FollowUp::Nothing,
        }
    }

    /// A push says that the lease was evicted; a renewal checks whether it was.
    pub(crate) fn on_evict_hint(&self, now: Moment) -> FollowUp {
        let mut state = self.state.lock();
        state.evicted = true;
        self.make_renewal_due_locked(&mut state, now);
        FollowUp::Schedule
    }

    /// Hints were missed. A lease whose session ended is lost; any other is renewed at once to check it.
    pub(crate) fn on_hints_missed(&self, now: Moment) -> FollowUp {
        let mut state = self.state.lock();
        if matches!(state.phase, Phase::Held(_) | Phase::Granted { .. }) && self.session_ended(&state) {
            return self.lose(state, Loss::Gone);
        }
        self.make_renewal_due_locked(&mut state, now);
        FollowUp::Schedule
    }

    /// The timer found that the deadline has passed.
    pub(crate) fn on_deadline(&self, now: Moment) -> FollowUp {
        let state = self.state.lock();
        match state.phase {
            Phase::Held(_) if now >= self.validity.deadline() => self.lose_by_deadline(state, now),
            _ => FollowUp::Nothing,
        }
    }

    /// Returns the result of the request, or asks the caller to confirm a provisional grant. Until then, stores the
    /// caller's waker.
    pub(crate) fn poll_result(&self, context: &Context<'_>, started: Moment, now: Moment) -> Poll<CallerStep> {
        let mut state = self.state.lock();
        match &mut state.phase {
            Phase::Granted { grant, sent_before } => {
                let (grant, sent_before) = (*grant, *sent_before);
                let deadline = self.deadline_of_last_answer(&state, self.ttl());
                if now >= deadline || self.session_ended(&state) {
                    state.phase = Phase::Refused(None);
                    self.pause_renewals();
                    let gone = RequestResult::Refused(Refusal::Gone);
                    return Poll::Ready(CallerStep::Finish(gone, FollowUp::Release));
                }
                let max_hold_at = self.max_hold.map_or(Moment::NEVER, |length| now.after(length));
                self.validity.begin(deadline, max_hold_at);
                let by_session = matches!(state.last_answer, Some(LastAnswer { belief: Belief::Session(_), .. }));
                self.by_session.store(by_session, Ordering::Relaxed);
                state.phase = Phase::Held(Hold { grant, waited: now.since(started), sent_before });
                let follow_up = match self.request.lifetime {
                    Lifetime::Attached => FollowUp::Schedule,
                    // Nobody renews it.
                    Lifetime::Detached => {
                        self.pause_renewals();
                        FollowUp::Forget
                    }
                };
                Poll::Ready(CallerStep::Finish(RequestResult::Held, follow_up))
            }
            Phase::Refused(refusal) => {
                let refusal = refusal.take().unwrap_or(Refusal::Gone);
                Poll::Ready(CallerStep::Finish(RequestResult::Refused(refusal), FollowUp::Nothing))
            }
            // The result was taken before; nobody polls again.
            Phase::Ended(_) | Phase::Held(_) => {
                Poll::Ready(CallerStep::Finish(RequestResult::Refused(Refusal::Gone), FollowUp::Nothing))
            }
            Phase::Requested | Phase::Waiting => {
                // A hint that is still stored while the lease waits is a provisional grant that the caller may confirm.
                if matches!(state.phase, Phase::Waiting) && state.hint.is_some() {
                    return Poll::Ready(CallerStep::ConfirmGrant);
                }
                if !state.caller.as_ref().is_some_and(|caller| caller.will_wake(context.waker())) {
                    state.caller = Some(context.waker().clone());
                }
                Poll::Pending
            }
        }
    }

    /// The caller left before it had its guard.
    ///
    /// While the request is in flight, the task that sent it cleans up.
    pub(crate) fn on_caller_left(&self) -> FollowUp {
        let mut state = self.state.lock();
        state.caller_left = true;
        state.caller = None;
        match state.phase {
            Phase::Waiting | Phase::Granted { .. } => {
                state.phase = Phase::Refused(None);
                self.pause_renewals();
                FollowUp::Release
            }
            Phase::Requested | Phase::Held(_) | Phase::Refused(_) | Phase::Ended(_) => FollowUp::Nothing,
        }
    }

    /// The instance was closed before the caller had its guard; a request that is in flight ends by itself.
    pub(crate) fn on_closed(&self) -> FollowUp {
        let state = self.state.lock();
        match state.phase {
            Phase::Waiting | Phase::Granted { .. } => {
                self.refuse(state, Refusal::Failed(Error::closed()), FollowUp::Release)
            }
            Phase::Requested | Phase::Held(_) | Phase::Refused(_) | Phase::Ended(_) => FollowUp::Nothing,
        }
    }

    /// Returns whether nobody waits for the request that is in flight.
    pub(crate) fn caller_left(&self) -> bool {
        self.state.lock().caller_left
    }

    /// How many answers said that the lease still waits.
    pub(crate) fn waiting_answers(&self) -> u32 {
        self.state.lock().waiting_answers
    }

    /// Ends the lease in this process, because its guard is released.
    ///
    /// Returns `Release` if the backend must still release it. This can happen after a loss too; `validity.loss()` says
    /// why it ended.
    pub(crate) fn on_release(&self, now: Moment) -> FollowUp {
        let mut state = self.state.lock();
        let Phase::Held(hold) = state.phase else { return FollowUp::Forget };
        if self.session_ended(&state) {
            return self.lose(state, Loss::Gone);
        }
        if now >= self.validity.deadline() {
            return self.lose_by_deadline(state, now);
        }
        state.phase = Phase::Ended(hold);
        self.pause_renewals();
        drop(state);
        if self.validity.end(Loss::Released) { FollowUp::Release } else { FollowUp::Forget }
    }

    /// In its answer to the release, the backend said that it no longer has the lease. `Loss::Released` stays recorded,
    /// since the lease was valid here until then.
    pub(crate) fn mark_released_too_late(&self) {
        self.released_too_late.store(true, Ordering::SeqCst);
    }

    /// Like `Validity::loss`, but `Gone` if the backend no longer knew the lease when it was released.
    pub(crate) fn end_reason(&self) -> Option<Loss> {
        if self.released_too_late.load(Ordering::SeqCst) { Some(Loss::Gone) } else { self.validity.loss() }
    }

    /// The release was answered.
    pub(crate) fn on_released(&self, released: Result<Released>) {
        let mut state = self.state.lock();
        state.released = Some(released);
        wake(state);
    }

    /// Returns the answer to the release. Until it arrives, stores the caller's waker.
    pub(crate) fn poll_released(&self, context: &Context<'_>) -> Poll<Result<Released>> {
        let mut state = self.state.lock();
        if let Some(released) = state.released.take() {
            return Poll::Ready(released);
        }
        state.caller = Some(context.waker().clone());
        Poll::Pending
    }

    /// Fails if the lease is not held at `now`, and records the loss if nothing has done so before.
    pub(crate) fn check(&self, now: Moment) -> Result<(), FollowUp> {
        // `Validity::end` sets the reason, then the deadline. Check both: this must fail once `lost` has completed.
        let seems_held = now < self.validity.deadline() && self.validity.loss().is_none();
        if seems_held && !self.by_session.load(Ordering::Relaxed) {
            return Ok(());
        }
        // 1. This reads a deadline that has passed.  2. Another thread applies an answer that came before the deadline,
        // which extends the lease. So compare again with the state locked.
        let state = self.state.lock();
        match state.phase {
            Phase::Held(_) if now >= self.validity.deadline() => Err(self.lose_by_deadline(state, now)),
            Phase::Held(_) if self.session_ended(&state) => Err(self.lose(state, Loss::Gone)),
            Phase::Held(_) => Ok(()),
            _ => Err(FollowUp::Nothing),
        }
    }

    /// Replaces the claim and returns the previous one. A downgrade does this before it asks the backend, so that
    /// nobody relies on more than is held.
    pub(crate) fn replace_claim(&self, claim: Claim) -> Claim {
        std::mem::replace(&mut self.state.lock().claim, claim)
    }

    /// The lease was granted, by an answer or by a push that this process may rely on.
    fn grant(&self, mut state: LockedState<'_>, grant: Grant, now: Moment) -> FollowUp {
        if state.caller_left {
            state.phase = Phase::Refused(None);
            self.pause_renewals();
            return FollowUp::Release;
        }
        state.phase = Phase::Granted { grant, sent_before: state.sent_count };
        state.renew_retry = None;
        let sent_at = state.last_answer.as_ref().map_or(now, |answer| answer.sent_at);
        let renew_at = self.renew_time(&state, sent_at);
        self.schedule_renewal(&state, renew_at, now);
        wake(state);
        FollowUp::Schedule
    }

    /// The request or renewal that was sent at `sent_at` found the lease waiting.
    fn on_position(
        &self,
        mut state: LockedState<'_>,
        position: QueuePosition,
        sent_at: Moment,
        belief: Belief,
        now: Moment,
    ) -> FollowUp {
        if state.caller_left {
            return self.refuse(state, Refusal::Gone, FollowUp::Release);
        }
        state.last_answer = Some(LastAnswer { sent_at, belief });
        state.last_fence = state.last_fence.max(position.last_fence);
        state.waiting_answers += 1;
        state.renew_retry = None;
        let pause = state.backoff.as_mut().map_or(position.ask_again_in, |backoff| Some(backoff.pause()));
        let ask_at = pause.map_or(Moment::NEVER, |pause| now.after(pause.max(Duration::from_millis(1))));
        let limit = self.first_waiter_limit(&state, position, now);
        let renew_at = ask_at.min(limit).min(self.renew_time(&state, sent_at));
        self.schedule_renewal(&state, renew_at, now);
        if state.hint.is_some() {
            return self.apply_grant_hint(state, now);
        }
        if !self.pushes {
            // Wake the caller, which enforces `max_tries`.
            wake(state);
        }
        FollowUp::Schedule
    }

    /// Applies a pushed grant, now that the lease is known to wait.
    ///
    /// Nothing says how old a push is, so the deadline counts from the last answered request or renewal. A fence that
    /// is not above those in the answers is ignored. A provisional grant needs a renewal first, sent after the
    /// push.
    fn apply_grant_hint(&self, mut state: LockedState<'_>, now: Moment) -> FollowUp {
        let Some(hint) = state.hint.take() else { return FollowUp::Nothing };
        if hint.fence <= state.last_fence {
            return FollowUp::Schedule;
        }
        if hint.provisional && self.caller_may_confirm(&state) {
            self.set_renew_at(self.renew_at().min(now.after(CALLER_CONFIRM_WINDOW)));
            state.hint = Some(hint);
            wake(state);
            return FollowUp::Schedule;
        }
        let reliable = now < self.deadline_of_last_answer(&state, self.ttl()) && !self.session_ended(&state);
        if hint.provisional || !reliable {
            self.make_renewal_due_locked(&mut state, now);
            return FollowUp::Schedule;
        }
        self.grant(state, Grant::new(hint.fence, hint.arrived_at), now)
    }

    /// Returns whether the caller of `acquire` may confirm a provisional grant.
    ///
    /// A backend on this machine answers on the caller's thread, which saves two thread switches. A request or renewal
    /// in flight must be answered first.
    fn caller_may_confirm(&self, state: &LocalState) -> bool {
        matches!(state.last_answer, Some(LastAnswer { belief: Belief::Process, .. }))
            && self.renew_at() != Moment::NEVER
    }

    fn refuse(&self, mut state: LockedState<'_>, refusal: Refusal, follow_up: FollowUp) -> FollowUp {
        state.phase = Phase::Refused(Some(refusal));
        self.pause_renewals();
        wake(state);
        follow_up
    }

    /// Marks a held lease lost; a grant that the caller has not taken becomes a refusal.
    fn lose(&self, mut state: LockedState<'_>, loss: Loss) -> FollowUp {
        match state.phase {
            Phase::Held(hold) => {
                state.phase = Phase::Ended(hold);
                self.pause_renewals();
                drop(state);
                if self.validity.end(loss) { FollowUp::Lost } else { FollowUp::Forget }
            }
            _ => self.refuse(state, Refusal::Gone, FollowUp::Release),
        }
    }

    /// Like `lose`, for a lease that the backend still has.
    fn lose_and_release(&self, state: LockedState<'_>, loss: Loss) -> FollowUp {
        match self.lose(state, loss) {
            FollowUp::Lost => FollowUp::Release,
            follow_up => follow_up,
        }
    }

    /// Like `lose`, for a lease that the backend no longer has: there is nothing to release.
    fn lose_and_forget(&self, state: LockedState<'_>, loss: Loss) -> FollowUp {
        match self.lose(state, loss) {
            FollowUp::Release => FollowUp::Forget,
            follow_up => follow_up,
        }
    }

    /// The deadline has passed. When the ttl has run out, the backend expires the lease itself. When `max_hold` is
    /// reached, or while the session still lives, it does not: the lease must be released.
    fn lose_by_deadline(&self, state: LockedState<'_>, now: Moment) -> FollowUp {
        let kept_by_session = !self.is_detached()
            && matches!(&state.last_answer, Some(LastAnswer { belief: Belief::Session(session), .. }) if !session.has_ended());
        let loss = self.validity.reason_at(now);
        if kept_by_session || loss == Loss::MaxHold {
            self.lose_and_release(state, loss)
        } else {
            self.lose(state, loss)
        }
    }

    /// Records what an explicit renewal changed at the backend; ignores a change that is older than one already
    /// recorded.
    ///
    /// A renewal that sets the metadata or downgrades the lease may carry an old ttl, which is ignored.
    pub(crate) fn on_explicit_renewal(&self, renewal: &Renewal, call: SentCall) {
        let mut state = self.state.lock();
        let changes_ttl = renewal.metadata.is_none() && renewal.downgrade.is_none();
        if changes_ttl && call.number > state.last_ttl_call {
            state.last_ttl_call = call.number;
            self.ttl_micros.store(micros(renewal.ttl.get()), Ordering::Relaxed);
        }
        if let Some(metadata) = &renewal.metadata
            && call.number > state.last_metadata_call
        {
            state.last_metadata_call = call.number;
            state.metadata = Some(Box::new(metadata.clone()));
        }
    }

    /// Schedules the next renewal: at `renew_at`, or now if one became due while the call was in flight.
    fn schedule_renewal(&self, state: &LocalState, renew_at: Moment, now: Moment) {
        self.set_renew_at(if state.renew_again { now } else { renew_at });
    }

    /// `SeqCst`: a scan of the schedule clears the bound of a shard, then reads this; neither may be reordered.
    fn set_renew_at(&self, moment: Moment) {
        self.renew_at.store(moment.as_micros(), Ordering::SeqCst);
    }

    /// No renewal is due until the next `set_renew_at`. A renewer that read the old time is stopped by `begin_renewal`.
    fn pause_renewals(&self) {
        self.renew_at.store(Moment::NEVER.as_micros(), Ordering::Release);
    }
}

/// Wakes the caller that awaits `acquire` or `release`, after the state is unlocked.
fn wake(mut state: LockedState<'_>) {
    let caller = state.caller.take();
    drop(state);
    if let Some(caller) = caller {
        caller.wake();
    }
}
