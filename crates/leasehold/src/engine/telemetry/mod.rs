//! What the engine reports to `tracing` and, with the feature `metrics`, to the `metrics` facade.
//!
//! Without a subscriber or a recorder nothing is allocated or formatted here.
//! The timer's thread reports nothing: a subscriber may block.

mod acquire;
mod hold;
#[cfg_attr(not(feature = "metrics"), path = "no_metrics.rs")]
mod metrics;

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use tracing::{Level, Span, field::Empty};

pub(crate) use self::hold::HoldReport;
use self::metrics::Meters;
use crate::{
    Error, Result,
    engine::{LeaseHealth, LocalLease, Loss},
    lease::{Evicted, Mode, Moment, Outcome, QueuePosition, Released, Resource, Standing},
};

/// One successful renewal in this many gets a span.
const RENEWALS_PER_SPAN: u32 = 20;

/// Reports what one instance does to `tracing` and `metrics`.
#[derive(Clone, Debug)]
pub(crate) struct Telemetry {
    backend: &'static str,
    meters: Meters,
}

/// The metrics, each with its labels in [`metrics::SERIES`].
#[derive(Clone, Copy, Debug)]
enum Series {
    Acquire,
    AcquireWait,
    Hold,
    Lost,
    Renew,
    RenewSlack,
    Release,
    Evict,
    Held,
    Waiters,
    Leader,
    LeaderTransitions,
    Request,
}

/// A kind of call to the backend.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CallKind {
    Acquire,
    Renew,
    Release,
    Read,
    Watch,
    Evict,
}

impl CallKind {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Acquire => "acquire",
            Self::Renew => "renew",
            Self::Release => "release",
            Self::Read => "read",
            Self::Watch => "watch",
            Self::Evict => "evict",
        }
    }
}

impl Telemetry {
    pub(crate) fn new(backend: &'static str) -> Self {
        Self { backend, meters: Meters::new(backend) }
    }

    /// Records the answer to a call that was sent at `sent_at`, or the failure of that call.
    pub(crate) fn record_answer<T>(
        &self,
        call: CallKind,
        answer: &Result<T>,
        sent_at: Moment,
        now: impl FnOnce() -> Moment,
    ) {
        if metrics::ENABLED {
            let outcome = if answer.is_ok() { "ok" } else { "error" };
            self.meters.observe(Series::Request, &[call.as_str(), outcome], now().since(sent_at));
        }
    }

