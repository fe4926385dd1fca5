//! The loops: what a process does to get leases, to keep them, and to know when they are gone.

mod acquire;
mod backoff;
mod guard;
mod keeper;
mod kept;
mod release;
mod runtime;
mod validity;

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{runtime::Handle, sync::Notify};

use self::keeper::Keeper;
pub(crate) use self::{
    acquire::{Ask, Asked, Wait},
    backoff::Backoff,
    kept::{Hold, Kept},
    runtime::handle,
};
pub use self::{
    guard::{Guard, Lease},
    validity::{LeaseHealth, Loss},
};
use crate::{
    Result,
    backend::{Backend, Liveness},
    clock::{Clock, Sleep},
    lease::{Moment, Ttl},
};

/// What an engine runs to its end.
pub(crate) type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// One instance's loops, shared by its `Leasehold`s, guards and tasks.
pub(crate) struct Engine {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) kind: &'static str,
    keeper: Arc<Keeper>,
    liveness: Liveness,
    pushes: bool,
    runtime: Handle,
    tasks: AtomicUsize,
    idle: Notify,
    closed: OnceLock<Moment>,
    closing: Notify,
}

impl Engine {
    pub(crate) fn new(backend: Arc<dyn Backend>, clock: Arc<dyn Clock>) -> Result<Arc<Self>> {
        let runtime = handle()?.clone();
        let guarantees = backend.guarantees();
        let keeper = Keeper::start(&runtime, Arc::clone(&backend), Arc::clone(&clock));
        let engine = Arc::new(Self {
            kind: guarantees.kind,
            liveness: guarantees.liveness,
            pushes: guarantees.pushes,
            backend,
            clock,
            keeper,
            runtime,
            tasks: AtomicUsize::new(0),
            idle: Notify::new(),
            closed: OnceLock::new(),
            closing: Notify::new(),
        });
        engine.keeper.belongs_to(&engine);
        Ok(engine)
    }

    /// Runs a task to its end whatever becomes of the caller.
    ///
    /// The first step is taken here and now: on a backend that answers at once
    /// no thread is woken.
    pub(crate) fn run(self: &Arc<Self>, task: Task) {
        runtime::start(&self.runtime, self.counted(task));
    }

    /// Runs a task without taking any step of it here: the caller must not be held up.
    pub(crate) fn hand_over(self: &Arc<Self>, task: Task) {
        self.runtime.spawn(self.counted(task));
    }

    fn counted(self: &Arc<Self>, task: Task) -> Task {
        let running = Running::new(Arc::clone(self));
        Box::pin(async move {
            task.await;
            drop(running);
        })
    }

    /// Sleeps on the engine's own timer, so that any executor may poll it.
    pub(crate) fn sleep_until(&self, moment: Moment) -> Sleep {
        let _context = self.runtime.enter();
        self.clock.sleep_until(moment)
    }

    /// Refuses new work, ends what is held, and waits until no task is left.
    pub(crate) async fn close(self: &Arc<Self>) -> Result<()> {
        let _first = self.closed.set(self.clock.now());
        self.closing.notify_waiters();
        let released = self.release_all().await;
        self.idle().await;
        // An acquire that was under way may have got its lease after the first look.
        let late = self.release_all().await;
        self.idle().await;
        released.and(late).map(drop)
    }

    /// Ends when no task is left.
    async fn idle(&self) {
        loop {
            let idle = self.idle.notified();
            if self.tasks.load(Ordering::SeqCst) == 0 {
                return;
            }
            idle.await;
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.get().is_some()
    }

    /// Since how long it is closed.
    fn closed_for(&self, now: Moment) -> Option<Duration> {
        self.closed.get().map(|closed| now.since(*closed))
    }

    /// Ends when the instance is closed.
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
        self.keeper.stop();
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("backend", &self.backend).finish_non_exhaustive()
    }
}

/// Counts a task from its start to its end, a panic included.
struct Running(Arc<Engine>);

impl Running {
    fn new(engine: Arc<Engine>) -> Self {
        engine.tasks.fetch_add(1, Ordering::SeqCst);
        Self(engine)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.0.tasks.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.idle.notify_waiters();
        }
    }
}

/// How much earlier than the backend this process stops believing: for clocks
/// that run at different rates, and for the time it takes to stop.
pub(crate) fn margin(ttl: Ttl) -> Duration {
    (ttl.get() / 50).max(Duration::from_millis(50))
}

/// How often a lease is renewed: two more chances fit before it ends.
fn renew_every(ttl: Ttl) -> Duration {
    ttl.get() / 3
}
