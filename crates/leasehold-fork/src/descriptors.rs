//! The descriptors that a forked child must not keep.
//!
//! Their numbers stand in slots, in chunks that are linked and never freed. The
//! child's handler walks the slots without a lock and without allocating, since
//! the thread that would unlock does not exist in the child.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd, IntoRawFd, RawFd},
    ptr,
    sync::atomic::{AtomicI32, AtomicPtr, Ordering},
};

use crate::watch::{generation, watch};

/// No descriptor has this number.
const NONE: RawFd = -1;
const SLOTS: usize = 62;

/// The first chunk; more follow as they are needed.
static CHUNKS: Chunk = Chunk::new();
/// The descriptor that takes the place of the closed ones in a child.
static INERT: AtomicI32 = AtomicI32::new(NONE);

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
    prepare_inert()?;
    Ok(Registration { generation: generation(), slot: claim(descriptor.as_raw_fd()) })
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
            self.slot.store(NONE, Ordering::Release);
        }
    }
}

/// Replaces every registered descriptor by the inert one and empties the slots.
///
/// For the child's handler: takes no lock and does not allocate.
pub(crate) fn disconnect_all() {
    let mut chunk = Some(&CHUNKS);
    while let Some(Chunk { slots, .. }) = chunk {
        for slot in slots {
            let descriptor = slot.swap(NONE, Ordering::Acquire);
            if descriptor != NONE {
                disconnect(descriptor);
            }
        }
        chunk = chunk.and_then(Chunk::next);
    }
}

fn disconnect(descriptor: RawFd) {
    // SAFETY: whoever registered the number owns it in the child too, as the order of `close_in_child` has it, and
    // its owner may find it closed or inert there. `dup2` takes any numbers.
    if unsafe { libc::dup2(INERT.load(Ordering::Relaxed), descriptor) } == NONE {
        // SAFETY: as above.
        unsafe { libc::close(descriptor) };
        return;
    }
    // SAFETY: the number was made by the `dup2` above, and `F_SETFD` takes an integer.
    unsafe { libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC) };
}

/// Opens the inert descriptor, which stays open as long as the process, unless it is open.
fn prepare_inert() -> io::Result<()> {
    if INERT.load(Ordering::Relaxed) != NONE {
        return Ok(());
    }
    let (reader, _writer) = io::pipe()?;
    if INERT.compare_exchange(NONE, reader.as_raw_fd(), Ordering::Relaxed, Ordering::Relaxed).is_ok() {
        let _open_for_ever = reader.into_raw_fd();
    }
    Ok(())
}

/// Puts the descriptor into a free slot.
fn claim(descriptor: RawFd) -> &'static AtomicI32 {
    let mut chunk = &CHUNKS;
    loop {
        if let Some(slot) = chunk.slots.iter().find(|slot| take(slot, descriptor)) {
            return slot;
        }
        chunk = chunk.next_or_new();
    }
}

/// Whether the slot was free and now has the descriptor.
///
/// `Release`: a child that sees the descriptor in its copy of the slot also sees the inert one.
fn take(slot: &AtomicI32, descriptor: RawFd) -> bool {
    slot.load(Ordering::Relaxed) == NONE
        && slot.compare_exchange(NONE, descriptor, Ordering::Release, Ordering::Relaxed).is_ok()
}

struct Chunk {
    slots: [AtomicI32; SLOTS],
    next: AtomicPtr<Chunk>,
}

impl Chunk {
    const fn new() -> Self {
        Self { slots: [const { AtomicI32::new(NONE) }; SLOTS], next: AtomicPtr::new(ptr::null_mut()) }
    }

    fn next(&self) -> Option<&'static Chunk> {
        // SAFETY: a pointer in `next` is null or comes from the `Box` in `next_or_new`, which nobody frees or changes
        // through a `&mut`. The `Acquire` pairs with the exchange there: the chunk is complete.
        unsafe { self.next.load(Ordering::Acquire).as_ref() }
    }

    fn next_or_new(&self) -> &'static Chunk {
        if let Some(next) = self.next() {
            return next;
        }
        let new = Box::into_raw(Box::new(Chunk::new()));
        if self.next.compare_exchange(ptr::null_mut(), new, Ordering::Release, Ordering::Relaxed).is_err() {
            // SAFETY: another thread was faster, so `next` does not have this pointer, nor does anything else.
            drop(unsafe { Box::from_raw(new) });
        }
        self.next().expect("this thread or a faster one set it")
    }
}
