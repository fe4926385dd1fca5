//! What scripts answer, and what the server says about itself.

use std::{collections::HashMap, time::Duration};

use redis::Value;

use super::{
    connection::Epoch,
    errors,
    options::{Address, RedisOptions},
    record::Record,
};
use crate::{
    Error, Result,
    lease::{
        Answer, Busy, Decision, Evicted, Family, Fence, Grant, Incarnation, LeaseRecord, QueuePosition, Released,
        Resource, Shape, Standing, Timestamp,
    },
};

/// Whether a script did nothing because the server is not in the epoch that the client knows.
pub(super) fn is_other_epoch(value: &Value) -> bool {
    matches!(value, Value::BulkString(bytes) if bytes == b"other_epoch")
}

/// The answer of `epoch.lua`.
pub(super) fn epoch(value: &Value, options: &RedisOptions) -> Result<Epoch> {
    match array(value)? {
        [word, format] if text(word)? == "other" => Err(errors::other_format(options, text(format)?)),
        [epoch, now] => Ok(Epoch::new(text(epoch)?.to_owned(), Timestamp::from_micros(number(now)?))),
        _ => Err(unexpected("an epoch", value)),
    }
}

/// An answer of a fast script: decided, or left to the full script.
#[derive(Debug)]
pub(super) enum FastAnswer<T> {
    Decided(T),
    NeedsFullScript,
}

impl<T> FastAnswer<T> {
    /// Adds which incarnation of the server answered.
    pub(super) fn with_incarnation(self, incarnation: Incarnation) -> FastAnswer<Answer<T>> {
        match self {
            Self::Decided(decided) => FastAnswer::Decided(Answer::new(decided, incarnation)),
            Self::NeedsFullScript => FastAnswer::NeedsFullScript,
        }
    }
}

/// The answers of `fast.lua`.
#[derive(Debug)]
pub(super) struct FastAnswers<'a> {
    now: Timestamp,
    pub(super) sweep_is_due: bool,
    columns: &'a str,
    texts: std::slice::Iter<'a, Value>,
}

impl<'a> FastAnswers<'a> {
    pub(super) fn read(value: &'a Value) -> Result<Self> {
        let (columns, texts) = match value {
            Value::Array(parts) => parts.split_first().ok_or_else(|| unexpected("decisions", value))?,
            columns => (columns, &[][..]),
        };
        let mut answers =
            Self { now: Timestamp::default(), sweep_is_due: false, columns: text(columns)?, texts: texts.iter() };
        answers.now = Timestamp::from_micros(answers.take(16)?.parse().map_err(|_| unexpected("a time", value))?);
        answers.sweep_is_due = answers.take(1)? == "s";
        Ok(answers)
    }

    /// The answer to the next release; all of them come before the requests.
    pub(super) fn release(&mut self) -> Result<FastAnswer<ScriptDecision>> {
        match self.take(1)? {
            "f" => Ok(FastAnswer::Decided(ScriptDecision::Release(Released::Freed))),
            "g" => Ok(FastAnswer::Decided(ScriptDecision::Release(Released::Gone))),
            _ => Ok(FastAnswer::NeedsFullScript),
        }
    }

