//! The two steps that need `unsafe`: taking over an inherited descriptor, and acting between fork and exec.

#![allow(unsafe_code, reason = "the compiler cannot see who opened a descriptor, or what a forked child may call")]

use std::{
    io,
    os::{
        fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd},
        unix::process::CommandExt,
    },
    process::Command,
};

use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};

/// Takes over a descriptor that our parent opened for us, and keeps it from what we start.
///
/// To be called once for a number, before this process opens anything.
pub(crate) fn inherited(number: RawFd) -> io::Result<OwnedFd> {
    if number < 3 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: the number is not -1, and the borrow ends with this call, which asks whether it is open at all.
    fcntl_getfd(unsafe { BorrowedFd::borrow_raw(number) })?;
    // SAFETY: it is open, and nobody in this process owns it: our parent left it open for this call.
    let descriptor = unsafe { OwnedFd::from_raw_fd(number) };
    fcntl_setfd(&descriptor, FdFlags::CLOEXEC)?;
    Ok(descriptor)
}

/// Has the child do this between fork and exec: system calls only, nothing that allocates or takes a lock.
pub(crate) fn before_exec(command: &mut Command, act: impl FnMut() -> io::Result<()> + Send + Sync + 'static) {
    // SAFETY: both callers do nothing but system calls, which a child of a process with many threads may make, too.
    unsafe { command.pre_exec(act) };
}
