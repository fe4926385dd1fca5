//! Forks a process that has threads, as prefork servers do.

use std::io;

/// Forks. The child runs `work` and exits without running destructors or exit handlers.
///
/// A child that is still there after `seconds` is ended by SIGALRM. Returns the child's process id to the parent.
///
/// `work` runs in a process that has lost every other thread: it may allocate (glibc keeps its allocator usable
/// across a fork), and a lock that another thread held at the fork stays locked for ever.
///
/// # Errors
/// Those of fork(2).
#[allow(unsafe_code, reason = "there is no safe way to fork, and a fork without an exec is what is tested")]
pub fn fork(seconds: u32, work: impl FnOnce()) -> io::Result<i32> {
    // SAFETY: `fork` has no precondition. The child owns copies of this thread's stack and heap, and leaves by
    // `_exit`, so no destructor of the parent's objects runs twice. `alarm` and `_exit` take plain numbers.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            unsafe { libc::alarm(seconds) };
            work();
            unsafe { libc::_exit(0) }
        }
        child => Ok(child),
    }
}
