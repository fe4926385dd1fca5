//! The first look at a directory after the machine has restarted.

use std::{fs, io::Write as _, sync::Arc};

use super::{
    FileBackend,
    directory::{Directory, files},
    elsewhere,
    failure::failure,
    latch, opening,
    presence::OwnPresence,
    record,
};
use crate::Result;

impl FileBackend {
    /// Removes what a power loss tore, once in each life of the machine.
    ///
    /// Records are not forced to the disk by default, so that a power loss may
    /// leave empty ones. No process that had a lease on them is alive; to ask
    /// a person to look at each would only keep locks from being used. In the
    /// same life nothing tears a record, and garbage stays an error.
    pub(super) async fn recover(&self) -> Result<()> {
        let (directory, boot) = (Arc::clone(&self.directory), self.boot.clone());
        if elsewhere(&self.runtime, move || Ok(is_known(&directory, &boot))).await? {
            return Ok(());
        }
        // All of them, in order: nobody works on any record meanwhile, and two that recover do not block each other.
        let mut latches = Vec::new();
        for number in latch::numbers() {
            latches.push(self.latches.take(number).await?);
        }
        let (directory, own, boot) = (Arc::clone(&self.directory), Arc::clone(&self.own), self.boot.clone());
        elsewhere(&self.runtime, move || {
            let _until_done = latches;
            remove_torn(&directory)?;
            remember(&directory, &own, &boot)
        })
        .await
    }
}

fn is_known(directory: &Directory, boot: &str) -> bool {
    opening::read(&directory.boot()).is_ok_and(|known| known == boot.as_bytes())
}

fn remove_torn(directory: &Directory) -> Result<()> {
    for (name, record) in files(&directory.records())? {
        if !name.starts_with('.') && record::is_torn(&record) {
            tracing::warn!(record = %record.display(), "a record was lost when the machine went down");
            fs::remove_file(&record).map_err(|error| failure("remove", &record, error))?;
        }
    }
    Ok(())
}

fn remember(directory: &Directory, own: &OwnPresence, boot: &str) -> Result<()> {
    let (aside, path) = (own.aside(u8::MAX), directory.boot());
    let written = directory.create(&aside).and_then(|mut file| file.write_all(boot.as_bytes()));
    written.and_then(|()| fs::rename(&aside, &path)).map_err(|error| failure("write", &path, error))
}
