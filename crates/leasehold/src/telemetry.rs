//! What the engine tells `tracing`: one event for each thing an operator asks about.

use std::time::Duration;

use crate::{
    Error,
    engine::{Hold, Kept, Loss},
    lease::{Moment, Outcome},
};

pub(crate) fn acquired(kept: &Kept, hold: &Hold) {
    tracing::debug!(
        target: "leasehold::acquire",
        resource = %kept.key.resource,
        mode = %kept.claim().mode(),
        fence = hold.grant.fence.get(),
        waited_ms = millis(hold.waited),
        "acquired"
    );
}

pub(crate) fn renewed(kept: &Kept, hold: &Hold, now: Moment) {
    tracing::trace!(
        target: "leasehold::renew",
        resource = %kept.key.resource,
        slack_ms = millis(hold.validity.deadline().since(now)),
        "renewed"
    );
}

pub(crate) fn renew_failed(kept: &Kept, hold: &Hold, now: Moment, error: Option<&Error>) {
    tracing::warn!(
        target: "leasehold::renew",
        resource = %kept.key.resource,
        left_ms = millis(hold.validity.deadline().since(now)),
        error = error.map(tracing::field::display),
        "cannot renew"
    );
}

pub(crate) fn lost(kept: &Kept, hold: &Hold) {
    // What was given back while a renewal was under way is not lost.
    if hold.validity.loss() == Some(Loss::Released) {
        return;
    }
    tracing::error!(
        target: "leasehold::lost",
        resource = %kept.key.resource,
        fence = hold.grant.fence.get(),
        reason = hold.validity.loss().map(Loss::as_str),
        "lost"
    );
}

pub(crate) fn released(kept: &Kept, outcome: &Outcome) {
    tracing::debug!(
        target: "leasehold::release",
        resource = %kept.key.resource,
        ending = outcome.ending().as_str(),
        "released"
    );
}

fn millis(length: Duration) -> u64 {
    u64::try_from(length.as_millis()).unwrap_or(u64::MAX)
}
