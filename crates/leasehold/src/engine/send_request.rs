//! Sends the request for a lease until it is answered, and acts on the answer.

use std::{
    future::{self, poll_fn},
    pin::Pin,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use super::{
    Engine, RunningTask,
    local_lease::{FollowUp, LocalLease, SentCall},
    panics::{OnPanic, catch_panic},
    release::RELEASE_LIMIT,
    telemetry::{self, CallKind},
};
use crate::{
    Error, Result,
    backend::{Backoff, Liveness},
    lease::{Answer, Decision, Moment, Outcome, Resource},
};

/// How long an abandoned request may stay unanswered before its lease is released all the same. If the request is
/// carried out after that release, the ttl ends the lease. For a lease that no ttl ends, the wait goes on until
/// `RELEASE_LIMIT` after `close`.
const LATE_ANSWER_WAIT: Duration = Duration::from_secs(1);

/// The answer to a request.
struct AnsweredRequest {
    call: SentCall,
    answer: Answer<Decision>,
    /// The same request was sent before, without an answer, and may still be carried out.
    earlier_send_may_run: bool,
}

type PendingAnswer<'a> = Pin<Box<dyn Future<Output = Result<Answer<Decision>>> + Send + 'a>>;

impl Engine {
    /// Sends the request if the backend answers without waiting; returns false otherwise.
    pub(super) fn request_at_once(self: &Arc<Self>, lease: &Arc<LocalLease>, call: SentCall) -> bool {
        let on_panic = OnPanic::new(|| self.on_request_panic(lease));
        let answer = self.backend.acquire_at_once(&lease.request);
        let is_answered = answer.is_some();
        if let Some(answer) = answer {
            self.on_answer_at_once(lease, call, answer);
        }
        on_panic.disarm();
        is_answered
    }

    fn on_answer_at_once(self: &Arc<Self>, lease: &Arc<LocalLease>, call: SentCall, answer: Answer<Decision>) {
        self.telemetry.record_answer(CallKind::Acquire, &Ok(()), call.sent_at, || self.clock.now());
        self.on_answer(lease, AnsweredRequest { call, answer, earlier_send_may_run: false }, call.sent_at);
    }

    /// Sends the request until it is answered, and acts on the answer.
    ///
    /// Has no timeout while the caller polls it: the renewer moves a slow request to the I/O thread, where the timeout
    /// applies. `_running`: `close` waits until this task has dropped it.
    pub(super) async fn run_request(
        self: Arc<Self>,
        lease: Arc<LocalLease>,
        call: SentCall,
        until: Moment,
        _running: RunningTask,
    ) {
        let on_panic = OnPanic::new(|| self.on_request_panic(&lease));
        self.poll_first_call(&lease, call, until).await;
        on_panic.disarm();
    }

    /// Fails a request whose task panicked, and releases what it may have been granted.
    fn on_request_panic(&self, lease: &Arc<LocalLease>) {
        let follow_up = lease.on_request_failed(self.request_unanswered(&lease.key().resource));
        self.renewer.follow_up(lease, follow_up);
    }

    /// Polls the first call for as long as the caller does. If it fails, or moves to the I/O thread, goes on with
    /// `retry_until_answered`.
    async fn poll_first_call(self: &Arc<Self>, lease: &Arc<LocalLease>, call: SentCall, until: Moment) {
        let mut pending = self.backend.acquire(&lease.request);
        // `Ready(Pending)`: the call has moved to the I/O thread, and the timeout applies from here.
        let first = poll_fn(|context| match pending.as_mut().poll(context) {
            Poll::Pending if lease.call_in_flight.is_polled_by_caller() => Poll::Pending,
            first => Poll::Ready(first),
        });
        let first = first.await;
        if let Poll::Ready(answer @ Ok(_)) = &first {
            self.telemetry.record_answer(CallKind::Acquire, answer, call.sent_at, || self.clock.now());
        }
        let pending: PendingAnswer<'_> = match first {
            Poll::Ready(Ok(answer)) => {
                drop(pending);
                let answered = AnsweredRequest { call, answer, earlier_send_may_run: false };
                return self.on_answer(lease, answered, self.clock.now());
            }
            // The retry loop handles the error.
            Poll::Ready(Err(error)) => Box::pin(future::ready(Err(error))),
            Poll::Pending => pending,
        };
        // Boxed, so that the usual task stays small.
        match Box::pin(self.retry_until_answered(lease, call, pending, until)).await {
            Ok(answered) => self.on_answer(lease, answered, self.clock.now()),
            Err(follow_up) => self.renewer.follow_up(lease, follow_up),
        }
    }

    fn on_answer(self: &Arc<Self>, lease: &Arc<LocalLease>, answered: AnsweredRequest, now: Moment) {
        let AnsweredRequest { call, answer, earlier_send_may_run } = answered;
        if let Decision::Queued(position) = &answer.value {
            telemetry::record_queued(position);
        }
        let refused = matches!(answer.value, Decision::Busy(_) | Decision::WrongShape { .. });
        let follow_up = lease.on_decision(answer.value, call, answer.belief, now);
        self.renewer.follow_up(lease, follow_up);
        // The earlier try may still arrive and be granted: nobody would release that lease.
        if refused && earlier_send_may_run {
            self.spawn_release(lease, Outcome::Cancelled);
        }
        self.renewer.on_incarnation(answer.incarnation);
    }

    /// Waits for the answer, and sends the request again with the same id while its outcome is unknown.
    ///
    /// On failure, passes the error to the caller of `acquire` and returns the follow-up.
    async fn retry_until_answered<'a>(
        &'a self,
        lease: &'a LocalLease,
        mut call: SentCall,
        mut pending: PendingAnswer<'a>,
        until: Moment,
    ) -> Result<AnsweredRequest, FollowUp> {
        let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));
        let mut earlier_send_may_run = false;
        loop {
            let answer = tokio::select! {
                biased;
                answer = &mut pending => answer,
                () = self.closed() => return Err(self.give_up_request(lease, pending, Error::closed()).await),
                () = self.clock.sleep_until(until) => {
                    let error = self.request_unanswered(&lease.key().resource);
                    return Err(self.give_up_request(lease, pending, error).await);
                }
            };
            self.telemetry.record_answer(CallKind::Acquire, &answer, call.sent_at, || self.clock.now());
            let error = match answer {
                Ok(answer) => return Ok(AnsweredRequest { call, answer, earlier_send_may_run }),
                Err(error) => error,
            };
            earlier_send_may_run |= error.outcome_unknown();
            let now = self.clock.now();
            // Once a try may have been carried out, only an answer settles it: go on while the server cannot be
            // reached, though not beyond `until`.
            let worth_retrying = earlier_send_may_run && error.is_outage();
            if !worth_retrying || self.is_closed() || now >= until || lease.caller_left() {
                let error = if earlier_send_may_run { error.with_unknown_outcome() } else { error };
                return Err(lease.on_request_failed(error.about(&lease.key().resource)));
            }
            self.clock.sleep_until(now.after(backoff.pause()).min(until)).await;
            call = lease.number_call(self.clock.now());
            pending = self.backend.acquire(&lease.request);
        }
    }

    /// Fails the request for its caller now, then waits for an answer before the lease is released: up to
    /// `LATE_ANSWER_WAIT` if the ttl ends the lease, otherwise until `RELEASE_LIMIT` after `close`.
    ///
    /// A release that is sent while the request is in flight may overtake it:
    /// 1. the request is on its way  2. the release arrives by another connection and finds nothing
    /// 3. the request is carried out, and nobody releases its lease before the ttl ends it.
    ///
    /// Where the lease lasts as long as the process, nobody would release it at all.
    async fn give_up_request(&self, lease: &LocalLease, pending: PendingAnswer<'_>, error: Error) -> FollowUp {
        let follow_up = lease.on_request_failed(error.with_unknown_outcome().about(&lease.key().resource));
        tokio::select! {
            biased;
            _late = catch_panic(pending) => {}
            () = self.late_answer_limit(lease) => {}
        }
        follow_up
    }

    async fn late_answer_limit(&self, lease: &LocalLease) {
        let ends_by_ttl = lease.is_detached() || self.backend.guarantees().liveness == Liveness::Ttl;
        let limit = if ends_by_ttl {
            LATE_ANSWER_WAIT
        } else {
            self.closed().await;
            RELEASE_LIMIT
        };
        self.clock.sleep_until(self.clock.now().after(limit)).await;
    }

    fn request_unanswered(&self, resource: &Resource) -> Error {
        Error::unanswered(format!("{resource} on {}: the request was not answered in time", self.backend_kind))
    }
}