    /// Counts a caller that waits for its turn, or for an answer, until the value is dropped.
    pub(crate) fn count_waiter(&self, mode: Mode) -> CountedWaiter<'_> {
        self.meters.add(Series::Waiters, &[mode.as_str()], 1.0);
        CountedWaiter { telemetry: self, mode }
    }

    /// Records the answer to a renewal that was sent at `sent_at`. Call it before the lease applies the answer.
    pub(crate) fn record_renewal(&self, lease: &LocalLease, standing: Standing, sent_at: Moment, now: Moment) {
        match standing {
            Standing::Holding(_) => {}
            Standing::Unknown => return self.count_renewal(lease, "failed", sent_at, now),
            Standing::Waiting(_) | Standing::Gone => return,
        }
        tracing::trace!(
            target: "leasehold::renew",
            parent: lease.report.span(),
            resource = %lease.key().resource,
            slack_ms = time_left(lease, now).map(millis),
            "renewed"
        );
        let in_doubt = || lease.validity.health(now) == LeaseHealth::InDoubt;
        self.count_renewal(lease, if metrics::ENABLED && in_doubt() { "retried" } else { "ok" }, sent_at, now);
        if metrics::ENABLED
            && let Some(slack) = time_left(lease, now)
        {
            self.meters.observe(Series::RenewSlack, &[mode(lease)], slack);
        }
    }

    /// Records that a renewal was not answered.
    pub(crate) fn record_renew_failure(&self, lease: &LocalLease, error: &Error, sent_at: Moment, now: Moment) {
        if lease.is_held() {
            tracing::warn!(
                target: "leasehold::renew",
                parent: lease.report.span(),
                resource = %lease.key().resource,
                left_ms = time_left(lease, now).map(millis),
                error = format_args!("{error:#}"),
                "cannot renew"
            );
        }
        self.count_renewal(lease, "failed", sent_at, now);
    }

    /// Counts the renewal of a held lease; creates a span for each failure and for one success in `RENEWALS_PER_SPAN`.
    fn count_renewal(&self, lease: &LocalLease, outcome: &'static str, sent_at: Moment, now: Moment) {
        static RENEWALS: AtomicU32 = AtomicU32::new(0);
        let spans = tracing::enabled!(target: "leasehold::renew", Level::DEBUG);
        if !(spans || metrics::ENABLED) || !lease.is_held() {
            return;
        }
        self.meters.count(Series::Renew, &[mode(lease), outcome]);
        let sampled = || RENEWALS.fetch_add(1, Ordering::Relaxed).is_multiple_of(RENEWALS_PER_SPAN);
        if spans && (outcome == "failed" || sampled()) {
            let _span = tracing::debug_span!(
                target: "leasehold::renew",
                parent: lease.report.span(),
                "renew lock",
                otel.kind = "client",
                leasehold.lock.backend = self.backend,
                leasehold.lock.outcome = outcome,
                leasehold.lock.took_ms = millis(now.since(sent_at)),
            );
        }
    }

    /// Records that a lease that was held is lost.
    pub(crate) fn record_loss(&self, lease: &LocalLease, now: Moment) {
        let (Some(loss), Some(hold)) = (lease.validity.loss(), lease.hold()) else { return };
        if loss == Loss::Released {
            return;
        }
        // A macro, since `tracing` fixes the level of an event at compile time.
        macro_rules! log_loss {
            ($log:ident) => {
                tracing::$log!(
                    target: "leasehold::lost",
                    parent: lease.report.span(),
                    backend = self.backend,
                    resource = %lease.key().resource,
                    fence = hold.grant.fence.get(),
                    reason = loss.as_str(),
                    "lost"
                )
            };
        }
        // Reaching `max_hold` is expected, and no reason for an alert.
        if loss == Loss::MaxHold {
            log_loss!(warn);
        } else {
            log_loss!(error);
            self.meters.count(Series::Lost, &[mode(lease), loss.as_str()]);
        }
        self.record_hold_end(lease, loss, now);
    }

    /// Creates the span of a release, which begins now.
    pub(crate) fn release_span(&self, lease: &LocalLease) -> Span {
        tracing::debug_span!(
            target: "leasehold::release",
            parent: lease.report.span(),
            "release lock",
            otel.kind = "client",
            leasehold.lock.name = %lease.key().resource,
            leasehold.lock.mode = mode(lease),
            leasehold.lock.backend = self.backend,
            leasehold.lock.outcome = Empty,
        )
    }

    /// Records the answer to a release, or its failure. The lease was held until `held_until`.
    pub(crate) fn record_release(
        &self,
        span: &Span,
        lease: &LocalLease,
        outcome: &Outcome,
        answer: &Result<Released>,
        held_until: Moment,
    ) {
        let ending = outcome.ending().as_str();
        let outcome = match answer {
            Ok(Released::Gone) => "not_holder",
            Ok(_) => "ok",
            Err(_) => "failed",
        };
        tracing::debug!(
            target: "leasehold::release",
            backend = self.backend,
            resource = %lease.key().resource,
            ending,
            outcome,
            "release answered"
        );
        span.record("leasehold.lock.outcome", outcome);
        self.meters.count(Series::Release, &[mode(lease), outcome]);
        self.record_hold_end(lease, Loss::Released, held_until);
    }

    /// Records the answer to an operator's eviction, or its failure.
    pub(crate) fn record_eviction(&self, answer: &Result<Evicted>) {
        if let Ok(Evicted::Evicted { .. }) = answer {
            self.meters.count(Series::Evict, &[]);
        }
    }
}

/// Records that the request waits in the queue. Called in its `acquire lock` span.
pub(crate) fn record_queued(position: &QueuePosition) {
    if tracing::enabled!(target: "leasehold::acquire", Level::DEBUG) {
        Span::current().record("leasehold.lock.queue_position", position.ahead);
        tracing::debug!(target: "leasehold::acquire", ahead = position.ahead, "queued");
    }
}

/// Creates the span of one campaign, from joining the election to winning it.
pub(crate) fn campaign_span(election: &Resource) -> Span {
    tracing::debug_span!(
        target: "leasehold::election",
        "campaign leader",
        leasehold.election.name = %election,
        leasehold.election.term = Empty
    )
}

/// Creates the span of one term.
pub(crate) fn term_span(election: &Resource, term: u64) -> Span {
    tracing::debug_span!(
        target: "leasehold::election",
        "lead",
        leasehold.election.name = %election,
        leasehold.election.term = term
    )
}

/// A waiter that [`Telemetry::count_waiter`] counted.
#[derive(Debug)]
pub(crate) struct CountedWaiter<'a> {
    telemetry: &'a Telemetry,
    mode: Mode,
}

impl Drop for CountedWaiter<'_> {
    fn drop(&mut self) {
        self.telemetry.meters.add(Series::Waiters, &[self.mode.as_str()], -1.0);
    }
}

/// The mode that was asked for, which a downgrade does not change.
fn mode(lease: &LocalLease) -> &'static str {
    lease.request.claim.mode().as_str()
}

/// The time until the deadline; `None` where no clock ends the lease.
fn time_left(lease: &LocalLease, now: Moment) -> Option<Duration> {
    let deadline = lease.validity.deadline();
    (deadline != Moment::NEVER).then(|| deadline.since(now))
}

fn millis(length: Duration) -> u64 {
    u64::try_from(length.as_millis()).unwrap_or(u64::MAX)
}
