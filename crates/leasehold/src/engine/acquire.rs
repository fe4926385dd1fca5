//! Acquires a lease: sends one request, then waits for the grant.
//!
//! The caller itself polls the task that sends the request. If the caller drops
//! the future, or the answer is slow, the task moves to the I/O thread. If the
//! caller is gone by then, whatever lease it gets is released.

use std::{
    future::{self, poll_fn},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use tokio::sync::oneshot;
use tracing::{Instrument, Span};

use super::{
    Engine, Guard, RunningTask,
    local_lease::{self, LocalLease, Next, Refusal},
    panics::{OnPanic, catch_panic},
    telemetry,
};
use crate::{
    Error, Result,
    backend::Backoff,
    lease::{
        Answer, Brief, Busy, Claim, Decision, HeldBy, Holder, LeaseId, LeaseKey, LeaseState, Lifetime, ListFilter,
        Metadata, Moment, Names, Outcome, Patience, Request, Resource, Ttl,
    },
};

/// How long `try_acquire` waits for a backend that does not answer.
pub(super) const TRY_LIMIT: Duration = Duration::from_secs(3);

/// How long to wait for the answer to an abandoned request before releasing what it may have been granted.
const LATE_ANSWER_WAIT: Duration = Duration::from_secs(1);

/// The options of one `acquire` call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AcquireOptions<'a> {
    pub(crate) resource: &'a Resource,
    pub(crate) claim: Claim,
    pub(crate) ttl: Ttl,
    pub(crate) wait: Wait,
    pub(crate) max_waiters: Option<u32>,
    pub(crate) lifetime: Lifetime,
    pub(crate) holder: &'a Holder,
    pub(crate) note: Option<&'a str>,
    pub(crate) metadata: &'a Metadata,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) backoff: Backoff,
    pub(crate) max_tries: Option<u32>,
}

/// How long to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Do not wait: return `Busy` if the resource is not free.
    No,
    /// Wait this long, then fail.
    For(Duration),
    /// Wait until the lease is granted.
    Forever,
}

/// The result of an attempt to get a lease.
///
/// Returned by [`Lock::try_acquire_or_busy`](crate::Lock::try_acquire_or_busy).
#[derive(Debug)]
pub enum Attempt {
    /// The lease is held.
    Acquired(Guard),
    /// Others hold the resource or wait for it.
    Busy(Busy),
}

impl Engine {
    /// Requests a lease and waits for it as long as the options say.
    ///
    /// # Cancel safety
    /// Dropping the future leaves no lease and no queue position behind.
    pub(crate) async fn acquire(self: &Arc<Self>, options: &AcquireOptions<'_>) -> Result<Attempt> {
        self.check_usable()?;
        let started = self.clock.now();
        let give_up_at = match options.wait {
            Wait::For(length) => started.after(length),
            Wait::No | Wait::Forever => Moment::NEVER,
        };
        let acquiring = self.telemetry.acquiring(options, &*self.clock, started);
        let span = acquiring.span();
        let acquire = Acquire { engine: self, options, started, give_up_at, span };
        let result = match span.in_scope(|| acquire.send_new_request(started)) {
            RequestProgress::Answered(Some(result)) => result,
            // Boxed, so that the future of a caller that need not wait stays small.
            RequestProgress::Answered(None) => Box::pin(acquire.try_other_ids().instrument(span.clone())).await,
            RequestProgress::Pending(pending) => Box::pin(acquire.wait(pending).instrument(span.clone())).await,
        };
        acquiring.end(&result);
        result
    }
}

/// One call of `acquire`.
struct Acquire<'a> {
    engine: &'a Arc<Engine>,
    options: &'a AcquireOptions<'a>,
    started: Moment,
    give_up_at: Moment,
    span: &'a Span,
}

/// The result of one request so far.
enum RequestProgress<'a> {
    /// The result; `None` if the lease id can no longer be used and another may be tried.
    Answered(Option<Result<Attempt>>),
    /// The request is in flight, or waits in the queue.
    Pending(UnclaimedRequest<'a>),
}

/// Why waiting for the outcome of a request ended.
enum WaitEnd {
    Outcome(local_lease::AcquireResult),
    GaveUp,
    Closed,
}

impl<'a> Acquire<'a> {
    /// Waits for the result of the first request, and of later ones under new ids.
    async fn wait(&self, first: UnclaimedRequest<'a>) -> Result<Attempt> {
        match self.finish(first).await {
            Some(result) => result,
            None => self.try_other_ids().await,
        }
    }

