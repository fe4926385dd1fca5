//! Spare files: former record files that an instance reuses for its next records, under names of its own.
//!
//! Creating and removing a file costs more than the rest of an operation. A few
//! spares are enough: an operation uses one at a time.

use std::{
    fs,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;

use super::{presence::OwnPresence, record_file::RecordFile};

/// How many spare files an instance keeps at most.
const MAX_SPARES: usize = 4;

/// The spare files of one instance.
#[derive(Debug)]
pub(super) struct Spares {
    own_presence: Arc<OwnPresence>,
    files: Mutex<Vec<Spare>>,
    names: AtomicU64,
}

/// A spare file and its path.
#[derive(Debug)]
pub(super) struct Spare {
    pub(super) file: RecordFile,
    pub(super) path: PathBuf,
}

impl Spare {
    /// Removes the file. This is slow: call it once the latch is unlocked.
    pub(super) fn remove(self) {
        let _tidied_later = fs::remove_file(&self.path);
    }
}

impl Spares {
    pub(super) fn new(own_presence: Arc<OwnPresence>) -> Self {
        Self { own_presence, files: Mutex::default(), names: AtomicU64::new(0) }
    }

    /// A path in the records' directory that no other file has.
    pub(super) fn unused_path(&self) -> PathBuf {
        self.own_presence.temporary_path(self.names.fetch_add(1, Ordering::Relaxed))
    }

    pub(super) fn take(&self) -> Option<Spare> {
        self.files.lock().pop()
    }

    /// Returns whether another file is worth keeping.
    pub(super) fn has_room(&self) -> bool {
        self.files.lock().len() < MAX_SPARES
    }

    /// Keeps a file for the next operation; returns it if the caller must remove it.
    pub(super) fn keep(&self, spare: Spare) -> Option<Spare> {
        let mut files = self.files.lock();
        if files.len() >= MAX_SPARES || !spare.file.is_reusable() {
            return Some(spare);
        }
        files.push(spare);
        None
    }

    /// Removes the files: this instance writes nothing more.
    pub(super) fn remove_all(&self) {
        let files = std::mem::take(&mut *self.files.lock());
        files.into_iter().for_each(Spare::remove);
    }
}
