//! Latches: fixed files, locked by flock, so that one operation at a time works on a resource.
//!
//! A latch file is never renamed or unlinked, and stays open for the life of
//! the instance. Threads of one instance exclude each other by a mutex,
//! processes by flock. The file also stores the newest fence issued under
//! it, so that fences never decrease, even if a record is lost. The mutex also
//! guards the record that this instance last read or wrote under the latch.

use std::{
    fs::{self, File},
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};
use rustix::fs::{major, minor};
use sha2::{Digest, Sha256};

use super::{
    directory::Directory, errors::cannot, fork_safe::ClosedInChild, record::CachedRecord, record_file::RecordFile,
    safe_open,
};
use crate::{
    Error, Result,
    lease::{Fence, Resource},
};

const LATCHES: u8 = 64;
/// How long to wait for one process. An operation takes far less than a millisecond, so a process that holds a latch
/// this long is stopped or stuck.
pub(super) const STUCK_AFTER: Duration = Duration::from_secs(2);
/// How long to wait after an earlier wait for the same latch has timed out, so that calls do not queue up behind a stuck
/// process. Long enough to find a gap between the operations of a busy process.
const STILL_STUCK_AFTER: Duration = Duration::from_millis(20);
/// How long a caller's thread may wait for another thread of this process.
const BRIEFLY: Duration = Duration::from_micros(200);
const FIRST_PAUSE: Duration = Duration::from_micros(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(2);
/// A larger buffer is freed after use.
const LARGEST_BUFFER: usize = 1 << 20;
/// Guards the rotation of history and the compaction of run records.
const HISTORY: &str = "history";
/// The content of a new latch file. It has the same number of bytes as any fence written later, so that storing a fence
/// never needs more disk space.
pub(super) const NO_FENCE: &str = "0000000000000000\n";

/// The numbers of all latches that guard records.
pub(super) fn numbers() -> impl Iterator<Item = u8> {
    0..LATCHES
}

/// The names of all latch files.
pub(super) fn file_names() -> impl Iterator<Item = String> {
    numbers().map(file_name).chain([String::from(HISTORY)])
}

fn file_name(number: u8) -> String {
    format!("{number:02x}")
}

/// Which latch guards the resource.
pub(super) fn number(resource: &Resource) -> u8 {
    number_by_hash(Sha256::digest(resource.as_str())[0])
}

/// Which latch guards the resources whose hash begins with this byte.
pub(super) fn number_by_hash(first: u8) -> u8 {
    first % LATCHES
}

/// How long to wait for a latch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LatchWait {
    /// A moment, on a caller's thread.
    Briefly,
    /// Until the latch is free or one process has had it for two seconds; on a blocking thread.
    Bounded,
}

/// The latches of one directory, as one instance takes them.
#[derive(Debug)]
pub(super) struct Latches {
    latches: Vec<InstanceLatch>,
}

/// One latch, as the threads of this instance take it.
#[derive(Debug)]
struct InstanceLatch {
    path: PathBuf,
    /// How often a thread has taken it.
    turns: AtomicU64,
    state: Mutex<LatchState>,
}

/// What the mutex of a latch guards.
#[derive(Debug, Default)]
struct LatchState {
    file: Option<ClosedInChild<File>>,
    /// The last wait timed out; give up quickly until the latch is free.
    stuck: bool,
    record: Option<CachedRecord>,
    /// The previous record file, kept open because processes that take turns swap the same few files.
    older: Option<RecordFile>,
    buffer: Vec<u8>,
}

impl Latches {
    pub(super) fn new(directory: &Directory) -> Self {
        let latch = |number| InstanceLatch {
            path: directory.latch(&file_name(number)),
            turns: AtomicU64::new(0),
            state: Mutex::default(),
        };
        Self { latches: numbers().map(latch).collect() }
    }

    /// Takes the latch with this number; `None` when it is not free within [`LatchWait::Briefly`].
    pub(super) fn take(&self, number: u8, wait: LatchWait) -> Result<Option<Latch<'_>>> {
        let InstanceLatch { path, turns, state } = &self.latches[usize::from(number % LATCHES)];
        let patience = if wait == LatchWait::Briefly { BRIEFLY } else { STUCK_AFTER };
        let mut state = loop {
            let before = turns.load(Ordering::Relaxed);
            if let Some(state) = state.try_lock_for(patience) {
                break state;
            }
            if wait == LatchWait::Briefly {
                return Ok(None);
            }
            // A long queue of threads is not a stuck process.
            if turns.load(Ordering::Relaxed) == before {
                return Err(stuck(path));
            }
        };
        turns.fetch_add(1, Ordering::Relaxed);
        let locked = state.lock(path, wait)?;
        Ok(locked.then_some(Latch { state, path, locked: true, to_close: None }))
    }
}

