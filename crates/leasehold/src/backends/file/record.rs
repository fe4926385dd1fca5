//! The record of a resource: the model's state and the owner of each entry, in one file that is written as a whole.
//!
//! For each latch, an instance keeps open the last record that it read or
//! wrote. While the path still refers to that file and its content is
//! unchanged, nothing is decoded.

use std::{
    collections::HashMap,
    fs::{self, File},
    io, mem,
    path::{Path, PathBuf},
};

use rustix::fs::{CWD, RenameFlags};
use uuid::Uuid;

use super::{
    decode,
    directory::Directory,
    encode::{self, EncodedEntry},
    errors::cannot,
    latch::Latch,
    record_file::{self, RecordFile},
    safe_open,
    spares::{Spare, Spares},
};
use crate::{
    Error, Result,
    lease::{Fence, LeaseId, Moment, Resource, Timestamp},
    model::{Entry, Expiry, State},
};

/// What is stored about a resource.
#[derive(Debug, Default)]
pub(super) struct Record {
    pub(super) state: State,
    /// The instance that requested each entry.
    pub(super) owners: HashMap<LeaseId, Uuid>,
    /// The entries as the file has them, in order.
    pub(super) lines: Vec<EncodedEntry>,
    /// Whether the times in the file are of an earlier boot, so that it must be written again.
    pub(super) from_earlier_boot: bool,
    /// The newest fence of the latch, if this operation has read it.
    pub(super) latch_fence: Option<Fence>,
}

/// The readings of both clocks, and the boot of the machine that they belong to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times<'a> {
    pub(super) now: Moment,
    pub(super) wall: Timestamp,
    pub(super) boot: &'a str,
}

impl Record {
    /// The instance whose death ends the entry; `None` if only a clock does.
    pub(super) fn bound_to(&self, entry: &Entry) -> Option<Uuid> {
        self.owners.get(&entry.id).copied().filter(|_| ends_with_process(entry))
    }
}

/// Returns whether the death of a process ends the entry.
pub(super) fn ends_with_process(entry: &Entry) -> bool {
    // A detached lease needs no process once it is granted. While it waits, its process must be alive to receive the
    // grant.
    entry.expiry == Expiry::ByPresence || entry.is_waiting()
}

/// A record and its open file.
#[derive(Debug)]
pub(super) struct CachedRecord {
    resource: Resource,
    file: RecordFile,
    record: Record,
}

/// A record's path and its latch, which the operation has taken.
pub(super) struct LatchedPath<'a, 'l> {
    pub(super) directory: &'a Directory,
    pub(super) resource: &'a Resource,
    pub(super) latch: &'a mut Latch<'l>,
    pub(super) path: PathBuf,
}

/// Returns the record of the resource, empty if there is none. Its `last_fence` is at least every fence that the
/// resource ever had.
pub(super) fn load(latched: &mut LatchedPath<'_, '_>, times: &Times<'_>) -> Result<(Record, Option<RecordFile>)> {
    let LatchedPath { directory, resource, latch, path } = latched;
    let cannot_read = |error| cannot("read", path, error).about(resource);
    let mut known = Record::default();
    if let Some(CachedRecord { mut file, record, .. }) =
        latch.take_cached().filter(|known| known.resource == **resource)
    {
        let found = record_file::identity(path);
        // Still our file.
        if file.has_identity(found) {
            let Some(bytes) = file.reload_if_changed().map_err(cannot_read)? else { return Ok((record, Some(file))) };
            let (_, record) = decode::record(bytes, path, times, record)?;
            return Ok((with_newest_fence(record, latch)?, Some(file)));
        }
        // The file that we had before is back in place: processes that take turns swap the same two.
        if let Some(mut file) = latch.exchange_older(file).filter(|older| older.has_identity(found)) {
            let (_, record) = decode::record(file.read_again().map_err(cannot_read)?, path, times, record)?;
            return Ok((with_newest_fence(record, latch)?, Some(file)));
        }
        // Another file.
        known = record;
    }
    let buffer = latch.buffer();
    let (file, length) = match RecordFile::read(directory, path, buffer) {
        Ok(read) => read,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let fence = latch.fence()?;
            let state = State { last_fence: fence, ..State::default() };
            return Ok((Record { state, latch_fence: Some(fence), ..Record::default() }, None));
        }
        Err(error) => return Err(cannot_read(error)),
    };
    let (_, record) = decode::record(&buffer[..length], path, times, known)?;
    Ok((with_newest_fence(record, latch)?, Some(file)))
}

/// Raises the fence to the latch's: after a power loss the record may be older.
fn with_newest_fence(mut record: Record, latch: &Latch<'_>) -> Result<Record> {
    if record.from_earlier_boot {
        record.state.last_fence = record.state.last_fence.max(latch.fence()?);
    }
    Ok(record)
}

/// Keeps the record for the next operation under this latch.
pub(super) fn keep(latch: &mut Latch<'_>, resource: &Resource, record: Record, file: Option<RecordFile>) {
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
    let (resource, _) = decode::record(&bytes, path, times, Record::default())?;
    Ok(Some(resource))
}

