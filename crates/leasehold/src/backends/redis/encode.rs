//! Requests, renewals and releases as arguments of the scripts. `prelude.lua` describes the columns of a record.

use std::{borrow::Cow, fmt::Write, sync::Arc};

use parking_lot::Mutex;
use serde::Serialize;

use crate::lease::{
    Claim, Family, Fence, Holder, LeaseId, Metadata, Mode, Outcome, Patience, Problem, Renewal, Request, Resource, Ttl,
    micros,
};

/// A request, as the scripts take it.
#[derive(Debug)]
pub(super) struct AcquireArguments {
    pub(super) resource: Resource,
    pub(super) record: RecordParts,
    /// `t` try, `q` queue.
    pub(super) patience: char,
    pub(super) max_waiters: Option<u32>,
}

/// What the client knows of a record that the script writes.
#[derive(Debug)]
pub(super) struct RecordParts {
    /// Form and id: the first columns.
    pub(super) head: String,
    /// The columns and lines that the client sets: the last ones.
    pub(super) tail: Arc<str>,
}

impl AcquireArguments {
    pub(super) fn new(request: &Request, tail_cache: &TailCache) -> Self {
        Self {
            resource: request.key.resource.clone(),
            record: RecordParts { head: format!("1{}", request.key.id), tail: tail_cache.of(request) },
            patience: if request.patience == Patience::Try { 't' } else { 'q' },
            max_waiters: request.max_waiters,
        }
    }
}

/// Writes the tails of records, and keeps the last one: requests that differ in name and id only, as most do, share it.
#[derive(Debug)]
pub(super) struct TailCache {
    /// Names this instance among the receivers of pushes.
    instance: String,
    last: Mutex<Option<Tail>>,
}

/// A tail, and the request that it was written for.
#[derive(Debug)]
struct Tail {
    ttl: Ttl,
    claim: Claim,
    holder: Holder,
    text: Arc<str>,
}

impl TailCache {
    pub(super) fn new(instance: String) -> Self {
        Self { instance, last: Mutex::new(None) }
    }

    fn of(&self, request: &Request) -> Arc<str> {
        if request.fence_floor.is_some() || request.note.is_some() || !request.metadata.is_empty() {
            return tail(request, &self.instance).into();
        }
        let mut last = self.last.lock();
        if let Some(last) = &*last
            && (last.ttl, last.claim, &last.holder) == (request.ttl, request.claim, &request.holder)
        {
            return Arc::clone(&last.text);
        }
        let text: Arc<str> = tail(request, &self.instance).into();
        let (ttl, claim, holder) = (request.ttl, request.claim, request.holder.clone());
        *last = Some(Tail { ttl, claim, holder, text: Arc::clone(&text) });
        text
    }
}

/// A release, as the scripts take it.
#[derive(Debug)]
pub(super) struct ReleaseArguments {
    pub(super) resource: Resource,
    /// Form and id: the first columns of the record.
    pub(super) head: String,
    /// The ending, then after a space the problem as JSON if there is one.
    pub(super) ending: Cow<'static, str>,
}

impl ReleaseArguments {
    pub(super) fn new(resource: Resource, id: LeaseId, outcome: &Outcome) -> Self {
        let ending = match outcome {
            Outcome::Failed(problem) => Cow::Owned(format!("{} {}", outcome.ending(), json(problem))),
            _ => Cow::Borrowed(outcome.ending().as_str()),
        };
        Self { resource, head: format!("1{id}"), ending }
    }

    /// The head, and the ending unless that is `released`: what `fast.lua` takes.
    pub(super) fn head_and_ending(&self) -> Cow<'_, str> {
        if self.ending == Outcome::Completed.ending().as_str() {
            Cow::Borrowed(&self.head)
        } else {
            Cow::Owned(format!("{}{}", self.head, self.ending))
        }
    }

    /// The ending, and the problem with the space before it.
    pub(super) fn ending_and_problem(&self) -> (&str, &str) {
        self.ending.split_at(self.ending.find(' ').unwrap_or(self.ending.len()))
    }
}

/// The holder and the note of a record.
#[derive(Serialize)]
struct HolderAndNote<'a> {
    holder: &'a Holder,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<&'a str>,
}

fn tail(request: &Request, instance: &str) -> String {
    let who = HolderAndNote { holder: &request.holder, note: request.note.as_deref() };
    let mut tail = String::with_capacity(192);
    let _infallible = write!(
        tail,
        "{:013} {:016} {} {instance}\n{}\n",
        micros(request.ttl.get()),
        request.fence_floor.map_or(0, Fence::get),
        claim(request.claim),
        json(&who),
    );
    if request.metadata.is_empty() {
        tail.push_str("{}");
    } else {
        tail.push_str(&metadata(&request.metadata));
    }
    tail
}

/// Encodes a claim as the columns capacity, family, units and mode.
pub(super) fn claim(claim: Claim) -> String {
    let family = match claim.shape().family {
        Family::Lock => 'l',
        Family::Permits => 'p',
        Family::Election => 'e',
    };
    let mode = match claim.mode() {
        Mode::Exclusive => 'x',
        Mode::Shared => 's',
        Mode::Permit => 'p',
        Mode::Leader => 'l',
    };
    format!("{:010}{family} {:010} {mode}", claim.capacity(), claim.units())
}

/// Whether a renewal changes nothing but the end.
pub(super) fn only_moves_end(renewal: &Renewal) -> bool {
    renewal.fence_floor.is_none() && renewal.downgrade.is_none() && renewal.metadata.is_none()
}

/// Head of the record and ttl, in columns.
pub(super) fn plain_renewal(renewal: &Renewal) -> String {
    format!("1{} {:013}", renewal.key.id, micros(renewal.ttl.get()))
}

/// Metadata as it stands in a record.
pub(super) fn metadata(metadata: &Metadata) -> String {
    serde_json::to_string(metadata).unwrap_or_else(|_| String::from("{}"))
}

/// A problem as it stands in the history.
pub(super) fn problem(problem: &Problem) -> String {
    json(problem)
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}
