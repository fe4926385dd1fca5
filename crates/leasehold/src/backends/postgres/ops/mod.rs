//! Acquires and releases: jobs that come together share a round trip and a commit.
//!
//! A few workers, each with its connection, take the jobs from a queue. One worker
//! suffices under low load; others are added while jobs wait longer than a moment,
//! and exit when there is nothing to do.

mod queue;
#[cfg(test)]
mod tests;
mod worker;

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use self::{
    queue::{Job, JobQueue, QueuedJob},
    worker::WorkerKind,
};
use super::{
    connection::ConnectionRouter,
    errors::{Failure, FailureKind},
    liveness::DeadHolderPoller,
};
use crate::{
    Result,
    backend::HintSender,
    lease::{Answer, Busy, Decision, Incarnation, LeaseKey, Moment, Outcome, Patience, Released, Request, Resource},
};

/// With this many queued jobs, wake another worker; fewer go as one batch, which costs the server less.
const WAKE_AT: usize = 4;

/// How long a name is sent alone after another client's transaction blocked it.
const ISOLATE_FOR: Duration = Duration::from_secs(5);

/// How many times a release that another client's open transaction blocks is retried, each within the functions' lock
/// timeout.
const RELEASE_TRIES: u32 = 5;

/// The parameters about this instance in every call.
#[derive(Clone, Debug)]
pub(super) struct InstanceParams {
    pub(super) namespace: String,
    pub(super) history: i8,
    /// Where hints for this instance go; `None` where nobody can listen.
    pub(super) channel: Option<String>,
}

/// The workers, and the jobs that wait for them.
pub(super) struct WorkerPool {
    router: Arc<ConnectionRouter>,
    instance: InstanceParams,
    hints: HintSender,
    dead_holder_poller: Arc<DeadHolderPoller>,
    queue: Mutex<JobQueue>,
    /// Names that are sent alone, and until when.
    isolated: Mutex<HashMap<Resource, Moment>>,
    wake: Notify,
    /// When a worker may try again to open another connection, after the server refused one.
    retry_connect_at: Mutex<Option<Moment>>,
    /// Workers that are opening a connection; no other worker is started while there is one.
    connecting: AtomicUsize,
    workers: AtomicUsize,
    idle: AtomicUsize,
    closed: AtomicBool,
}

impl WorkerPool {
    pub(super) fn start(
        router: Arc<ConnectionRouter>,
        instance: InstanceParams,
        hints: HintSender,
        dead_holder_poller: Arc<DeadHolderPoller>,
    ) -> Arc<Self> {
        let pool = Arc::new(Self {
            router,
            instance,
            hints,
            dead_holder_poller,
            queue: Mutex::default(),
            isolated: Mutex::default(),
            wake: Notify::new(),
            retry_connect_at: Mutex::default(),
            connecting: AtomicUsize::new(0),
            workers: AtomicUsize::new(1),
            idle: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
        });
        pool.spawn_worker(WorkerKind::First);
        pool
    }

    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.wake.notify_waiters();
        self.wake.notify_last();
    }

    pub(super) async fn acquire(
        self: &Arc<Self>,
        request: &Request,
        session: Option<i32>,
    ) -> Result<Answer<Decision>, Failure> {
        let (answer, answered) = oneshot::channel();
        self.push(Job::Acquire { request: request.clone(), session, answer });
        answered.await.unwrap_or_else(|_| Err(closed()))
    }

    pub(super) async fn release(
        self: &Arc<Self>,
        key: &LeaseKey,
        outcome: &Outcome,
    ) -> Result<Answer<Released>, Failure> {
        let (answer, answered) = oneshot::channel();
        self.push(Job::Release { key: key.clone(), outcome: outcome.clone(), answer });
        answered.await.unwrap_or_else(|_| Err(closed()))
    }

    fn push(&self, job: Job) {
        if self.closed.load(Ordering::SeqCst) {
            return job.fail(&closed());
        }
        let isolated = self.is_isolated(job.resource());
        let is_release = matches!(job, Job::Release { .. });
        let mut queue = self.queue.lock();
        queue.push(QueuedJob { job, isolated, tries: 0 });
        let waiting = queue.len();
        drop(queue);
        let some_worker_busy = self.workers.load(Ordering::SeqCst) > self.idle.load(Ordering::SeqCst);
        // Others wait for what a release frees: an idle worker sends it at once.
        if !some_worker_busy || isolated || is_release || waiting >= WAKE_AT {
            self.wake.notify_last();
        }
    }

    fn is_isolated(&self, resource: &Resource) -> bool {
        let mut isolated = self.isolated.lock();
        if isolated.is_empty() {
            return false;
        }
        let now = self.router.connector.options.clock.now();
        isolated.retain(|_, until| *until > now);
        isolated.contains_key(resource)
    }

    /// Fails or retries the jobs of a failed statement. Those of a blocked batch are retried one by one: another
    /// client's open transaction may block only one of them.
    fn on_batch_failed(&self, batch: Vec<QueuedJob>, failure: &Failure, incarnation: Incarnation) {
        failure.wake_waiters(batch.iter().map(|queued| queued.job.resource()), &self.hints);
        let several = batch.len() > 1;
        let mut again = Vec::new();
        for QueuedJob { job, tries, .. } in batch {
            match failure.kind {
                FailureKind::Locked | FailureKind::Conflict if several => {
                    again.push(QueuedJob { job, isolated: true, tries });
                }
                FailureKind::Conflict if tries < 8 => again.push(QueuedJob { job, isolated: true, tries: tries + 1 }),
                FailureKind::Locked => {
                    self.isolate(job.resource(), failure, incarnation);
                    // A release must come through: while it does not, others wait for a lease that nobody wants.
                    if matches!(job, Job::Release { .. }) && tries < RELEASE_TRIES {
                        self.queue.lock().push(QueuedJob { job, isolated: true, tries: tries + 1 });
                    } else {
                        report_blocked(job, failure, incarnation);
                    }
                }
                _ => job.fail(failure),
            }
        }
        self.queue.lock().push_again(again);
        self.wake.notify_last();
    }

    /// Isolates this name for a while, and fails its queued acquires now: they would wait as long for the same answer.
    fn isolate(&self, resource: &Resource, failure: &Failure, incarnation: Incarnation) {
        let until = self.router.connector.options.clock.now().after(ISOLATE_FOR);
        self.isolated.lock().insert(resource.clone(), until);
        let acquires = self.queue.lock().take_acquires_for(resource);
        for queued in acquires {
            report_blocked(queued.job, failure, incarnation);
        }
    }
}

/// Reports a blocked name as busy to a `Try`; fails other jobs.
fn report_blocked(job: Job, failure: &Failure, incarnation: Incarnation) {
    match job {
        Job::Acquire { request, answer, .. } if request.patience == Patience::Try => {
            let value = Decision::Busy(Busy::default());
            drop(answer.send(Ok(Answer::new(value, incarnation))));
        }
        job => job.fail(failure),
    }
}

impl std::fmt::Debug for WorkerPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WorkerPool").field("workers", &self.workers).finish_non_exhaustive()
    }
}

fn closed() -> Failure {
    Failure::new(FailureKind::Unavailable, "the connection to postgres was closed")
}