    /// Sends requests under new ids, since the first can no longer be used.
    async fn try_other_ids(&self) -> Result<Attempt> {
        let mut backoff = Backoff::new(Duration::from_millis(10), Duration::from_secs(1));
        loop {
            let now = self.engine.clock.now();
            if now >= self.give_up_at {
                return Err(self.wait_elapsed(Busy::default()));
            }
            self.engine.sleep_until(now.after(backoff.pause()).min(self.give_up_at)).await;
            self.engine.check_usable()?;
            let result = match self.send_new_request(self.engine.clock.now()) {
                RequestProgress::Answered(result) => result,
                RequestProgress::Pending(pending) => self.finish(pending).await,
            };
            match result {
                // The queue position is lost, but the caller's wait is not over: try again until the backend is back.
                Some(Err(error)) if error.is_outage() && self.engine.clock.now() < self.give_up_at => {}
                Some(result) => return result,
                None => {}
            }
        }
    }

    /// Sends one request under a new id, and takes the answer if it comes at once.
    fn send_new_request(&self, now: Moment) -> RequestProgress<'a> {
        let engine = self.engine;
        let (lease, sent) = LocalLease::new(self.request(), self.options, engine.pushes, now);
        let lease = Arc::new(lease);
        engine.renewer.register(&lease);
        let pending = UnclaimedRequest { engine, lease: Some(lease) };
        // Reuse `now`: an immediate answer took hardly any time.
        let now = if engine.request_at_once(pending.lease(), sent) {
            now
        } else {
            self.send_request(pending.lease(), sent);
            engine.clock.now()
        };
        match self.poll_outcome(pending.lease(), &Context::from_waker(Waker::noop()), now) {
            Poll::Ready(outcome) => RequestProgress::Answered(self.conclude(pending.take(), outcome)),
            Poll::Pending => RequestProgress::Pending(pending),
        }
    }

    /// Waits for the result of a request; `None` if its lease id can no longer be used and another may be tried.
    async fn finish(&self, pending: UnclaimedRequest<'a>) -> Option<Result<Attempt>> {
        let lease = pending.lease();
        if let Err(inherited) = poll_fn(|context| self.engine.poll_in_flight(lease, context)).await {
            return Some(Err(inherited));
        }
        let now = self.engine.clock.now();
        if let Poll::Ready(outcome) = self.poll_outcome(lease, &Context::from_waker(Waker::noop()), now) {
            return self.conclude(pending.take(), outcome);
        }
        match self.wait_for_outcome(pending.lease()).await {
            (WaitEnd::Outcome(outcome), _) => self.conclude(pending.take(), outcome),
            (WaitEnd::GaveUp, busy) => {
                pending.abandon(Outcome::GaveUp);
                Some(Err(self.wait_elapsed(busy)))
            }
            (WaitEnd::Closed, _) => Some(Err(Error::closed())),
        }
    }

    /// A request under a new id.
    fn request(&self) -> Request {
        let options = self.options;
        let key = LeaseKey::new(options.resource.clone(), LeaseId::random());
        let mut request = Request::new(key, options.claim, options.holder.clone());
        request.ttl = options.ttl;
        request.patience = if options.wait == Wait::No { Patience::Try } else { Patience::Queue };
        request.max_waiters = options.max_waiters;
        request.lifetime = options.lifetime;
        request.note = options.note.map(str::to_owned);
        request.metadata.clone_from(options.metadata);
        request
    }

    /// Sends the request on this thread.
    fn send_request(&self, lease: &Arc<LocalLease>, sent: local_lease::Sent) {
        let ttl = self.options.ttl.get();
        let limit = if self.options.wait == Wait::No { TRY_LIMIT.min(ttl) } else { ttl };
        let until = self.give_up_at.min(sent.at.after(limit));
        let engine = self.engine;
        let request = Arc::clone(engine).request(Arc::clone(lease), sent, until, engine.count_task());
        engine.start_on_caller(lease, Box::pin(request.instrument(self.span.clone())), sent.at, self.give_up_at);
    }

    fn poll_outcome(
        &self,
        lease: &Arc<LocalLease>,
        context: &Context<'_>,
        mut now: Moment,
    ) -> Poll<local_lease::AcquireResult> {
        let renewer = &self.engine.renewer;
        loop {
            if let Some((outcome, next)) = ready!(lease.poll_outcome(context, self.started, now)) {
                renewer.follow_up(lease, next, Outcome::Cancelled);
                return Poll::Ready(outcome);
            }
            renewer.renew_here(lease);
            now = self.engine.clock.now();
        }
    }

    /// Waits for the outcome, and looks up who holds the resource shortly before giving up.
    async fn wait_for_outcome(&self, lease: &Arc<LocalLease>) -> (WaitEnd, Busy) {
        let engine = self.engine;
        let _waiting = engine.telemetry.waiting(self.options.claim.mode());
        let max_tries = self.options.max_tries.filter(|_| !engine.pushes).unwrap_or(u32::MAX);
        let mut holders = None;
        // Sleep until it is time to look up the holders, then until `give_up_at`.
        let mut wake_at = match self.options.wait {
            Wait::For(length) => self.give_up_at.before((length / 2).min(Duration::from_secs(1))),
            Wait::No | Wait::Forever => Moment::NEVER,
        };
        loop {
            let outcome = poll_fn(|context| match self.poll_outcome(lease, context, engine.clock.now()) {
                Poll::Ready(outcome) => Poll::Ready(WaitEnd::Outcome(outcome)),
                Poll::Pending if lease.tries() >= max_tries => Poll::Ready(WaitEnd::GaveUp),
                Poll::Pending => Poll::Pending,
            });
            let end = tokio::select! {
                biased;
                end = outcome => end,
                () = engine.closed() => WaitEnd::Closed,
                () = engine.sleep_until(wake_at), if wake_at != Moment::NEVER => {
                    let time_is_left = engine.clock.now() < self.give_up_at;
                    if time_is_left && holders.is_none() && lease.tries() < max_tries {
                        holders = Some(engine.spawn_find_holders(self.options.resource));
                        wake_at = self.give_up_at;
                        continue;
                    }
                    WaitEnd::GaveUp
                }
            };
            let busy = match (&end, holders.as_mut()) {
                (WaitEnd::GaveUp, Some(found)) => found.try_recv().unwrap_or_default(),
                (WaitEnd::GaveUp, None) => self.find_holders_until_give_up().await,
                _ => Busy::default(),
            };
            return (end, busy);
        }
    }

    /// Turns the outcome of a request into the result of the call; `None` if another lease id may be tried.
    fn conclude(&self, lease: Arc<LocalLease>, outcome: local_lease::AcquireResult) -> Option<Result<Attempt>> {
        let (engine, options) = (self.engine, self.options);
        let refusal = match outcome {
            local_lease::AcquireResult::Held => {
                let guard = Guard::new(Arc::clone(engine), lease);
                if engine.is_closed() {
                    guard.abandon(Outcome::Cancelled);
                    return Some(Err(Error::closed()));
                }
                return Some(Ok(Attempt::Acquired(guard)));
            }
            local_lease::AcquireResult::Refused(refusal) => refusal,
        };
        match refusal {
            Refusal::Busy(busy) => Some(Ok(Attempt::Busy(busy))),
            Refusal::WrongShape(in_force) => {
                let (resource, asked) = (options.resource, options.claim.shape());
                Some(Err(Error::wrong_shape(resource, engine.kind, asked, in_force)))
            }
            Refusal::Failed(error) => Some(Err(error)),
            Refusal::Gone if options.wait == Wait::No => Some(Err(Error::unanswered(format!(
                "{} on {}: the lease was gone before the answer arrived",
                options.resource, engine.kind
            ))
            .about(options.resource))),
            Refusal::Gone => None,
        }
    }

    fn wait_elapsed(&self, busy: Busy) -> Error {
        let waited = self.engine.clock.now().since(self.started);
        Error::wait_elapsed(self.options.resource, self.engine.kind, Brief(waited), busy)
    }

    /// Looks up who holds the resource, for a second at most and not beyond `give_up_at`.
    async fn find_holders_until_give_up(&self) -> Busy {
        let limit = self.engine.clock.now().after(Duration::from_secs(1)).min(self.give_up_at);
        tokio::select! {
            biased;
            found = self.engine.spawn_find_holders(self.options.resource) => found.unwrap_or_default(),
            () = self.engine.sleep_until(limit) => Busy::default(),
        }
    }
}

