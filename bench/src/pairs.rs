//! Acquires and releases one name again and again from one task, on leasehold and on a bare flock.

use std::{
    fs::{File, OpenOptions},
    path::Path,
};

use leasehold::Leasehold;

use crate::{Result, children::argument, scenarios::one_thread};

/// Acquires and releases `name` `count` times.
pub(crate) async fn on(locks: &Leasehold, name: &str, count: u64) -> Result<()> {
    for _ in 0..count {
        locks.mutex(name).acquire().await?.release().await?;
    }
    Ok(())
}

/// Locks and unlocks an open file `count` times.
pub(crate) fn on_flock(file: &File, count: u64) -> Result<()> {
    for _ in 0..count {
        file.lock()?;
        file.unlock()?;
    }
    Ok(())
}

/// Opens the file of a flock, as each process that locks it does.
pub(crate) fn open_flock(path: &Path) -> Result<File> {
    Ok(OpenOptions::new().create(true).truncate(false).write(true).open(path)?)
}

/// The child process whose system calls are counted: `URL COUNT`.
pub(crate) fn child(arguments: &[String]) -> Result<()> {
    let (url, count) = (argument::<String>(arguments, 0)?, argument(arguments, 1)?);
    one_thread()?.block_on(async {
        let locks = Leasehold::connect(&url).await?;
        on(&locks, "pair", count).await
    })
}
