//! The first look at a directory after the machine has restarted.

use std::{fs, io::Write as _, sync::Arc};

use super::{
    decode,
    directory::{Directory, files},
    errors::cannot,
    latch::{self, Latches, Wait},
    presence::OwnPresence,
    safe_open,
};
use crate::Result;

/// Removes what a power loss tore, once in each life of the machine.
///
/// Records are not forced to the disk by default, so that a power loss may
/// leave empty ones. No process that had a lease on them is alive; to ask a
/// person to look at each would only keep locks from being used. In the same
/// life nothing tears a record, and garbage stays an error.
pub(super) fn recover(directory: &Arc<Directory>, own: &OwnPresence, boot: &str) -> Result<()> {
    if is_known(directory, boot) {
        return Ok(());
    }
    let latches = Latches::new(directory);
    // All of them, in order: nobody works on any record meanwhile, and two that recover do not block each other.
    let _until_done =
        latch::numbers().map(|number| latches.take(number, Wait::Bounded)).collect::<Result<Vec<_>>>()?;
    remove_torn(directory)?;
    remember(directory, own, boot)
}

fn is_known(directory: &Directory, boot: &str) -> bool {
    safe_open::read(&directory.boot()).is_ok_and(|known| known == boot.as_bytes())
}

fn remove_torn(directory: &Directory) -> Result<()> {
    for (name, record) in files(&directory.records())? {
        if !name.starts_with('.') && decode::is_torn(&record) {
            tracing::warn!(record = %record.display(), "a record was lost when the machine went down");
            fs::remove_file(&record).map_err(|error| cannot("remove", &record, error))?;
        }
    }
    Ok(())
}

fn remember(directory: &Directory, own: &OwnPresence, boot: &str) -> Result<()> {
    let (aside, path) = (own.aside(u64::MAX), directory.boot());
    let written = directory.create(&aside).and_then(|mut file| file.write_all(boot.as_bytes()));
    written.and_then(|()| fs::rename(&aside, &path)).map_err(|error| cannot("write", &path, error))
}
