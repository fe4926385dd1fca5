//! Decodes a record, refuses what the model cannot have written, and converts times of an earlier boot.

use std::{collections::HashMap, path::Path, time::Duration};

use serde::Deserialize;
use uuid::Uuid;

use super::{
    encode::{EncodedEntry, VERSION},
    file_names,
    record::{Record, Times},
    safe_open,
};
use crate::{
    Error, Result,
    lease::{Fence, Resource, Timestamp},
    model::{Entry, Expiry, State},
};

/// How many known lines each new line is compared with: an operation removes or changes only a few.
const MAX_COMPARED: usize = 4;

#[derive(Deserialize)]
struct RecordVersion {
    v: u32,
    /// The oldest version whose programs may read the record; if absent, only programs of version `v` may.
    oldest_reader: Option<u32>,
}

#[derive(Deserialize)]
struct Header {
    v: u32,
    oldest_reader: Option<u32>,
    resource: Resource,
    boot: String,
    last_fence: Fence,
    entries: usize,
}

#[derive(Deserialize)]
struct EntryLine {
    owner: Uuid,
    deadline: Option<Timestamp>,
    entry: Entry,
}

/// Decodes the record in `bytes`, the content of `path`; returns its resource too.
///
/// `known` is an earlier record of the resource, whose lines need not be decoded again.
pub(super) fn record(bytes: &[u8], path: &Path, times: &Times<'_>, known: Record) -> Result<(Resource, Record)> {
    let corrupt = |what: &str| corrupt(path, what);
    let Some(whole) = bytes.strip_suffix(b"\n") else { return Err(corrupt("its end is missing")) };
    let mut lines = whole.split(|byte| *byte == b'\n');
    let first = lines.next().unwrap_or_default();
    let header = header(first, path)?;
    if path.file_name() != Some(file_names::file_name(&header.resource).as_ref()) {
        return Err(corrupt("it is the record of another resource"));
    }

    let from_earlier_boot = header.boot != times.boot;
    let mut record = Record { from_earlier_boot, ..Record::default() };
    record.state.last_fence = header.last_fence;
    let mut known = known.lines.into_iter().zip(known.state.entries).collect::<Vec<_>>().into_iter();
    // Spaces fill the file of a record that was longer.
    for line in lines.map(<[u8]>::trim_ascii_end) {
        let same = |(known, _): &(EncodedEntry, Entry)| known.line.strip_suffix(b"\n") == Some(line);
        // Lines keep their order: take the known line that is equal, and drop those before it.
        if !from_earlier_boot
            && let Some(at) = known.as_slice().iter().take(MAX_COMPARED).position(same)
            && let Some((known_line, entry)) = known.nth(at)
        {
            record.owners.insert(entry.id, known_line.owner);
            record.lines.push(known_line);
            record.state.entries.push(entry);
            continue;
        }
        let EntryLine { owner, deadline, mut entry } =
            serde_json::from_slice(line).map_err(|error| corrupt(&error.to_string()))?;
        if from_earlier_boot {
            convert_times(&mut entry, deadline, times);
        }
        record.owners.insert(entry.id, owner);
        record.lines.push(EncodedEntry::new(&entry, owner, [line, b"\n"].concat()));
        record.state.entries.push(entry);
    }
    if record.state.entries.len() != header.entries {
        return Err(corrupt("it does not have as many entries as it says"));
    }
    match invalid_reason(&record.state, &record.owners) {
        Some(what) => Err(corrupt(what)),
        None => Ok((header.resource, record)),
    }
}

fn header(line: &[u8], path: &Path) -> Result<Header> {
    let header = serde_json::from_slice::<Header>(line);
    // The header of another version may lack our fields: read only its version, for the error.
    let version = match &header {
        Ok(Header { v, oldest_reader, .. }) => RecordVersion { v: *v, oldest_reader: *oldest_reader },
        Err(_) => serde_json::from_slice(line).map_err(|error| corrupt(path, &error.to_string()))?,
    };
    if version.oldest_reader.unwrap_or(version.v) > VERSION || version.v < VERSION {
        return Err(other_version(path, version.v));
    }
    header.map_err(|error| corrupt(path, &error.to_string()))
}

/// Returns whether a record is not JSON or belongs to another resource.
///
/// A power loss leaves such a file if its content had not yet reached the disk.
pub(super) fn is_damaged(path: &Path) -> bool {
    let is_json = |line: &[u8]| serde_json::from_slice::<serde::de::IgnoredAny>(line).is_ok();
    let misplaced = |line: &[u8]| {
        let header = serde_json::from_slice::<Header>(line);
        header.is_ok_and(|header| path.file_name() != Some(file_names::file_name(&header.resource).as_ref()))
    };
    safe_open::read(path).is_ok_and(|bytes| match bytes.strip_suffix(b"\n") {
        Some(whole) => {
            let mut lines = whole.split(|byte| *byte == b'\n');
            !lines.clone().all(is_json) || lines.next().is_some_and(misplaced)
        }
        None => true,
    })
}

/// Returns why the state is invalid; `None` if the model could have written it.
///
/// A bad fence would spread to other resources through the shared latch file.
fn invalid_reason(state: &State, owners: &HashMap<crate::lease::LeaseId, Uuid>) -> Option<&'static str> {
    let State { entries, last_fence } = state;
    if owners.len() != entries.len() {
        return Some("it has an entry twice");
    }
    if entries.windows(2).any(|pair| pair[0].claim.shape() != pair[1].claim.shape()) {
        return Some("its entries are of different kinds");
    }
    // The latch stores this fence for other records too, and the next fence must not exceed the maximum.
    if *last_fence >= Fence::MAX {
        return Some("its fence is out of range");
    }
    if entries.iter().filter_map(Entry::held).any(|held| held.fence > *last_fence) {
        return Some("it has a fence above its newest");
    }
    None
}

/// Converts an expiry of an earlier boot to the time that is left by the wall clock, but at most the ttl.
fn convert_times(entry: &mut Entry, deadline: Option<Timestamp>, times: &Times<'_>) {
    if entry.expiry == Expiry::ByClock {
        let left = deadline.map_or(Duration::ZERO, |deadline| deadline.since(times.wall));
        entry.expires_at = times.now.after(left.min(entry.ttl.get()));
    }
}

fn other_version(path: &Path, version: u32) -> Error {
    let advice = if version > VERSION {
        "a newer leasehold wrote it; upgrade this program"
    } else {
        "an older leasehold wrote it; make sure that no holder still runs, then remove the file"
    };
    Error::unsupported(format!(
        "the record {} is of version {version}, and this program reads version {VERSION}; {advice}",
        path.display()
    ))
}

fn corrupt(path: &Path, what: &str) -> Error {
    Error::unavailable(format!(
        "the record {} is corrupt ({what}), so nobody knows who holds the lock; make sure that no holder still \
         runs, then remove the file (later fences will still be higher)",
        path.display()
    ))
}

#[cfg(test)]
mod fuzz;