/// A request whose result the caller has not taken yet; dropping it releases what was granted.
struct UnclaimedRequest<'a> {
    engine: &'a Arc<Engine>,
    /// `None` once the caller has taken the result.
    lease: Option<Arc<LocalLease>>,
}

impl UnclaimedRequest<'_> {
    fn lease(&self) -> &Arc<LocalLease> {
        self.lease.as_ref().expect("a request has its lease until its outcome is taken")
    }

    /// The caller takes the result.
    fn take(mut self) -> Arc<LocalLease> {
        self.lease.take().expect("a request has its lease until its outcome is taken")
    }

    /// Gives up the request; history records `outcome`.
    fn abandon(mut self, outcome: Outcome) {
        self.abandon_inner(outcome);
    }

    fn abandon_inner(&mut self, outcome: Outcome) {
        if let Some(lease) = self.lease.take()
            && !self.engine.is_inherited()
        {
            self.engine.renewer.follow_up(&lease, lease.on_caller_left(), outcome);
            self.engine.renewer.take_over(&lease);
        }
    }
}

impl Drop for UnclaimedRequest<'_> {
    fn drop(&mut self) {
        self.abandon_inner(Outcome::Cancelled);
    }
}

/// The answer to a request.
struct AnsweredRequest {
    sent: local_lease::Sent,
    answer: Answer<Decision>,
    /// An earlier try of the same request was not answered and may still be carried out.
    earlier_try_may_run: bool,
}

