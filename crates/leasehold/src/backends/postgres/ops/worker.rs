//! The workers: each takes jobs and sends them over its connection.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_postgres::Row;

use super::{
    WAKE_AT, WorkerPool,
    queue::{Job, QueuedJob},
};
use crate::{
    Result,
    backends::postgres::{
        connection::{Connection, LazyConnection},
        decode::{self, Verdict},
        encode::{Acquires, Releases},
        errors::{Failure, FailureKind},
    },
    lease::{Answer, LeaseId, Lifetime, Request, Standing},
};

/// If a call takes longer than this while jobs wait, another worker is woken or added.
const ADD_WORKER_AFTER: Duration = Duration::from_millis(2);

/// An additional connection without work is closed after this.
pub(super) const IDLE: Duration = Duration::from_secs(10);

/// The pause between two attempts to open another connection on a server that refused one: a full server should not
/// see an attempt with every call.
const CONNECT_PAUSE: Duration = Duration::from_secs(1);

/// Which connections a worker uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WorkerKind {
    /// The main connection, as long as no renewal could queue behind its calls; otherwise one of its own.
    First,
    /// One of its own.
    Additional,
}

/// Sends jobs from the queue.
struct Worker {
    /// Its own connection, opened when it is needed.
    connection: LazyConnection,
    kind: WorkerKind,
}

impl WorkerPool {
    /// Spawns a worker that is counted already.
    pub(super) fn spawn_worker(self: &Arc<Self>, kind: WorkerKind) {
        let worker = self.new_worker(kind);
        self.router.connector.runtime.spawn(Arc::clone(self).run(worker));
    }

    fn new_worker(&self, kind: WorkerKind) -> Worker {
        Worker { connection: LazyConnection::new(Arc::clone(&self.router.connector)), kind }
    }

    /// A call takes long while jobs wait: wakes another worker, or adds one within the limit.
    fn wake_or_add_worker(self: &Arc<Self>) {
        if self.queue.lock().has_nothing_ready() {
            return;
        }
        if self.idle.load(Ordering::SeqCst) > 0 {
            self.wake.notify_last();
        } else if self.connecting.load(Ordering::SeqCst) == 0
            && !self.connect_paused()
            && try_increment(&self.workers, self.router.connector.options.connections)
        {
            self.spawn_worker(WorkerKind::Additional);
        }
    }

    fn connect_paused(&self) -> bool {
        self.retry_connect_at.lock().is_some_and(|until| self.router.connector.options.clock.now() < until)
    }

