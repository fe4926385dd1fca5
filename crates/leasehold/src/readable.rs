//! Lets a caller's runtime wait until a descriptor of the library is readable.
//!
//! Each waiting task has an epoll instance of its own that contains only that
//! descriptor. The instance does not keep the descriptor open, several runtimes
//! can wait for the same one, and a task that outlives the descriptor does no
//! harm.

use std::{
    collections::VecDeque,
    io,
    os::fd::{AsFd, OwnedFd},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use parking_lot::Mutex;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use tokio::{
    io::{Interest, unix::AsyncFd},
    runtime::{Handle, Id},
};

/// An epoll instance that a runtime watches.
pub(crate) type Readable = AsyncFd<Arc<OwnedFd>>;

/// Creates an epoll instance that contains only this descriptor.
pub(crate) fn epoll_of(fd: impl AsFd, events: EventFlags) -> io::Result<OwnedFd> {
    let epoll = epoll::create(CreateFlags::CLOEXEC)?;
    epoll::add(&epoll, fd, EventData::new_u64(0), events)?;
    Ok(epoll)
}

/// Registers an epoll instance with the runtime that is entered.
#[expect(
    deprecated,
    reason = "its successor is unsafe, for descriptors that somebody else may close: this one is owned"
)]
pub(crate) fn register(epoll: Arc<OwnedFd>) -> io::Result<Readable> {
    AsyncFd::with_interest(epoll, Interest::READABLE)
}

/// The last few runtimes that turned out to have no I/O. Only a panic of `register` tells which have none.
static WITHOUT_IO: Mutex<VecDeque<Id>> = Mutex::new(VecDeque::new());
const MAX_WITHOUT_IO: usize = 64;

/// Returns whether the runtime may have I/O, as far as is known. A program that aborts on panics cannot find out: then
/// this is false for every runtime.
pub(crate) fn can_read(runtime: &Handle) -> bool {
    // In a forked child, the lock may be held by a thread that exists only in the parent.
    let is_without_io = || WITHOUT_IO.try_lock().is_none_or(|without_io| without_io.contains(&runtime.id()));
    cfg!(panic = "unwind") && !is_without_io()
}

/// Registers an epoll instance with a runtime; returns `None` if the runtime has no I/O, or is shutting down.
pub(crate) fn register_on(runtime: &Handle, epoll: Arc<OwnedFd>) -> Option<Readable> {
    let _context = runtime.enter();
    match catch_unwind(AssertUnwindSafe(|| register(epoll))) {
        Ok(registered) => registered.ok(),
        Err(_without_io) => {
            if let Some(mut without_io) = WITHOUT_IO.try_lock() {
                without_io.push_front(runtime.id());
                without_io.truncate(MAX_WITHOUT_IO);
            }
            None
        }
    }
}
