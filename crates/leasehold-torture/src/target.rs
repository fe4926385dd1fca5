//! The locks that workers contend for.

use std::time::Duration;

/// How long a lease lives without a renewal. Short, so that faults are cheap.
pub(crate) const TTL: Duration = Duration::from_secs(1);

/// A lock, and one way to take it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) name: &'static str,
    pub(crate) mode: Mode,
}

/// A way to take a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Mutex,
    Read,
    Write,
    Permits(u32),
    Leader,
}

/// The limit of every semaphore here.
pub(crate) const LIMIT: u32 = 3;

/// A mutex is the write side of a read/write lock, so `lock:b` is taken in three ways.
pub(crate) const TARGETS: [Target; 8] = [
    Target { name: "lock:a", mode: Mode::Mutex },
    Target { name: "lock:b", mode: Mode::Mutex },
    Target { name: "lock:b", mode: Mode::Read },
    Target { name: "lock:b", mode: Mode::Read },
    Target { name: "lock:b", mode: Mode::Write },
    Target { name: "permits:a", mode: Mode::Permits(1) },
    Target { name: "permits:a", mode: Mode::Permits(2) },
    Target { name: "leader:a", mode: Mode::Leader },
];

impl Mode {
    /// How much of the capacity one holder takes.
    pub(crate) fn units(self) -> u32 {
        match self {
            Self::Mutex | Self::Write => u32::MAX,
            Self::Read | Self::Leader => 1,
            Self::Permits(count) => count,
        }
    }

    /// How much may be held at once.
    pub(crate) fn capacity(self) -> u32 {
        match self {
            Self::Mutex | Self::Write | Self::Read => u32::MAX,
            Self::Permits(_) => LIMIT,
            Self::Leader => 1,
        }
    }
}
