//! The descriptors that a forked child must not keep, each for as long as its owner says.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
    sync::atomic::{AtomicI32, Ordering},
};

use crate::{
    slots,
    watch::{generation, watch},
};

/// Makes a forked child close this descriptor, until the [`Registration`] is dropped.
///
/// From then on the child's copy of the number refers to a pipe without a writer, which reads as empty and cannot be
/// written. The number stays in use, so that an inherited object that is used or dropped in the child by mistake
/// cannot reach a descriptor that the child opened since. The child may close the number. The parent's descriptor, its
/// locks and its place in an epoll instance are untouched. So are duplicates under other numbers: do not register a
/// duplicate that is lent to a child on purpose.
///
/// Fails if the process has no descriptor or no memory left.
///
/// # Order
///
/// 1. Open the descriptor, register it, then let anything depend on it.
/// 2. End what depends on it for all duplicates: unlock, unlink, shut down.
/// 3. Drop the `Registration`.
/// 4. Close the descriptor.
///
/// With 4 before 3, the number may belong to another file of the program by the time that another thread forks,
/// and the child would lose that file.
///
/// # What remains
///
/// A child keeps a copy if another thread forks
///
/// - between opening and registering. That matters if the owner is killed beside that child. [`forks`](crate::forks)
///   tells whether to open another; where threads fork without pause, bound the tries:
///
///   ```
///   # use std::{fs::File, io, os::fd::AsFd};
///   # use leasehold_fork::{close_in_child, forks, watch};
///   # fn open() -> io::Result<File> { File::open("/dev/null") }
///   watch()?;
///   let (registration, file) = loop {
///       let before = forks();
///       let file = open()?;
///       let registration = close_in_child(file.as_fd())?;
///       if before.is_some() && forks() == before {
///           break (registration, file);
///       }
///   };
///   # drop((registration, file));
///   # Ok::<(), io::Error>(())
///   ```
///
/// - between steps 3 and 4, which after step 2 costs the child a number and nobody anything else.
pub fn close_in_child(descriptor: BorrowedFd<'_>) -> io::Result<Registration> {
    watch()?;
    slots::prepare_inert()?;
    Ok(Registration { generation: generation(), slot: slots::claim(descriptor.as_raw_fd()) })
}

/// A descriptor that forked children close; dropping this forgets the descriptor.
///
/// Drop it before the descriptor is closed, see [`close_in_child`]. In a struct, declare it above the
/// descriptor: fields drop in that order. One that a child inherited does nothing when dropped.
#[derive(Debug)]
#[must_use = "dropping it forgets the descriptor"]
pub struct Registration {
    generation: u32,
    slot: &'static AtomicI32,
}

impl Drop for Registration {
    fn drop(&mut self) {
        // The handler emptied the slots in the child, which may have filled this one again.
        if self.generation == generation() {
            self.slot.store(slots::NONE, Ordering::Release);
        }
    }
}
