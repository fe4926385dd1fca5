//! What JavaScript gets to read, as JSON: listings, history, leaders and errors.

use std::time::Duration;

use leasehold::{
    Error, ErrorKind, Leader, Lease,
    lease::{EndedLease, Event, EventKind, HeldBy, LeasePage, LeaseRecord, LeaseState, Mode, Timestamp},
};
use serde_json::{Value, json};

/// The `code` of an error in JavaScript.
fn code(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::WaitElapsed | ErrorKind::Busy => "BUSY",
        ErrorKind::Lost => "LOST",
        ErrorKind::InvalidName | ErrorKind::InvalidConfig | ErrorKind::ShapeMismatch => "CONFIG",
        ErrorKind::Unsupported => "NOT_SUPPORTED",
        ErrorKind::Closed => "CLOSED",
        _ => "BACKEND_UNAVAILABLE",
    }
}

pub(crate) fn error(error: &Error) -> String {
    json!({
        "code": code(error.kind()),
        "message": format!("{error:#}"),
        "holders": error.holders().iter().map(held_by).collect::<Vec<_>>(),
        "retryable": error.is_retryable(),
        "outcomeUnknown": error.outcome_unknown(),
    })
    .to_string()
}

/// The error of a call after `close`.
pub(crate) fn closed() -> String {
    json!({ "code": code(ErrorKind::Closed), "message": "this connection was closed; connect again", "holders": [] })
        .to_string()
}

fn held_by(held: &HeldBy) -> Value {
    json!({
        "holder": held.holder,
        "mode": held.mode.as_str(),
        "fence": held.fence.get(),
        "heldForMs": millis(held.held_for),
        "note": held.note,
    })
}

pub(crate) fn fences(leases: &[Lease]) -> String {
    let fences = leases.iter().map(|lease| json!([lease.resource().as_str(), lease.fence().get()]));
    fences.collect::<Value>().to_string()
}

pub(crate) fn page(page: &LeasePage) -> String {
    json!({
        "leases": page.leases.iter().map(record).collect::<Vec<_>>(),
        "next": page.next.as_ref().map(leasehold::Resource::as_str),
    })
    .to_string()
}

fn record(lease: &LeaseRecord) -> Value {
    let mut record = json!({
        "name": lease.resource.as_str(),
        "holder": lease.holder,
        "mode": lease.claim.mode().as_str(),
        "askedAt": date(lease.asked_at),
        "ttlMs": millis(lease.ttl.get()),
        "expiresInMs": lease.expires_in.map(millis),
        "note": lease.note,
        "metadata": lease.metadata,
    });
    if lease.claim.mode() == Mode::Permit {
        record["permits"] = lease.claim.units().into();
        record["limit"] = lease.claim.capacity().into();
    }
    match lease.state {
        LeaseState::Holding { fence, acquired_at, held_for } => {
            record["state"] = "holding".into();
            record["fence"] = fence.get().into();
            record["acquiredAt"] = date(acquired_at);
            record["heldForMs"] = millis(held_for).into();
        }
        LeaseState::Waiting { ahead, waiting_for } => {
            record["state"] = "waiting".into();
            record["ahead"] = ahead.into();
            record["waitingForMs"] = millis(waiting_for).into();
        }
    }
    record
}

pub(crate) fn history(ended: &[EndedLease]) -> String {
    ended.iter().map(ended_lease).collect::<Value>().to_string()
}

fn ended_lease(lease: &EndedLease) -> Value {
    json!({
        "name": lease.resource.as_str(),
        "holder": lease.holder,
        "mode": lease.claim.mode().as_str(),
        "fence": lease.fence.map(leasehold::Fence::get),
        "askedAt": date(lease.asked_at),
        "acquiredAt": lease.acquired_at.map(date),
        "endedAt": date(lease.ended_at),
        "ending": lease.ending.as_str(),
        "problem": lease.problem,
        "note": lease.note,
        "metadata": lease.metadata,
    })
}

pub(crate) fn event(event: &Event) -> String {
    let mut report = json!({
        "at": date(event.at),
        "name": event.resource.as_str(),
        "holder": event.holder,
        "mode": event.claim.mode().as_str(),
    });
    match event.kind {
        EventKind::Waiting => report["kind"] = "waiting".into(),
        EventKind::Acquired { fence } => {
            report["kind"] = "acquired".into();
            report["fence"] = fence.get().into();
        }
        EventKind::Ended { ending, fence } => {
            report["kind"] = "ended".into();
            report["ending"] = ending.as_str().into();
            report["fence"] = fence.map(leasehold::Fence::get).into();
        }
        // One of a later version of the library.
        _ => return missed(),
    }
    report.to_string()
}

/// Stands for events that were missed.
pub(crate) fn missed() -> String {
    json!({ "kind": "missed" }).to_string()
}

pub(crate) fn leader(leader: &Leader) -> String {
    json!({
        "holder": leader.holder,
        "value": leader.value,
        "fence": leader.fence.get(),
        "since": date(leader.since),
        "ledForMs": millis(leader.led_for),
    })
    .to_string()
}

fn millis(length: Duration) -> f64 {
    length.as_secs_f64() * 1000.0
}

/// Milliseconds since 1970, of which the face makes a `Date`.
fn date(at: Timestamp) -> Value {
    (at.as_micros() / 1000).into()
}
