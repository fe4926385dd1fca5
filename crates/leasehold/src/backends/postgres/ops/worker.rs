//! The workers: each takes what waits and sends it over its connection.

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
    Ops, WAKE_AT,
    queue::{Job, QueuedJob},
};
use crate::{
    Result,
    backends::postgres::{
        connection::{Connection, LazyConnection},
        decode::{self, Verdict},
        encode::{Acquires, Releases},
        errors::{Failure, Kind},
    },
    lease::{Answer, LeaseId, Lifetime, Request, Standing},
};

/// If a call takes longer than this while others wait, another worker is woken or added.
const ADD_WORKER_AFTER: Duration = Duration::from_millis(2);

/// An additional connection without work is closed after this.
pub(super) const IDLE: Duration = Duration::from_secs(30);

/// The pause between two attempts to open another connection on a server that refused one: a full server should not
/// see an attempt with every call.
const CONNECT_PAUSE: Duration = Duration::from_secs(1);

/// Sends calls from the queue.
struct Worker {
    /// Its own connection, opened when it is needed.
    connection: LazyConnection,
    /// Whether it may use the main connection.
    first: bool,
}

impl Ops {
    /// Spawns a worker that is counted already.
    pub(super) fn spawn_worker(self: &Arc<Self>, first: bool) {
        let worker = Worker { connection: LazyConnection::new(Arc::clone(&self.router.connector)), first };
        self.router.connector.runtime.spawn(Arc::clone(self).run(worker));
    }

    /// A call takes long while others wait: wakes another worker, or adds one within the limit.
    fn wake_or_add_worker(self: &Arc<Self>) {
        if self.queue.lock().is_empty() {
            return;
        }
        if self.idle.load(Ordering::SeqCst) > 0 {
            self.wake.notify_last();
        } else if self.connecting.load(Ordering::SeqCst) == 0
            && !self.connect_paused()
            && count_one_more(&self.workers, self.router.connector.options.connections)
        {
            self.spawn_worker(false);
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
                // 1. A call is queued and sees a worker under way: it wakes nobody.
                // 2. That worker, which had found nothing, says that it is idle.
                // So it looks once more before it waits.
                self.idle.fetch_add(1, Ordering::SeqCst);
                let woken =
                    if self.queue.lock().is_empty() { timeout(IDLE, self.wake.notified()).await } else { Ok(()) };
                self.idle.fetch_sub(1, Ordering::SeqCst);
                if woken.is_err() && self.queue.lock().is_empty() {
                    if self.leave_if_spare() {
                        return;
                    }
                    // The last worker uses the main connection.
                    worker =
                        Worker { connection: LazyConnection::new(Arc::clone(&self.router.connector)), first: true };
                }
                continue;
            }
            if self.queue.lock().len() >= WAKE_AT {
                self.wake.notify_last();
            }
            let mut call = std::pin::pin!(self.call(&worker, batch));
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

    /// Exits if another worker remains, and wakes it: a call queued meanwhile counted this worker as busy.
    pub(super) fn leave_if_spare(&self) -> bool {
        let one_less = |workers: usize| (workers > 1).then(|| workers - 1);
        let leaves = self.workers.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_ok();
        if leaves {
            self.wake.notify_last();
        }
        leaves
    }

    /// Returns false if the worker must exit.
    async fn call(&self, worker: &Worker, mut batch: Vec<QueuedJob>) -> bool {
        let isolated = batch.first().filter(|first| first.isolated).map(|first| first.job.resource().clone());
        batch.retain(|queued| !queued.is_given_up());
        let goes_on = batch.is_empty() || self.call_all(worker, batch).await;
        if let Some(name) = isolated {
            self.queue.lock().ended(&name);
        }
        goes_on
    }

    /// Returns false if the worker must exit: it got no connection, and left its calls to the others.
    async fn call_all(&self, worker: &Worker, batch: Vec<QueuedJob>) -> bool {
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
        tokio::join!(self.call_alike(&connection, releases), self.call_alike(&connection, acquires));
        true
    }

    /// The first worker uses the main connection, as long as no renewal could queue behind its calls.
    async fn connection_for(&self, worker: &Worker, batch: &[QueuedJob]) -> Result<Arc<Connection>, Failure> {
        if worker.first {
            let about: Vec<LeaseId> = batch.iter().map(|queued| queued.job.id()).collect();
            if let Some(main) = self.router.main_if_only(&about).await {
                return main;
            }
        }
        worker.connection.get().await
    }

    async fn call_alike(&self, connection: &Connection, mut batch: Vec<QueuedJob>) {
        if batch.is_empty() {
            return;
        }
        // In one order everywhere, so that two calls never wait for each other in a circle.
        batch.sort_by(|one, other| one.job.resource().as_str().cmp(other.job.resource().as_str()));
        match self.send(connection, &batch).await.and_then(|rows| answers(&rows, batch.len())) {
            Ok(answers) => self.deliver(connection, batch, answers),
            Err(failure) => {
                if failure.kind == Kind::Unanswered {
                    connection.close();
                }
                self.failed(batch, &failure, connection.server_info.incarnation);
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

    fn deliver(&self, connection: &Connection, batch: Vec<QueuedJob>, answers: Vec<decode::Answer>) {
        let incarnation = connection.server_info.incarnation;
        let mut jobs: Vec<Option<Job>> = batch.into_iter().map(|queued| Some(queued.job)).collect();
        for decode::Answer { index, verdict, hints } in answers {
            for hint in hints {
                self.hints.send(hint);
            }
            match jobs.get_mut(index).and_then(Option::take) {
                Some(Job::Acquire { request, answer, .. }) => {
                    if let Ok(verdict) = &verdict {
                        self.note(&request, verdict);
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

    fn note(&self, request: &Request, verdict: &Verdict) {
        if verdict.is_behind_session() {
            self.deaths.add(&request.key);
        }
        let standing = verdict.standing();
        // Nobody renews a detached lease once it holds.
        if request.lifetime == Lifetime::Attached || matches!(standing, Standing::Waiting(_)) {
            self.router.note(request.key.id, &standing, request.ttl);
        }
    }
}

/// Counts one more if that stays within the limit; atomic: several workers count concurrently.
pub(super) fn count_one_more(count: &AtomicUsize, max: usize) -> bool {
    count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |now| (now < max).then_some(now + 1)).is_ok()
}

/// Every element must be answered, or nobody knows what became of it.
fn answers(rows: &[Row], sent: usize) -> Result<Vec<decode::Answer>, Failure> {
    let answers = rows.iter().map(decode::answer).collect::<Result<Vec<_>, _>>()?;
    if answers.len() == sent {
        Ok(answers)
    } else {
        Err(Failure::new(Kind::Unanswered, "postgres answered for some of the calls only"))
    }
}