    /// The answer to the next request.
    pub(super) fn request(&mut self) -> Result<FastAnswer<ScriptDecision>> {
        let decision = match self.take(16)?.trim_end() {
            "slow" => return Ok(FastAnswer::NeedsFullScript),
            "busy" => {
                let busy = self.texts.next().unwrap_or(&Value::Nil);
                let read = text(busy)?.split_once(' ').and_then(|(waiting, holder)| {
                    Some(Busy {
                        holders: vec![Record::parse(holder)?.held_by(self.now)],
                        waiting: saturating_u32(waiting.parse().ok()?),
                    })
                });
                Decision::Busy(read.ok_or_else(|| unexpected("who holds it", busy))?)
            }
            "queued" => {
                let position = self.texts.next().unwrap_or(&Value::Nil);
                let mut numbers = text(position)?.split(' ').map(str::parse::<u64>);
                let (Some(Ok(ahead)), Some(Ok(fence)), Some(Ok(end))) =
                    (numbers.next(), numbers.next(), numbers.next())
                else {
                    return Err(unexpected("a position", position));
                };
                Decision::Queued(QueuePosition {
                    ahead: saturating_u32(ahead),
                    last_fence: Fence::new(fence),
                    ask_again_in: Some(Duration::from_micros(end)),
                })
            }
            fence => {
                let fence = fence.parse().map_err(|_| unexpected("a fence", &Value::SimpleString(fence.to_owned())))?;
                Decision::Granted(Grant { fence: Fence::new(fence), acquired_at: self.now })
            }
        };
        Ok(FastAnswer::Decided(ScriptDecision::Acquire(decision)))
    }

    fn take(&mut self, columns: usize) -> Result<&'a str> {
        let (taken, rest) =
            self.columns.split_at_checked(columns).ok_or_else(|| unexpected("more answers", &Value::Nil))?;
        self.columns = rest;
        Ok(taken)
    }
}

/// The answers of `fast_renew.lua`.
pub(super) fn fast_standings(value: &Value) -> Result<Vec<FastAnswer<Standing>>> {
    let read = |answer: &Value| match text(answer)? {
        "slow" => Ok(FastAnswer::NeedsFullScript),
        "gone" => Ok(FastAnswer::Decided(Standing::Gone)),
        columns => {
            let grant = columns.get(..16).and_then(|fence| {
                let acquired_at = Timestamp::from_micros(columns.get(34..50)?.parse().ok()?);
                Some(Grant { fence: Fence::new(fence.parse().ok()?), acquired_at })
            });
            Ok(FastAnswer::Decided(Standing::Holding(grant.ok_or_else(|| unexpected("a standing", answer))?)))
        }
    };
    array(value)?.iter().map(read).collect()
}

/// An answer of `decide.lua`.
#[derive(Debug)]
pub(super) struct Decided {
    pub(super) answer: ScriptDecision,
    /// Whether the fast scripts can handle the name from now on.
    pub(super) fast_can_handle: bool,
}

/// What was decided.
#[derive(Debug)]
pub(super) enum ScriptDecision {
    Acquire(Decision),
    Release(Released),
}

/// The answers of `decide.lua` to this many requests, and whether work is left.
pub(super) fn decided(value: &Value, requests: usize, options: &RedisOptions) -> Result<(Vec<Result<Decided>>, bool)> {
    let answers = array(value)?;
    let read = |answer: &Value| match answer {
        Value::Array(parts) => {
            let (parts, fast_can_handle) = match parts.as_slice() {
                [parts @ .., last] if text(last).is_ok_and(|word| word == "fast") => (parts, true),
                parts => (parts, false),
            };
            let answer = match parts {
                [word, released] if text(word)? == "release" => ScriptDecision::Release(
                    released_by(text(released)?).ok_or_else(|| unexpected("a release", answer))?,
                ),
                parts => ScriptDecision::Acquire(decision(parts, options)?),
            };
            Ok(Decided { answer, fast_can_handle })
        }
        _ => Err(unexpected("a decision", answer)),
    };
    Ok((answers.iter().take(requests).map(read).collect(), answers.len() > requests))
}

fn released_by(word: &str) -> Option<Released> {
    match word {
        "freed" => Some(Released::Freed),
        "left" => Some(Released::LeftQueue),
        "gone" => Some(Released::Gone),
        _ => None,
    }
}