/// What an operation changed in a record.
pub(super) struct Change<'a> {
    /// The entries whose lines are out of date, sorted.
    pub(super) entries: &'a [LeaseId],
    /// Whether the state has a fence that the latch may not know.
    pub(super) fence_issued: bool,
}

/// Replaces the record atomically, or removes it if it has no entries left.
///
/// Sets `file` to the file of the new record; returns a file that the caller must remove. The process may die at any
/// step: a full disk is detected before the record changes, and a fence is stored before anyone can see it.
pub(super) fn replace(
    latched: &mut LatchedPath<'_, '_>,
    spares: &Spares,
    record: &mut Record,
    file: &mut Option<RecordFile>,
    change: &Change<'_>,
    times: &Times<'_>,
) -> Result<Option<Spare>> {
    let LatchedPath { directory, resource, latch, path } = latched;
    let newest = record.state.last_fence;
    let latch_fence = record.latch_fence.take();
    let store_fence = |latch: &Latch<'_>| {
        if change.fence_issued && newest > latch_fence.map_or_else(|| latch.fence(), Ok)? {
            latch.store_fence(newest, directory.fsync)?;
        }
        Ok(())
    };
    let to_remove = if record.state.entries.is_empty() {
        store_fence(latch)?;
        let removed = file.take().map_or(Ok(None), |file| remove(path, file, latch, spares));
        removed.map_err(|error| cannot("remove", path, error))?
    } else {
        let mut bytes = mem::take(latch.buffer());
        let written = encode::record(&mut bytes, record, change.entries, resource, times)
            .map_err(|error| cannot("write", path, error))
            .and_then(|()| match file {
                Some(file) if directory.in_place && file.has_room(bytes.len()) => {
                    store_fence(latch)?;
                    file.write(directory, &bytes).map(|()| None).map_err(|error| cannot("write", path, error))
                }
                _ => {
                    let Spare { file: new, path: temporary } = write_spare(directory, &bytes, spares)?;
                    let renamed = store_fence(latch).and_then(|()| rename_into_place(&temporary, path, file.is_some()));
                    if renamed.is_err() {
                        let _best_effort = fs::remove_file(&temporary);
                    }
                    let renamed = renamed?;
                    match (file.replace(new), renamed) {
                        (Some(file), Renaming::Exchanged) => Ok(spares.keep(Spare { file, path: temporary })),
                        (Some(old), Renaming::Renamed) => {
                            latch.close_later(old);
                            Ok(None)
                        }
                        (None, _) => Ok(None),
                    }
                }
            });
        *latch.buffer() = bytes;
        written.map_err(|error| error.about(resource))?
    };
    confirm_on_disk(directory, path).map_err(|error| error.about(resource))?;
    Ok(to_remove)
}

/// Removes a record, and keeps its file as a spare if there is room.
fn remove(path: &Path, file: RecordFile, latch: &mut Latch<'_>, spares: &Spares) -> io::Result<Option<Spare>> {
    if file.is_reusable() && spares.has_room() {
        let unused = spares.unused_path();
        if fs::rename(path, &unused).is_ok() {
            return Ok(spares.keep(Spare { file, path: unused }));
        }
    }
    latch.close_later(file);
    // This needs no space on a full disk.
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(None),
    }
}

/// Writes a record to a spare file, or to a new one.
fn write_spare(directory: &Directory, bytes: &[u8], spares: &Spares) -> Result<Spare> {
    let spare = if RecordFile::fits(bytes.len()) { spares.take() } else { None };
    // Skip a spare that was removed or replaced by hand.
    let spare = spare.filter(|spare| spare.file.has_name(&spare.path));
    let (written, path) = if let Some(Spare { mut file, path }) = spare {
        (file.write(directory, bytes).map(|()| file), path)
    } else {
        let path = spares.unused_path();
        (RecordFile::create(directory, &path, bytes), path)
    };
    match written {
        Ok(file) => Ok(Spare { file, path }),
        Err(error) => {
            let _best_effort = fs::remove_file(&path);
            Err(cannot("write", &path, error))
        }
    }
}

/// How the new file got the record's name.
#[derive(PartialEq, Eq)]
enum Renaming {
    /// The old file now has the temporary name.
    Exchanged,
    Renamed,
}

/// Gives a file the name of the record.
///
/// Exchanges the names if there was a record. A rename over a file makes ext4 write the new file to disk at once, which
/// costs more than the rest of the operation and is useless for leases that end with their process.
fn rename_into_place(temporary: &Path, path: &Path, replaces: bool) -> Result<Renaming> {
    if replaces && rustix::fs::renameat_with(CWD, temporary, CWD, path, RenameFlags::EXCHANGE).is_ok() {
        return Ok(Renaming::Exchanged);
    }
    fs::rename(temporary, path).map(|()| Renaming::Renamed).map_err(|error| cannot("replace", path, error))
}

/// Syncs a change to disk if the `fsync` option is set.
///
/// Others can see the change already. If this fails, a power loss may undo it.
fn confirm_on_disk(directory: &Directory, path: &Path) -> Result<()> {
    if !directory.fsync {
        return Ok(());
    }
    File::open(directory.records()).and_then(|records| records.sync_all()).map_err(|error| {
        Error::unanswered(format!("the disk did not confirm the change of {}", path.display())).caused_by(error)
    })
}
