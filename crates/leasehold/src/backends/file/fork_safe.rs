//! Opens descriptors that no forked child keeps.

use std::{io, os::fd::AsFd};

use leasehold_fork::{Registration, close_in_child, forks, watch};

/// How often to open again because another thread forked meanwhile.
const TRIES: u32 = 8;

/// A descriptor, and the registration by which a forked child closes it.
#[derive(Debug)]
pub(super) struct Unshared<F> {
    // Fields drop in this order: the number must not be closed in a child once it belongs to another file.
    _registration: Registration,
    pub(super) file: F,
}

impl<F: AsFd> Unshared<F> {
    /// Opens a file, again if a thread forked before it was registered: that child would keep it.
    pub(super) fn open(mut open: impl FnMut() -> io::Result<F>) -> io::Result<Self> {
        watch()?;
        let mut tries = 0;
        loop {
            let before = forks();
            let file = open()?;
            let registration = close_in_child(file.as_fd())?;
            tries += 1;
            if tries == TRIES || before.is_some() && forks() == before {
                return Ok(Self { _registration: registration, file });
            }
        }
    }
}
