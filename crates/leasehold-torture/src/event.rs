//! What a worker records, and the file it appends it to.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    path::Path,
    process,
};

use serde::{Deserialize, Serialize};

use crate::instant::{Micros, now};

/// One line of a log.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct LogLine {
    pub(crate) at: Micros,
    #[serde(flatten)]
    pub(crate) event: LogEvent,
}

/// Something that happened in a worker. `id` names one acquisition.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum LogEvent {
    /// About to ask for a lock.
    Asked { id: String, name: String, units: u32, capacity: u32 },
    /// The ask ended without a grant: busy, waited in vain, or failed.
    Refused { id: String, error: String },
    /// The caller dropped the ask.
    Cancelled { id: String },
    /// The acquire returned a guard.
    Began { id: String, fence: u64 },
    /// `check` passed; `at` was read before the call.
    Believed { id: String },
    /// About to release.
    Ending { id: String },
    /// The release returned.
    Released { id: String, error: Option<String> },
    /// `check` failed at `failed_at`, and `lost` completed at `at`.
    Lost { id: String, failed_at: Micros },
    /// A lease of another instance in the same process had to end at `due`, and `lost` completed at `at`.
    Probe { due: Micros },
    /// Who holds a name, and the order of those who wait for it, as `list` shows it.
    Queue { name: String, holding: Vec<String>, waiting: Vec<String> },
    /// A callback of an election began to block.
    Callback,
    /// Forked while holding a lease.
    Forked { child: i32, idle: bool },
    /// What a call on the inherited instance answered in a forked child.
    InChild { child: i32, call: String, answer: Option<String>, refused: bool },
    /// Nothing is held or asked for any more.
    Idle,
    /// What `list` shows after all workers became idle.
    Listed { left: Vec<String> },
}

/// A file that keeps every line that was written, also when the writer is killed.
#[derive(Debug)]
pub(crate) struct Log(File);

impl Log {
    /// Opens the log for appending.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        OpenOptions::new().create(true).append(true).open(path).map(Self)
    }

    /// Appends an event that happened now.
    pub(crate) fn write(&self, event: LogEvent) {
        self.write_at(now(), event);
    }

    /// Appends an event in one write, so that the kernel has the whole line before the caller goes on.
    ///
    /// A worker that cannot record ends: what it believes afterwards would go unchecked.
    pub(crate) fn write_at(&self, at: Micros, event: LogEvent) {
        let written = serde_json::to_vec(&LogLine { at, event }).map_err(io::Error::from).and_then(|mut line| {
            line.push(b'\n');
            (&self.0).write_all(&line)
        });
        if let Err(error) = written {
            eprintln!("cannot write the log: {error}");
            process::abort();
        }
    }
}
