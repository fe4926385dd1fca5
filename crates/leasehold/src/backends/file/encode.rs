//! Encodes a record: a header line, then one line of JSON for each entry.
//!
//! An operation changes few entries, so the lines of the others are used again.

use std::{io, mem};

use serde::Serialize;
use uuid::Uuid;

use super::record::{Record, Times, ends_with_process};
use crate::{
    lease::{Fence, LeaseId, Resource, Timestamp},
    model::{Entry, Expiry},
};

/// The version of the records that this program writes.
pub(super) const VERSION: u32 = 2;
/// The oldest version whose programs can read these records.
const OLDEST_READER: u32 = 2;

/// Enough for most entries.
const USUAL_LINE: usize = 512;

#[derive(Serialize)]
struct Header<'a> {
    v: u32,
    oldest_reader: u32,
    resource: &'a Resource,
    /// The steady clock restarts with the machine: its readings are valid within one boot only.
    boot: &'a str,
    last_fence: Fence,
    /// How many lines follow.
    entries: usize,
}

#[derive(Serialize)]
struct EntryLine<'a> {
    owner: Uuid,
    /// When the entry expires, by the wall clock, for readers after a reboot; `None` if it does not expire.
    #[serde(skip_serializing_if = "Option::is_none")]
    deadline: Option<Timestamp>,
    entry: &'a Entry,
}

/// One entry and its encoded line.
#[derive(Debug)]
pub(super) struct EncodedEntry {
    pub(super) id: LeaseId,
    /// The instance that requested the entry.
    pub(super) owner: Uuid,
    /// The instance whose death ends the entry.
    pub(super) bound_to: Option<Uuid>,
    pub(super) waiting: bool,
    /// With its line end.
    pub(super) line: Vec<u8>,
}

impl EncodedEntry {
    pub(super) fn new(entry: &Entry, owner: Uuid, line: Vec<u8>) -> Self {
        Self {
            id: entry.id,
            owner,
            bound_to: ends_with_process(entry).then_some(owner),
            waiting: entry.is_waiting(),
            line,
        }
    }

    fn encode(entry: &Entry, owner: Uuid, times: &Times<'_>) -> io::Result<Self> {
        let by_clock = entry.expiry == Expiry::ByClock;
        let deadline = by_clock.then(|| times.wall.after(entry.expires_at.since(times.now)));
        let mut line = Vec::with_capacity(USUAL_LINE);
        serde_json::to_writer(&mut line, &EntryLine { owner, deadline, entry })?;
        line.push(b'\n');
        Ok(Self::new(entry, owner, line))
    }
}

/// Encodes the record and brings its lines up to date.
///
/// `changed` are the entries that differ from their lines, sorted. Entries keep their order from one operation to the
/// next and new ones come last, so that one pass over both finds the line of each.
pub(super) fn record(
    buffer: &mut Vec<u8>,
    record: &mut Record,
    changed: &[LeaseId],
    resource: &Resource,
    times: &Times<'_>,
) -> io::Result<()> {
    let entries = &record.state.entries;
    let header = Header {
        v: VERSION,
        oldest_reader: OLDEST_READER,
        resource,
        boot: times.boot,
        last_fence: record.state.last_fence,
        entries: entries.len(),
    };
    buffer.clear();
    serde_json::to_writer(&mut *buffer, &header)?;
    buffer.push(b'\n');

    let mut known = mem::take(&mut record.lines).into_iter();
    let mut lines = Vec::with_capacity(entries.len());
    for entry in entries {
        let unchanged = !record.from_earlier_boot && changed.binary_search(&entry.id).is_err();
        let encoded = match known.find(|known| known.id == entry.id) {
            Some(known) if unchanged => known,
            _ => {
                let owner = record.owners.get(&entry.id).copied().unwrap_or_default();
                EncodedEntry::encode(entry, owner, times)?
            }
        };
        buffer.extend_from_slice(&encoded.line);
        lines.push(encoded);
    }
    record.lines = lines;
    Ok(())
}