fn decision(parts: &[Value], options: &RedisOptions) -> Result<Decision> {
    let unreadable = |what| unexpected(what, &Value::Array(parts.to_vec()));
    match (text_at(parts, 0)?, parts) {
        ("busy", [_, now, waiting, holders @ ..]) => {
            let now = Timestamp::from_micros(number(now)?);
            let holders = holders.iter().map(|record| Ok(Record::read(record)?.held_by(now))).collect::<Result<_>>()?;
            Ok(Decision::Busy(Busy { holders, waiting: saturating_u32(number(waiting)?) }))
        }
        ("wrong", [_, in_force]) => {
            Ok(Decision::WrongShape { in_force: shape(text(in_force)?).ok_or_else(|| unreadable("a shape"))? })
        }
        _ => match standing(parts, options)? {
            Standing::Holding(grant) => Ok(Decision::Granted(grant)),
            Standing::Waiting(position) => Ok(Decision::Queued(position)),
            Standing::Gone | Standing::Unknown => Err(unreadable("a decision")),
        },
    }
}

fn shape(text: &str) -> Option<Shape> {
    let (capacity, family) = text.split_at_checked(10)?;
    let family = match family {
        "l" => Family::Lock,
        "p" => Family::Permits,
        "e" => Family::Election,
        _ => return None,
    };
    Some(Shape { family, capacity: capacity.parse().ok()? })
}

/// The answers of `renew.lua` to this many renewals, and whether work is left.
///
/// A lease that could not be decided is `Unknown`; the others are not affected.
pub(super) fn standings(value: &Value, renewals: usize, options: &RedisOptions) -> Result<(Vec<Standing>, bool)> {
    let answers = array(value)?;
    let read = |answer: &Value| {
        array(answer).and_then(|parts| standing(parts, options)).unwrap_or_else(|error| {
            tracing::warn!(%error, "a lease was not renewed");
            Standing::Unknown
        })
    };
    Ok((answers.iter().take(renewals).map(read).collect(), answers.len() > renewals))
}

fn standing(parts: &[Value], options: &RedisOptions) -> Result<Standing> {
    let words = parts.iter().map(text).collect::<Result<Vec<_>>>()?;
    check_failure(&words, options)?;
    standing_of(&words).ok_or_else(|| unexpected("a standing", &Value::Array(parts.to_vec())))
}

/// Fails if the script could not handle the resource.
fn check_failure(words: &[&str], options: &RedisOptions) -> Result<()> {
    match words {
        ["newer"] => {
            let url = options.display_url();
            Err(Error::unsupported(format!("{url}: a newer leasehold wrote this lock; upgrade this program")))
        }
        ["error", text] => Err(errors::refused_text(options, text)),
        _ => Ok(()),
    }
}

