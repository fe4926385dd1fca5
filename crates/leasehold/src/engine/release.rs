//! Releases leases, and tries again until the backend has answered or the lease has ended by itself.

use std::{
    future::poll_fn,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    task::{Poll, ready},
    time::Duration,
};

use tokio::sync::oneshot;
use tracing::{Instrument, Span};

use super::{
    Engine,
    local_lease::{FollowUp, LocalLease},
    panics::{OnPanic, catch_panic},
    telemetry::CallKind,
    validity::Loss,
};
use crate::{
    Error, Result,
    backend::{Backoff, Liveness},
    lease::{Answer, Moment, Outcome, Released, Resource},
};

/// How long one try may take, and how long tries go on once the instance is
/// closed: long enough for a slow server, short enough for a process that wants to exit.
pub(super) const RELEASE_LIMIT: Duration = Duration::from_secs(3);

/// Who polls the first try of a release.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PolledBy {
    /// The caller, without a timeout: the renewer moves a slow release to the I/O thread.
    Caller,
    IoThread,
}

impl Engine {
    /// Ends the lease in this process, then releases it at the backend and waits for the first answer.
    pub(crate) async fn release(self: &Arc<Self>, local: &Arc<LocalLease>, outcome: Outcome) -> Result<Released> {
        self.check_not_inherited()?;
        let now = self.clock.now();
        if !self.end_locally(local, now) {
            return Ok(Released::Gone);
        }
        if let Some(released) = self.release_at_once(local, &outcome, now) {
            return Ok(released);
        }
        let (release, running) = (self.release_task(local, outcome, now, PolledBy::Caller), self.count_task());
        let (engine, released_local) = (Arc::clone(self), Arc::clone(local));
        if local.is_detached() {
            // The renewer takes over a slow release, and a detached lease left its schedule when it was granted.
            self.renewer.register(local);
        }
        let task = async move {
            let on_released = |released| {
                engine.renewer.follow_up(&released_local, FollowUp::Forget);
                released_local.on_released(released);
            };
            let on_panic = OnPanic::new(|| on_released(Err(release_panicked(&released_local))));
            let released = release.await;
            on_panic.disarm();
            on_released(released);
            drop(running);
        };
        self.start_on_caller(local, Box::pin(task), now, Moment::NEVER);
        let in_flight = PolledRelease { engine: self, local };
        poll_fn(|context| {
            ready!(self.poll_in_flight(in_flight.local, context))?;
            in_flight.local.poll_released(context)
        })
        .await
    }

    /// Like `release`, but does not wait for the answer; for a dropped guard.
    pub(crate) fn release_in_background(self: &Arc<Self>, local: &Arc<LocalLease>, outcome: Outcome) {
        let now = self.clock.now();
        if self.end_locally(local, now) && self.release_at_once(local, &outcome, now).is_none() {
            self.renewer.follow_up(local, FollowUp::Forget);
            let release = self.release_task(local, outcome, now, PolledBy::IoThread);
            self.spawn(Box::pin(async move { drop(release.await) }));
        }
    }

    /// Releases all leases of this instance together; returns how many the backend freed.
    pub(crate) async fn release_all(self: &Arc<Self>) -> Result<usize> {
        self.check_not_inherited()?;
        let now = self.clock.now();
        let mut held = self.renewer.held();
        held.retain(|local| self.end_locally(local, now));
        let start_release = |local| {
            self.renewer.follow_up(local, FollowUp::Forget);
            self.spawn_with_reply(self.release_task(local, Outcome::Completed, now, PolledBy::IoThread))
        };
        let answers: Vec<_> = held.iter().map(start_release).collect();
        let (mut released, mut failure) = (0, None);
        for answer in answers {
            match answer
                .await
                .unwrap_or_else(|_panicked| Err(Error::unanswered("the backend panicked during a release")))
            {
                Ok(Released::Freed) => released += 1,
                Ok(_) => {}
                Err(error) => failure = Some(error),
            }
        }
        failure.map_or(Ok(released), Err)
    }

    /// Ends the lease in this process. Returns true if it was still held: the caller must then release it at the
    /// backend and remove it from the renewer.
    fn end_locally(&self, local: &Arc<LocalLease>, now: Moment) -> bool {
        let follow_up = local.on_release(now);
        if follow_up == FollowUp::Release && local.validity.loss() == Some(Loss::Released) {
            return true;
        }
        self.renewer.follow_up_as(local, follow_up, Outcome::Completed);
        false
    }

    /// Releases on this thread if the backend answers without waiting; returns `None` otherwise.
    fn release_at_once(self: &Arc<Self>, local: &Arc<LocalLease>, outcome: &Outcome, now: Moment) -> Option<Released> {
        let span = self.telemetry.release_span(local);
        let _within = span.enter();
        let on_panic = OnPanic::new(|| {
            self.renewer.follow_up(local, FollowUp::Forget);
            self.on_release_panic(&span, local, outcome, now);
        });
        let answer = self.backend.release_at_once(local.key(), outcome);
        on_panic.disarm();
        let released = Ok(answer?.value);
        record_if_too_late(local, &released);
        self.renewer.follow_up(local, FollowUp::Forget);
        self.telemetry.record_answer(CallKind::Release, &released, now, || self.clock.now());
        self.telemetry.record_release(&span, local, outcome, &released, now);
        released.ok()
    }

