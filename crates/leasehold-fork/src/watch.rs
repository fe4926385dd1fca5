//! The generation of this process, and the handler that runs in a forked child.

use std::{
    io,
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
};

use crate::descriptors;

static GENERATION: AtomicU32 = AtomicU32::new(0);
static WATCHING: AtomicBool = AtomicBool::new(false);

/// Returns the generation of this process: 0 at first, higher in each forked child.
///
/// The number rises only once [`watch`] or [`close_in_child`](crate::close_in_child)
/// succeeded; call one of them before keeping a generation to compare with. This is one
/// relaxed atomic load: no lock, no allocation, no system call.
#[inline]
pub fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// Makes [`generation`] rise in every child that this process forks from now on.
///
/// Calling it again costs one atomic load. Fails if memory is short.
pub fn watch() -> io::Result<()> {
    if WATCHING.load(Ordering::Acquire) {
        return Ok(());
    }
    // Not behind a `Once`: had another thread forked in the middle of it, the child would wait for ever for its end.
    // Two threads may register the handler twice, and then a child's generation rises by two.
    //
    // SAFETY: the handler is a function of this program that lives as long as the program, and it only does what is
    // allowed in the child of a process with threads: atomic operations, `dup2`, `fcntl` and `close`.
    match unsafe { libc::pthread_atfork(None, None, Some(in_child)) } {
        0 => {
            WATCHING.store(true, Ordering::Release);
            Ok(())
        }
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// Runs in the child, on its only thread, before `fork` returns there.
extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    descriptors::disconnect_all();
}
