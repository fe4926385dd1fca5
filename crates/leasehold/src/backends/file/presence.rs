//! Presence: one FIFO per instance, which the kernel closes when the process dies.
//!
//! Its owner has it open read-write. Others open it write-only and without
//! blocking: if that fails because nobody reads it, the owner is dead. Nobody
//! else ever opens it for reading, which would make a dead owner look alive.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::{
        fd::OwnedFd,
        unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use rustix::{
    fs::{CWD, Mode, OFlags},
    io::{Errno, FdFlags},
};
use uuid::Uuid;

use super::{
    directory::{Directory, list_files},
    errors::cannot,
    fork_safe::ClosedInChild,
    layout::UNFINISHED,
    safe_open::flags,
};
use crate::{Error, Result, model::Presence};

/// The kernel writes lines up to this length to a FIFO as a whole or not at all.
const PIPE_BUF: usize = 4096;
/// An unfinished FIFO that has no reader and is older than this was left by a process that died.
const FIFO_ABANDONED_AFTER: Duration = Duration::from_secs(60);
/// Room for a burst of events, where the user's limit allows it.
const WATCHER_PIPE: usize = 1 << 20;

/// The presence of this instance, as long as it lives.
#[derive(Debug)]
pub(super) struct OwnPresence {
    id: Uuid,
    path: PathBuf,
    /// Which file others must find under the path: device and inode.
    identity: (u64, u64),
    fifo: ClosedInChild<File>,
    directory: Arc<Directory>,
    generation: u32,
    /// Whether a child process may have a duplicate of the FIFO.
    has_duplicates: AtomicBool,
    removed: AtomicBool,
}

/// Whether other processes can see this instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Visibility {
    Visible,
    /// Someone removed the FIFO, so others consider the instance dead; this cannot be undone.
    Removed {
        /// Whether this check is the first that noticed.
        first: bool,
    },
}

impl OwnPresence {
    /// Creates the FIFO of this instance, under a name that is never used again.
    pub(super) fn create(directory: Arc<Directory>) -> Result<Self> {
        let id = Uuid::new_v4();
        let path = directory.presence(id);
        let unfinished = directory.presences().join(format!("{UNFINISHED}{}", id.simple()));
        let fifo = loop {
            let held = ClosedInChild::open(|| create_fifo(&directory, &unfinished));
            match held.and_then(|fifo| fs::rename(&unfinished, &path).map(|()| fifo)) {
                Ok(fifo) => break fifo,
                // This process was stopped for so long that another instance removed the FIFO as abandoned. Try again.
                Err(error) if error.kind() == io::ErrorKind::NotFound && directory.presences().is_dir() => {}
                Err(error) => return Err(cannot("create", &unfinished, error)),
            }
        };
        let metadata = fifo.file.metadata().map_err(|error| cannot("read", &path, error))?;
        Ok(Self {
            id,
            path,
            identity: (metadata.dev(), metadata.ino()),
            fifo,
            directory,
            generation: leasehold_fork::generation(),
            has_duplicates: AtomicBool::new(false),
            removed: AtomicBool::new(false),
        })
    }

    pub(super) fn id(&self) -> Uuid {
        self.id
    }

