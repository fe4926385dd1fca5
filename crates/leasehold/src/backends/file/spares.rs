//! Files out of use that an instance writes its next records to, under names that no other instance writes to.
//!
//! To make and remove a file costs a file system more than all the rest of an
//! operation. A few are enough: each serves one operation at a time.

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

/// The most files that an instance leaves in the directory.
const MAX_SPARES: usize = 4;

/// The files out of use of one instance.
#[derive(Debug)]
pub(super) struct Spares {
    own: Arc<OwnPresence>,
    files: Mutex<Vec<Spare>>,
    names: AtomicU64,
}

/// A file beside the records.
#[derive(Debug)]
pub(super) struct Spare {
    pub(super) file: RecordFile,
    pub(super) name: PathBuf,
}

impl Spare {
    /// Removes the file. This is slow: call it once the latch is unlocked.
    pub(super) fn remove(self) {
        let _tidied_later = fs::remove_file(&self.name);
    }
}

impl Spares {
    pub(super) fn new(own: Arc<OwnPresence>) -> Self {
        Self { own, files: Mutex::default(), names: AtomicU64::new(0) }
    }

    /// A name for a file beside the records, which no other file has.
    pub(super) fn unused_name(&self) -> PathBuf {
        self.own.aside(self.names.fetch_add(1, Ordering::Relaxed))
    }

    pub(super) fn take(&self) -> Option<Spare> {
        self.files.lock().pop()
    }

    /// Returns whether another file is worth keeping.
    pub(super) fn has_room(&self) -> bool {
        self.files.lock().len() < MAX_SPARES
    }

    /// Keeps a file for the next operation; returns it if it is to be removed.
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
