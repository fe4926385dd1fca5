//! Run records: a line for each report, folded into a line for each name once the file is large.

use std::{
    fs::{self, File},
    io::{self, BufRead, BufReader, Read as _, Write as _},
};

use uuid::Uuid;

use super::{directory::Directory, errors::cannot, latch, layout, safe_open};
use crate::{
    Result,
    backend::RunTable,
    lease::{Names, RunRecord, RunReport, Timestamp},
};

/// The lines are folded at this size, which ten thousand names of any length stay below.
const FOLD_AT: u64 = 8 << 20;

/// Appends the reports.
pub(super) fn record(directory: &Directory, reports: &[RunReport], now: Timestamp) -> Result<()> {
    let path = directory.runs();
    let failed = |error| cannot("write", &path, error);
    let lines = lines(reports.iter().map(|report| report.record(now))).map_err(failed)?;
    let mut file = directory.append(&path).map_err(failed)?;
    // One write: the lines of two processes never mix.
    file.write_all(&lines).map_err(failed)?;
    if file.metadata().is_ok_and(|file| file.len() >= FOLD_AT) {
        fold(directory, now)?;
    }
    Ok(())
}

/// The records of these resources, by name.
pub(super) fn read(directory: &Directory, names: &Names, now: Timestamp) -> Result<Vec<RunRecord>> {
    let path = directory.runs();
    match table(directory, now) {
        Ok(table) => Ok(table.select(names, now)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(cannot("read", &path, error)),
    }
}

fn table(directory: &Directory, now: Timestamp) -> io::Result<RunTable> {
    let mut table = RunTable::default();
    let file = safe_open::regular(File::options().read(true), &directory.runs())?;
    for line in BufReader::new(file.take(safe_open::LARGEST as u64)).split(b'\n') {
        // A line torn by a full disk or a power loss is passed over.
        if let Ok(record) = serde_json::from_slice::<RunRecord>(&line?) {
            table.add(record);
        }
    }
    table.trim(now);
    Ok(table)
}

fn lines(records: impl Iterator<Item = RunRecord>) -> io::Result<Vec<u8>> {
    let mut lines = Vec::new();
    for record in records {
        serde_json::to_writer(&mut lines, &record)?;
        lines.push(b'\n');
    }
    Ok(lines)
}

/// Replaces the file by one with a line for each name. Reports that are appended meanwhile may be lost: they are counters.
fn fold(directory: &Directory, now: Timestamp) -> Result<()> {
    let guard = directory.latch(latch::HISTORY);
    let lock = safe_open::regular(File::options().read(true).write(true), &guard);
    let lock = lock.map_err(|error| cannot("open", &guard, error))?;
    if !latch::try_lock(&lock, &guard)? {
        return Ok(());
    }
    let path = directory.runs();
    let aside = path.with_file_name(format!("{}{}", layout::UNFINISHED, Uuid::new_v4().simple()));
    // Another process may have folded it since.
    let is_large = fs::symlink_metadata(&path).is_ok_and(|file| file.len() >= FOLD_AT);
    let folded = if is_large { replace(directory, &aside, now) } else { Ok(()) };
    if folded.is_err() {
        let _not_made_or_renamed = fs::remove_file(&aside);
    }
    let _closing_unlocks = lock.unlock();
    folded.map_err(|error| cannot("replace", &path, error))
}

fn replace(directory: &Directory, aside: &std::path::Path, now: Timestamp) -> io::Result<()> {
    let lines = lines(table(directory, now)?.into_records())?;
    directory.create(aside)?.write_all(&lines)?;
    fs::rename(aside, directory.runs())
}
