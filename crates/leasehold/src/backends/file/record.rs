//! The record of a resource: read, checked, and replaced as a whole.

use std::{
    collections::{BTreeMap, HashSet},
    fs, io,
    path::Path,
    time::Duration,
};

use rustix::fs::{CWD, RenameFlags};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{directory::Directory, failure::failure, latch::Latch, names, opening};
use crate::{
    Error, Result,
    lease::{Fence, LeaseId, Moment, Resource, Timestamp},
    model::{Entry, Expiry, State},
};

const VERSION: u32 = 1;

/// What is kept of a resource: the model's state, and whose each entry is.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Stored {
    pub(super) state: State,
    pub(super) presence: BTreeMap<LeaseId, Uuid>,
    /// Its ends were counted by the clock of the machine's former life: to be written anew, or the
    /// wall clock would go on deciding.
    pub(super) revived: bool,
}

/// The clocks of the moment, and which life of the machine they belong to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times<'a> {
    pub(super) now: Moment,
    pub(super) wall: Timestamp,
    pub(super) boot: &'a str,
}

/// The record as it is on disk.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    v: u32,
    resource: Resource,
    /// The steady clock restarts with the machine: its readings count in this life only.
    boot: String,
    state: State,
    presence: BTreeMap<LeaseId, Uuid>,
    /// The ends of entries that a clock ends, by the wall clock, for the machine's next life.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    deadlines: BTreeMap<LeaseId, Timestamp>,
}

#[derive(Deserialize)]
struct Versioned {
    v: u32,
}

impl Stored {
    /// Forgets the presence of entries that are no more.
    pub(super) fn prune(&mut self) {
        self.presence.retain(|id, _| self.state.entries.iter().any(|entry| entry.id == *id));
    }

    /// The process whose death ends the entry; `None` where a clock alone decides.
    pub(super) fn bound_to(&self, entry: &Entry) -> Option<Uuid> {
        bound_to(entry, &self.presence)
    }
}

/// The process whose death ends the entry; `None` where a clock alone decides.
pub(super) fn bound_to(entry: &Entry, presence: &BTreeMap<LeaseId, Uuid>) -> Option<Uuid> {
    // A detached lease is handed on once it holds; while it waits, someone must be there to take it.
    let handed_on = entry.expiry == Expiry::ByClock && !entry.is_waiting();
    if handed_on { None } else { presence.get(&entry.id).copied() }
}

/// Reads the resource's record; an absent one is empty. The fence is at least the latch's.
pub(super) fn load(directory: &Directory, resource: &Resource, latch: &Latch, times: &Times<'_>) -> Result<Stored> {
    let path = directory.record(resource);
    let mut stored = match opening::read(&path) {
        Ok(bytes) => decode(&bytes, &path, times)?.1,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Stored::default(),
        Err(error) => return Err(failure("read", &path, error).about(resource)),
    };
    stored.state.last_fence = stored.state.last_fence.max(latch.fence()?);
    Ok(stored)
}

/// Reads which resource a record is of; `None` when it has just been removed.
pub(super) fn resource_of(path: &Path, times: &Times<'_>) -> Result<Option<Resource>> {
    let bytes = match opening::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failure("read", path, error)),
    };
    let (resource, _) = decode(&bytes, path, times)?;
    Ok(Some(resource))
}

/// Whether a record is not even JSON: what a power loss leaves of a file that was not on the disk yet.
pub(super) fn is_torn(path: &Path) -> bool {
    opening::read(path).is_ok_and(|bytes| serde_json::from_slice::<serde::de::IgnoredAny>(&bytes).is_err())
}

fn decode(bytes: &[u8], path: &Path, times: &Times<'_>) -> Result<(Resource, Stored)> {
    let version: Versioned = serde_json::from_slice(bytes).map_err(|error| garbage(path, &error.to_string()))?;
    if version.v != VERSION {
        let v = version.v;
        return Err(Error::unsupported(format!(
            "the record {} is of version {v}, this program knows {VERSION}; use one version of leasehold",
            path.display()
        )));
    }
    let record: Record = serde_json::from_slice(bytes).map_err(|error| garbage(path, &error.to_string()))?;
    if path.file_name() != Some(names::file_name(&record.resource).as_ref()) {
        return Err(garbage(path, "it is the record of another resource"));
    }
    if let Some(what) = impossible(&record) {
        return Err(garbage(path, what));
    }
    let mut state = record.state;
    // Older programs did not write what an entry lives by, and gave an end only to what a clock ends.
    for entry in state.entries.iter_mut().filter(|entry| entry.expires_at == Moment::NEVER) {
        entry.expiry = Expiry::ByPresence;
    }
    let revived = record.boot != times.boot;
    if revived {
        for entry in &mut state.entries {
            revive(entry, record.deadlines.get(&entry.id).copied(), times);
        }
    }
    Ok((record.resource, Stored { state, presence: record.presence, revived }))
}