impl LatchState {
    fn file(&self) -> &File {
        &self.file.as_ref().expect("a latch is opened before it is used").file
    }

    /// Locks the file against other processes; `false` when that would take longer than `wait`.
    fn lock(&mut self, path: &Path, wait: LatchWait) -> Result<bool> {
        if self.file.is_none() {
            let open = || safe_open::regular(File::options().read(true).write(true), path);
            self.file = Some(ClosedInChild::open(open).map_err(|error| cannot("open", path, error))?);
        }
        let file = self.file();
        if try_lock(file, path)? {
            self.stuck = false;
            return Ok(true);
        }
        if wait == LatchWait::Briefly {
            return Ok(false);
        }
        let patience = if self.stuck { STILL_STUCK_AFTER } else { STUCK_AFTER };
        let waited = lock_within(file, path, patience);
        self.stuck = waited.is_err();
        waited.map(|()| true)
    }
}

/// Waits while the latch passes from process to process: a long queue is not a stuck process.
pub(super) fn lock_within(file: &File, path: &Path, patience: Duration) -> Result<()> {
    let mut seen = None;
    loop {
        let (mut waited, mut pause) = (Duration::ZERO, FIRST_PAUSE);
        // Two rounds with the same holder make up `patience`.
        while waited < patience / 2 {
            if try_lock(file, path)? {
                return Ok(());
            }
            thread::sleep(pause);
            waited += pause;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        let holder = holder_pid(path);
        if seen.replace(holder) == Some(holder) {
            return Err(stuck(path));
        }
    }
}

/// Locks the file unless another process has it.
pub(super) fn try_lock(file: &File, path: &Path) -> Result<bool> {
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(fs::TryLockError::WouldBlock) => Ok(false),
        Err(fs::TryLockError::Error(error)) => Err(cannot("lock", path, error)),
    }
}

/// Locks the latch that guards history and run records, unless another process has it.
pub(super) fn try_lock_history(directory: &Directory) -> Result<Option<File>> {
    let path = directory.latch(HISTORY);
    let file = safe_open::regular(File::options().read(true).write(true), &path);
    let file = file.map_err(|error| cannot("open", &path, error))?;
    Ok(try_lock(&file, &path)?.then_some(file))
}

/// A latch that this thread holds until the value is dropped.
#[derive(Debug)]
pub(super) struct Latch<'a> {
    state: MutexGuard<'a, LatchState>,
    path: &'a Path,
    locked: bool,
    /// A record file to close after the latch is unlocked.
    to_close: Option<RecordFile>,
}

impl Latch<'_> {
    /// The newest fence issued under this latch.
    pub(super) fn fence(&self) -> Result<Fence> {
        let mut bytes = [0; 32];
        let length = self.state.file().read_at(&mut bytes, 0).map_err(|error| cannot("read", self.path, error))?;
        let text = bytes[..length].trim_ascii();
        // A power loss may leave the file empty or full of zero bytes; new fences then start from the wall clock.
        if text.iter().all(|byte| *byte == 0) {
            return Ok(Fence::default());
        }
        let fence = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).map(Fence::new);
        fence.filter(|fence| *fence <= Fence::MAX).ok_or_else(|| {
            Error::unavailable(format!(
                "{} does not contain a fence; empty the file: new fences then start from the wall clock",
                self.path.display()
            ))
        })
    }

    /// Stores the newest fence. Call it before the record with that fence is visible.
    pub(super) fn store_fence(&self, fence: Fence, fsync: bool) -> Result<()> {
        let text = format!("{:016}\n", fence.get());
        let file = self.state.file();
        let written = file.write_all_at(text.as_bytes(), 0);
        let written = written.and_then(|()| if fsync { file.sync_data() } else { Ok(()) });
        written.map_err(|error| cannot("write", self.path, error))
    }

    /// Takes the record that was last used under this latch.
    pub(super) fn take_cached(&mut self) -> Option<CachedRecord> {
        self.state.record.take()
    }

    /// Stores a record for the next operation. An operation that fails half-way stores none.
    pub(super) fn put_cached(&mut self, record: CachedRecord) {
        self.state.record = Some(record);
    }

    /// Stores this file as `older` and returns the file that was stored there.
    pub(super) fn exchange_older(&mut self, file: RecordFile) -> Option<RecordFile> {
        if !file.is_reusable() {
            self.close_later(file);
            return None;
        }
        self.state.older.replace(file)
    }

    /// Closes a file when the latch is dropped.
    pub(super) fn close_later(&mut self, file: RecordFile) {
        self.to_close = Some(file);
    }

    /// A reusable buffer for encoding and reading records.
    pub(super) fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.state.buffer
    }

    /// Unlocks the latch for other processes; threads of this instance still wait until it is dropped.
    pub(super) fn unlock(&mut self) {
        // Unlock explicitly: the file stays open, and a child that is just being started may share it.
        if std::mem::take(&mut self.locked)
            && let Err(error) = self.state.file().unlock()
        {
            tracing::error!(latch = %self.path.display(), %error, "cannot unlock a latch");
        }
    }
}