    /// Checks whether others find this instance, with one system call unless something is wrong.
    ///
    /// # Errors
    /// `Unavailable` while the whole directory is missing: nobody finds anything, and it may come back.
    pub(super) fn check(&self) -> Result<Visibility> {
        if self.removed.load(Ordering::Relaxed) {
            return Ok(Visibility::Removed { first: false });
        }
        match fs::symlink_metadata(&self.path) {
            Ok(found) if (found.dev(), found.ino()) == self.identity => return Ok(Visibility::Visible),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let unlinked = rustix::fs::fstat(&self.fifo.file).is_ok_and(|own| own.st_nlink == 0);
                if !unlinked && !self.directory.presences().is_dir() {
                    return Err(cannot("find", &self.path, error));
                }
            }
            Err(error) => return Err(cannot("find", &self.path, error)),
        }
        Ok(Visibility::Removed { first: !self.removed.swap(true, Ordering::Relaxed) })
    }

    /// Returns whether a check found that the FIFO was removed.
    pub(super) fn was_removed(&self) -> bool {
        self.removed.load(Ordering::Relaxed)
    }

    /// Returns the error of an instance whose FIFO was removed.
    pub(super) fn removed_error(&self) -> Error {
        Error::unavailable(format!(
            "the presence of this instance, {}, was removed: other processes consider it dead and may hold what it \
             held; connect again, and keep rm and cleaners of temporary files away from the directory",
            self.path.display()
        ))
    }

    /// Returns the FIFO, from which the notifications of others are read.
    pub(super) fn fifo(&self) -> &File {
        &self.fifo.file
    }

    /// How much others can write before the FIFO is full.
    pub(super) fn capacity(&self) -> usize {
        rustix::pipe::fcntl_getpipe_size(&self.fifo.file).unwrap_or(PIPE_BUF)
    }

    /// Enlarges the FIFO for bursts of events; if that is not permitted, more events are missed.
    pub(super) fn widen(&self) {
        let _where_permitted = rustix::pipe::fcntl_setpipe_size(&self.fifo.file, WATCHER_PIPE);
    }

    /// Duplicates the FIFO for a child process to inherit. The instance counts as alive while the child runs.
    pub(super) fn duplicate_for_child(&self) -> Option<OwnedFd> {
        let duplicate = rustix::io::fcntl_dupfd_cloexec(&self.fifo.file, 3).ok()?;
        rustix::io::fcntl_setfd(&duplicate, FdFlags::empty()).ok()?;
        self.has_duplicates.store(true, Ordering::Relaxed);
        Some(duplicate)
    }

    /// Returns the path of a temporary file of this instance. Others remove the file once the instance is dead.
    pub(super) fn temporary_path(&self, number: u64) -> PathBuf {
        self.directory.records().join(format!(".{}-{number}", self.id.simple()))
    }

    /// Removes the FIFO, which ends the leases of this instance.
    pub(super) fn remove(&self) {
        // A child that inherited the FIFO may outlive this process, and the leases with it; the next instance to open
        // the directory tidies up. A forked child must not remove what belongs to its parent.
        if !self.has_duplicates.load(Ordering::Relaxed) && !self.is_inherited() {
            let _best_effort = fs::remove_file(&self.path);
        }
    }

    /// Returns whether this process is a forked child of the one that created the FIFO.
    pub(super) fn is_inherited(&self) -> bool {
        self.generation != leasehold_fork::generation()
    }
}

impl Drop for OwnPresence {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Creates and opens the FIFO under a temporary name, before it gets the name that others look for.
fn create_fifo(directory: &Directory, path: &Path) -> io::Result<File> {
    // Left by an earlier try: `ClosedInChild::open` tries again after a fork.
    let _most_often_none = fs::remove_file(path);
    rustix::fs::mkfifoat(CWD, path, Mode::from_raw_mode(directory.mode()))?;
    let fifo = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(flags(OFlags::NONBLOCK | OFlags::NOFOLLOW))
        .open(path)?;
    // Another user may have put a file in its place.
    let created = fifo.metadata()?;
    if !created.file_type().is_fifo() || created.nlink() != 1 {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "another file was put in its place"));
    }
    directory.set_owner_and_mode(&fifo)?;
    Ok(fifo)
}

/// Opens the FIFO of another instance for writing only: a reader would make a dead instance look alive.
pub(super) fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).custom_flags(flags(OFlags::NONBLOCK | OFlags::NOFOLLOW)).open(path)
}

/// Returns whether opening a FIFO failed because its owner is dead.
pub(super) fn means_dead(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::NXIO | Errno::NOENT))
}

/// The presence of the instance with this id. Removes the FIFO of a dead instance.
pub(super) fn presence_of(directory: &Directory, id: Uuid) -> Presence {
    presence_and_fifo(directory, id).0
}

