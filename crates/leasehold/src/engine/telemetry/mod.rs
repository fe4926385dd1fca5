//! What the engine reports to `tracing` and, with the feature `metrics`, to the `metrics` facade.
//!
//! Without a subscriber or a recorder nothing is allocated or formatted here.
//! The timer's thread reports nothing: a subscriber may block.

mod acquiring;
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

    /// The backend answered a call that was sent at `sent`, or failed to.
    pub(crate) fn answered<T>(&self, call: CallKind, answer: &Result<T>, sent: Moment, now: impl FnOnce() -> Moment) {
        if metrics::ENABLED {
            let outcome = if answer.is_ok() { "ok" } else { "error" };
            self.meters.observe(Series::Request, &[call.as_str(), outcome], now().since(sent));
        }
    }

    /// Counts a caller that waits for its turn, or for an answer, until the value is dropped.
    pub(crate) fn waiting(&self, mode: Mode) -> Waiting<'_> {
        self.meters.add(Series::Waiters, &[mode.as_str()], 1.0);
        Waiting { telemetry: self, mode }
    }

    /// A renewal that was sent at `sent` was answered; the lease has not acted on it yet.
    pub(crate) fn renewed(&self, lease: &LocalLease, standing: Standing, sent: Moment, now: Moment) {
        match standing {
            Standing::Holding(_) => {}
            Standing::Unknown => return self.renewal_ended(lease, "failed", sent, now),
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
        self.renewal_ended(lease, if metrics::ENABLED && in_doubt() { "retried" } else { "ok" }, sent, now);
        if metrics::ENABLED
            && let Some(slack) = time_left(lease, now)
        {
            self.meters.observe(Series::RenewSlack, &[mode(lease)], slack);
        }
    }

    /// A renewal was not answered.
    pub(crate) fn renew_failed(&self, lease: &LocalLease, error: &Error, sent: Moment, now: Moment) {
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
        self.renewal_ended(lease, "failed", sent, now);
    }

    /// Counts the renewal of a held lease; creates a span for each failure and for one success in `RENEWALS_PER_SPAN`.
    fn renewal_ended(&self, lease: &LocalLease, outcome: &'static str, sent: Moment, now: Moment) {
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
                leasehold.lock.took_ms = millis(now.since(sent)),
            );
        }
    }

    /// A lease that was held is lost.
    pub(crate) fn lost(&self, lease: &LocalLease, now: Moment) {
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
        self.hold_ended(lease, loss, now);
    }

    /// A release begins; returns its span.
    pub(crate) fn releasing(&self, lease: &LocalLease) -> Span {
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

    /// Reports the answer to a release, or its failure. The lease was held until `held_until`.
    pub(crate) fn released(
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
        self.hold_ended(lease, Loss::Released, held_until);
    }

    /// An operator's eviction was answered, or failed.
    pub(crate) fn evicted(&self, answer: &Result<Evicted>) {
        if let Ok(Evicted::Evicted { .. }) = answer {
            self.meters.count(Series::Evict, &[]);
        }
    }
}

/// The request waits in the queue. Called in its `acquire lock` span.
pub(crate) fn queued(position: &QueuePosition) {
    if tracing::enabled!(target: "leasehold::acquire", Level::DEBUG) {
        Span::current().record("leasehold.lock.queue_position", position.ahead);
        tracing::debug!(target: "leasehold::acquire", ahead = position.ahead, "queued");
    }
}

/// The span of one campaign, from joining the election to winning it.
pub(crate) fn campaigning(election: &Resource) -> Span {
    tracing::debug_span!(
        target: "leasehold::election",
        "campaign leader",
        leasehold.election.name = %election,
        leasehold.election.term = Empty
    )
}

/// The span of one term.
pub(crate) fn leading(election: &Resource, term: u64) -> Span {
    tracing::debug_span!(
        target: "leasehold::election",
        "lead",
        leasehold.election.name = %election,
        leasehold.election.term = term
    )
}

/// See [`Telemetry::waiting`].
#[derive(Debug)]
pub(crate) struct Waiting<'a> {
    telemetry: &'a Telemetry,
    mode: Mode,
}

impl Drop for Waiting<'_> {
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
