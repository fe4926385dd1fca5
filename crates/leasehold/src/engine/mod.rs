//! The engine: acquires leases for a process, renews them, and finds out when they are lost.

mod acquire;
mod call_in_flight;
mod find_holders;
mod guard;
mod lease;
mod local_lease;
mod panics;
mod reentry;
mod release;
mod renewer;
mod schedule;
mod send_request;
mod sync;
pub(crate) mod telemetry;
mod validity;

use std::{
    fmt, mem,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use tokio::sync::Notify;

pub use self::{
    acquire::Attempt,
    guard::Guard,
    lease::Lease,
    validity::{LeaseHealth, Loss},
};
pub(crate) use self::{
    acquire::{AcquireOptions, Wait},
    local_lease::LocalLease,
    panics::catch_panic,
    reentry::Reentries,
};
use self::{local_lease::FollowUp, renewer::Renewer, telemetry::Telemetry};
use crate::{
    Error, Result,
    backend::{Backend, coalesce::continue_here},
    clock::{Clock, Sleep},
    lease::{Moment, Ttl},
    threads::{self, Task, Threads},
};

/// The engine of one instance, shared by its `Leasehold`s, guards and tasks.
pub(crate) struct Engine {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) clock: Arc<dyn Clock>,
    /// The backend's name in errors and metrics, such as `redis`.
    pub(crate) backend_kind: &'static str,
    pub(crate) threads: Threads,
    pub(crate) telemetry: Telemetry,
    renewer: Arc<Renewer>,
    /// Whether the backend pushes grants to waiters.
    pushes: bool,
    /// The fork generation that the instance was created in; a forked child has a higher one and must not use it.
    generation: u32,
    tasks: AtomicUsize,
    idle: Notify,
    /// When `close` was called.
    closed_at: OnceLock<Moment>,
    closing: Notify,
}

impl Engine {
    pub(crate) fn new(backend: Arc<dyn Backend>, clock: Arc<dyn Clock>) -> Result<Arc<Self>> {
        let threads = threads::of_process()?.clone();
        let guarantees = backend.guarantees();
        let telemetry = Telemetry::new(guarantees.kind);
        Ok(Arc::new_cyclic(|engine| Self {
            backend_kind: guarantees.kind,
            pushes: guarantees.pushes,
            generation: leasehold_fork::generation(),
            renewer: Renewer::new(
                engine.clone(),
                threads.clone(),
                Arc::clone(&backend),
                Arc::clone(&clock),
                guarantees.renew_batch,
                telemetry.clone(),
            ),
            telemetry,
            backend,
            clock,
            threads,
            tasks: AtomicUsize::new(0),
            idle: Notify::new(),
            closed_at: OnceLock::new(),
            closing: Notify::new(),
        }))
    }

    /// Runs a task to completion on the I/O thread, even if the caller is dropped.
    pub(crate) fn spawn(self: &Arc<Self>, task: Task) {
        let running = self.count_task();
        self.threads.io.spawn(async move {
            task.await;
            drop(running);
        });
    }

    /// Registers a running task: `close` waits until the returned value is dropped.
    fn count_task(self: &Arc<Self>) -> RunningTask {
        RunningTask::new(Arc::clone(self))
    }

    /// Sleeps on the timer's thread: any executor may poll it, and nothing that blocks the I/O thread delays it.
    ///
    /// For the caller's futures; tasks of the I/O thread use `clock.sleep_until`.
    pub(crate) fn sleep_until(&self, moment: Moment) -> Sleep {
        let _context = self.threads.timer.enter();
        self.clock.sleep_until(moment)
    }

    /// Fails in a forked child, and once the instance is closed.
    pub(crate) fn check_usable(&self) -> Result<()> {
        self.check_not_inherited()?;
        if self.is_closed() { Err(Error::closed()) } else { Ok(()) }
    }

    /// Fails in a forked child; takes no lock.
    pub(crate) fn check_not_inherited(&self) -> Result<()> {
        if self.is_inherited() { Err(Error::inherited()) } else { Ok(()) }
    }

    /// Returns whether this process is a forked child of the one that created the instance.
    pub(crate) fn is_inherited(&self) -> bool {
        self.generation != leasehold_fork::generation()
    }