/// The presence of the instance with this id, and its FIFO if it could be opened. Removes the FIFO of a dead instance.
pub(super) fn presence_and_fifo(directory: &Directory, id: Uuid) -> (Presence, Option<File>) {
    let path = directory.presence(id);
    match open(&path) {
        Ok(fifo) => (Presence::Present, Some(fifo)),
        Err(error) if means_dead(&error) => {
            // A FIFO gets its name after it was opened, and names are never reused, so a dead instance stays dead.
            let _tidied = fs::remove_file(&path);
            (Presence::Dead, None)
        }
        Err(error) => {
            tracing::warn!(
                presence = %path.display(),
                %error,
                "cannot tell whether a process is alive; assuming that it is"
            );
            (Presence::Present, None)
        }
    }
}

/// The processes of this user that have the FIFO open, as far as they can be seen.
pub(super) fn processes(path: &Path) -> Vec<u32> {
    let Ok(path) = fs::canonicalize(path) else { return Vec::new() };
    let has_it_open = |pid: &u32| {
        let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        open.into_iter().any(|open| fs::read_link(open.path()).is_ok_and(|to| to == path))
    };
    let running = list_files(Path::new("/proc")).unwrap_or_default();
    running.into_iter().filter_map(|(name, _)| name.parse().ok()).filter(has_it_open).collect()
}

/// What became of a line that was written to another instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Delivery {
    /// A receiver detects by itself that its FIFO was full, and other failures are only logged.
    SentOrDropped,
    Dead,
}

/// Writes one line to the instance with this presence.
pub(super) fn send(directory: &Directory, id: Uuid, line: &[u8]) -> Delivery {
    match open(&directory.presence(id)) {
        Ok(fifo) => write(&fifo, id, line),
        Err(error) => undelivered(id, &error),
    }
}

/// Writes one line to the open FIFO of an instance.
pub(super) fn write(mut fifo: &File, id: Uuid, line: &[u8]) -> Delivery {
    debug_assert!(line.len() <= PIPE_BUF, "a longer line would mix with others");
    fifo.write(line).map_or_else(|error| undelivered(id, &error), |_| Delivery::SentOrDropped)
}

fn undelivered(id: Uuid, error: &io::Error) -> Delivery {
    if means_dead(error) || error.kind() == io::ErrorKind::BrokenPipe {
        return Delivery::Dead;
    }
    tracing::debug!(presence = %id, %error, "a notification was not delivered");
    Delivery::SentOrDropped
}

/// Returns whether a line can be written to a FIFO as a whole.
pub(super) fn fits(line: &[u8]) -> bool {
    line.len() <= PIPE_BUF
}

/// Removes the files of dead instances and returns how many there were.
pub(super) fn tidy(directory: &Directory, own: &OwnPresence) -> Result<usize> {
    let mut removed = 0;
    // By the clock of the file system.
    let now = fs::symlink_metadata(&own.path).and_then(|own| own.modified()).ok();
    for (name, path) in list_files(&directory.presences())? {
        let created = || fs::symlink_metadata(&path).and_then(|file| file.modified()).ok();
        let abandoned = || {
            let age = now.zip(created()).and_then(|(now, created)| now.duration_since(created).ok());
            age.is_some_and(|age| age > FIFO_ABANDONED_AFTER)
        };
        let candidate = if name.starts_with(UNFINISHED) { abandoned() } else { Uuid::try_parse(&name).is_ok() };
        if candidate && open(&path).is_err_and(|error| means_dead(&error)) {
            removed += usize::from(fs::remove_file(&path).is_ok());
        }
    }
    for (name, path) in list_files(&directory.records())? {
        let writer = name.strip_prefix('.').and_then(|name| Uuid::try_parse(name.split_once('-')?.0).ok());
        if writer.is_some_and(|writer| writer != own.id && presence_of(directory, writer) == Presence::Dead) {
            removed += usize::from(fs::remove_file(&path).is_ok());
        }
    }
    Ok(removed)
}
