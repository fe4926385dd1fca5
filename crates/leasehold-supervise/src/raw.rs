//! The steps that need `unsafe`: taking over an inherited descriptor, acting between fork and exec, and looking at a
//! dead child without reaping it.

#![allow(
    unsafe_code,
    reason = "the compiler cannot see who opened a descriptor, what a forked child may call, or what waitid fills in"
)]

use std::{
    io, mem,
    os::{
        fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd},
        unix::process::CommandExt,
    },
    process::Command,
};

use nix::libc;
use rustix::{
    io::{FdFlags, fcntl_getfd, fcntl_setfd},
    process::Pid,
};

use crate::Status;

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

/// What has become of a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChildChange {
    /// It has ended.
    Ended(Status),
    /// It was stopped by this signal.
    Stopped(i32),
}

/// A child that has ended or was stopped, if there is one. It is not reaped: its pid remains its own.
///
/// rustix does not tell which child it is, and nix knows no real-time signals.
pub(crate) fn changed_child() -> io::Result<Option<(Pid, ChildChange)>> {
    // SAFETY: zeroes are a valid value of this structure.
    let mut info: libc::siginfo_t = unsafe { mem::zeroed() };
    let options = libc::WEXITED | libc::WSTOPPED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: the call writes to `info` alone, which outlives it.
    if unsafe { libc::waitid(libc::P_ALL, 0, &raw mut info, options) } == -1 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call fills in the fields of a child, or leaves the zeroes.
    let pid = unsafe { info.si_pid() };
    // SAFETY: the same.
    let status = unsafe { info.si_status() };
    let change = match info.si_code {
        libc::CLD_EXITED => ChildChange::Ended(Status::Exited(u8::try_from(status & 0xff).expect("eight bits"))),
        libc::CLD_KILLED | libc::CLD_DUMPED => ChildChange::Ended(Status::Killed(status)),
        _ => ChildChange::Stopped(status),
    };
    Ok(Pid::from_raw(pid).map(|pid| (pid, change)))
}