type AcquireCall<'a> = Pin<Box<dyn Future<Output = Result<Answer<Decision>>> + Send + 'a>>;

impl Engine {
    /// Sends the request if the backend answers without waiting; returns false otherwise.
    fn request_at_once(self: &Arc<Self>, lease: &Arc<LocalLease>, sent: local_lease::Sent) -> bool {
        let panicked = OnPanic::new(|| self.on_request_panic(lease));
        let answer = self.backend.acquire_at_once(&lease.request);
        let is_answered = answer.is_some();
        if let Some(answer) = answer {
            self.on_answer_at_once(lease, sent, answer);
        }
        panicked.disarm();
        is_answered
    }

    fn on_answer_at_once(self: &Arc<Self>, lease: &Arc<LocalLease>, sent: local_lease::Sent, answer: Answer<Decision>) {
        self.telemetry.answered(telemetry::CallKind::Acquire, &Ok(()), sent.at, || self.clock.now());
        self.on_answer(lease, AnsweredRequest { sent, answer, earlier_try_may_run: false }, sent.at);
    }

    /// Sends the request until it is answered, and acts on the answer.
    ///
    /// Has no timeout while the caller polls it: the renewer moves a slow request to the I/O thread, where the timeout
    /// applies.
    async fn request(
        self: Arc<Self>,
        lease: Arc<LocalLease>,
        sent: local_lease::Sent,
        until: Moment,
        _running: RunningTask,
    ) {
        let panicked = OnPanic::new(|| self.on_request_panic(&lease));
        self.send_until_answered(&lease, sent, until).await;
        panicked.disarm();
    }

    /// Fails a request whose task panicked, and releases what it may have been granted.
    fn on_request_panic(&self, lease: &Arc<LocalLease>) {
        let next = lease.on_request_failed(self.unanswered(&lease.key().resource));
        self.renewer.follow_up(lease, next, Outcome::Cancelled);
    }

