//! Opens descriptors that a forked child closes at once.

use std::{io, os::fd::AsFd};

use leasehold_fork::{Registration, close_in_child, forks, watch};

/// How often to open a file again because another thread forked in between.
const TRIES: u32 = 8;

/// A descriptor, and the registration by which a forked child closes it.
#[derive(Debug)]
pub(super) struct ClosedInChild<F> {
    // Fields drop in this order. If the file were closed first, its number could be reused, and a child would close the
    // wrong file.
    _registration: Registration,
    pub(super) file: F,
}

impl<F: AsFd> ClosedInChild<F> {
    /// Opens and registers a file. Opens it again if a thread forked in between, since that child would keep it open.
    /// After `TRIES` it gives up on that: the child then keeps the file open until it ends.
    pub(super) fn open(mut open: impl FnMut() -> io::Result<F>) -> io::Result<Self> {
        watch()?;
        let mut tries = 0;
        loop {
            let before = forks();
            let file = open()?;
            let registration = close_in_child(file.as_fd())?;
            tries += 1;
            // `None`: a thread was just forking.
            if tries == TRIES || before.is_some() && forks() == before {
                return Ok(Self { _registration: registration, file });
            }
        }
    }
}
