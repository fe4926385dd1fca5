//! Presence: one FIFO per instance, which the kernel closes when the process dies.
//!
//! Its owner has it open read-write. Others open it write-only and without
//! blocking: when that fails for want of a reader, the owner is dead. Nobody
//! else ever opens it readable, which would keep a dead owner alive.

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
    directory::{Directory, files},
    failure::failure,
    opening::flags,
};
use crate::{Result, model::Presence};

/// Lines up to this length are written to a FIFO as a whole or not at all.
const PIPE_BUF: usize = 4096;
const UNFINISHED: &str = ".new-";
/// Nobody takes this long between making a FIFO and opening it.
const ABANDONED: Duration = Duration::from_secs(60);

/// The presence of this instance, as long as it lives.
#[derive(Debug)]
pub(super) struct OwnPresence {
    id: Uuid,
    fifo: File,
    directory: Arc<Directory>,
    lent: AtomicBool,
    removed: AtomicBool,
}

impl OwnPresence {
    /// Appears in the directory, under a name that no other has or will have.
    pub(super) fn appear(directory: Arc<Directory>) -> Result<Self> {
        let id = Uuid::new_v4();
        let unfinished = directory.presences().join(format!("{UNFINISHED}{}", id.simple()));
        let fifo = loop {
            let appeared = hold(&directory, &unfinished)
                .and_then(|fifo| fs::rename(&unfinished, directory.presence(id)).map(|()| fifo));
            match appeared {
                Ok(fifo) => break fifo,
                // Someone took it for abandoned: this process was stopped for a minute. Once more.
                Err(error) if error.kind() == io::ErrorKind::NotFound && directory.presences().is_dir() => {}
                Err(error) => return Err(failure("make", &unfinished, error)),
            }
        };
        Ok(Self { id, fifo, directory, lent: AtomicBool::new(false), removed: AtomicBool::new(false) })
    }

    pub(super) fn id(&self) -> Uuid {
        self.id
    }

    /// Whether someone removed it, which makes this instance dead to all others; there is no way back.
    pub(super) fn is_removed(&self) -> bool {
        let removed = self.was_removed() || self.is_missing();
        self.removed.store(removed, Ordering::Relaxed);
        removed
    }

    /// Whether that was seen already.
    pub(super) fn was_removed(&self) -> bool {
        self.removed.load(Ordering::Relaxed)
    }

    /// Whether others who look for it by its name do not find it.
    fn is_missing(&self) -> bool {
        let Ok(own) = self.fifo.metadata() else { return false };
        match fs::symlink_metadata(self.directory.presence(self.id)) {
            Ok(found) => (found.dev(), found.ino()) != (own.dev(), own.ino()),
            // Where the whole directory was moved nobody finds anything, and it may come back.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                own.nlink() == 0 || self.directory.presences().is_dir()
            }
            Err(_) => false,
        }
    }

    /// The FIFO once more, to read what others write to it.
    pub(super) fn doorbell(&self) -> Result<File> {
        self.fifo.try_clone().map_err(|error| failure("open", &self.directory.presence(self.id), error))
    }

    /// Room for a burst of events; refused beyond the user's limit, which costs events only.
    pub(super) fn widen(&self) {
        let _best_effort = rustix::pipe::fcntl_setpipe_size(&self.fifo, 1 << 20);
    }

    /// The FIFO once more, kept open by a child: while the child lives, this presence does.
    pub(super) fn lend(&self) -> Option<OwnedFd> {
        let lent = rustix::io::fcntl_dupfd_cloexec(&self.fifo, 3).ok()?;
        rustix::io::fcntl_setfd(&lent, FdFlags::empty()).ok()?;
        self.lent.store(true, Ordering::Relaxed);
        Some(lent)
    }

    /// A name for a file that this instance writes aside; garbage once the instance is dead.
    pub(super) fn aside(&self, latch: u8) -> PathBuf {
        self.directory.records().join(format!(".{}-{latch:02x}", self.id.simple()))
    }

    /// Disappears from the directory, which ends what lives by this presence.
    pub(super) fn vanish(&self) {
        // A child that has it may outlive us and our leases with it; the next process to open tidies up.
        if !self.lent.load(Ordering::Relaxed) {
            let _best_effort = fs::remove_file(self.directory.presence(self.id));
        }
    }
}

