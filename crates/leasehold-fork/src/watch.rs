//! The generation of this process, and the handler that runs in a forked child.

use std::{
    io,
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
};

use crate::slots;

static GENERATION: AtomicU32 = AtomicU32::new(0);
static WATCHING: AtomicBool = AtomicBool::new(false);
/// The forks of this process that began and those that ended, in the parent.
static BEGUN: AtomicU32 = AtomicU32::new(0);
static ENDED: AtomicU32 = AtomicU32::new(0);

/// Returns the generation of this process: 0 at first, higher in each forked child.
///
/// The number rises only once [`watch`] or [`close_in_child`](crate::close_in_child)
/// succeeded; call one of them before keeping a generation to compare with. This is one
/// relaxed atomic load: no lock, no allocation, no system call.
#[inline]
pub fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// Returns how often this process forked, or `None` while a thread forks.
///
/// Whoever finds the same number before opening a descriptor and after registering it knows that no child has it;
/// see [`close_in_child`](crate::close_in_child). Counts as [`generation`] does, from [`watch`] on.
pub fn forks() -> Option<u32> {
    // In this order: a fork that begins and ends between the two loads makes them differ.
    let ended = ENDED.load(Ordering::SeqCst);
    let begun = BEGUN.load(Ordering::SeqCst);
    (begun == ended).then_some(begun)
}

/// Makes [`generation`] rise in every child that this process forks from now on.
///
/// Calling it again costs one atomic load. Fails if memory is short.
pub fn watch() -> io::Result<()> {
    if WATCHING.load(Ordering::Acquire) {
        return Ok(());
    }
    // Not behind a `Once`: had another thread forked in the middle of it, the child would wait for ever for its end.
    // Two threads may register the handlers twice, and then all numbers rise by two.
    //
    // SAFETY: the handlers are functions of this program that live as long as the program, and they only do what is
    // allowed in the child of a process with threads: atomic operations, `dup2`, `fcntl` and `close`.
    match unsafe { libc::pthread_atfork(Some(before_fork), Some(in_parent), Some(in_child)) } {
        0 => {
            WATCHING.store(true, Ordering::Release);
            Ok(())
        }
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

extern "C" fn before_fork() {
    BEGUN.fetch_add(1, Ordering::SeqCst);
}

/// Also runs if the process could not fork.
extern "C" fn in_parent() {
    ENDED.fetch_add(1, Ordering::SeqCst);
}

/// Runs in the child, on its only thread, before `fork` returns there.
extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    // Other threads may have been forking too; they do not exist here.
    ENDED.store(BEGUN.load(Ordering::SeqCst), Ordering::SeqCst);
    slots::disconnect_all();
}
