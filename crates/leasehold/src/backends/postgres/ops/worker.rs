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
    Ops, WORTH,
    queue::{Item, Queued},
};
use crate::{
    Result,
    backends::postgres::{
        connection::{Connection, Slot},
        decode,
        encode::{Acquires, Releases},
        errors::{Failure, Kind},
    },
    lease::{Answer, LeaseId, Lifetime},
};

/// While one call takes longer than this and others wait, another connection is used or opened.
const PATIENCE: Duration = Duration::from_millis(2);

/// An additional connection without work is closed after this.
pub(super) const IDLE: Duration = Duration::from_secs(30);

/// The pause between two attempts to open another connection on a server that refused one: a full server should not
/// see an attempt with every call.
const REFUSED: Duration = Duration::from_secs(1);

/// One of those who make calls.
struct Worker {
    /// Its own connection, opened when it is needed.
    slot: Slot,
    /// Whether it may use the connection that the instance has.
    first: bool,
}

impl Ops {
    /// Starts a worker that is counted already.
    pub(super) fn set_to_work(self: &Arc<Self>, first: bool) {
        let worker = Worker { slot: Slot::new(Arc::clone(&self.links.connector)), first };
        self.links.connector.runtime.spawn(Arc::clone(self).run(worker));
    }

    /// Calls wait and one under way takes long: they get another worker, if there may be one more.
    fn call_for_help(self: &Arc<Self>) {
        if self.queue.lock().is_empty() {
            return;
        }
        if self.idle.load(Ordering::SeqCst) > 0 {
            self.wake.notify_last();
        } else if self.connecting.load(Ordering::SeqCst) == 0
            && !self.is_refused()
            && count_one_more(&self.workers, self.links.connector.options.connections)
        {
            self.set_to_work(false);
        }
    }

    fn is_refused(&self) -> bool {
        self.refused.lock().is_some_and(|until| self.links.connector.options.clock.now() < until)
    }

