//! Machine output: objects with `"v":1`, RFC 3339 times, integer `_ms`.

use std::io::{self, Write};

use leasehold::{
    clock::{Clock, SystemClock},
    lease::{EndedLease, Event, EventKind, HeldBy, LeaseRecord, LeaseState, Mode, Timestamp},
};
use serde_json::{Value, json};

use crate::{
    command_ended::{self, CommandEnded},
    duration::millis,
    error::{CommandError, Result},
};

/// A time in UTC with milliseconds: `2026-11-15T02:00:00.114Z`.
pub(crate) fn time(timestamp: Timestamp) -> String {
    let micros = i64::try_from(timestamp.as_micros()).unwrap_or(i64::MAX);
    // Truncated, so that no event is dated after what followed it.
    let instant = jiff::Timestamp::from_millisecond(micros / 1000).unwrap_or_default();
    format!("{instant:.3}")
}

/// Whether somebody still reads standard output.
///
/// A reader that left (`| head`, `| true`) is no failure, and does not change the answer that the exit code gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutputReader {
    Listens,
    Left,
}

/// Writes one line to standard output.
pub(crate) fn print(line: impl AsRef<str>) -> Result<OutputReader> {
    let mut text = line.as_ref().to_owned();
    text.push('\n');
    write(&text)
}

/// Writes text to standard output.
pub(crate) fn write(text: &str) -> Result<OutputReader> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(OutputReader::Listens),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(OutputReader::Left),
        Err(error) => Err(CommandError::unavailable(format!("cannot write to standard output: {error}"))),
    }
}

impl OutputReader {
    /// Fails if nobody reads: for what is lost then.
    pub(crate) fn required(self) -> Result<()> {
        match self {
            Self::Listens => Ok(()),
            Self::Left => Err(CommandError::unavailable("nobody reads standard output")),
        }
    }
}

/// A lease or a place in the queue.
pub(crate) fn lease(record: &LeaseRecord) -> Value {
    let mut object = json!({
        "holder": record.holder.as_str(),
        "mode": record.claim.mode().as_str(),
        "units": permits(record.claim.mode(), record.claim.units()),
        "note": record.note,
        "metadata": command_ended::without_mark(&record.metadata),
        "asked_at": time(record.asked_at),
        "renewed_ago_ms": millis(record.renewed_ago),
        "ttl_ms": millis(record.ttl.get()),
        "expires_in_ms": record.expires_in.map(millis),
    });
    let state = match record.state {
        LeaseState::Holding { fence, acquired_at, held_for } => {
            let ended = CommandEnded::of(record).map(|kept| kept.to_json());
            json!({
                "fence": fence.get(),
                "acquired_at": time(acquired_at),
                "held_ms": millis(held_for),
                "command_ended": ended,
            })
        }
        LeaseState::Waiting { ahead, waiting_for } => json!({"ahead": ahead, "waiting_ms": millis(waiting_for)}),
    };
    if let (Value::Object(object), Value::Object(state)) = (&mut object, state) {
        object.extend(state);
    }
    object
}

/// The number of permits; other modes have none.
pub(crate) fn permits(mode: Mode, units: u32) -> Option<u32> {
    (mode == Mode::Permit).then_some(units)
}

/// One of those in the way.
pub(crate) fn held_by(held: &HeldBy) -> Value {
    json!({
        "holder": held.holder.as_str(),
        "mode": held.mode.as_str(),
        "note": held.note,
        "fence": held.fence.get(),
        "acquired_at": time(SystemClock.wall().before(held.held_for)),
        "held_ms": millis(held.held_for),
    })
}

/// A line of history.
pub(crate) fn ended(ended: &EndedLease) -> Value {
    let held = ended.acquired_at.map(|acquired| millis(ended.ended_at.since(acquired)));
    let waited = ended.acquired_at.unwrap_or(ended.ended_at).since(ended.asked_at);
    json!({
        "v": 1,
        "lock": ended.resource.as_str(),
        "event": ended.ending.as_str(),
        "holder": ended.holder.as_str(),
        "mode": ended.claim.mode().as_str(),
        "units": permits(ended.claim.mode(), ended.claim.units()),
        "fence": ended.fence.map(leasehold::Fence::get),
        "asked_at": time(ended.asked_at),
        "acquired_at": ended.acquired_at.map(time),
        "ended_at": time(ended.ended_at),
        "waited_ms": millis(waited),
        "held_ms": held,
        "problem": ended.problem.as_ref().map(|problem| json!({"kind": problem.kind, "details": problem.details})),
        "note": ended.note,
        "metadata": command_ended::without_mark(&ended.metadata),
    })
}

/// Something that happened.
pub(crate) fn event(event: &Event) -> Value {
    let (name, fence) = match &event.kind {
        EventKind::Waiting => ("waiting", None),
        EventKind::Acquired { fence } => ("acquired", Some(fence.get())),
        EventKind::Ended { ending, fence } => (ending.as_str(), fence.map(leasehold::Fence::get)),
        _ => ("other", None),
    };
    json!({
        "v": 1,
        "at": time(event.at),
        "lock": event.resource.as_str(),
        "event": name,
        "holder": event.holder.as_str(),
        "mode": event.claim.mode().as_str(),
        "units": permits(event.claim.mode(), event.claim.units()),
        "fence": fence,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_utc_with_milliseconds() {
        assert_eq!(time(Timestamp::from_micros(1_794_708_000_114_999)), "2026-11-15T02:00:00.114Z");
        assert_eq!(time(Timestamp::from_micros(0)), "1970-01-01T00:00:00.000Z");
    }
}
