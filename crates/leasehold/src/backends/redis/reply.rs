//! The only decoder: what scripts answer, what is pushed, and what the server tells about itself.

use std::{collections::HashMap, time::Duration};

use redis::Value;
use serde::{Deserialize, Serialize};

use crate::{
    Error, Result,
    backend::Hint,
    lease::{
        Busy, Claim, Decision, EndedLease, Ending, Event, EventKind, Evicted, Family, Fence, Grant, HeldBy, Holder,
        LeaseId, LeaseRecord, LeaseState, Metadata, Mode, QueuePosition, Problem, Released, Request, Resource, Shape, Standing,
        Timestamp, Ttl,
    },
};

/// Who asked: the second line of a record.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Who {
    holder: Holder,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

/// A record as the scripts keep it, taken apart. `rule.lua` says what stands where.
#[derive(Debug)]
pub(super) struct Record {
    ends: Timestamp,
    renewed: Timestamp,
    fence: Option<Fence>,
    asked: Timestamp,
    acquired: Timestamp,
    ttl: Ttl,
    claim: Claim,
    who: Who,
    metadata: Metadata,
}

/// The tail of a record: what its asker says about it.
pub(super) fn tail(request: &Request, instance: &str) -> String {
    let claim = request.claim;
    let who = Who { holder: request.holder.clone(), note: request.note.clone() };
    format!(
        "{} {} {} {} {instance}\n{}\n{}",
        claim.units(),
        shape(claim.shape()),
        claim.mode(),
        request.fence_floor.map_or(0, Fence::get),
        serde_json::to_string(&who).unwrap_or_default(),
        json(&request.metadata)
    )
}

/// Metadata as it stands in a record.
pub(super) fn json(metadata: &Metadata) -> String {
    serde_json::to_string(metadata).unwrap_or_else(|_| String::from("{}"))
}

/// A shape as the scripts compare it.
pub(super) fn shape(shape: Shape) -> String {
    let family = match shape.family {
        Family::Lock => "lock",
        Family::Permits => "permits",
        Family::Election => "election",
    };
    format!("{} {family}", shape.capacity)
}

impl Record {
    fn read(value: &Value) -> Result<Self> {
        Self::parse(text(value)?).ok_or_else(|| nonsense("a lease", value))
    }

    fn parse(record: &str) -> Option<Self> {
        let time = |from: usize| record.get(from..from + 16)?.parse().ok().map(Timestamp::from_micros);
        let fence: u64 = record.get(67..83)?.parse().ok()?;
        let ttl: u64 = record.get(118..131)?.parse().ok()?;
        let mut lines = record.get(132..)?.splitn(3, '\n');
        let mut words = lines.next()?.split(' ');
        let (units, capacity) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let mode = words.nth(1)?;
        Some(Self {
            ends: time(33)?,
            renewed: time(50)?,
            fence: (fence != 0).then(|| Fence::new(fence)),
            asked: time(84)?,
            acquired: time(101)?,
            ttl: Ttl::new(Duration::from_micros(ttl)).ok()?,
            claim: claim(mode, units, capacity)?,
            who: serde_json::from_str(lines.next()?).ok()?,
            metadata: serde_json::from_str(lines.next()?).ok()?,
        })
    }

    fn held_by(self, now: Timestamp) -> HeldBy {
        HeldBy {
            holder: self.who.holder,
            note: self.who.note,
            mode: self.claim.mode(),
            fence: self.fence.unwrap_or_default(),
            held_for: now.since(self.acquired),
        }
    }

