//! What is reported about one call of `acquire`.

use std::time::Duration;

use tracing::{Span, field::Empty};

use super::{Series, Telemetry, metrics, millis};
use crate::{
    ErrorKind, Result,
    clock::Clock,
    engine::{AcquireOptions, Attempt, Guard},
    lease::{Lifetime, Moment},
};

/// The report of one call of `acquire`. Dropping it before `end` reports `cancelled`.
#[derive(Debug)]
pub(crate) struct AcquireReport<'a> {
    telemetry: &'a Telemetry,
    clock: &'a dyn Clock,
    options: &'a AcquireOptions<'a>,
    started: Moment,
    span: Span,
    ended: bool,
}

impl Telemetry {
    /// Creates the span of a call of `acquire`, which begins now.
    pub(crate) fn start_acquire<'a>(
        &'a self,
        options: &'a AcquireOptions<'a>,
        clock: &'a dyn Clock,
        started: Moment,
    ) -> AcquireReport<'a> {
        let span = tracing::debug_span!(
            target: "leasehold::acquire",
            "acquire lock",
            leasehold.lock.name = %options.resource,
            leasehold.lock.mode = options.claim.mode().as_str(),
            leasehold.lock.backend = self.backend,
            leasehold.lock.outcome = Empty,
            leasehold.lock.wait_ms = Empty,
            leasehold.lock.queue_position = Empty,
        );
        AcquireReport { telemetry: self, clock, options, started, span, ended: false }
    }
}

impl AcquireReport<'_> {
    pub(crate) fn span(&self) -> &Span {
        &self.span
    }

    /// Reports how the call ended.
    pub(crate) fn end(mut self, result: &Result<Attempt>) {
        self.ended = true;
        let waited = || self.clock.now().since(self.started);
        match result {
            Ok(Attempt::Acquired(guard)) => {
                let waited = guard.waited();
                tracing::debug!(
                    target: "leasehold::acquire",
                    backend = self.telemetry.backend,
                    resource = %self.options.resource,
                    mode = self.options.claim.mode().as_str(),
                    fence = guard.fence().get(),
                    waited_ms = millis(waited),
                    "acquired"
                );
                self.report("acquired", || waited);
                self.record_hold_start(guard, waited);
            }
            Ok(Attempt::Busy(_)) => self.report("busy", waited),
            Err(error) if error.kind() == ErrorKind::WaitElapsed => self.report("gave_up", waited),
            Err(_) => self.report("error", waited),
        }
    }

    fn report(&self, outcome: &'static str, waited: impl FnOnce() -> Duration) {
        if self.span.is_disabled() && !metrics::ENABLED {
            return;
        }
        let waited = waited();
        self.span.record("leasehold.lock.outcome", outcome).record("leasehold.lock.wait_ms", millis(waited));
        let labels = [self.options.claim.mode().as_str(), outcome];
        self.telemetry.meters.count(Series::Acquire, &labels);
        self.telemetry.meters.observe(Series::AcquireWait, &labels, waited);
    }

    fn record_hold_start(&self, guard: &Guard, waited: Duration) {
        // Nobody here sees the end of a detached lease.
        if self.options.lifetime == Lifetime::Attached {
            self.telemetry.record_hold_start(guard.local(), self.started.after(waited));
        }
    }
}

impl Drop for AcquireReport<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.report("cancelled", || self.clock.now().since(self.started));
        }
    }
}
