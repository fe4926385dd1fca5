//! The first look at a directory after the machine has restarted.

use std::fs;

use super::{FileBackend, failure::failure, latch, presence, record};
use crate::Result;

impl FileBackend {
    /// Removes what a power loss tore, once in each life of the machine.
    ///
    /// Records are not forced to the disk by default, so that a power loss may
    /// leave empty ones. No process that had a lease on them is alive; to ask
    /// a person to look at each would only keep locks from being used. In the
    /// same life nothing tears a record, and garbage stays an error.
    pub(super) async fn recover(&self) -> Result<()> {
        let path = self.directory.boot();
        if fs::read_to_string(&path).is_ok_and(|boot| boot == self.boot) {
            return Ok(());
        }
        // All of them, in order: nobody works on any record meanwhile, and two that recover do not block each other.
        let mut latches = Vec::new();
        for number in latch::numbers() {
            latches.push(self.latches.take(number).await?);
        }
        for (name, record) in presence::files(&self.directory.records())? {
            if !name.starts_with('.') && record::is_torn(&record) {
                tracing::warn!(record = %record.display(), "a record was lost when the machine went down");
                fs::remove_file(&record).map_err(|error| failure("remove", &record, error))?;
            }
        }
        let aside = self.own.aside(u8::MAX);
        let written = self.directory.create(&aside).and_then(|_| fs::write(&aside, &self.boot));
        written.and_then(|()| fs::rename(&aside, &path)).map_err(|error| failure("write", &path, error))
    }
}
