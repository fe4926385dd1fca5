//! What listings, history and event streams show, as JSON with the names of the package's classes.

use leasehold::{
    Leader,
    backend::Missed,
    lease::{Claim, EndedLease, Event, EventKind, LeaseRecord, LeaseState, Mode, Timestamp},
};
use serde_json::{Map, Value, json};

/// Times are microseconds since 1970.
fn time(time: Timestamp) -> u64 {
    time.as_micros()
}

/// The number of permits; other modes have none.
fn permits(claim: Claim) -> Option<u32> {
    (claim.mode() == Mode::Permit).then_some(claim.units())
}

pub(crate) fn leases(records: &[LeaseRecord]) -> String {
    Value::Array(records.iter().map(lease).collect()).to_string()
}

fn lease(record: &LeaseRecord) -> Value {
    let (state, fence, acquired_at, age, ahead) = match record.state {
        LeaseState::Holding { fence, acquired_at, held_for } => {
            ("holding", Some(fence.get()), Some(time(acquired_at)), held_for, None)
        }
        LeaseState::Waiting { ahead, waiting_for } => ("waiting", None, None, waiting_for, Some(ahead)),
    };
    json!({
        "name": record.resource.as_str(),
        "holder": record.holder.as_str(),
        "mode": record.claim.mode().as_str(),
        "state": state,
        "permits": permits(record.claim),
        "fence": fence,
        "asked_at": time(record.asked_at),
        "acquired_at": acquired_at,
        "age": age.as_secs_f64(),
        "ahead": ahead,
        "ttl": record.ttl.get().as_secs_f64(),
        "expires_in": record.expires_in.map(|left| left.as_secs_f64()),
        "note": record.note,
        "metadata": record.metadata,
    })
}

pub(crate) fn ended(records: &[EndedLease]) -> String {
    Value::Array(records.iter().map(ended_lease).collect()).to_string()
}

fn ended_lease(record: &EndedLease) -> Value {
    json!({
        "name": record.resource.as_str(),
        "holder": record.holder.as_str(),
        "mode": record.claim.mode().as_str(),
        "permits": permits(record.claim),
        "fence": record.fence.map(leasehold::Fence::get),
        "asked_at": time(record.asked_at),
        "acquired_at": record.acquired_at.map(time),
        "ended_at": time(record.ended_at),
        "ending": record.ending.as_str(),
        "problem": record.problem.as_ref().map(|problem| &problem.kind),
        "problem_details": record.problem.as_ref().map(|problem| &problem.details),
        "note": record.note,
        "metadata": record.metadata,
    })
}

pub(crate) fn event(event: Result<Event, Missed>) -> String {
    let Ok(event) = event else { return json!({"kind": "missed"}).to_string() };
    let mut object = Map::new();
    object.insert(String::from("at"), time(event.at).into());
    object.insert(String::from("name"), event.resource.as_str().into());
    object.insert(String::from("holder"), event.holder.as_str().into());
    object.insert(String::from("mode"), event.claim.mode().as_str().into());
    let kind = match event.kind {
        EventKind::Waiting => "waiting",
        EventKind::Acquired { fence } => {
            object.insert(String::from("fence"), fence.get().into());
            "acquired"
        }
        EventKind::Ended { ending, fence } => {
            object.insert(String::from("ending"), ending.as_str().into());
            object.insert(String::from("fence"), fence.map(leasehold::Fence::get).into());
            "ended"
        }
        _ => "other",
    };
    object.insert(String::from("kind"), kind.into());
    Value::Object(object).to_string()
}

pub(crate) fn leader(leader: &Leader) -> String {
    json!({
        "holder": leader.holder.as_str(),
        "value": leader.value,
        "fence": leader.fence.get(),
        "since": time(leader.since),
        "led_for": leader.led_for.as_secs_f64(),
    })
    .to_string()
}
