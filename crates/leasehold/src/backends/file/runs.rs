//! Run records: a line for each report, compacted to a line for each name once the file is large.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    ops::Range,
    os::unix::fs::MetadataExt as _,
    path::Path,
};

use uuid::Uuid;

use super::{
    append_file::{self, AppendFile},
    directory::Directory,
    errors::cannot,
    latch, layout, record_file, safe_open,
};
use crate::{
    Result,
    backend::RunTable,
    lease::{Names, RunRecord, RunReport, Timestamp},
};

/// The file is compacted at this size. Compacted, the records of ten thousand names take less, even if every name is as
/// long as may be.
const COMPACT_AT: u64 = 8 << 20;

/// Appends the reports.
pub(super) fn append(directory: &Directory, reports: &[RunReport], now: Timestamp) -> Result<()> {
    let path = directory.runs();
    let write = |reports: &[RunReport]| {
        let lines = encode_lines(reports.iter().map(|report| report.record(now)))?;
        let mut runs = AppendFile::open(directory, &path)?;
        runs.append(&lines)?;
        runs.file.metadata()
    };
    let failed = |error| cannot("write", &path, error);
    let file = write(reports).map_err(failed)?;
    if file.len() >= COMPACT_AT
        && let Err(error) = compact(directory, now)
    {
        // The reports are written; the next ones try again.
        tracing::warn!(error = format_args!("{error:#}"), "the records of runs could not be compacted");
    }
    // After its rename, a compaction copies late lines from the old file, but may have done so before our write. So
    // append successes once more.
    let successes: Vec<RunReport> = reports.iter().filter(|report| report.success).cloned().collect();
    if !successes.is_empty() && record_file::identity(&path) != Some((file.dev(), file.ino())) {
        write(&successes).map_err(failed)?;
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
    add(&mut table, &file, 0..file.metadata()?.len())?;
    table.trim(now);
    Ok(table)
}

/// Adds the records in a part of the file.
fn add(table: &mut RunTable, file: &File, part: Range<u64>) -> io::Result<()> {
    for line in append_file::lines(file, part)? {
        // Skip a line that a full disk or a power loss left incomplete.
        if let Ok(record) = serde_json::from_slice::<RunRecord>(&line?) {
            table.add(record);
        }
    }
    Ok(())
}

fn encode_lines(records: impl Iterator<Item = RunRecord>) -> io::Result<Vec<u8>> {
    let mut lines = Vec::new();
    for record in records {
        serde_json::to_writer(&mut lines, &record)?;
        lines.push(b'\n');
    }
    Ok(lines)
}

/// Replaces the file by one with a line for each name. A skip that is reported at the same time may be lost, a success
/// is not.
fn compact(directory: &Directory, now: Timestamp) -> Result<()> {
    let Some(lock) = latch::try_lock_history(directory)? else { return Ok(()) };
    let path = directory.runs();
    let temporary = path.with_file_name(format!("{}{}", layout::UNFINISHED, Uuid::new_v4().simple()));
    // Another process may have compacted it since.
    let is_large = fs::symlink_metadata(&path).is_ok_and(|file| file.len() >= COMPACT_AT);
    let compacted = if is_large { write_compacted(directory, &temporary, now) } else { Ok(()) };
    if compacted.is_err() {
        let _not_created_or_renamed = fs::remove_file(&temporary);
    }
    let _closing_unlocks = lock.unlock();
    compacted.map_err(|error| cannot("replace", &path, error))
}

fn write_compacted(directory: &Directory, temporary: &Path, now: Timestamp) -> io::Result<()> {
    let old = safe_open::regular(File::options().read(true), &directory.runs())?;
    let length = old.metadata()?.len();
    let (mut table, mut late) = (RunTable::default(), RunTable::default());
    add(&mut table, &old, 0..length)?;
    table.trim(now);
    directory.create(temporary)?.write_all(&encode_lines(table.into_records())?)?;
    fs::rename(temporary, directory.runs())?;
    add(&mut late, &old, length..old.metadata()?.len())?;
    AppendFile::open(directory, &directory.runs())?.append(&encode_lines(late.into_records())?)
}
