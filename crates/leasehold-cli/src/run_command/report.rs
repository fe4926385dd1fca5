//! The record of one `run`: what came of it, unambiguous even when exit codes collide.

use std::{
    fs,
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use leasehold::lease::{HeldBy, Timestamp};
use leasehold_supervise::{ChildEnd, Status, signal_name};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::OFlags,
    io::{Errno, retry_on_intr},
};
use serde_json::{Value, json};

use crate::{
    duration::millis,
    error::{CommandError, Result},
    json,
};

/// How long the reader of a pipe may take to make room for the record.
const READER_LIMIT: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// What came of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunOutcome {
    /// The command succeeded, and the lock was held throughout.
    Completed,
    /// The command ended with another code than 0 or by a signal, and the lock was held throughout.
    Failed,
    /// Busy, or not in time.
    NotAcquired,
    /// The lock was lost.
    Lost,
    /// Held as long as it may be.
    MaxHold,
    /// A signal asked us to end.
    Interrupted,
    /// The command could not be run.
    ExecFailed,
    /// The backend could not be used.
    BackendError,
}

impl RunOutcome {
    /// The word used in reports.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::NotAcquired => "not_acquired",
            Self::Lost => "lost",
            Self::MaxHold => "max_hold",
            Self::Interrupted => "interrupted",
            Self::ExecFailed => "exec_failed",
            Self::BackendError => "backend_error",
        }
    }
}

/// The record, as far as things went.
#[derive(Debug)]
pub(crate) struct Report {
    /// The lock that was named first.
    pub(crate) lock: String,
    /// How it was asked for.
    pub(crate) mode: &'static str,
    /// What came of it.
    pub(crate) outcome: RunOutcome,
    /// Why, in one word.
    pub(crate) reason: Option<String>,
    /// The kind of backend.
    pub(crate) backend: String,
    /// Who we were.
    pub(crate) holder: Option<String>,
    /// Who held the lock, if it was not acquired.
    pub(crate) holders: Option<Vec<HeldBy>>,
    /// The number of the grant.
    pub(crate) fence: Option<u64>,
    /// How long the lock was waited for.
    pub(crate) waited: Duration,
    /// How long it was held.
    pub(crate) held: Option<Duration>,
    /// The length of the lease.
    pub(crate) ttl: Duration,
    /// The child, if there was one.
    pub(crate) child: Option<Value>,
    /// Whether the lock was given back, if that was tried.
    pub(crate) released: Option<bool>,
    /// Our exit code.
    pub(crate) exit_code: u8,
    /// When the lock was granted.
    pub(crate) acquired_at: Option<Timestamp>,
    /// When all was over.
    pub(crate) ended_at: Timestamp,
}

impl Report {
    /// The record as JSON.
    pub(crate) fn to_json(&self) -> Value {
        json!({
            "v": 1,
            "lock": self.lock,
            "mode": self.mode,
            "outcome": self.outcome.as_str(),
            "reason": self.reason,
            "backend": self.backend,
            "holder": self.holder,
            "holders": self.holders.as_ref().map(|holders| holders.iter().map(json::held_by).collect::<Vec<_>>()),
            "fence": self.fence,
            "waited_ms": millis(self.waited),
            "held_ms": self.held.map(millis),
            "ttl_ms": millis(self.ttl),
            "child": self.child,
            "exit_code": self.exit_code,
            "acquired_at": self.acquired_at.map(json::time),
            "ended_at": json::time(self.ended_at),
        })
    }
}

/// The child as the record has it.
pub(crate) fn child(ended: &ChildEnd) -> Value {
    let (code, signal) = match ended.status {
        Status::Exited(code) => (Some(code), None),
        Status::Killed(number) => (None, Some(signal_name(number))),
    };
    json!({"pid": ended.pid, "exit_code": code, "signal": signal})
}

/// Where the record goes; tried before any work is done.
#[derive(Debug)]
pub(crate) struct ReportFile(PathBuf);

impl ReportFile {
    /// Makes sure that the file can be written.
    pub(crate) fn prepare(path: &Path) -> Result<Self> {
        if path.as_os_str() != "-" && !is_special(path) {
            let opened = fs::File::options().append(true).create(true).open(path);
            opened
                .map_err(|error| CommandError::usage(format!("--report: cannot write {}: {error}", path.display())))?;
        }
        Ok(Self(path.to_owned()))
    }

    /// Writes the record: a reader sees the whole of it or the one before.
    pub(crate) fn write(&self, report: &Report) -> Result<()> {
        let line = format!("{}\n", report.to_json());
        if self.0.as_os_str() == "-" {
            let written = json::write(&line).and_then(json::OutputReader::required);
            return written
                .map_err(|failure| CommandError { message: format!("--report: {}", failure.message), ..failure });
        }
        let directly = || write_at_once(&self.0, &line);
        let written = if is_special(&self.0) { directly() } else { self.replace(&line).or_else(|_| directly()) };
        written.map_err(|error| CommandError::usage(format!("--report: cannot write {}: {error}", self.0.display())))
    }
}

impl ReportFile {
    fn replace(&self, line: &str) -> io::Result<()> {
        let mut aside = self.0.clone().into_os_string();
        aside.push(format!(".{}.tmp", std::process::id()));
        fs::write(&aside, line).and_then(|()| fs::rename(&aside, &self.0)).inspect_err(|_| {
            let _nothing_to_remove = fs::remove_file(&aside);
        })
    }
}

/// Writes to the file as it is, and does not wait for the reader of a pipe for long.
fn write_at_once(path: &Path, line: &str) -> io::Result<()> {
    let open = fs::File::options().write(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(path);
    let mut file = open.map_err(|error| match error.raw_os_error() {
        Some(number) if number == Errno::NXIO.raw_os_error() => io::Error::other("nobody reads it"),
        _ => error,
    })?;
    if retry_on_intr(|| poll(&mut [PollFd::new(&file, PollFlags::OUT)], Some(&READER_LIMIT)))? == 0 {
        return Err(io::Error::other("its reader does not read"));
    }
    file.write_all(line.as_bytes())
}

/// A pipe or a device is written to as it is.
fn is_special(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| !metadata.is_file() && !metadata.is_dir())
}