fn standing_of(words: &[&str]) -> Option<Standing> {
    match words {
        ["holding", fence, acquired, ..] => Some(Standing::Holding(Grant {
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

/// The answer of `evict.lua`.
pub(super) fn evicted(value: &Value, options: &RedisOptions) -> Result<Evicted> {
    let answer = array(value)?.first().ok_or_else(|| unexpected("an eviction", value))?;
    let parts = array(answer)?;
    match (text_at(parts, 0)?, parts) {
        ("evicted", [_, record]) => Ok(Evicted::Evicted { holder: Record::read(record)?.into_holder() }),
        ("none", [_, fences @ ..]) => {
            let current = fences.iter().map(|fence| number(fence).map(Fence::new)).collect::<Result<_>>()?;
            Ok(Evicted::NoSuchFence { current })
        }
        _ => {
            check_failure(&parts.iter().map(text).collect::<Result<Vec<_>>>()?, options)?;
            Err(unexpected("an eviction", value))
        }
    }
}

/// Entries of one resource.
pub(super) struct Listed {
    pub(super) leases: Vec<LeaseRecord>,
    /// How many entries there were, readable or not.
    pub(super) count: usize,
    /// Waiters up to and including the last entry.
    pub(super) ahead: u32,
}

/// The answer of `list.lua` about these resources; `ahead` waiters of the first were left out.
///
/// What cannot be read is left out: a newer version wrote it.
pub(super) fn listed(value: &Value, resources: &[Resource], mut ahead: u32) -> Result<Vec<Listed>> {
    let [now, answers @ ..] = array(value)? else { return Err(unexpected("a listing", value)) };
    let now = Timestamp::from_micros(number(now)?);
    let mut listed = Vec::with_capacity(resources.len());
    for (resource, records) in resources.iter().zip(answers) {
        let records = array(records)?;
        let mut leases = Vec::with_capacity(records.len());
        for record in records.iter().filter_map(|record| Record::read(record).ok()) {
            let waits = record.fence.is_none();
            leases.push(record.listed(resource, ahead, now));
            ahead += u32::from(waits);
        }
        listed.push(Listed { leases, count: records.len(), ahead });
        ahead = 0;
    }
    Ok(listed)
}

/// The answer of `names.lua`: the next cursor, and names.
pub(super) fn names(value: &Value) -> Result<(u64, Vec<Resource>)> {
    let [cursor, names @ ..] = array(value)? else { return Err(unexpected("names", value)) };
    Ok((number(cursor)?, resources(names)?))
}

pub(super) fn resources(values: &[Value]) -> Result<Vec<Resource>> {
    values.iter().map(|name| Resource::new(text(name)?)).collect()
}

/// The servers in an answer to CLUSTER SLOTS, as far as they know their names.
pub(super) fn cluster_nodes(value: &Value) -> Vec<Address> {
    let node = |node: &Value| {
        let [host, port, ..] = array(node).ok()? else { return None };
        let host = text(host).ok().filter(|host| !host.is_empty() && *host != "?")?;
        Some(Address::Tcp { host: host.to_owned(), port: u16::try_from(number(port).ok()?).ok()? })
    };
    let ranges = array(value).unwrap_or_default();
    ranges.iter().flat_map(|range| array(range).unwrap_or_default().iter().skip(2)).filter_map(node).collect()
}

/// The lines of an INFO answer.
pub(super) fn info(value: &Value) -> HashMap<String, String> {
    let values = match value {
        Value::VerbatimString { text, .. } => text.as_str(),
        other => text(other).unwrap_or_default(),
    };
    values
        .lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
        .collect()
}

/// The pairs of a map, or of a flat array that stands for one.
pub(super) fn pairs(value: &Value) -> HashMap<String, String> {
    let mut values = HashMap::new();
    let mut add = |name: &Value, value: &Value| {
        let shown = match value {
            Value::Int(number) => number.to_string(),
            other => text(other).unwrap_or_default().to_owned(),
        };
        values.insert(text(name).unwrap_or_default().to_owned(), shown);
    };
    match value {
        Value::Map(entries) => entries.iter().for_each(|(name, value)| add(name, value)),
        Value::Array(flat) => flat.chunks_exact(2).for_each(|pair| add(&pair[0], &pair[1])),
        _ => {}
    }
    values
}

pub(super) fn array(value: &Value) -> Result<&[Value]> {
    match value {
        Value::Array(parts) => Ok(parts),
        Value::Nil => Ok(&[]),
        other => Err(unexpected("an array", other)),
    }
}

pub(super) fn text(value: &Value) -> Result<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).map_err(|_| unexpected("a text", value)),
        Value::SimpleString(text) => Ok(text),
        Value::Okay => Ok("OK"),
        other => Err(unexpected("a text", other)),
    }
}

/// A whole number, as such or as text.
pub(super) fn number(value: &Value) -> Result<u64> {
    match value {
        Value::Int(number) => u64::try_from(*number).map_err(|_| unexpected("a number", value)),
        other => text(other)?.parse().map_err(|_| unexpected("a number", other)),
    }
}

fn text_at(parts: &[Value], at: usize) -> Result<&str> {
    parts.get(at).map_or(Ok(""), text)
}

fn saturating_u32(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// The error of an answer that cannot be read.
pub(super) fn unexpected(expected: &str, value: &Value) -> Error {
    let mut shown = format!("{value:?}");
    shown.truncate(shown.char_indices().nth(120).map_or(shown.len(), |(at, _)| at));
    Error::unavailable(format!("redis answered {shown} instead of {expected}: does another program use these keys?"))
}

#[cfg(test)]
mod fuzz;
