//! What is remembered of runs: how often one was skipped, who was in the way, and when one succeeded.

use std::time::Duration;

use leasehold::{
    Error, Leasehold, Resource,
    lease::{RunRecord, RunReport, Timestamp},
};
use serde_json::{Value, json};

use super::identity::short;
use crate::{
    duration::Brief,
    json,
    output::{Line, Output},
};

/// Nobody waits longer for the sake of a counter.
const SKIP_LIMIT: Duration = Duration::from_millis(150);
/// Monitoring raises an alarm for a success that it does not learn of.
const SUCCESS_LIMIT: Duration = Duration::from_secs(2);

/// Remembers that a run was skipped because the lock was busy.
pub(crate) async fn skipped(locks: &Leasehold, resource: &Resource, busy: &Error) {
    let holder = busy.holders().first().map(|held| held.holder.clone());
    let _one_less_is_counted = record(locks, RunReport::skipped(resource.clone(), holder), SKIP_LIMIT).await;
}

/// Remembers that a run succeeded, or says that this is not remembered.
pub(crate) async fn succeeded(locks: &Leasehold, resource: &Resource, output: &Output) {
    if let Err(why) = record_success(locks, resource).await {
        let what =
            format!("the success of {resource} was not recorded, and check --succeeded-within does not know of it");
        output.print(Line::warning(format!("{what}: {why}")));
    }
}

/// Remembers that a run succeeded, if that can be done now.
pub(crate) async fn record_success(locks: &Leasehold, resource: &Resource) -> Result<(), String> {
    record(locks, RunReport::succeeded(resource.clone()), SUCCESS_LIMIT).await
}

async fn record(locks: &Leasehold, report: RunReport, limit: Duration) -> Result<(), String> {
    if !locks.guarantees().records_runs {
        return Ok(());
    }
    match tokio::time::timeout(limit, locks.record_runs(&[report])).await {
        Ok(recorded) => recorded.map_err(|error| format!("{error:#}")),
        Err(_) => Err(format!("no answer within {}", Brief(limit))),
    }
}

/// `skipped 12 times, last 5m ago (held by web-3); last success 3h ago`
pub(crate) fn message(record: &RunRecord, now: Timestamp) -> String {
    let success = match record.last_success {
        Some(at) => format!("last success {} ago", Brief(now.since(at))),
        None => String::from("no success known"),
    };
    let Some(last_skip) = &record.last_skip else { return success };
    let times = if record.skips == 1 { "once" } else { &format!("{} times", record.skips) };
    let holder = last_skip.held_by.as_ref().map(|holder| format!(" (held by {})", short(holder.as_str())));
    format!("skipped {times}, last {} ago{}; {success}", Brief(now.since(last_skip.at)), holder.unwrap_or_default())
}

/// Who held the lock when a run was last skipped, if that is known.
pub(crate) fn last_skip_holder(record: &RunRecord) -> Option<&str> {
    record.last_skip.as_ref().and_then(|skipped| skipped.held_by.as_ref()).map(leasehold::Holder::as_str)
}

/// The record for programs; whether the last success is recent enough, if that was asked.
pub(crate) fn to_json(record: &RunRecord, succeeded_within: Option<bool>) -> Value {
    json!({
        "v": 1,
        "lock": record.resource.as_str(),
        "skips": record.skips,
        "last_skip": record.skipped_at().map(json::time),
        "held_by": last_skip_holder(record),
        "last_success": record.last_success.map(json::time),
        "succeeded_within": succeeded_within,
    })
}