    async fn send_until_answered(self: &Arc<Self>, lease: &Arc<LocalLease>, sent: local_lease::Sent, until: Moment) {
        let mut call = self.backend.acquire(&lease.request);
        let first = poll_fn(|context| match call.as_mut().poll(context) {
            Poll::Pending if lease.call_in_flight.is_polled_by_caller() => Poll::Pending,
            first => Poll::Ready(first),
        });
        let first = first.await;
        if let Poll::Ready(answer @ Ok(_)) = &first {
            self.telemetry.answered(telemetry::CallKind::Acquire, answer, sent.at, || self.clock.now());
        }
        let call: AcquireCall<'_> = match first {
            Poll::Ready(Ok(answer)) => {
                drop(call);
                let answered = AnsweredRequest { sent, answer, earlier_try_may_run: false };
                return self.on_answer(lease, answered, self.clock.now());
            }
            Poll::Ready(Err(error)) => Box::pin(future::ready(Err(error))),
            Poll::Pending => call,
        };
        // Boxed, so that the usual task stays small.
        match Box::pin(self.request_until_answered(lease, sent, call, until)).await {
            Ok(answered) => self.on_answer(lease, answered, self.clock.now()),
            Err(next) => self.renewer.follow_up(lease, next, Outcome::Cancelled),
        }
    }

    fn on_answer(self: &Arc<Self>, lease: &Arc<LocalLease>, answered: AnsweredRequest, now: Moment) {
        let AnsweredRequest { sent, answer, earlier_try_may_run } = answered;
        if let Decision::Queued(position) = &answer.value {
            telemetry::queued(position);
        }
        let refused = matches!(answer.value, Decision::Busy(_) | Decision::WrongShape { .. });
        let next = lease.on_decision(answer.value, sent, answer.belief, now);
        self.renewer.follow_up(lease, next, Outcome::Cancelled);
        if refused && earlier_try_may_run {
            self.spawn_release(lease, Outcome::Cancelled);
        }
        self.renewer.on_incarnation(answer.incarnation);
    }

    /// Waits for the answer, and sends the request again with the same id while its outcome is unknown.
    ///
    /// On failure, passes the error to the caller of `acquire` and returns the follow-up.
    async fn request_until_answered<'a>(
        &'a self,
        lease: &'a LocalLease,
        mut sent: local_lease::Sent,
        mut call: AcquireCall<'a>,
        until: Moment,
    ) -> Result<AnsweredRequest, Next> {
        let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));
        let mut earlier_try_may_run = false;
        loop {
            let answer = tokio::select! {
                biased;
                answer = &mut call => answer,
                () = self.closed() => return Err(self.give_up_request(lease, call, Error::closed()).await),
                () = self.clock.sleep_until(until) => {
                    let error = self.unanswered(&lease.key().resource);
                    return Err(self.give_up_request(lease, call, error).await);
                }
            };
            self.telemetry.answered(telemetry::CallKind::Acquire, &answer, sent.at, || self.clock.now());
            let error = match answer {
                Ok(answer) => return Ok(AnsweredRequest { sent, answer, earlier_try_may_run }),
                Err(error) => error,
            };
            earlier_try_may_run |= error.outcome_unknown();
            let now = self.clock.now();
            // The server may have restarted before it answered: retry, though not beyond `until`.
            let worth_retrying = earlier_try_may_run && error.is_outage();
            if !worth_retrying || self.is_closed() || now >= until || lease.caller_left() {
                let error = if earlier_try_may_run { error.maybe_done() } else { error };
                return Err(lease.on_request_failed(error.about(&lease.key().resource)));
            }
            self.clock.sleep_until(now.after(backoff.pause()).min(until)).await;
            sent = lease.number_call(self.clock.now());
            call = self.backend.acquire(&lease.request);
        }
    }

    /// Fails the request for its caller now, then waits up to `LATE_ANSWER_WAIT` for an answer before the lease is
    /// released.
    ///
    /// A release that is sent while the request is in flight may overtake it:
    /// 1. the request is on its way  2. the release arrives by another connection and finds nothing
    /// 3. the request is carried out, and nobody releases its lease before the ttl ends it.
    async fn give_up_request(&self, lease: &LocalLease, call: AcquireCall<'_>, error: Error) -> Next {
        let next = lease.on_request_failed(error.maybe_done().about(&lease.key().resource));
        tokio::select! {
            biased;
            _late = catch_panic(call) => {}
            () = self.clock.sleep_until(self.clock.now().after(LATE_ANSWER_WAIT)) => {}
        }
        next
    }

    fn unanswered(&self, resource: &Resource) -> Error {
        Error::unanswered(format!("{resource} on {}: the request was not answered in time", self.kind))
    }

    /// Starts to look up who holds the resource.
    pub(crate) fn spawn_find_holders(self: &Arc<Self>, resource: &Resource) -> oneshot::Receiver<Busy> {
        let (found, holders) = oneshot::channel();
        let (engine, resource) = (Arc::clone(self), resource.clone());
        self.threads.io.spawn(async move {
            let _caller_left = found.send(engine.find_holders(resource).await);
        });
        holders
    }

    /// Looks up who holds the resource and how many wait; returns an empty `Busy` if the backend cannot say.
    async fn find_holders(&self, resource: Resource) -> Busy {
        let page = self.backend.list(&ListFilter::new(Names::Exactly(resource))).await.unwrap_or_default();
        let mut busy = Busy::default();
        for record in page.leases {
            match record.state {
                LeaseState::Holding { fence, held_for, .. } => {
                    let mut holder = HeldBy::new(record.holder, record.claim.mode(), fence, held_for);
                    holder.note = record.note;
                    busy.holders.push(holder);
                }
                LeaseState::Waiting { .. } => busy.waiting += 1,
            }
        }
        busy
    }
}
