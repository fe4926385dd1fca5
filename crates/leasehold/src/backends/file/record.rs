//! The record of a resource: the rule's state and whose each entry is, in one file that is replaced as a whole.
//!
//! A record file never changes once it has its name. An instance keeps the
//! last one open that it read or wrote under a latch: while the name leads to
//! that same file, its content is known without reading it.

use std::{
    collections::HashMap,
    fs::{self, File},
    io::{self, Read as _, Write as _},
    os::unix::fs::MetadataExt,
    path::Path,
};

use rustix::fs::{CWD, RenameFlags};
use uuid::Uuid;

use super::{
    decode,
    directory::Directory,
    encode::{self, Line},
    errors::cannot,
    latch::Latch,
    safe_open,
};
use crate::{
    Error, Result,
    lease::{Fence, LeaseId, Moment, Resource, Timestamp},
    model::{Entry, Expiry, State},
};

/// Enough for a record with a few entries.
const SMALLEST_BUFFER: usize = 4096;

/// What is stored about a resource.
#[derive(Debug, Default)]
pub(super) struct Record {
    pub(super) state: State,
    /// The instance that requested each entry.
    pub(super) owners: HashMap<LeaseId, Uuid>,
    /// The entries as the file has them, in order.
    pub(super) lines: Vec<Line>,
    /// The file counts by the clock of the machine's former life and must be written anew.
    pub(super) revived: bool,
    /// The newest fence of the latch, if this operation has read it.
    pub(super) latch_fence: Option<Fence>,
}

/// The clocks of the moment, and which life of the machine they belong to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times<'a> {
    pub(super) now: Moment,
    pub(super) wall: Timestamp,
    pub(super) boot: &'a str,
}

impl Record {
    /// The instance whose death ends the entry; `None` where a clock alone does.
    pub(super) fn bound_to(&self, entry: &Entry) -> Option<Uuid> {
        self.owners.get(&entry.id).copied().filter(|_| is_bound(entry))
    }
}

/// Whether the death of a process ends the entry.
pub(super) fn is_bound(entry: &Entry) -> bool {
    // A detached lease needs no process once it holds; while it waits, someone must be there to take it.
    entry.expiry == Expiry::ByPresence || entry.is_waiting()
}

/// A record and its open file.
#[derive(Debug)]
pub(super) struct CachedRecord {
    resource: Resource,
    file: File,
    record: Record,
}

/// Returns the record of the resource; an absent one is empty. Its fence is the newest that the resource had.
pub(super) fn load(
    directory: &Directory,
    resource: &Resource,
    latch: &mut Latch<'_>,
    times: &Times<'_>,
) -> Result<(Record, Option<File>)> {
    let path = directory.record(resource);
    if let Some(cached) = latch.take_cached()
        && cached.resource == *resource
        && is_in_place(&cached.file, &path)
    {
        return Ok((cached.record, Some(cached.file)));
    }
    let buffer = latch.buffer();
    let (file, length) = match read_into(buffer, &path) {
        Ok(read) => read,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let fence = latch.fence()?;
            let state = State { last_fence: fence, ..State::default() };
            return Ok((Record { state, latch_fence: Some(fence), ..Record::default() }, None));
        }
        Err(error) => return Err(cannot("read", &path, error).about(resource)),
    };
    let (_, mut record) = decode::record(&buffer[..length], &path, times)?;
    if record.revived {
        // A power loss may have brought an older record back.
        record.state.last_fence = record.state.last_fence.max(latch.fence()?);
    }
    Ok((record, Some(file)))
}

/// Whether the path leads to the open file. While it is open, no other file can have its inode.
fn is_in_place(file: &File, path: &Path) -> bool {
    let identity = |metadata: io::Result<fs::Metadata>| metadata.map(|found| (found.dev(), found.ino())).ok();
    let found = identity(fs::symlink_metadata(path));
    found.is_some() && found == identity(file.metadata())
}

/// Reads a whole file with as few calls as possible; returns its length too.
fn read_into(buffer: &mut Vec<u8>, path: &Path) -> io::Result<(File, usize)> {
    let file = safe_open::any(path)?;
    // What was in the buffer is overwritten.
    buffer.resize(buffer.len().max(SMALLEST_BUFFER), 0);
    let mut length = 0;
    loop {
        length += (&file).read(&mut buffer[length..])?;
        if length > safe_open::LARGEST {
            return Err(safe_open::too_large());
        }
        // A read that leaves room has reached the end.
        if length < buffer.len() {
            break;
        }
        buffer.resize(length * 2, 0);
    }
    // A FIFO reads as empty; so does a record that a power loss tore.
    let file = if length == 0 { safe_open::refuse_irregular(file)? } else { file };
    Ok((file, length))
}

