//! Latches: fixed files whose flock makes one operation at a time on a resource.
//!
//! A latch file is never renamed or unlinked. It also remembers the newest
//! fence issued under it, so that no lost record lets a fence fall.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
    pin::pin,
    sync::Arc,
    thread,
    time::Duration,
};

use rustix::fs::{major, minor};
use sha2::{Digest, Sha256};
use tokio::sync::{Mutex, OwnedMutexGuard, oneshot};

use super::{directory::Directory, failure::failure, opening};
use crate::{
    Error, Result,
    clock::Clock,
    lease::{Fence, Moment, Resource},
};

const LATCHES: u8 = 64;
/// Operations take far less than a millisecond: who waits so long waits for a stopped process.
const PATIENCE: Duration = Duration::from_secs(2);
/// Enough for a thread to say that the latch is free after all.
const LITTLE_PATIENCE: Duration = Duration::from_millis(20);
/// Guards the rotation of history.
pub(super) const HISTORY: &str = "history";
/// What a new latch file holds: as many bytes as every later fence, so that writing one needs no space.
pub(super) const NO_FENCE: &str = "0000000000000000\n";

/// The numbers of all latches that guard records.
pub(super) fn numbers() -> impl Iterator<Item = u8> {
    0..LATCHES
}

/// The names of all latch files.
pub(super) fn file_names() -> impl Iterator<Item = String> {
    numbers().map(|number| format!("{number:02x}")).chain([String::from(HISTORY)])
}

/// Which latch guards the resource.
pub(super) fn number(resource: &Resource) -> u8 {
    Sha256::digest(resource.as_str())[0] % LATCHES
}

/// The latches of one directory, as one instance takes them.
#[derive(Debug)]
pub(super) struct Latches {
    directory: Arc<Directory>,
    clock: Arc<dyn Clock>,
    turns: Vec<Turn>,
}

/// Tasks of one instance queue here, so that at most one thread waits for each file.
#[derive(Debug, Default)]
struct Turn {
    queue: Arc<Mutex<()>>,
    /// Since when a thread waits for the file.
    waiting: Waiting,
}

type Waiting = Arc<parking_lot::Mutex<Option<Moment>>>;

impl Latches {
    pub(super) fn new(directory: Arc<Directory>, clock: Arc<dyn Clock>) -> Self {
        Self { directory, clock, turns: numbers().map(|_| Turn::default()).collect() }
    }

    /// Takes the latch with this number, unless one process keeps it for two seconds.
    ///
    /// # Cancel safety
    /// A dropped call leaves the latch free, at once or as soon as the kernel gives it.
    pub(super) async fn take(&self, number: u8) -> Result<Latch> {
        let path = self.directory.latch(&format!("{number:02x}"));
        let turn = &self.turns[usize::from(number % LATCHES)];
        // The uncontended way needs no timer and no other thread.
        if let Ok(turn_taken) = Arc::clone(&turn.queue).try_lock_owned() {
            let latch = Latch::open(path.clone(), Some(turn_taken))?;
            if latch.try_lock()? {
                return Ok(latch);
            }
            return bounded(PATIENCE, &path, self.lock_elsewhere(latch, &turn.waiting)).await;
        }
        // Known to be stuck: each of a thousand leases waiting two seconds more would help nobody.
        let known = turn.waiting.lock().is_some_and(|since| self.clock.now().since(since) > PATIENCE);
        let patience = if known { LITTLE_PATIENCE } else { PATIENCE };
        let waited = async {
            let latch = Latch::open(path.clone(), Some(Arc::clone(&turn.queue).lock_owned().await))?;
            self.lock_elsewhere(latch, &turn.waiting).await
        };
        bounded(patience, &path, waited).await
    }

    /// Queues in the kernel, which serves in order, on a thread that nobody has to wait for.
    async fn lock_elsewhere(&self, latch: Latch, waiting: &Waiting) -> Result<Latch> {
        if latch.try_lock()? {
            return Ok(latch);
        }
        let (path, waited) = (latch.path.clone(), Arc::clone(waiting));
        *waiting.lock() = Some(self.clock.now());
        let (give, taken) = oneshot::channel();
        let queue = move || {
            let locked = latch.lock();
            *waited.lock() = None;
            // A taker that gave up lets the latch drop here.
            let _gave_up = give.send(locked.map(|()| latch));
        };
        let spawned = thread::Builder::new().name(String::from("leasehold-latch")).spawn(queue);
        if let Err(error) = spawned {
            *waiting.lock() = None;
            return Err(failure("wait for", &path, error));
        }
        taken.await.unwrap_or_else(|_| Err(stuck(&path)))
    }
}

