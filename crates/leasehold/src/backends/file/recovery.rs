//! The first look at a directory after the machine has restarted.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt as _,
    sync::Arc,
};

use super::{
    decode,
    directory::{Directory, files},
    errors::cannot,
    latch::{self, LatchWait, Latches},
    safe_open,
};
use crate::Result;

/// Removes what a power loss tore, once per boot.
///
/// Records are not forced to the disk by default, so that a power loss may
/// leave empty ones. No process that had a lease on them is alive; to ask a
/// person to look at each would only keep locks from being used. Within one
/// boot nothing tears a record, and garbage stays an error.
pub(super) fn recover(directory: &Arc<Directory>, boot: &str) -> Result<()> {
    if is_known(directory, boot) {
        return Ok(());
    }
    let latches = Latches::new(directory);
    // All of them, in order: nobody works on any record meanwhile, and two that recover do not block each other.
    let _until_done =
        latch::numbers().map(|number| latches.take(number, LatchWait::Bounded)).collect::<Result<Vec<_>>>()?;
    remove_torn(directory)?;
    remember(directory, boot)
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

/// Written in place: all ids have one length, and half an id makes the next to open the directory recover again.
fn remember(directory: &Directory, boot: &str) -> Result<()> {
    let path = directory.boot();
    let opened = safe_open::regular(File::options().write(true), &path).or_else(|_| directory.create(&path));
    let written =
        opened.and_then(|file| file.set_len(boot.len() as u64).and_then(|()| file.write_all_at(boot.as_bytes(), 0)));
    written.map_err(|error| cannot("write", &path, error))
}
