//! Acquires a lease: sends a request, then waits for the grant.
//!
//! The caller itself polls the task that sends the request (`send_request.rs`).
//! If the caller drops the future, or the answer is slow, the task moves to the
//! I/O thread. If the caller is gone by then, whatever lease it gets is released.
//!
//! A call sends requests under one lease id after another, until it has an [`Attempt`].
//! Each request is pending or has ended (`RequestProgress`, `RequestEnd`). At each poll,
//! the lease says what its caller does next (`CallerStep`). The wait for a grant also ends
//! if the caller gives up or the instance is closed (`WaitEnd`).

use std::{
    future::poll_fn,
    sync::Arc,
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use tracing::{Instrument, Span};

use super::{
    Engine, Guard,
    local_lease::{CallerStep, LocalLease, Refusal, RequestResult, SentCall},
};
use crate::{
    Error, Result,
    backend::Backoff,
    lease::{
        Brief, Busy, Claim, Holder, LeaseId, LeaseKey, Lifetime, Metadata, Moment, Outcome, Patience, Request,
        Resource, Ttl,
    },
};

/// How long `try_acquire` waits for a backend that does not answer.
pub(super) const TRY_LIMIT: Duration = Duration::from_secs(3);

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
    /// The pauses between renewals that ask for the grant, on a backend that does not push it; unused on others.
    pub(crate) backoff: Backoff,
    /// On such a backend, the caller gives up after this many answers that say 'waiting'; ignored on others.
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
        let report = self.telemetry.start_acquire(options, &*self.clock, started);
        let span = report.span();
        let acquire = Acquire { engine: self, options, started, give_up_at, span };
        let result = match span.in_scope(|| acquire.send_new_request(started)) {
            RequestProgress::Ended(RequestEnd::Done(result)) => result,
            // Boxed, so that the future of a caller that need not wait stays small.
            RequestProgress::Ended(RequestEnd::RetryWithNewId) => {
                Box::pin(acquire.try_other_ids().instrument(span.clone())).await
            }
            RequestProgress::Pending(pending) => {
                Box::pin(acquire.wait_then_try_other_ids(pending).instrument(span.clone())).await
            }
        };
        report.end(&result);
        result
    }
}

/// One call of `acquire`.
struct Acquire<'a> {
    engine: &'a Arc<Engine>,
    options: &'a AcquireOptions<'a>,
    started: Moment,
    /// When the time to wait runs out; `NEVER` if the options set none.
    give_up_at: Moment,
    span: &'a Span,
}

/// How far one request has come.
enum RequestProgress<'a> {
    Ended(RequestEnd),
    /// The request is in flight, or waits in the queue.
    Pending(PendingRequest<'a>),
}

/// How one request ended.
enum RequestEnd {
    /// This is the result of the call.
    Done(Result<Attempt>),
    /// The lease of this id has ended, so another id may be tried. An id whose lease has ended is never requested again
    /// (see `LeaseId`); an unanswered request is repeated with the same id instead.
    RetryWithNewId,
}

/// Why the wait for a grant ended.
enum WaitEnd {
    Result(RequestResult),
    GaveUp,
    Closed,
}

impl<'a> Acquire<'a> {
    /// Waits for the result of the first request, and of later ones under new ids.
    async fn wait_then_try_other_ids(&self, first: PendingRequest<'a>) -> Result<Attempt> {
        match self.wait_for_request(first).await {
            RequestEnd::Done(result) => result,
            RequestEnd::RetryWithNewId => self.try_other_ids().await,
        }
    }

    /// Sends requests under new ids, since the lease of the first id has ended.
    async fn try_other_ids(&self) -> Result<Attempt> {
        let mut backoff = Backoff::new(Duration::from_millis(10), Duration::from_secs(1));
        loop {
            let now = self.engine.clock.now();
            if now >= self.give_up_at {
                return Err(self.wait_elapsed(Busy::default()));
            }
            self.engine.sleep_until(now.after(backoff.pause()).min(self.give_up_at)).await;
            self.engine.check_usable()?;
            let end = match self.send_new_request(self.engine.clock.now()) {
                RequestProgress::Ended(end) => end,
                RequestProgress::Pending(pending) => self.wait_for_request(pending).await,
            };
            match end {
                // An outage of the first request is reported to the caller; after a lost position it is not, since the
                // caller still waits: try again until the backend is back.
                RequestEnd::Done(Err(error)) if error.is_outage() && self.engine.clock.now() < self.give_up_at => {}
                RequestEnd::Done(result) => return result,
                RequestEnd::RetryWithNewId => {}
            }
        }
    }