impl Drop for Latch<'_> {
    fn drop(&mut self) {
        if self.state.buffer.capacity() > LARGEST_BUFFER {
            self.state.buffer = Vec::new();
        }
        self.unlock();
    }
}

fn stuck(path: &Path) -> Error {
    let who = match holder_pid(path) {
        Some(pid) => format!("process {pid}, which is stopped or stuck: continue it (kill -CONT {pid}) or end it"),
        None => String::from("a process that is stopped or stuck: continue it or end it"),
    };
    Error::unavailable(format!(
        "the latch {} was not free within {} s; it is held by {who}",
        path.display(),
        STUCK_AFTER.as_secs()
    ))
}

fn holder_pid(path: &Path) -> Option<u32> {
    let file = fs::metadata(path).ok()?;
    let device = format!("{:02x}:{:02x}:", major(file.dev()), minor(file.dev()));
    pid_in(&fs::read_to_string("/proc/locks").ok()?, &device, file.ino())
}

/// Finds the pid that holds the lock: by device and inode, or by inode alone where `/proc/locks` shows another device
/// (btrfs).
fn pid_in(locks: &str, device: &str, inode: u64) -> Option<u32> {
    let mut by_inode = None;
    for line in locks.lines() {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let [_, "FLOCK", _, "WRITE", pid, place, ..] = fields[..] else { continue };
        let found = place.rsplit_once(':').is_some_and(|(_, text)| text.parse() == Ok(inode));
        if let (true, Ok(pid @ 1..)) = (found, pid.parse()) {
            if place.starts_with(device) {
                return Some(pid);
            }
            by_inode = Some(pid);
        }
    }
    by_inode
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_queue_of_threads_is_not_a_stuck_process() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("latch");
        File::create(&path).unwrap();
        let latches =
            Latches { latches: vec![InstanceLatch { path, turns: AtomicU64::new(0), state: Mutex::default() }] };
        thread::scope(|scope| {
            for _ in 0..30 {
                scope.spawn(|| {
                    let _latch = latches.take(0, LatchWait::Bounded).unwrap();
                    thread::sleep(STUCK_AFTER / 20);
                });
            }
        });
    }

    #[test]
    fn the_holder_of_a_latch_is_found_among_the_locks_of_the_machine() {
        let locks = "1: POSIX  ADVISORY  WRITE 11 fe:00:77 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 12 00:2a:77 0 EOF\n\
                     3: FLOCK  ADVISORY  WRITE 13 fe:00:77 0 EOF\n\
                     3: -> FLOCK  ADVISORY  WRITE 14 fe:00:77 0 EOF\n";
        assert_eq!(pid_in(locks, "fe:00:", 77), Some(13));
        assert_eq!(pid_in(locks, "08:01:", 77), Some(13), "another device number, the same inode");
        assert_eq!(pid_in(locks, "fe:00:", 78), None);
    }

    #[test]
    fn a_name_keeps_its_latch_over_versions() {
        let number = |name| number(&Resource::new(name).unwrap());
        assert_eq!([number("a"), number("order:42"), number("cron:daily")], [10, 26, 30]);
    }
}