/// Waits while the latch passes from process to process: a long queue is not a stuck process.
async fn bounded(patience: Duration, path: &Path, taking: impl Future<Output = Result<Latch>>) -> Result<Latch> {
    let mut taking = pin!(taking);
    let mut seen = None;
    loop {
        if let Ok(taken) = tokio::time::timeout(patience / 2, &mut taking).await {
            return taken;
        }
        let holder = holder_pid(path);
        if seen.replace(holder) == Some(holder) {
            return Err(stuck(path));
        }
    }
}

/// A latch file, locked until it is dropped.
#[derive(Debug)]
pub(super) struct Latch {
    file: File,
    path: PathBuf,
    _turn: Option<OwnedMutexGuard<()>>,
}

impl Latch {
    /// The latch of this name if nobody has it.
    pub(super) fn try_take(directory: &Directory, name: &str) -> Result<Option<Self>> {
        let latch = Self::open(directory.latch(name), None)?;
        Ok(latch.try_lock()?.then_some(latch))
    }

    /// A lock belongs to an open file, so that each taker opens its own.
    fn open(path: PathBuf, turn: Option<OwnedMutexGuard<()>>) -> Result<Self> {
        match opening::regular(File::options().read(true).write(true), &path) {
            Ok(file) => Ok(Self { file, path, _turn: turn }),
            Err(error) => Err(failure("open", &path, error)),
        }
    }

    fn try_lock(&self) -> Result<bool> {
        match self.file.try_lock() {
            Ok(()) => Ok(true),
            Err(fs::TryLockError::WouldBlock) => Ok(false),
            Err(fs::TryLockError::Error(error)) => Err(failure("lock", &self.path, error)),
        }
    }

    fn lock(&self) -> Result<()> {
        loop {
            match self.file.lock() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                locked => return locked.map_err(|error| failure("lock", &self.path, error)),
            }
        }
    }

    /// The newest fence issued under this latch.
    pub(super) fn fence(&self) -> Result<Fence> {
        let mut bytes = [0; 32];
        let length = self.file.read_at(&mut bytes, 0).map_err(|error| failure("read", &self.path, error))?;
        let text = bytes[..length].trim_ascii();
        // A power loss may leave the file empty or full of zero bytes; the wall clock floors the fence then.
        if text.iter().all(|byte| *byte == 0) {
            return Ok(Fence::default());
        }
        let fence = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).map(Fence::new);
        fence.filter(|fence| *fence <= Fence::MAX).ok_or_else(|| {
            Error::unavailable(format!(
                "{} holds something else than a fence; empty the file: new fences then start from the wall clock",
                self.path.display()
            ))
        })
    }

    /// Remembers the newest fence; called before the record that tells it is in place.
    pub(super) fn raise(&self, fence: Fence) -> Result<()> {
        let text = format!("{:016}\n", fence.get());
        self.file.write_all_at(text.as_bytes(), 0).map_err(|error| failure("write", &self.path, error))
    }

    /// Forces the fence to the disk.
    pub(super) fn sync(&self) -> Result<()> {
        self.file.sync_data().map_err(|error| failure("write", &self.path, error))
    }
}

impl Drop for Latch {
    fn drop(&mut self) {
        // Closing alone would not do while a child that is just being started shares the open file.
        let _closing_unlocks = self.file.unlock();
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
        PATIENCE.as_secs()
    ))
}

fn holder_pid(path: &Path) -> Option<u32> {
    let file = fs::metadata(path).ok()?;
    let device = format!("{:02x}:{:02x}:", major(file.dev()), minor(file.dev()));
    pid_in(&fs::read_to_string("/proc/locks").ok()?, &device, file.ino())
}

/// Finds who holds the lock: on this device, else, where the device reads otherwise (btrfs), with this inode.
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
