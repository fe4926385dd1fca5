//! The two threads of the library, so that a caller's blocked runtime cannot delay renewals.
//!
//! - `leasehold-io` does network I/O and renewals. Disk I/O and users'
//!   callbacks run on its pool of blocking threads, never on it.
//! - `leasehold-timer` watches deadlines and ends waits: it sleeps, compares
//!   and wakes, and does nothing that could block.
//!
//! Because the library has its own threads, callers may drop a guard outside of a
//! runtime, and await every call on any executor.

use std::{
    cell::{Cell, RefCell},
    future::Future,
    pin::Pin,
    sync::mpsc,
    task::{Context, Poll},
    thread,
    time::Duration,
};

use leasehold_fork::PerProcess;
use parking_lot::Mutex;
use tokio::{
    runtime::{Builder, Handle},
    sync::oneshot,
};

#[cfg(target_os = "linux")]
use crate::event_loop::EventLoop;
use crate::{Error, Result};

/// A task of the engine.
pub(crate) type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// How long an idle blocking thread stays: a process that waits for hours should not keep one.
const IDLE: Duration = Duration::from_secs(1);

/// The two threads of a process.
#[derive(Clone, Debug)]
pub(crate) struct Threads {
    pub(crate) io: Handle,
    pub(crate) timer: Handle,
}

/// What can wait for descriptors on the thread of a caller.
#[derive(Clone, Debug)]
#[allow(dead_code, reason = "as `callers_runtime`")]
pub(crate) enum CallersRuntime {
    Tokio(Handle),
    #[cfg(target_os = "linux")]
    EventLoop(EventLoop),
}

impl CallersRuntime {
    /// That of this thread, unless it is the one with this handle.
    fn current(io: &Handle) -> Option<Self> {
        #[cfg(target_os = "linux")]
        if let Some(event_loop) = EventLoop::current() {
            return Some(Self::EventLoop(event_loop));
        }
        Handle::try_current().ok().filter(|caller| caller.id() != io.id()).map(Self::Tokio)
    }
}

thread_local! {
    /// Whether this is one of the two threads.
    static IS_OWN: Cell<bool> = const { Cell::new(false) };
    /// The runtime of the caller whose thread polls a task of the engine just now.
    static CALLERS_RUNTIME: RefCell<Option<CallersRuntime>> = const { RefCell::new(None) };
}

impl Threads {
    /// Polls the task on the caller's thread, with the timers and sockets of the I/O thread.
    pub(crate) fn poll_on_this_thread(&self, task: &mut Task, context: &mut Context<'_>) -> Poll<()> {
        let _restored = Restore(CALLERS_RUNTIME.replace(CallersRuntime::current(&self.io)));
        let _context = self.io.enter();
        task.as_mut().poll(context)
    }
}

/// Restores `CALLERS_RUNTIME` when it is dropped.
struct Restore(Option<CallersRuntime>);

impl Drop for Restore {
    fn drop(&mut self) {
        CALLERS_RUNTIME.set(self.0.take());
    }
}

/// The runtime of the caller whose call this thread polls; `None` on the library's own threads and without a runtime.
#[allow(
    dead_code,
    reason = "for backends that are driven by the runtimes of callers, of which not every build has one"
)]
pub(crate) fn callers_runtime() -> Option<CallersRuntime> {
    CALLERS_RUNTIME.with_borrow(Clone::clone)
}

/// Returns whether this is one of the library's own threads.
#[allow(dead_code, reason = "for backends that may wait for a disk, of which not every build has one")]
pub(crate) fn on_own_thread() -> bool {
    IS_OWN.get()
}

/// The process's threads; the first call starts them, and a forked child starts its own.
///
/// A failure is not kept: the next call tries again.
pub(crate) fn of_process() -> Result<&'static Threads> {
    static THREADS: PerProcess<Threads> = PerProcess::new();
    // One for each process: a thread of the parent may have locked its own when it forked.
    static STARTING: PerProcess<Mutex<()>> = PerProcess::new();
    if let Some(threads) = THREADS.get() {
        return Ok(threads);
    }
    let failed = |error| Error::unavailable("cannot start the threads that renew leases").caused_by(error);
    leasehold_fork::watch().map_err(failed)?;
    let _one_at_a_time = STARTING.get_or_insert_with(Mutex::default).lock();
    if let Some(threads) = THREADS.get() {
        return Ok(threads);
    }
    let threads = launch().map_err(failed)?;
    Ok(THREADS.get_or_insert_with(|| threads))
}

fn launch() -> std::io::Result<Threads> {
    let (io, io_runs) = launch_thread("leasehold-io")?;
    let (timer, timer_runs) = launch_thread("leasehold-timer")?;
    // From now on they run as long as the process.
    std::mem::forget((io_runs, timer_runs));
    Ok(Threads { io, timer })
}

/// Starts a thread that runs until the sender is dropped.
fn launch_thread(name: &str) -> std::io::Result<(Handle, oneshot::Sender<()>)> {
    let (runs, ended) = oneshot::channel::<()>();
    let (started, handle) = mpsc::sync_channel(1);
    thread::Builder::new().name(name.to_owned()).spawn(move || {
        IS_OWN.set(true);
        let runtime = Builder::new_current_thread().enable_all().thread_keep_alive(IDLE).build();
        match runtime {
            Ok(runtime) => {
                let _received = started.send(Ok(runtime.handle().clone()));
                let _sender_dropped = runtime.block_on(ended);
            }
            Err(error) => {
                let _received = started.send(Err(error));
            }
        }
    })?;
    let handle = handle.recv().unwrap_or_else(|_| Err(std::io::ErrorKind::Other.into()))?;
    Ok((handle, runs))
}