    /// Refuses new work, releases every lease, and waits until no task is left.
    pub(crate) async fn close(self: &Arc<Self>) -> Result<()> {
        self.check_not_inherited()?;
        let _first = self.closed_at.set(self.clock.now());
        self.closing.notify_waiters();
        self.renewer.leave_queues();
        let released = self.release_all().await;
        self.wait_until_idle().await;
        // A request that was in flight may have been answered after the first `release_all`.
        self.renewer.leave_queues();
        let late = self.release_all().await;
        self.wait_until_idle().await;
        released.and(late).map(drop)
    }

    /// Polls a request or release once on the caller's thread and stores it for later polls. It moves to the I/O thread
    /// by `take_over_by`, after a third of the ttl, or after `TAKE_OVER_AFTER`, whichever is first; at once if the
    /// instance is closed. The task's timeouts apply only on the I/O thread, so it moves there before a short ttl has
    /// run out.
    ///
    /// `close` may run at the same time: 1. It sets its flag.  2. It takes over all stored tasks.  3. This task is
    /// stored, too late for 2. So the flag is checked after the task is stored.
    fn start_on_caller(&self, lease: &Arc<LocalLease>, task: Task, now: Moment, take_over_by: Moment) {
        // This poll may make waiting batches (`backend/coalesce.rs`) ready. `continue_here` polls those once this poll
        // has returned. Otherwise a batch could complete inside this poll and wake a redlock round that is still being
        // polled; that wake-up would be lost.
        let poll = |task: &mut Task, context: &mut Context<'_>| self.threads.poll_on_this_thread(task, context);
        let take_over_by = take_over_by.min(now.after(renew_every(lease.ttl())));
        if continue_here(|| lease.call_in_flight.start(task, now, take_over_by, &poll)).is_ready() {
            return;
        }
        self.renewer.follow_up(lease, FollowUp::Schedule);
        if self.is_closed() {
            self.renewer.take_over(lease);
        }
    }

    /// Polls the call in flight on the caller's thread; ready once the call is done or has moved to the I/O thread.
    ///
    /// Fails in a forked child: polling what the parent began would write to the parent's sockets.
    fn poll_in_flight(&self, lease: &LocalLease, context: &mut Context<'_>) -> Poll<Result<()>> {
        self.check_not_inherited()?;
        let poll = |task: &mut Task, context: &mut Context<'_>| self.threads.poll_on_this_thread(task, context);
        continue_here(|| lease.call_in_flight.poll(context, &poll)).map(Ok)
    }

    /// Completes when no task is left. Takes over calls first: their callers may never poll them again.
    async fn wait_until_idle(&self) {
        loop {
            self.renewer.take_over_all();
            let idle = self.idle.notified();
            if self.tasks.load(Ordering::SeqCst) == 0 {
                return;
            }
            idle.await;
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed_at.get().is_some()
    }

    /// How long the instance has been closed; `None` while it is open.
    fn closed_for(&self, now: Moment) -> Option<Duration> {
        self.closed_at.get().map(|closed_at| now.since(*closed_at))
    }

    /// Completes when the instance is closed.
    pub(crate) async fn closed(&self) {
        loop {
            let closing = self.closing.notified();
            if self.is_closed() {
                return;
            }
            closing.await;
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if self.is_inherited() {
            // The sockets and threads belong to the parent: leak them instead of closing them.
            mem::forget((Arc::clone(&self.backend), Arc::clone(&self.renewer), self.threads.clone()));
            return;
        }
        self.renewer.stop();
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("backend", &self.backend).finish_non_exhaustive()
    }
}

/// Counts a running task until it is dropped, even by a panic.
struct RunningTask(Arc<Engine>);

impl RunningTask {
    fn new(engine: Arc<Engine>) -> Self {
        engine.tasks.fetch_add(1, Ordering::SeqCst);
        Self(engine)
    }
}

impl Drop for RunningTask {
    fn drop(&mut self) {
        if self.0.tasks.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.idle.notify_waiters();
        }
    }
}

/// This process stops relying on a lease this long before the backend expires it. Allows for clock drift, and for the
/// time it takes to stop the work.
pub(crate) fn margin(valid_for: Duration) -> Duration {
    (valid_for / 50).max(Duration::from_millis(50))
}

/// The time between renewals: a third of the ttl, so that two retries fit before expiry.
fn renew_every(ttl: Ttl) -> Duration {
    ttl.get() / 3
}
