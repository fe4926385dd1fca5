//! History: one line per ended lease, in two files of bounded size.

use std::{
    cmp::Reverse,
    fs,
    io::{self, BufRead, BufReader, Write as _},
    os::unix::fs::MetadataExt,
};

use super::{
    directory::Directory,
    failure::failure,
    latch::{self, Latch},
    opening,
};
use crate::{
    Result,
    lease::{EndedLease, HistoryFilter},
};

/// The newer file becomes the older one at this size, and the older one goes.
const ROTATED_AT: u64 = 4 << 20;

/// Records the ended leases. The work is done whether this succeeds or not.
pub(super) fn record(directory: &Directory, ended: &[EndedLease]) {
    if ended.is_empty() {
        return;
    }
    if let Err(error) = append(directory, ended).and_then(|size| rotate(directory, size)) {
        tracing::warn!(%error, "history was not recorded");
    }
}

fn append(directory: &Directory, ended: &[EndedLease]) -> Result<u64> {
    let path = directory.history();
    let write = || -> io::Result<u64> {
        let mut file = directory.append(&path)?;
        for lease in ended {
            let mut line = serde_json::to_vec(lease)?;
            line.push(b'\n');
            // One write per line: lines of two processes never mix.
            file.write_all(&line)?;
        }
        Ok(file.metadata()?.len())
    };
    write().map_err(|error| failure("write", &path, error))
}

fn rotate(directory: &Directory, size: u64) -> Result<()> {
    if size < ROTATED_AT {
        return Ok(());
    }
    let Some(_latch) = Latch::try_take(directory, latch::HISTORY)? else {
        return Ok(());
    };
    // Another process may have rotated since; a writer that still has the old file open writes to its end.
    let path = directory.history();
    if fs::symlink_metadata(&path).is_ok_and(|file| file.len() >= ROTATED_AT) {
        fs::rename(&path, directory.older_history()).map_err(|error| failure("rotate", &path, error))?;
    }
    Ok(())
}

/// The ended leases that the filter wants, newest first.
pub(super) fn read(directory: &Directory, filter: &HistoryFilter) -> Result<Vec<EndedLease>> {
    let mut found = Vec::new();
    let mut seen = None;
    // The newer file first: if it is rotated in between, it is met twice and read once.
    for path in [directory.history(), directory.older_history()] {
        let file = match opening::regular(fs::File::options().read(true), &path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(failure("read", &path, error)),
        };
        let inode = file.metadata().map_err(|error| failure("read", &path, error))?.ino();
        if seen.replace(inode) != Some(inode) {
            found.extend(newest_first(file, filter).map_err(|error| failure("read", &path, error))?);
        }
    }
    // An expiry is dated when it was due, which may be before the line above it.
    found.sort_by_key(|ended| Reverse(ended.ended_at));
    found.truncate(filter.limit);
    Ok(found)
}

fn newest_first(file: fs::File, filter: &HistoryFilter) -> io::Result<Vec<EndedLease>> {
    let mut wanted = Vec::new();
    for line in BufReader::new(file).split(b'\n') {
        // A line torn by a full disk or a power loss is passed over.
        if let Ok(ended) = serde_json::from_slice::<EndedLease>(&line?)
            && filter.include(&ended)
        {
            wanted.push(ended);
        }
    }
    wanted.reverse();
    Ok(wanted)
}