    fn listed(self, resource: &Resource, ahead: u32, now: Timestamp) -> LeaseRecord {
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

fn claim(mode: &str, units: u32, capacity: u32) -> Option<Claim> {
    match mode {
        "exclusive" => Some(Claim::EXCLUSIVE),
        "shared" => Some(Claim::SHARED),
        "leader" => Some(Claim::LEADER),
        _ if mode == Mode::Permit.as_str() => Claim::permits(units, capacity).ok(),
        _ => None,
    }
}

/// What `acquire.lua` answers.
pub(super) fn decision(value: &Value) -> Result<Decision> {
    let parts = array(value)?;
    match (text_at(parts, 0)?, parts) {
        ("busy", [_, now, waiting, holders @ ..]) => {
            let now = Timestamp::from_micros(number(now)?);
            let holders = holders.iter().map(|record| Ok(Record::read(record)?.held_by(now))).collect::<Result<_>>()?;
            Ok(Decision::Busy(Busy { holders, waiting: small(number(waiting)?) }))
        }
        ("wrong", [_, in_force]) => {
            let (capacity, family) = text(in_force)?.split_once(' ').ok_or_else(|| nonsense("a shape", value))?;
            let family = match family {
                "lock" => Family::Lock,
                "permits" => Family::Permits,
                "election" => Family::Election,
                _ => return Err(nonsense("a shape", value)),
            };
            let capacity = capacity.parse().map_err(|_| nonsense("a shape", value))?;
            Ok(Decision::WrongShape { in_force: Shape { family, capacity } })
        }
        _ => {
            let words = parts.iter().map(text).collect::<Result<Vec<_>>>()?;
            match standing_of(&words).ok_or_else(|| nonsense("a decision", value))? {
                Standing::Holding(grant) => Ok(Decision::Granted(grant)),
                Standing::Waiting(place) => Ok(Decision::Queued(place)),
                Standing::Gone | Standing::Unknown => Err(nonsense("a decision", value)),
            }
        }
    }
}

/// What `renew.lua` answers: one standing for each renewal.
pub(super) fn standings(value: &Value) -> Result<Vec<Standing>> {
    let read = |told: &Value| {
        let words: Vec<&str> = text(told)?.split(' ').collect();
        standing_of(&words).ok_or_else(|| nonsense("a standing", told))
    };
    array(value)?.iter().map(read).collect()
}

fn standing_of(words: &[&str]) -> Option<Standing> {
    match words {
        ["holding", fence, acquired] => Some(Standing::Holding(Grant {
            fence: Fence::new(fence.parse().ok()?),
            acquired_at: Timestamp::from_micros(acquired.parse().ok()?),
        })),
        ["waiting", ahead, last_fence, first_end] => Some(Standing::Waiting(QueuePosition {
            ahead: ahead.parse().ok()?,
            last_fence: Fence::new(last_fence.parse().ok()?),
            ask_again_in: match *first_end {
                "" => None,
                micros => Some(Duration::from_micros(micros.parse().ok()?)),
            },
        })),
        ["gone"] => Some(Standing::Gone),
        _ => None,
    }
}

/// What `release.lua` answers.
pub(super) fn released(value: &Value) -> Result<Released> {
    match text(value)? {
        "freed" => Ok(Released::Freed),
        "left" => Ok(Released::LeftQueue),
        "gone" => Ok(Released::Gone),
        _ => Err(nonsense("a release", value)),
    }
}

/// What `evict.lua` answers.
pub(super) fn evicted(value: &Value) -> Result<Evicted> {
    let parts = array(value)?;
    match (text_at(parts, 0)?, parts) {
        ("evicted", [_, record]) => Ok(Evicted::Evicted { holder: Record::read(record)?.who.holder }),
        ("none", [_, fences @ ..]) => {
            let current = fences.iter().map(|fence| number(fence).map(Fence::new)).collect::<Result<_>>()?;
            Ok(Evicted::NoSuchFence { current })
        }
        _ => Err(nonsense("an eviction", value)),
    }
}

/// What `list.lua` answers about these resources.
pub(super) fn listed(value: &Value, resources: &[Resource]) -> Result<Vec<LeaseRecord>> {
    let [now, told @ ..] = array(value)? else { return Err(nonsense("a listing", value)) };
    let now = Timestamp::from_micros(number(now)?);
    let mut leases = Vec::new();
    for (resource, records) in resources.iter().zip(told) {
        let mut ahead = 0;
        for record in array(records)? {
            let record = Record::read(record)?;
            let waits = record.fence.is_none();
            leases.push(record.listed(resource, ahead, now));
            ahead += u32::from(waits);
        }
    }
    Ok(leases)
}

/// Names, as an index tells them.
pub(super) fn names(value: &Value) -> Result<Vec<Resource>> {
    array(value)?.iter().map(|name| Resource::new(text(name)?)).collect()
}

/// One entry of a history stream.
#[derive(Debug)]
pub(super) struct Remembered {
    /// Its place in the stream.
    pub(super) id: String,
    /// When it was written down, in ms: not before it ended.
    pub(super) written_ms: u64,
    /// What it tells.
    pub(super) ended: EndedLease,
}

/// What a range of a history stream holds.
pub(super) fn remembered(value: &Value) -> Result<Vec<Remembered>> {
    let read = |entry: &Value| {
        let [id, fields] = array(entry)? else { return Err(nonsense("a history", entry)) };
        let id = text(id)?.to_owned();
        let written_ms =
            id.split_once('-').and_then(|(ms, _)| ms.parse().ok()).ok_or_else(|| nonsense("a history", entry))?;
        let mut told = HashMap::new();
        for pair in array(fields)?.chunks_exact(2) {
            told.insert(text(&pair[0])?, text(&pair[1])?);
        }
        let ended = ended(&told).ok_or_else(|| nonsense("a history", entry))?;
        Ok(Remembered { id, written_ms, ended })
    };
    array(value)?.iter().map(read).collect()
}

fn ended(told: &HashMap<&str, &str>) -> Option<EndedLease> {
    let (ending, at) = told.get("end")?.split_once(' ')?;
    let record = Record::parse(told.get("record")?)?;
    Some(EndedLease {
        resource: Resource::new(told.get("name")?).ok()?,
        holder: record.who.holder,
        claim: record.claim,
        fence: record.fence,
        asked_at: record.asked,
        acquired_at: record.fence.map(|_| record.acquired),
        ended_at: Timestamp::from_micros(at.parse().ok()?),
        ending: ending_of(ending)?,
        problem: told.get("problem").and_then(|problem| serde_json::from_str::<Problem>(problem).ok()),
        note: record.who.note,
        metadata: record.metadata,
    })
}

fn ending_of(word: &str) -> Option<Ending> {
    serde_json::from_value(serde_json::Value::from(word)).ok()
}

/// What is pushed to one instance.
#[derive(Debug)]
pub(super) struct Push {
    /// What it says.
    pub(super) hint: Hint,
    /// About which resource.
    pub(super) resource: Option<Resource>,
}

/// What is pushed to one instance: `granted ID FENCE NAME`, `evicted ID`.
pub(super) fn push(message: &[u8]) -> Option<Push> {
    let mut words = std::str::from_utf8(message).ok()?.splitn(4, ' ');
    let (what, id) = (words.next()?, words.next()?.parse::<LeaseId>().ok()?);
    let hint = match (what, words.next()) {
        ("granted", Some(fence)) => Hint::granted(id, Fence::new(fence.parse().ok()?)),
        ("evicted", None) => Hint::Evicted { id },
        _ => return None,
    };
    Some(Push { hint, resource: words.next().and_then(|name| Resource::new(name).ok()) })
}

/// What is pushed to those who watch: what, when and under which fence, the name, the record.
pub(super) fn event(message: &[u8]) -> Option<Event> {
    let mut lines = std::str::from_utf8(message).ok()?.splitn(3, '\n');
    let words: Vec<&str> = lines.next()?.split(' ').collect();
    let [what, at, fence] = words.as_slice() else { return None };
    let resource = Resource::new(lines.next()?).ok()?;
    let record = Record::parse(lines.next()?)?;
    let fence = Some(fence.parse().ok()?).filter(|fence| *fence != 0).map(Fence::new);
    let kind = match *what {
        "waiting" => EventKind::Waiting,
        "acquired" => EventKind::Acquired { fence: fence? },
        ending => EventKind::Ended { ending: ending_of(ending)?, fence },
    };
    let at = Timestamp::from_micros(at.parse().ok()?);
    Some(Event { at, resource, holder: record.who.holder, claim: record.claim, kind })
}

/// The lines of an INFO answer.
pub(super) fn info(value: &Value) -> HashMap<String, String> {
    let told = match value {
        Value::VerbatimString { text, .. } => text.as_str(),
        other => text(other).unwrap_or_default(),
    };
    told.lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
        .collect()
}

/// The pairs of a map, or of a flat array that stands for one.
pub(super) fn pairs(value: &Value) -> HashMap<String, String> {
    let mut told = HashMap::new();
    let mut add = |name: &Value, value: &Value| {
        let shown = match value {
            Value::Int(number) => number.to_string(),
            other => text(other).unwrap_or_default().to_owned(),
        };
        told.insert(text(name).unwrap_or_default().to_owned(), shown);
    };
    match value {
        Value::Map(entries) => entries.iter().for_each(|(name, value)| add(name, value)),
        Value::Array(flat) => flat.chunks_exact(2).for_each(|pair| add(&pair[0], &pair[1])),
        _ => {}
    }
    told
}

/// The parts of an array.
pub(super) fn array(value: &Value) -> Result<&[Value]> {
    match value {
        Value::Array(parts) => Ok(parts),
        Value::Nil => Ok(&[]),
        other => Err(nonsense("an array", other)),
    }
}

/// A text.
pub(super) fn text(value: &Value) -> Result<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).map_err(|_| nonsense("a text", value)),
        Value::SimpleString(text) => Ok(text),
        Value::Okay => Ok("OK"),
        other => Err(nonsense("a text", other)),
    }
}

/// A whole number, as such or as text.
pub(super) fn number(value: &Value) -> Result<u64> {
    match value {
        Value::Int(number) => u64::try_from(*number).map_err(|_| nonsense("a number", value)),
        other => text(other)?.parse().map_err(|_| nonsense("a number", other)),
    }
}

fn text_at(parts: &[Value], at: usize) -> Result<&str> {
    parts.get(at).map_or(Ok(""), text)
}

fn small(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn nonsense(expected: &str, value: &Value) -> Error {
    let mut shown = format!("{value:?}");
    shown.truncate(shown.char_indices().nth(120).map_or(shown.len(), |(at, _)| at));
    Error::unavailable(format!("redis answered something that is not {expected} ({shown}); is this key ours?"))
}