/// What no version of the rule could have written: someone else did, and one record must not spoil others.
fn impossible(record: &Record) -> Option<&'static str> {
    let Record { state, presence, .. } = record;
    let entries = &state.entries;
    let mut ids = HashSet::new();
    if entries.iter().any(|entry| !presence.contains_key(&entry.id)) {
        return Some("it does not tell whose its entries are");
    }
    if !entries.iter().all(|entry| ids.insert(entry.id)) {
        return Some("it has an entry twice");
    }
    if !entries.iter().all(|entry| entry.claim.shape() == entries[0].claim.shape()) {
        return Some("its entries are of different kinds");
    }
    // The latch shared with other records remembers it, and the next one must fit too.
    if state.last_fence >= Fence::MAX {
        return Some("its fence is out of range");
    }
    if entries.iter().filter_map(Entry::held).any(|held| held.fence > state.last_fence) {
        return Some("it has a fence above its newest");
    }
    None
}

/// Translates an end from the machine's former life: what the wall clock says is left, at most the ttl.
fn revive(entry: &mut Entry, deadline: Option<Timestamp>, times: &Times<'_>) {
    if entry.expiry == Expiry::ByClock {
        let left = deadline.map_or(Duration::ZERO, |deadline| deadline.since(times.wall));
        entry.expires_at = times.now.after(left.min(entry.ttl.get()));
    }
}

fn garbage(path: &Path, what: &str) -> Error {
    Error::unavailable(format!(
        "the record {} cannot be understood ({what}), so nobody knows who holds the lock; make sure that no holder \
         still runs, then remove the file: fences keep rising",
        path.display()
    ))
}

/// Puts the record in place, or removes it when nothing is left; all or nothing.
///
/// The order makes it safe to die anywhere: a full disk shows when the record
/// is written aside, and a fence is remembered before anyone can have it.
pub(super) fn replace(
    directory: &Directory,
    resource: &Resource,
    stored: Stored,
    latch: &Latch,
    aside: &Path,
    times: &Times<'_>,
) -> Result<()> {
    let path = directory.record(resource);
    let newest = stored.state.last_fence;
    let raise = || {
        if newest > latch.fence()? {
            latch.raise(newest)?;
            if directory.fsync {
                latch.sync()?;
            }
        }
        Ok(())
    };
    if stored.state.entries.is_empty() {
        raise()?;
        return match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failure("remove", &path, error)),
            _ => settle_on_disk(directory, &path),
        };
    }
    let replaced = write_aside(directory, resource, stored, aside, times)
        .map_err(|error| failure("write", aside, error))
        .and_then(|()| raise())
        .and_then(|()| put(aside, &path).map_err(|error| failure("replace", &path, error)));
    if replaced.is_err() {
        let _best_effort = fs::remove_file(aside);
    }
    replaced.and_then(|()| settle_on_disk(directory, &path)).map_err(|error| error.about(resource))
}

/// Puts a file in the place of another.
///
/// By exchange where that is possible: a rename over a file makes ext4 write the new one to the disk at once,
/// which costs more than all the rest and buys nothing for leases that end with their processes.
fn put(aside: &Path, path: &Path) -> io::Result<()> {
    match rustix::fs::renameat_with(CWD, aside, CWD, path, RenameFlags::EXCHANGE) {
        Ok(()) => {
            let _tidied_later = fs::remove_file(aside);
            Ok(())
        }
        Err(_) => fs::rename(aside, path),
    }
}

fn write_aside(
    directory: &Directory,
    resource: &Resource,
    stored: Stored,
    aside: &Path,
    times: &Times<'_>,
) -> io::Result<()> {
    let ends = stored.state.entries.iter().filter(|entry| entry.expiry == Expiry::ByClock);
    let deadlines = ends.map(|entry| (entry.id, times.wall.after(entry.expires_at.since(times.now)))).collect();
    let record = Record {
        v: VERSION,
        resource: resource.clone(),
        boot: times.boot.to_owned(),
        state: stored.state,
        presence: stored.presence,
        deadlines,
    };
    let mut bytes = serde_json::to_vec(&record)?;
    bytes.push(b'\n');
    if bytes.len() > opening::LARGEST {
        return Err(opening::too_large());
    }
    let mut file = directory.create(aside)?;
    io::Write::write_all(&mut file, &bytes)?;
    if directory.fsync { file.sync_all() } else { Ok(()) }
}

/// The change is visible already: when the disk does not confirm it, its fate in a power loss is open.
fn settle_on_disk(directory: &Directory, path: &Path) -> Result<()> {
    if !directory.fsync {
        return Ok(());
    }
    fs::File::open(directory.records()).and_then(|records| records.sync_all()).map_err(|error| {
        Error::unanswered(format!("the disk did not confirm the change of {}", path.display())).caused_by(error)
    })
}
