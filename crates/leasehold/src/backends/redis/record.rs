//! Decodes the records of leases into listings, history, hints and events.

use std::time::Duration;

use redis::Value;
use serde::Deserialize;

use super::decode::{array, text, unexpected};
use crate::{
    Result,
    backend::Hint,
    lease::{
        Claim, EndedLease, Ending, Event, EventKind, Fence, HeldBy, Holder, LeaseId, LeaseRecord, LeaseState, Metadata,
        Resource, Timestamp, Ttl,
    },
};

/// The holder and the note of a record.
#[derive(Debug, Deserialize)]
struct HolderAndNote {
    holder: Holder,
    #[serde(default)]
    note: Option<String>,
}

/// A record, taken apart; `prelude.lua` describes its columns.
#[derive(Debug)]
pub(super) struct Record {
    ends: Timestamp,
    renewed: Timestamp,
    pub(super) fence: Option<Fence>,
    asked: Timestamp,
    acquired: Timestamp,
    ttl: Ttl,
    claim: Claim,
    who: HolderAndNote,
    metadata: Metadata,
}

impl Record {
    pub(super) fn read(value: &Value) -> Result<Self> {
        Self::parse(text(value)?).ok_or_else(|| unexpected("a lease", value))
    }

    pub(super) fn parse(record: &str) -> Option<Self> {
        let number = |from: usize, to: usize| record.get(from - 1..to)?.parse::<u64>().ok();
        let time = |from: usize| number(from, from + 15).map(Timestamp::from_micros);
        let mut lines = record.get(192..)?.splitn(2, '\n');
        Some(Self {
            ends: time(35)?,
            renewed: time(52)?,
            fence: number(69, 84).filter(|fence| *fence != 0).map(Fence::new),
            asked: time(86)?,
            acquired: time(103)?,
            ttl: Ttl::new(Duration::from_micros(number(120, 132)?)).ok()?,
            claim: claim(record.get(173..174)?, number(163, 172)?, number(151, 160)?)?,
            who: serde_json::from_str(lines.next()?).ok()?,
            metadata: serde_json::from_str(lines.next()?).ok()?,
        })
    }

    pub(super) fn into_holder(self) -> Holder {
        self.who.holder
    }

    pub(super) fn held_by(self, now: Timestamp) -> HeldBy {
        HeldBy {
            holder: self.who.holder,
            note: self.who.note,
            mode: self.claim.mode(),
            fence: self.fence.unwrap_or_default(),
            held_for: now.since(self.acquired),
        }
    }

    pub(super) fn listed(self, resource: &Resource, ahead: u32, now: Timestamp) -> LeaseRecord {
        let state = match self.fence {
            Some(fence) => {
                LeaseState::Holding { fence, acquired_at: self.acquired, held_for: now.since(self.acquired) }
            }
            None => LeaseState::Waiting { ahead, waiting_for: now.since(self.asked) },
        };
        LeaseRecord {
            resource: resource.clone(),
            holder: self.who.holder,
            claim: self.claim,
            state,
            asked_at: self.asked,
            renewed_ago: now.since(self.renewed),
            ttl: self.ttl,
            expires_in: Some(self.ends.since(now)),
            note: self.who.note,
            metadata: self.metadata,
        }
    }
}

fn claim(mode: &str, units: u64, capacity: u64) -> Option<Claim> {
    match mode {
        "x" => Some(Claim::EXCLUSIVE),
        "s" => Some(Claim::SHARED),
        "l" => Some(Claim::LEADER),
        "p" => Claim::permits(u32::try_from(units).ok()?, u32::try_from(capacity).ok()?).ok(),
        _ => None,
    }
}

/// One entry of a history stream: up to 16 leases that ended in one call.
#[derive(Debug)]
pub(super) struct EndedBatch {
    /// Its position in the stream.
    pub(super) id: String,
    /// When the entry was added, in ms; never before its leases ended.
    pub(super) written_ms: u64,
    pub(super) leases: Vec<EndedLease>,
}

/// A range of a history stream. What cannot be read is left out: a newer version wrote it.
pub(super) fn history(value: &Value) -> Result<Vec<EndedBatch>> {
    let read = |entry: &Value| {
        let [id, fields] = array(entry)? else { return Err(unexpected("a history", entry)) };
        let id = text(id)?.to_owned();
        let written_ms = id.split('-').next().and_then(|ms| ms.parse().ok()).unwrap_or(u64::MAX);
        let ended = array(fields)?.chunks_exact(2).rev();
        Ok(EndedBatch { id, written_ms, leases: ended.filter_map(|pair| ended_lease(&pair[0], &pair[1])).collect() })
    };
    array(value)?.iter().map(read).collect()
}

fn ended_lease(ending_and_name: &Value, record: &Value) -> Option<EndedLease> {
    let (ending, name) = text(ending_and_name).ok()?.split_once('\n')?;
    let mut words = ending.splitn(3, ' ');
    let (at, ending) = (words.next()?, words.next()?);
    let record = Record::parse(text(record).ok()?)?;
    Some(EndedLease {
        resource: Resource::new(name).ok()?,
        holder: record.who.holder,
        claim: record.claim,
        fence: record.fence,
        asked_at: record.asked,
        acquired_at: record.fence.map(|_| record.acquired),
        ended_at: Timestamp::from_micros(at.parse().ok()?),
        ending: ending_of(ending)?,
        problem: words.next().and_then(|problem| serde_json::from_str(problem).ok()),
        note: record.who.note,
        metadata: record.metadata,
    })
}

fn ending_of(word: &str) -> Option<Ending> {
    serde_json::from_value(serde_json::Value::from(word)).ok()
}

/// A hint that was pushed to one instance, and the resource it is about.
#[derive(Debug)]
pub(super) struct Push {
    pub(super) hint: Hint,
    pub(super) resource: Option<Resource>,
}

/// What is pushed to one instance, a line for each: `granted ID FENCE NAME`, `evicted ID`.
pub(super) fn pushes(message: &[u8]) -> Vec<Push> {
    std::str::from_utf8(message).unwrap_or_default().lines().filter_map(push).collect()
}

fn push(line: &str) -> Option<Push> {
    let mut words = line.splitn(4, ' ');
    let (what, id) = (words.next()?, words.next()?.parse::<LeaseId>().ok()?);
    let hint = match (what, words.next()) {
        ("granted", Some(fence)) => Hint::granted(id, Fence::new(fence.parse().ok()?)),
        ("evicted", None) => Hint::Evicted { id },
        _ => return None,
    };
    Some(Push { hint, resource: words.next().and_then(|name| Resource::new(name).ok()) })
}

/// What is pushed to those who watch: for each event its kind and time, the name, the record.
pub(super) fn events(message: &[u8]) -> Vec<Event> {
    std::str::from_utf8(message).unwrap_or_default().split('\x1e').filter_map(event).collect()
}

fn event(text: &str) -> Option<Event> {
    let mut lines = text.splitn(3, '\n');
    let (what, at) = lines.next()?.split_once(' ')?;
    let resource = Resource::new(lines.next()?).ok()?;
    let record = Record::parse(lines.next()?)?;
    let kind = match what {
        "waiting" => EventKind::Waiting,
        "acquired" => EventKind::Acquired { fence: record.fence? },
        ending => EventKind::Ended { ending: ending_of(ending)?, fence: record.fence },
    };
    let at = Timestamp::from_micros(at.parse().ok()?);
    Some(Event { at, resource, holder: record.who.holder, claim: record.claim, kind })
}
