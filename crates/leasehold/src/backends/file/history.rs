//! History: one line per ended lease, in two files of bounded size.

use std::{
    cmp::Reverse,
    fs::{self, File},
    io,
    os::unix::fs::MetadataExt,
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;

use super::{
    append_file::{AppendFile, lines},
    directory::Directory,
    errors::cannot,
    latch, safe_open,
};
use crate::{
    Result,
    lease::{EndedLease, HistoryFilter, Moment},
};

/// The newer file becomes the older one at this size, and the older one is removed.
const ROTATE_AT: u64 = 4 << 20;
/// A writer reopens its file, and rotates it if it is full, after it has written this many bytes, or after this time.
const REOPEN_AFTER_BYTES: usize = 1 << 16;
const REOPEN_AFTER: Duration = Duration::from_secs(1);

/// The history of one directory, as one instance writes it.
#[derive(Debug)]
pub(super) struct HistoryLog {
    directory: Arc<Directory>,
    open: Mutex<Option<OpenHistory>>,
}

#[derive(Debug)]
struct OpenHistory {
    file: AppendFile,
    opened_at: Moment,
    written: usize,
}

impl HistoryLog {
    pub(super) fn new(directory: Arc<Directory>) -> Self {
        Self { directory, open: Mutex::default() }
    }

    /// Adds the ended leases. A failure is only logged: the operation itself has already succeeded.
    pub(super) fn add(&self, ended: &[EndedLease], now: Moment) {
        if ended.is_empty() {
            return;
        }
        if let Err(error) = self.append(ended, now) {
            tracing::warn!(error = format_args!("{error:#}"), "history was not recorded");
        }
    }

    fn append(&self, ended: &[EndedLease], now: Moment) -> Result<()> {
        let path = self.directory.history();
        let mut lines = Vec::new();
        for lease in ended {
            serde_json::to_writer(&mut lines, lease).map_err(|error| cannot("write", &path, error.into()))?;
            lines.push(b'\n');
        }
        let mut slot = self.open.lock();
        let is_due = |open: &OpenHistory| open.written > REOPEN_AFTER_BYTES || now.since(open.opened_at) > REOPEN_AFTER;
        // After a failed write, the file is reopened, which checks whether its last line is incomplete.
        let mut open = match slot.take().filter(|open| !is_due(open)) {
            Some(open) => open,
            None => OpenHistory { file: self.current_file()?, opened_at: now, written: 0 },
        };
        open.written += lines.len();
        open.file.append(&lines).map_err(|error| cannot("write", &path, error))?;
        *slot = Some(open);
        Ok(())
    }

    /// Opens the newer file, rotating it first if it is full.
    fn current_file(&self) -> Result<AppendFile> {
        let path = self.directory.history();
        let open = || AppendFile::open(&self.directory, &path).map_err(|error| cannot("write", &path, error));
        let opened = open()?;
        if opened.file.metadata().is_ok_and(|file| file.len() >= ROTATE_AT) {
            rotate(&self.directory)?;
            return open();
        }
        Ok(opened)
    }
}

fn rotate(directory: &Directory) -> Result<()> {
    let Some(lock) = latch::try_lock_history(directory)? else { return Ok(()) };
    // Another process may have rotated since. A writer that still has the file open goes on appending to what is now
    // the older one.
    let path = directory.history();
    let full = fs::symlink_metadata(&path).is_ok_and(|file| file.len() >= ROTATE_AT);
    let rotated = if full { fs::rename(&path, directory.older_history()) } else { Ok(()) };
    let _closing_unlocks = lock.unlock();
    rotated.map_err(|error| cannot("rotate", &path, error))
}

/// The ended leases that the filter wants, newest first.
pub(super) fn read(directory: &Directory, filter: &HistoryFilter) -> Result<Vec<EndedLease>> {
    let mut found = Vec::new();
    let mut seen = None;
    // The newer file first: if it is rotated in between, both paths refer to it, and it is read only once.
    for path in [directory.history(), directory.older_history()] {
        let file = match safe_open::regular(File::options().read(true), &path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(cannot("read", &path, error)),
        };
        let metadata = file.metadata().map_err(|error| cannot("read", &path, error))?;
        if seen.replace(metadata.ino()) != Some(metadata.ino()) {
            found.extend(newest_first(&file, metadata.len(), filter).map_err(|error| cannot("read", &path, error))?);
        }
    }
    // Lines are in the order in which ends were noticed, and an expiry is noticed late.
    found.sort_by_key(|ended| Reverse(ended.ended_at));
    found.truncate(filter.limit);
    Ok(found)
}

fn newest_first(file: &File, length: u64, filter: &HistoryFilter) -> io::Result<Vec<EndedLease>> {
    let mut wanted = Vec::new();
    for line in lines(file, 0..length)? {
        // Skip a line that a full disk or a power loss left incomplete.
        if let Ok(ended) = serde_json::from_slice::<EndedLease>(&line?)
            && filter.include(&ended)
        {
            wanted.push(ended);
        }
    }
    wanted.reverse();
    Ok(wanted)
}
