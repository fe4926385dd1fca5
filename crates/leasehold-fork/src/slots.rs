//! Slots for the numbers of the descriptors that a forked child must not keep.
//!
//! They stand in chunks that are linked and never freed. The child's handler
//! walks the slots without a lock and without allocating, since the thread that
//! would unlock does not exist in the child.

use std::{
    io,
    os::fd::{AsRawFd, IntoRawFd, RawFd},
    ptr,
    sync::atomic::{AtomicI32, AtomicPtr, Ordering},
};

/// No descriptor has this number.
pub(crate) const NONE: RawFd = -1;
const SLOTS: usize = 62;

/// The first chunk; more follow as they are needed.
static CHUNKS: Chunk = Chunk::new();
/// The descriptor that takes the place of the closed ones in a child.
static INERT: AtomicI32 = AtomicI32::new(NONE);

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
pub(crate) fn prepare_inert() -> io::Result<()> {
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
pub(crate) fn claim(descriptor: RawFd) -> &'static AtomicI32 {
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