    /// Releases a lease at the backend, and retries in the background if that fails.
    fn release_task(
        self: &Arc<Self>,
        local: &Arc<LocalLease>,
        outcome: Outcome,
        ended_at: Moment,
        polled_by: PolledBy,
    ) -> impl Future<Output = Result<Released>> + Send + use<> {
        let (engine, local) = (Arc::clone(self), Arc::clone(local));
        let span = self.telemetry.release_span(&local);
        let within = span.clone();
        let task = async move {
            let on_panic = OnPanic::new(|| engine.on_release_panic(&span, &local, &outcome, ended_at));
            let first = engine.release_once(&local, &outcome, ended_at, polled_by).await;
            on_panic.disarm();
            record_if_too_late(&local, &first);
            if first.is_err() {
                engine.spawn_release(&local, outcome.clone());
            }
            engine.telemetry.record_release(&span, &local, &outcome, &first, ended_at);
            first
        };
        task.instrument(within)
    }

    /// Retries a panicked release in the background, and reports it. The tracing subscriber that gets the report may
    /// be what panicked: a second panic would abort the process.
    fn on_release_panic(self: &Arc<Self>, span: &Span, local: &Arc<LocalLease>, outcome: &Outcome, ended_at: Moment) {
        self.spawn_release(local, outcome.clone());
        let report = || self.telemetry.record_release(span, local, outcome, &Err(release_panicked(local)), ended_at);
        let _panicked_again = catch_unwind(AssertUnwindSafe(report));
    }

    /// Runs the release on the I/O thread and sends its result to the receiver.
    fn spawn_with_reply(
        self: &Arc<Self>,
        release: impl Future<Output = Result<Released>> + Send + 'static,
    ) -> oneshot::Receiver<Result<Released>> {
        let (done, answer) = oneshot::channel();
        self.spawn(Box::pin(async move {
            let _caller_left = done.send(release.await);
        }));
        answer
    }

    /// Runs `release_until_done` on the I/O thread; nobody awaits the answer.
    pub(crate) fn spawn_release(self: &Arc<Self>, local: &Arc<LocalLease>, outcome: Outcome) {
        let (engine, local) = (Arc::clone(self), Arc::clone(local));
        self.spawn(Box::pin(async move { engine.release_until_done(&local, &outcome).await }));
    }

    async fn release_once(
        &self,
        local: &LocalLease,
        outcome: &Outcome,
        sent_at: Moment,
        polled_by: PolledBy,
    ) -> Result<Released> {
        let mut call = self.backend.release(local.key(), outcome);
        // `Ready(Pending)`: the call has moved to the I/O thread or began there, and the timeout applies from here.
        let first = poll_fn(|context| match call.as_mut().poll(context) {
            Poll::Pending if polled_by == PolledBy::Caller && local.call_in_flight.is_polled_by_caller() => {
                Poll::Pending
            }
            first => Poll::Ready(first),
        });
        let answer = match first.await {
            Poll::Ready(answer) => answer,
            // Boxed, so that the usual task stays small.
            Poll::Pending => Box::pin(self.with_timeout(call, &local.key().resource)).await,
        };
        self.telemetry.record_answer(CallKind::Release, &answer, sent_at, || self.clock.now());
        answer.map(|answer| answer.value)
    }

    async fn with_timeout(
        &self,
        call: impl Future<Output = Result<Answer<Released>>>,
        resource: &Resource,
    ) -> Result<Answer<Released>> {
        tokio::select! {
            biased;
            answer = call => answer,
            () = self.clock.sleep_until(self.clock.now().after(RELEASE_LIMIT)) => {
                let message = format!("the release of {resource} was not answered within {RELEASE_LIMIT:?}");
                Err(Error::unanswered(message).about(resource))
            }
        }
    }

    /// Retries until the backend answers, retrying is useless, the lease has ended, or `RELEASE_LIMIT` has passed since
    /// `close`.
    async fn release_until_done(&self, local: &LocalLease, outcome: &Outcome) {
        // A lease that no clock ends is released without a time limit: it would otherwise stay as long as this process
        // or its connection lives.
        let by_clock = local.is_detached() || self.backend.guarantees().liveness == Liveness::Ttl;
        let until = if by_clock { self.clock.now().after(local.ttl().get()) } else { Moment::NEVER };
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));
        loop {
            let sent_at = self.clock.now();
            let Err(error) = catch_panic(self.release_once(local, outcome, sent_at, PolledBy::IoThread)).await else {
                return;
            };
            let now = self.clock.now();
            // A lease that no clock ends is retried even then.
            let refused = by_clock && !error.is_retryable();
            let closed_long_ago = self.closed_for(now).is_some_and(|closed_for| closed_for >= RELEASE_LIMIT);
            if refused || now >= until || closed_long_ago {
                tracing::warn!(target: "leasehold::release", resource = %local.key().resource, error = format_args!("{error:#}"), "could not release");
                return;
            }
            self.clock.sleep_until(now.after(backoff.pause())).await;
        }
    }
}

fn release_panicked(local: &LocalLease) -> Error {
    let resource = &local.key().resource;
    Error::unanswered(format!("the backend panicked during the release of {resource}")).about(resource)
}

/// Records that the backend no longer knew the lease, so that later errors say so. For the first answer only: if that
/// is lost, a later `Gone` may mean that the first release has succeeded.
fn record_if_too_late(local: &LocalLease, first: &Result<Released>) {
    if matches!(first, Ok(Released::Gone)) {
        local.mark_released_too_late();
    }
}

/// A release that its caller polls; if the caller drops it, the I/O thread finishes it.
struct PolledRelease<'a> {
    engine: &'a Arc<Engine>,
    local: &'a Arc<LocalLease>,
}

impl Drop for PolledRelease<'_> {
    fn drop(&mut self) {
        if !self.engine.is_inherited() {
            self.engine.renewer.take_over(self.local);
        }
    }
}
