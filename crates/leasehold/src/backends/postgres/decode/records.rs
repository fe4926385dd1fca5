//! Live and ended leases, as operators see them.

use std::collections::BTreeMap;

use serde_json::{Value, value::RawValue};
use tokio_postgres::{Row, types::Json};

use super::{fence, get, holder, length, mode, resource, timestamp, to_u32, unexpected};
use crate::{
    Result,
    backends::postgres::errors::Failure,
    lease::{
        Claim, EndedLease, Ending, Holder, LeaseRecord, LeaseState, Metadata, Mode, Problem, RunRecord, SkippedRun, Ttl,
    },
};

/// The rows of `list_leases`, holders first, then the queue, of each name.
pub(in crate::backends::postgres) fn leases(rows: &[Row]) -> Result<Vec<LeaseRecord>, Failure> {
    let mut ahead = 0;
    let mut leases: Vec<LeaseRecord> = Vec::with_capacity(rows.len());
    for row in rows {
        let resource = resource(row)?;
        let now = timestamp(get(row, "now_us")?);
        let asked_at = timestamp(get(row, "asked_us")?);
        if leases.last().is_none_or(|last| last.resource != resource) {
            ahead = 0;
        }
        let state = if let Some(number) = get::<Option<i64>>(row, "fence")? {
            let acquired_at = timestamp(get(row, "acquired_us")?);
            LeaseState::Holding { fence: fence(number), acquired_at, held_for: now.since(acquired_at) }
        } else {
            ahead += 1;
            LeaseState::Waiting { ahead: ahead - 1, waiting_for: now.since(asked_at) }
        };
        leases.push(LeaseRecord {
            resource,
            holder: holder(row)?,
            claim: claim(row)?,
            state,
            asked_at,
            renewed_ago: now.since(timestamp(get(row, "renewed_us")?)),
            ttl: Ttl::new(length(get(row, "ttl_us")?)).unwrap_or(Ttl::MIN),
            expires_in: get::<Option<i64>>(row, "expires_us")?.map(|end| timestamp(end).since(now)),
            note: get(row, "note")?,
            metadata: metadata(row)?,
        });
    }
    Ok(leases)
}

/// A row of `list_ended`.
pub(in crate::backends::postgres) fn ended(row: &Row) -> Result<EndedLease, Failure> {
    let problem: Option<String> = get(row, "problem")?;
    let details: Option<String> = get(row, "details")?;
    Ok(EndedLease {
        resource: resource(row)?,
        holder: holder(row)?,
        claim: claim(row)?,
        fence: get::<Option<i64>>(row, "fence")?.map(fence),
        asked_at: timestamp(get(row, "asked_us")?),
        acquired_at: get::<Option<i64>>(row, "acquired_us")?.map(timestamp),
        ended_at: timestamp(get(row, "ended_us")?),
        ending: ending(get(row, "ending")?)?,
        problem: problem.map(|kind| Problem { kind, details: details.unwrap_or_default() }),
        note: get(row, "note")?,
        metadata: metadata(row)?,
    })
}

/// A row of `list_runs`.
pub(in crate::backends::postgres) fn run(row: &Row) -> Result<RunRecord, Failure> {
    let mut record = RunRecord::new(resource(row)?);
    record.skips = u64::try_from(get::<i64>(row, "skips")?).unwrap_or(0);
    let held_by = get::<Option<&str>>(row, "held_by")?.and_then(|holder| Holder::new(holder).ok());
    record.last_skip = get::<Option<i64>>(row, "last_skip_us")?.map(|at| SkippedRun::new(timestamp(at), held_by));
    record.last_success = get::<Option<i64>>(row, "last_success_us")?.map(timestamp);
    Ok(record)
}

fn metadata(row: &Row) -> Result<Metadata, Failure> {
    let stored: Option<Json<&RawValue>> = get(row, "metadata")?;
    Ok(stored.map(|Json(stored)| parse_lenient(stored)).unwrap_or_default())
}

/// SQL callers may store any JSON. Shows as text what `serde_json` cannot parse: one row must not break a listing.
fn parse_lenient(stored: &RawValue) -> Metadata {
    let shown = |part: &RawValue| {
        serde_json::from_str(part.get()).unwrap_or_else(|_no_form| Value::String(part.get().to_owned()))
    };
    if let Ok(metadata) = serde_json::from_str(stored.get()) {
        return metadata;
    }
    match serde_json::from_str::<BTreeMap<String, &RawValue>>(stored.get()) {
        Ok(entries) => entries.into_iter().map(|(key, part)| (key, shown(part))).collect(),
        Err(_no_object) => Metadata::from_iter([(String::from("metadata"), shown(stored))]),
    }
}

fn claim(row: &Row) -> Result<Claim, Failure> {
    let (units, capacity) = (to_u32(get::<i32>(row, "units")?), to_u32(get::<i32>(row, "capacity")?));
    Ok(match mode(get(row, "mode")?)? {
        Mode::Exclusive => Claim::EXCLUSIVE,
        Mode::Shared => Claim::SHARED,
        Mode::Leader => Claim::LEADER,
        Mode::Permit => Claim::permits(units, capacity).map_err(|error| unexpected(error.to_string()))?,
    })
}

fn ending(word: &str) -> Result<Ending, Failure> {
    [
        Ending::Released,
        Ending::Failed,
        Ending::Expired,
        Ending::Disconnected,
        Ending::Evicted,
        Ending::MaxHold,
        Ending::GaveUp,
        Ending::Cancelled,
    ]
    .into_iter()
    .find(|ending| ending.as_str() == word)
    .ok_or_else(|| unexpected(format!("the ending {word:?}")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn shown(stored: &str) -> Value {
        Value::Object(parse_lenient(&RawValue::from_string(stored.to_owned()).unwrap()))
    }

    #[test]
    fn metadata_without_a_form_here_is_shown_as_its_text() {
        assert_eq!(shown(r#"{"a": 1, "b": [true, null]}"#), json!({"a": 1, "b": [true, null]}));
        assert_eq!(shown(r#"{"a": 1, "b\n": 1e400, "c": "x"}"#), json!({"a": 1, "b\n": "1e400", "c": "x"}));
        let deep = "[".repeat(100_000) + &"]".repeat(100_000);
        assert_eq!(shown(&format!(r#"{{"a": 1, "deep": {deep}}}"#)), json!({"a": 1, "deep": deep}));
        assert_eq!(shown("[1, 2]"), json!({"metadata": [1, 2]}));
        assert_eq!(shown("1e400"), json!({"metadata": "1e400"}));
        assert_eq!(shown("null"), json!({"metadata": null}));
    }
}
