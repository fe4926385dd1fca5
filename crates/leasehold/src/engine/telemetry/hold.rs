//! The time a lease is held: its span, its length, and how many are held now.

use std::sync::{
    OnceLock,
    atomic::{AtomicU64, Ordering},
};

use parking_lot::Mutex;
use tracing::{Span, field::Empty};

use super::{Series, Telemetry, metrics, millis, mode};
use crate::{
    engine::{LocalLease, Loss},
    lease::{Mode, Moment},
};

/// The telemetry state of one hold, stored in its lease.
#[derive(Debug, Default)]
pub(crate) struct HoldReport {
    /// Created only for a subscriber that wants it; closed when the hold ends.
    span: OnceLock<Box<Mutex<Span>>>,
    /// When the counted hold began, in microseconds; 0 if no hold is being counted.
    since: AtomicU64,
}

impl HoldReport {
    /// The span of the hold; a disabled one if there is none.
    pub(super) fn span(&self) -> Span {
        self.span.get().map_or_else(Span::none, |span| span.lock().clone())
    }
}

impl Telemetry {
    /// Records that a caller got its guard. Called in the caller's own span.
    pub(super) fn record_hold_start(&self, lease: &LocalLease, now: Moment) {
        let span = tracing::debug_span!(
            target: "leasehold::hold",
            "hold lock",
            leasehold.lock.name = %lease.key().resource,
            leasehold.lock.mode = mode(lease),
            leasehold.lock.backend = self.backend,
            leasehold.lock.fence = lease.hold().map(|hold| hold.grant.fence.get()),
            leasehold.lock.ttl_ms = millis(lease.ttl().get()),
            leasehold.lock.end = Empty,
            otel.status_code = Empty,
        );
        let reported = metrics::ENABLED || !span.is_disabled();
        if !span.is_disabled() {
            let _first = lease.report.span.set(Box::new(Mutex::new(span)));
        }
        if metrics::ENABLED {
            lease.report.since.store(now.as_micros().max(1), Ordering::SeqCst);
            self.meters.add(Series::Held, &[mode(lease)], 1.0);
            if lease.request.claim.mode() == Mode::Leader {
                self.meters.add(Series::Leader, &[], 1.0);
                self.meters.count(Series::LeaderTransitions, &[]);
            }
        }
        // A loss may have been reported before there was a hold to end:
        // 1. the lease is granted  2. it is lost  3. the loss is reported  4. the hold begins here.
        if reported && let Some(loss) = lease.validity.loss() {
            self.record_hold_end(lease, loss, now);
        }
    }

    /// Records the end of the hold; only the first call counts.
    pub(super) fn record_hold_end(&self, lease: &LocalLease, loss: Loss, now: Moment) {
        // Not those of `Loss::as_str`: dashboards rely on the values of this label.
        let end = match loss {
            Loss::Released => "released",
            Loss::Evicted => "evicted",
            Loss::MaxHold => "max_hold",
            Loss::RenewTimeout => "expired",
            Loss::Gone => "lost",
        };
        if let Some(span) = lease.report.span.get() {
            let span = std::mem::replace(&mut *span.lock(), Span::none());
            span.record("leasehold.lock.end", end);
            if loss != Loss::Released {
                span.record("otel.status_code", "ERROR");
            }
        }
        if !metrics::ENABLED {
            return;
        }
        let since = lease.report.since.swap(0, Ordering::SeqCst);
        if since != 0 {
            self.meters.observe(Series::Hold, &[mode(lease), end], now.since(Moment::from_micros(since)));
            self.meters.add(Series::Held, &[mode(lease)], -1.0);
            if lease.request.claim.mode() == Mode::Leader {
                self.meters.add(Series::Leader, &[], -1.0);
            }
        }
    }
}
