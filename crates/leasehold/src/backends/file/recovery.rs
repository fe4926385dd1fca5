//! Recovers a directory when it is first opened after a restart of the machine.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt as _,
    sync::Arc,
};

use super::{
    decode,
    directory::{Directory, list_files},
    errors::cannot,
    latch::{self, LatchWait, Latches},
    safe_open,
};
use crate::Result;

/// Removes records that a power loss damaged, once per boot.
///
/// Records are not synced to disk by default, so that a power loss may leave empty ones. No process that had a
/// lease in them is alive, so asking an operator about each would only block the locks. Within one boot nothing damages
/// a record, so a corrupt one is an error.
pub(super) fn recover(directory: &Arc<Directory>, boot: &str) -> Result<()> {
    if is_current_boot(directory, boot) {
        return Ok(());
    }
    let latches = Latches::new(directory);
    // Take all latches, in order: no process uses a record in between, and two recovering processes cannot deadlock.
    let _until_done =
        latch::numbers().map(|number| latches.take(number, LatchWait::Bounded)).collect::<Result<Vec<_>>>()?;
    remove_damaged(directory)?;
    store_boot_id(directory, boot)
}

fn is_current_boot(directory: &Directory, boot: &str) -> bool {
    safe_open::read(&directory.boot()).is_ok_and(|known| known == boot.as_bytes())
}

fn remove_damaged(directory: &Directory) -> Result<()> {
    for (name, record) in list_files(&directory.records())? {
        if !name.starts_with('.') && decode::is_damaged(&record) {
            tracing::warn!(record = %record.display(), "a record was lost when the machine went down");
            fs::remove_file(&record).map_err(|error| cannot("remove", &record, error))?;
        }
    }
    Ok(())
}

/// Overwrites the file in place: all boot ids have the same length, and after a partial write the next instance
/// recovers again.
fn store_boot_id(directory: &Directory, boot: &str) -> Result<()> {
    let path = directory.boot();
    let opened = safe_open::regular(File::options().write(true), &path).or_else(|_| directory.create(&path));
    let written =
        opened.and_then(|file| file.set_len(boot.len() as u64).and_then(|()| file.write_all_at(boot.as_bytes(), 0)));
    written.map_err(|error| cannot("write", &path, error))
}
