//! The thread on which leases are kept, whatever the caller's own threads do.
//!
//! A keeper on the caller's runtime would starve whenever a task blocks it.
//! One thread of our own also lets guards be dropped where no runtime is, and
//! lets every call be awaited on any executor.

use std::{
    future::pending,
    sync::{OnceLock, mpsc},
    task::{Context, Waker},
    thread,
    time::Duration,
};

use tokio::runtime::{Builder, Handle};

use super::Task;
use crate::{Error, Result};

/// How long a thread that did blocking work stays for more: those who wait for hours should not keep one.
const IDLE: Duration = Duration::from_secs(1);

/// The process's one runtime; its thread starts with the first call.
pub(crate) fn handle() -> Result<&'static Handle> {
    static HANDLE: OnceLock<Result<Handle, String>> = OnceLock::new();
    HANDLE
        .get_or_init(|| launch().map_err(|error| error.to_string()))
        .as_ref()
        .map_err(|error| Error::unavailable(format!("cannot start the thread that keeps leases: {error}")))
}

fn launch() -> std::io::Result<Handle> {
    let (started, handle) = mpsc::sync_channel(1);
    thread::Builder::new().name(String::from("leasehold")).spawn(move || {
        let runtime = Builder::new_current_thread().enable_all().thread_keep_alive(IDLE).build();
        match runtime {
            Ok(runtime) => {
                let _received = started.send(Ok(runtime.handle().clone()));
                runtime.block_on(pending::<()>());
            }
            Err(error) => {
                let _received = started.send(Err(error));
            }
        }
    })?;
    handle.recv().unwrap_or_else(|_| Err(std::io::ErrorKind::Other.into()))
}

/// Takes the first step on the caller's thread, the rest on ours.
pub(crate) fn start(handle: &Handle, mut task: Task) {
    let finished = {
        let _context = handle.enter();
        task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready()
    };
    if !finished {
        handle.spawn(task);
    }
}
