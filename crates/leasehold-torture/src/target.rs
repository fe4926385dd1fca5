//! The locks that workers contend for.

use std::time::Duration;

/// How long a lease lives without a renewal. Short, so that faults are cheap.
pub(crate) const TTL: Duration = Duration::from_secs(1);

/// A lock, and one way to take it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LockTarget {
    pub(crate) name: &'static str,
    pub(crate) mode: LockMode,
}

/// A way to take a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockMode {
    Mutex,
    Read,
    Write,
    Permits(u32),
    Leader,
}

/// The limit of every semaphore here.
pub(crate) const LIMIT: u32 = 3;

/// A mutex is the write side of a read/write lock, so `lock:b` is taken in three ways.
pub(crate) const TARGETS: [LockTarget; 8] = [
    LockTarget { name: "lock:a", mode: LockMode::Mutex },
    LockTarget { name: "lock:b", mode: LockMode::Mutex },
    LockTarget { name: "lock:b", mode: LockMode::Read },
    LockTarget { name: "lock:b", mode: LockMode::Read },
    LockTarget { name: "lock:b", mode: LockMode::Write },
    LockTarget { name: "permits:a", mode: LockMode::Permits(1) },
    LockTarget { name: "permits:a", mode: LockMode::Permits(2) },
    LockTarget { name: "leader:a", mode: LockMode::Leader },
];

impl LockMode {
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