/// Keeps the record for the next operation under this latch.
pub(super) fn keep(latch: &mut Latch<'_>, resource: &Resource, record: Record, file: Option<File>) {
    if let Some(file) = file {
        latch.put_cached(CachedRecord { resource: resource.clone(), file, record });
    }
}

/// Reads which resource a record is of; `None` when it has just been removed.
pub(super) fn resource_of(path: &Path, times: &Times<'_>) -> Result<Option<Resource>> {
    let bytes = match safe_open::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(cannot("read", path, error)),
    };
    let (resource, _) = decode::record(&bytes, path, times)?;
    Ok(Some(resource))
}

/// Where a record goes, and what its writer has at hand.
pub(super) struct Target<'a, 'l> {
    pub(super) directory: &'a Directory,
    pub(super) resource: &'a Resource,
    pub(super) latch: &'a mut Latch<'l>,
    /// A name that no other instance writes to.
    pub(super) aside: &'a Path,
}

/// What an operation changed in a record.
pub(super) struct Change<'a> {
    /// The entries whose lines are out of date, sorted.
    pub(super) entries: &'a [LeaseId],
    /// Whether the state has a fence that the latch may not know.
    pub(super) fence_issued: bool,
    /// Whether there is a file to be replaced.
    pub(super) replaces: bool,
}

/// Puts the record in place, or removes it when nothing is left; all or nothing. Returns the new file.
///
/// The file that was replaced may be left at `aside`; [`remove_replaced`] removes it.
///
/// The order makes it safe to die anywhere: a full disk shows when the record is written aside, and a fence is stored
/// before anyone can have it.
pub(super) fn replace(
    target: Target<'_, '_>,
    record: &mut Record,
    change: &Change<'_>,
    times: &Times<'_>,
) -> Result<Option<File>> {
    let Target { directory, resource, latch, aside } = target;
    let path = directory.record(resource);
    let newest = record.state.last_fence;
    let latch_fence = record.latch_fence.take();
    let raise = |latch: &Latch<'_>| {
        if change.fence_issued && newest > latch_fence.map_or_else(|| latch.fence(), Ok)? {
            latch.raise(newest, directory.fsync)?;
        }
        Ok(())
    };
    if record.state.entries.is_empty() {
        raise(latch)?;
        return match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(cannot("remove", &path, error)),
            _ => confirm_on_disk(directory, &path).map(|()| None),
        };
    }
    let buffer = latch.buffer();
    let in_place = encode::record(buffer, record, change.entries, resource, times)
        .and_then(|()| write_aside(directory, buffer, aside))
        .map_err(|error| cannot("write", aside, error))
        .and_then(|file| {
            raise(latch)?;
            put(aside, &path, change.replaces).map_err(|error| cannot("replace", &path, error))?;
            Ok(file)
        });
    if in_place.is_err() {
        let _best_effort = fs::remove_file(aside);
    }
    let file = in_place.map_err(|error| error.about(resource))?;
    confirm_on_disk(directory, &path).map_err(|error| error.about(resource))?;
    Ok(Some(file))
}

/// Gives a file its name, in the place of the record that may have it.
///
/// By exchange where there was one: a rename over a file makes ext4 write the new one to the disk at once,
/// which costs more than all the rest and gains nothing for leases that end with their processes.
fn put(aside: &Path, path: &Path, replaces: bool) -> io::Result<()> {
    if replaces && rustix::fs::renameat_with(CWD, aside, CWD, path, RenameFlags::EXCHANGE).is_ok() {
        return Ok(());
    }
    fs::rename(aside, path)
}

/// Removes the file that an exchange left behind. Threads of this instance must still be kept from the latch.
pub(super) fn remove_replaced(aside: &Path) {
    let _not_left_or_tidied_later = fs::remove_file(aside);
}

fn write_aside(directory: &Directory, bytes: &[u8], aside: &Path) -> io::Result<File> {
    if bytes.len() > safe_open::LARGEST {
        return Err(safe_open::too_large());
    }
    let mut file = directory.create(aside)?;
    file.write_all(bytes)?;
    if directory.fsync {
        file.sync_all()?;
    }
    Ok(file)
}

/// The change is visible already: when the disk does not confirm it, its fate in a power loss is open.
fn confirm_on_disk(directory: &Directory, path: &Path) -> Result<()> {
    if !directory.fsync {
        return Ok(());
    }
    File::open(directory.records()).and_then(|records| records.sync_all()).map_err(|error| {
        Error::unanswered(format!("the disk did not confirm the change of {}", path.display())).caused_by(error)
    })
}