impl Drop for OwnPresence {
    fn drop(&mut self) {
        self.vanish();
    }
}

/// Makes the FIFO and opens it, before it gets the name by which others look for it.
fn hold(directory: &Directory, path: &Path) -> io::Result<File> {
    rustix::fs::mkfifoat(CWD, path, Mode::from_raw_mode(directory.mode()))?;
    let fifo = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(flags(OFlags::NONBLOCK | OFlags::NOFOLLOW))
        .open(path)?;
    // What is handed over must be what was made: another's file may have been put in its place.
    let made = fifo.metadata()?;
    if !made.file_type().is_fifo() || made.nlink() != 1 {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "another file was put in its place"));
    }
    directory.hand_over(&fifo)?;
    Ok(fifo)
}

/// Opens another's FIFO in the only way that does not keep it alive.
pub(super) fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).custom_flags(flags(OFlags::NONBLOCK | OFlags::NOFOLLOW)).open(path)
}

/// Whether nobody is there behind a FIFO.
pub(super) fn means_dead(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::NXIO | Errno::NOENT))
}

/// Whether the process with this presence lives.
pub(super) fn look(directory: &Directory, id: Uuid) -> Presence {
    let path = directory.presence(id);
    match open(&path) {
        Ok(_) => Presence::Present,
        Err(error) if means_dead(&error) => {
            // Final names appear only once held and are never used again: dead is for ever.
            let _tidied = fs::remove_file(&path);
            Presence::Dead
        }
        Err(error) => {
            tracing::warn!(presence = %path.display(), %error, "cannot tell whether a process lives; taken as alive");
            Presence::Present
        }
    }
}

/// Writes one line to the process with this presence; a full or dead one misses it.
pub(super) fn ring(directory: &Directory, id: Uuid, line: &str) {
    if line.len() > PIPE_BUF {
        tracing::debug!(bytes = line.len(), "a line too long for a doorbell was left out");
        return;
    }
    let rung = open(&directory.presence(id)).and_then(|mut fifo| fifo.write(line.as_bytes()));
    if let Err(error) = rung {
        tracing::debug!(presence = %id, %error, "a doorbell was not heard; the next renewal tells the same");
    }
}

/// Removes what dead processes left behind; tells how many files that were.
pub(super) fn tidy(directory: &Directory, own: &OwnPresence) -> Result<usize> {
    let mut removed = 0;
    let newest = fs::symlink_metadata(directory.presence(own.id)).and_then(|own| own.modified()).ok();
    for (name, path) in files(&directory.presences())? {
        let old = || fs::symlink_metadata(&path).and_then(|file| file.modified()).ok().zip(newest);
        let abandoned = || old().is_some_and(|(made, now)| now.duration_since(made).is_ok_and(|age| age > ABANDONED));
        let candidate = if name.starts_with(UNFINISHED) { abandoned() } else { Uuid::try_parse(&name).is_ok() };
        if candidate && open(&path).is_err_and(|error| means_dead(&error)) {
            removed += usize::from(fs::remove_file(&path).is_ok());
        }
    }
    let records = files(&directory.records())?.into_iter().filter_map(|(name, path)| {
        let writer = name.strip_prefix('.')?.split_once('-')?.0;
        Some((Uuid::try_parse(writer).ok()?, path))
    });
    let watchers = files(&directory.watchers())?.into_iter();
    let watchers = watchers.filter_map(|(name, path)| Some((Uuid::try_parse(&name).ok()?, path)));
    for (of, path) in records.chain(watchers) {
        if of != own.id && look(directory, of) == Presence::Dead {
            removed += usize::from(fs::remove_file(&path).is_ok());
        }
    }
    Ok(removed)
}