    /// One worker.
    async fn run(self: Arc<Self>, mut worker: Worker) {
        // One timer for all calls: to move it costs less than to set another each time.
        let mut patience = interval(PATIENCE);
        patience.set_missed_tick_behavior(MissedTickBehavior::Delay);
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
                    // The last one has what the instance has.
                    worker = Worker { slot: Slot::new(Arc::clone(&self.links.connector)), first: true };
                }
                continue;
            }
            if self.queue.lock().len() >= WORTH {
                self.wake.notify_last();
            }
            let mut call = std::pin::pin!(self.call(&worker, batch));
            patience.reset();
            let goes_on = loop {
                tokio::select! {
                    biased;
                    goes_on = &mut call => break goes_on,
                    _ = patience.tick() => self.call_for_help(),
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

    /// Leaves, if another worker stays, and lets it look at the queue: a call that came since this one did took it for
    /// one under way, and woke nobody.
    pub(super) fn leave_if_spare(&self) -> bool {
        let one_less = |workers: usize| (workers > 1).then(|| workers - 1);
        let leaves = self.workers.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_ok();
        if leaves {
            self.wake.notify_last();
        }
        leaves
    }

    /// Whether this worker goes on.
    async fn call(&self, worker: &Worker, mut batch: Vec<Queued>) -> bool {
        let alone = batch.first().filter(|first| first.alone).map(|first| first.item.resource().clone());
        batch.retain(|queued| !queued.is_given_up());
        let goes_on = batch.is_empty() || self.call_all(worker, batch).await;
        if let Some(name) = alone {
            self.queue.lock().ended(&name);
        }
        goes_on
    }

    /// Whether this worker goes on: one that gets no connection leaves its calls to the others, if there are any.
    async fn call_all(&self, worker: &Worker, batch: Vec<Queued>) -> bool {
        self.connecting.fetch_add(1, Ordering::SeqCst);
        let connection = self.connection_for(worker, &batch).await;
        self.connecting.fetch_sub(1, Ordering::SeqCst);
        let connection = match connection {
            Ok(connection) => connection,
            Err(_) if self.leave_if_spare() => {
                *self.refused.lock() = Some(self.links.connector.options.clock.now().after(REFUSED));
                self.queue.lock().push_again(batch);
                return false;
            }
            Err(failure) => {
                for queued in batch {
                    queued.item.fail(&failure);
                }
                return true;
            }
        };
        let (releases, acquires): (Vec<Queued>, Vec<Queued>) =
            batch.into_iter().partition(|queued| matches!(queued.item, Item::Release { .. }));
        // Both are sent at once.
        tokio::join!(self.call_alike(&connection, releases), self.call_alike(&connection, acquires));
        true
    }

    /// The first worker uses the connection that the instance has, as long as no renewal could stand behind its calls.
    async fn connection_for(&self, worker: &Worker, batch: &[Queued]) -> Result<Arc<Connection>, Failure> {
        if worker.first {
            let about: Vec<LeaseId> = batch.iter().map(|queued| queued.item.id()).collect();
            if let Some(main) = self.links.main_for(&about).await {
                return main;
            }
        }
        worker.slot.get().await
    }

    async fn call_alike(&self, connection: &Connection, mut batch: Vec<Queued>) {
        if batch.is_empty() {
            return;
        }
        // In one order everywhere, so that two calls never wait for each other in a circle.
        batch.sort_by(|one, other| one.item.resource().as_str().cmp(other.item.resource().as_str()));
        match self.send(connection, &batch).await.and_then(|rows| answers(&rows, batch.len())) {
            Ok(answers) => self.deliver(connection, batch, answers),
            Err(failure) => {
                if failure.kind == Kind::Unanswered {
                    connection.close();
                }
                self.failed(batch, &failure, connection.greeting.incarnation);
            }
        }
    }

    async fn send(&self, connection: &Connection, batch: &[Queued]) -> Result<Vec<Row>, Failure> {
        let (mut acquires, mut releases) = (Acquires::default(), Releases::default());
        for queued in batch {
            match &queued.item {
                Item::Acquire { request, session, .. } => acquires.push(request, *session),
                Item::Release { key, outcome, .. } => releases.push(key, outcome),
            }
        }
        if acquires.is_empty() {
            releases.send(connection, &self.caller).await
        } else {
            acquires.send(connection, &self.caller).await
        }
    }

    fn deliver(&self, connection: &Connection, batch: Vec<Queued>, answers: Vec<decode::Answer>) {
        let incarnation = connection.greeting.incarnation;
        let mut items: Vec<Option<Item>> = batch.into_iter().map(|queued| Some(queued.item)).collect();
        for decode::Answer { at, verdict, hints } in answers {
            for hint in hints {
                self.hints.send(hint);
            }
            match items.get_mut(at).and_then(Option::take) {
                Some(Item::Acquire { request, answer, .. }) => {
                    if verdict.is_bound() {
                        self.deaths.add(&request.key);
                    }
                    if request.lifetime == Lifetime::Attached {
                        self.links.note(request.key.id, &verdict.standing());
                    }
                    drop(answer.send(verdict.decision().map(|value| Answer::new(value, incarnation))));
                }
                Some(Item::Release { key, answer, .. }) => {
                    self.links.forget(key.id);
                    drop(answer.send(verdict.released().map(|value| Answer::new(value, incarnation))));
                }
                None => {}
            }
        }
    }
}

/// Counts one more if that stays within the limit: in one step, since several look at once.
pub(super) fn count_one_more(count: &AtomicUsize, most: usize) -> bool {
    count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |now| (now < most).then_some(now + 1)).is_ok()
}

/// Every element must be answered, or nobody knows what became of it.
fn answers(rows: &[Row], asked: usize) -> Result<Vec<decode::Answer>, Failure> {
    let answers = rows.iter().map(decode::answer).collect::<Result<Vec<_>, _>>()?;
    if answers.len() == asked {
        Ok(answers)
    } else {
        Err(Failure::new(Kind::Unanswered, "postgres answered for some of the calls only"))
    }
}
