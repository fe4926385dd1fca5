//! Refuses to use the machine-wide directory and the user's own at the same time.
//!
//! Locks in two directories do not exclude each other. So an instance in the user's own directory acquires nothing new
//! once the machine-wide directory exists, and this user cannot open the machine-wide directory while such an instance
//! lives. No interleaving passes both checks: an instance creates its FIFO before it checks for the machine-wide
//! directory, and that directory exists before anyone checks for instances.

use std::{collections::HashSet, fs, io, os::unix::fs::MetadataExt, path::Path, thread, time::Duration};

use rustix::process::geteuid;
use uuid::Uuid;

use super::{
    DefaultDirectory, FileOptions, decode,
    directory::list_files,
    errors::{blocked_directory, cannot},
    presence,
    record::{Record, Times, ends_with_process},
    safe_open,
};
use crate::{Error, Resource, Result, model::Entry};

/// How many processes an error names at most.
const MAX_NAMED_PROCESSES: usize = 8;

/// How often a record that cannot be decoded is read again.
const READ_TRIES: u32 = 5;
const READ_PAUSE: Duration = Duration::from_millis(2);

/// Fails while processes or leases of this user are alive in the directory that `file:` used before the machine-wide
/// one existed.
pub(super) fn refuse_while_used(options: &FileOptions, boot: &str) -> Result<()> {
    let Some(previous) = options.default_directory.as_ref().and_then(DefaultDirectory::previous_directory) else {
        return Ok(());
    };
    let directory = previous.join(&options.namespace);
    let found = fs::symlink_metadata(&directory);
    if found.is_err_and(|error| error.kind() == io::ErrorKind::NotFound || is_of_another(&directory)) {
        return Ok(());
    }
    let presences = list_files(&directory.join("presence"))?;
    let alive = |path: &Path| presence::open(path).map_or_else(|error| !presence::means_dead(&error), |_| true);
    let living = presences.into_iter().filter_map(|(name, path)| Some((Uuid::try_parse(&name).ok()?, path)));
    let living: Vec<_> = living.filter(|(_, path)| alive(path)).collect();
    let times = Times { now: options.clock.now(), wall: options.clock.wall(), boot };
    let leases = live_leases(&directory, &living.iter().map(|(id, _)| *id).collect(), &times)?;
    if living.is_empty() && leases.is_empty() {
        return Ok(());
    }
    let processes = living.iter().flat_map(|(_, path)| presence::processes(path)).take(MAX_NAMED_PROCESSES);
    let processes = processes.map(|pid| format!("process {pid}"));
    let found: Vec<String> = processes.chain(leases.into_iter().map(|lease| format!("lock {lease}"))).collect();
    Err(Error::unavailable(format!(
        "file: now means {}, but this user still uses {place}, the directory it meant before: {}; restart the \
         process or wait until it ends, or use the old directory: file://{place}",
        options.root.display(),
        if found.is_empty() { String::from("a process") } else { found.join(", ") },
        place = previous.display(),
    )))
}

/// Returns whether the directory is inside a private directory of another user. `sudo -u app` may keep the caller's
/// `$HOME`, where this user has nothing.
fn is_of_another(directory: &Path) -> bool {
    let owner = blocked_directory(directory).and_then(|blocked| fs::metadata(blocked).ok()).map(|found| found.uid());
    owner.is_some_and(|owner| owner != geteuid().as_raw())
}

/// Fails once the machine-wide directory exists: this instance is in the user's own directory, and new instances use
/// the machine-wide one.
pub(super) fn refuse_if_machine_directory_exists(machine: Option<&Path>) -> Result<()> {
    match machine {
        Some(machine) if fs::symlink_metadata(machine).is_ok() => Err(Error::invalid_config(format!(
            "file: now means {}, but this process still uses the user's own directory, which it meant when the \
             process started; restart the process",
            machine.display()
        ))),
        _ => Ok(()),
    }
}

/// The resources with a lease that is held by a living instance or has not expired. Only reads the records, because
/// opening an instance would itself count as use.
fn live_leases(directory: &Path, living: &HashSet<Uuid>, times: &Times<'_>) -> Result<Vec<String>> {
    let mut found = Vec::new();
    // Names that begin with a dot are spare or temporary files.
    let records = list_files(&directory.join("records"))?.into_iter().filter(|(name, _)| !name.starts_with('.'));
    for (_, path) in records {
        let Some((resource, record)) = read_record(&path, times)? else { continue };
        let is_live = |entry: &Entry| match record.bound_to(entry) {
            Some(owner) => living.contains(&owner),
            None => !ends_with_process(entry) && entry.expires_at > times.now,
        };
        if record.state.entries.iter().any(is_live) {
            found.push(resource.to_string());
        }
    }
    found.sort();
    Ok(found)
}

/// Reads a record without its latch; `None` if it is gone. The owner may overwrite it meanwhile, so a record that cannot be
/// decoded is read again.
fn read_record(path: &Path, times: &Times<'_>) -> Result<Option<(Resource, Record)>> {
    let mut tries = READ_TRIES;
    loop {
        let bytes = match safe_open::read(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read.map_err(|error| cannot("read", path, error))?,
        };
        match decode::record(&bytes, path, times, Record::default()) {
            Err(_) if tries > 0 => tries -= 1,
            decoded => return decoded.map(Some),
        }
        thread::sleep(READ_PAUSE);
    }
}