    /// Sends one request under a new id, and takes the answer if it comes at once.
    fn send_new_request(&self, now: Moment) -> RequestProgress<'a> {
        let engine = self.engine;
        let (lease, call) = LocalLease::new(self.build_request(), self.options, engine.pushes, now);
        let lease = Arc::new(lease);
        engine.renewer.register(&lease);
        let pending = PendingRequest { engine, lease: Some(lease) };
        // Reuse `now`: an immediate answer took hardly any time.
        let now = if engine.request_at_once(pending.lease(), call) {
            now
        } else {
            self.start_request_task(pending.lease(), call);
            engine.clock.now()
        };
        match self.poll_result(pending.lease(), &Context::from_waker(Waker::noop()), now) {
            Poll::Ready(result) => RequestProgress::Ended(self.conclude(pending.take(), result)),
            Poll::Pending => RequestProgress::Pending(pending),
        }
    }

    /// Waits until the request ends, or until the caller gives up.
    async fn wait_for_request(&self, pending: PendingRequest<'a>) -> RequestEnd {
        let lease = pending.lease();
        if let Err(inherited) = poll_fn(|context| self.engine.poll_in_flight(lease, context)).await {
            return RequestEnd::Done(Err(inherited));
        }
        // If it has been answered, the caller need not be counted as a waiter.
        let now = self.engine.clock.now();
        if let Poll::Ready(result) = self.poll_result(lease, &Context::from_waker(Waker::noop()), now) {
            return self.conclude(pending.take(), result);
        }
        match self.wait_for_grant(pending.lease()).await {
            (WaitEnd::Result(result), _) => self.conclude(pending.take(), result),
            (WaitEnd::GaveUp, busy) => {
                pending.abandon(Outcome::GaveUp);
                RequestEnd::Done(Err(self.wait_elapsed(busy)))
            }
            (WaitEnd::Closed, _) => RequestEnd::Done(Err(Error::closed())),
        }
    }

    /// Builds a request under a new id.
    fn build_request(&self) -> Request {
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

    /// Starts the task that sends the request, and polls it once on this thread.
    fn start_request_task(&self, lease: &Arc<LocalLease>, call: SentCall) {
        let ttl = self.options.ttl.get();
        let limit = if self.options.wait == Wait::No { TRY_LIMIT.min(ttl) } else { ttl };
        let answer_by = self.give_up_at.min(call.sent_at.after(limit));
        let engine = self.engine;
        let task = Arc::clone(engine).run_request(Arc::clone(lease), call, answer_by, engine.count_task());
        engine.start_on_caller(lease, Box::pin(task.instrument(self.span.clone())), call.sent_at, self.give_up_at);
    }

    /// Polls for the result of the request, and confirms a provisional grant.
    fn poll_result(&self, lease: &Arc<LocalLease>, context: &Context<'_>, mut now: Moment) -> Poll<RequestResult> {
        let renewer = &self.engine.renewer;
        loop {
            match ready!(lease.poll_result(context, self.started, now)) {
                CallerStep::Finish(result, follow_up) => {
                    renewer.follow_up(lease, follow_up);
                    return Poll::Ready(result);
                }
                CallerStep::ConfirmGrant => renewer.renew_on_this_thread(lease),
            }
            now = self.engine.clock.now();
        }
    }

    /// Waits for the grant, and looks up who holds the resource shortly before giving up.
    async fn wait_for_grant(&self, lease: &Arc<LocalLease>) -> (WaitEnd, Busy) {
        let engine = self.engine;
        let _counted = engine.telemetry.count_waiter(self.options.claim.mode());
        let max_tries = self.options.max_tries.filter(|_| !engine.pushes).unwrap_or(u32::MAX);
        let mut holders = None;
        // Sleep until it is time to look up the holders, then until `give_up_at`.
        let mut wake_at = match self.options.wait {
            Wait::For(length) => self.give_up_at.before((length / 2).min(Duration::from_secs(1))),
            Wait::No | Wait::Forever => Moment::NEVER,
        };
        loop {
            let result = poll_fn(|context| match self.poll_result(lease, context, engine.clock.now()) {
                Poll::Ready(result) => Poll::Ready(WaitEnd::Result(result)),
                Poll::Pending if lease.waiting_answers() >= max_tries => Poll::Ready(WaitEnd::GaveUp),
                Poll::Pending => Poll::Pending,
            });
            let end = tokio::select! {
                biased;
                end = result => end,
                () = engine.closed() => WaitEnd::Closed,
                () = engine.sleep_until(wake_at), if wake_at != Moment::NEVER => {
                    let time_is_left = engine.clock.now() < self.give_up_at;
                    // An answer may have come since the poll above.
                    if time_is_left && holders.is_none() && lease.waiting_answers() < max_tries {
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

    /// Turns the result of a request into the result of the call, unless another lease id may be tried.
    fn conclude(&self, lease: Arc<LocalLease>, result: RequestResult) -> RequestEnd {
        let (engine, options) = (self.engine, self.options);
        let refusal = match result {
            RequestResult::Held => {
                let guard = Guard::new(Arc::clone(engine), lease);
                if engine.is_closed() {
                    guard.abandon(Outcome::Cancelled);
                    return RequestEnd::Done(Err(Error::closed()));
                }
                return RequestEnd::Done(Ok(Attempt::Acquired(guard)));
            }
            RequestResult::Refused(refusal) => refusal,
        };
        match refusal {
            Refusal::Busy(busy) => RequestEnd::Done(Ok(Attempt::Busy(busy))),
            Refusal::WrongShape(in_force) => {
                let (resource, asked) = (options.resource, options.claim.shape());
                RequestEnd::Done(Err(Error::wrong_shape(resource, engine.backend_kind, asked, in_force)))
            }
            Refusal::Failed(error) => RequestEnd::Done(Err(error)),
            Refusal::Gone if options.wait == Wait::No => RequestEnd::Done(Err(Error::unanswered(format!(
                "{} on {}: the lease was gone before the answer arrived",
                options.resource, engine.backend_kind
            ))
            .about(options.resource))),
            Refusal::Gone => RequestEnd::RetryWithNewId,
        }
    }

    fn wait_elapsed(&self, busy: Busy) -> Error {
        let waited = self.engine.clock.now().since(self.started);
        Error::wait_elapsed(self.options.resource, self.engine.backend_kind, Brief(waited), busy)
    }

    /// Looks up who holds the resource, for a second at most and not beyond `give_up_at`.
    async fn find_holders_until_give_up(&self) -> Busy {
        let answer_by = self.engine.clock.now().after(Duration::from_secs(1)).min(self.give_up_at);
        tokio::select! {
            biased;
            found = self.engine.spawn_find_holders(self.options.resource) => found.unwrap_or_default(),
            () = self.engine.sleep_until(answer_by) => Busy::default(),
        }
    }
}

/// A request whose result the caller has not taken yet; dropping it releases what was granted.
struct PendingRequest<'a> {
    engine: &'a Arc<Engine>,
    /// `None` once the caller has taken the result.
    lease: Option<Arc<LocalLease>>,
}

impl PendingRequest<'_> {
    fn lease(&self) -> &Arc<LocalLease> {
        self.lease.as_ref().expect("a request has its lease until its result is taken")
    }

    /// The caller takes the result.
    fn take(mut self) -> Arc<LocalLease> {
        self.lease.take().expect("a request has its lease until its result is taken")
    }

    /// Gives up the request; history records `outcome`.
    fn abandon(mut self, outcome: Outcome) {
        self.abandon_inner(outcome);
    }

    fn abandon_inner(&mut self, outcome: Outcome) {
        if let Some(lease) = self.lease.take()
            && !self.engine.is_inherited()
        {
            self.engine.renewer.follow_up_as(&lease, lease.on_caller_left(), outcome);
            self.engine.renewer.take_over(&lease);
        }
    }
}

impl Drop for PendingRequest<'_> {
    fn drop(&mut self) {
        self.abandon_inner(Outcome::Cancelled);
    }
}