    /// The loop of one worker.
    async fn run(self: Arc<Self>, mut worker: Worker) {
        // One timer for all calls: to move it costs less than to set another each time.
        let mut slow_call = interval(ADD_WORKER_AFTER);
        slow_call.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let batch = self.queue.lock().take();
            if batch.is_empty() {
                if self.closed.load(Ordering::SeqCst) {
                    break;
                }
                // 1. A job is queued while this worker, which found nothing, counts as busy: it wakes nobody.
                // 2. This worker says that it is idle.
                // So it looks once more before it waits.
                self.idle.fetch_add(1, Ordering::SeqCst);
                let nothing_ready = self.queue.lock().has_nothing_ready();
                let woken = if nothing_ready { timeout(IDLE, self.wake.notified()).await } else { Ok(()) };
                self.idle.fetch_sub(1, Ordering::SeqCst);
                if woken.is_err() && self.queue.lock().has_nothing_ready() {
                    if self.leave_if_spare() {
                        return;
                    }
                    // The last worker uses the main connection.
                    worker = self.new_worker(WorkerKind::First);
                }
                continue;
            }
            if self.queue.lock().len() >= WAKE_AT {
                self.wake.notify_last();
            }
            let mut call = std::pin::pin!(self.handle_batch(&worker, batch));
            slow_call.reset();
            let goes_on = loop {
                tokio::select! {
                    biased;
                    goes_on = &mut call => break goes_on,
                    _ = slow_call.tick() => self.wake_or_add_worker(),
                }
            };
            if !goes_on {
                self.wake.notify_last();
                return;
            }
        }
        self.workers.fetch_sub(1, Ordering::SeqCst);
        self.wake.notify_last();
    }

    /// Exits if another worker remains, and wakes it: a job queued meanwhile counted this worker as busy.
    pub(super) fn leave_if_spare(&self) -> bool {
        let one_less = |workers: usize| (workers > 1).then(|| workers - 1);
        let leaves = self.workers.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_ok();
        if leaves {
            self.wake.notify_last();
        }
        leaves
    }

    /// Returns false if the worker must exit.
    async fn handle_batch(&self, worker: &Worker, mut batch: Vec<QueuedJob>) -> bool {
        let isolated = batch.first().filter(|first| first.isolated).map(|first| first.job.resource().clone());
        batch.retain(|queued| !queued.is_abandoned());
        let goes_on = batch.is_empty() || self.send_batch(worker, batch).await;
        if let Some(name) = isolated {
            self.queue.lock().ended(&name);
        }
        goes_on
    }

    /// Returns false if the worker must exit: it got no connection, and left its jobs to the others.
    async fn send_batch(&self, worker: &Worker, batch: Vec<QueuedJob>) -> bool {
        self.connecting.fetch_add(1, Ordering::SeqCst);
        let connection = self.connection_for(worker, &batch).await;
        self.connecting.fetch_sub(1, Ordering::SeqCst);
        let connection = match connection {
            Ok(connection) => connection,
            Err(_) if self.leave_if_spare() => {
                *self.retry_connect_at.lock() = Some(self.router.connector.options.clock.now().after(CONNECT_PAUSE));
                self.queue.lock().push_again(batch);
                return false;
            }
            Err(failure) => {
                for queued in batch {
                    queued.job.fail(&failure);
                }
                return true;
            }
        };
        let (releases, acquires): (Vec<QueuedJob>, Vec<QueuedJob>) =
            batch.into_iter().partition(|queued| matches!(queued.job, Job::Release { .. }));
        // Both are sent at once.
        tokio::join!(self.send_one_kind(&connection, releases), self.send_one_kind(&connection, acquires));
        true
    }

    /// The first worker uses the main connection, as long as no renewal could queue behind its calls.
    async fn connection_for(&self, worker: &Worker, batch: &[QueuedJob]) -> Result<Arc<Connection>, Failure> {
        if worker.kind == WorkerKind::First {
            let exempt: Vec<LeaseId> = batch.iter().map(|queued| queued.job.id()).collect();
            if let Some(main) = self.router.main_if_only(&exempt).await {
                return main;
            }
        }
        worker.connection.get().await
    }

    /// Sends a batch of acquires, or one of releases.
    async fn send_one_kind(&self, connection: &Connection, mut batch: Vec<QueuedJob>) {
        if batch.is_empty() {
            return;
        }
        // In one order everywhere, so that two calls cannot deadlock.
        batch.sort_by(|one, other| one.job.resource().as_str().cmp(other.job.resource().as_str()));
        match self.send(connection, &batch).await.and_then(|rows| answers(&rows, batch.len())) {
            Ok(answers) => self.deliver(connection, batch, answers),
            Err(failure) => {
                if failure.kind == FailureKind::Unanswered {
                    connection.close();
                }
                self.on_batch_failed(batch, &failure, connection.server_info.incarnation);
            }
        }
    }

    async fn send(&self, connection: &Connection, batch: &[QueuedJob]) -> Result<Vec<Row>, Failure> {
        let (mut acquires, mut releases) = (Acquires::default(), Releases::default());
        for queued in batch {
            match &queued.job {
                Job::Acquire { request, session, .. } => acquires.push(request, *session),
                Job::Release { key, outcome, .. } => releases.push(key, outcome),
            }
        }
        if acquires.is_empty() {
            releases.send(connection, &self.instance).await
        } else {
            acquires.send(connection, &self.instance).await
        }
    }

    fn deliver(&self, connection: &Connection, batch: Vec<QueuedJob>, answers: Vec<decode::AnswerRow>) {
        let incarnation = connection.server_info.incarnation;
        let mut jobs: Vec<Option<Job>> = batch.into_iter().map(|queued| Some(queued.job)).collect();
        for decode::AnswerRow { index, verdict, hints } in answers {
            for hint in hints {
                self.hints.send(hint);
            }
            match jobs.get_mut(index).and_then(Option::take) {
                Some(Job::Acquire { request, answer, .. }) => {
                    if let Ok(verdict) = &verdict {
                        self.record_standing(&request, verdict);
                    }
                    let decision = verdict.and_then(Verdict::decision);
                    drop(answer.send(decision.map(|value| Answer::new(value, incarnation))));
                }
                Some(Job::Release { key, answer, .. }) => {
                    self.router.forget(key.id);
                    let released = verdict.and_then(Verdict::released);
                    drop(answer.send(released.map(|value| Answer::new(value, incarnation))));
                }
                None => {}
            }
        }
    }

    fn record_standing(&self, request: &Request, verdict: &Verdict) {
        if verdict.is_behind_session() {
            self.dead_holder_poller.watch_for(&request.key);
        }
        let standing = verdict.standing();
        // Nobody renews a detached lease once it holds.
        if request.lifetime == Lifetime::Attached || matches!(standing, Standing::Waiting(_)) {
            self.router.record_standing(request.key.id, &standing, request.ttl);
        }
    }
}

/// Increments the count if it is below the limit; atomic, since several workers do it concurrently.
pub(super) fn try_increment(count: &AtomicUsize, max: usize) -> bool {
    count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |now| (now < max).then_some(now + 1)).is_ok()
}

/// Every element must be answered, or nobody knows what became of it.
fn answers(rows: &[Row], sent: usize) -> Result<Vec<decode::AnswerRow>, Failure> {
    let answers = rows.iter().map(decode::answer).collect::<Result<Vec<_>, _>>()?;
    if answers.len() == sent {
        Ok(answers)
    } else {
        Err(Failure::new(FailureKind::Unanswered, "postgres answered only some of the elements of a call"))
    }
}
