//! Acquires and releases: calls that come together share a round trip and a commit.
//!
//! A few workers, each with its connection, take what waits. One that is alone
//! under no load does all; others are added while calls wait longer than a
//! moment, and leave when there is nothing to do.

mod queue;
#[cfg(test)]
mod tests;

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    sync::{Notify, oneshot},
    time::{MissedTickBehavior, interval, timeout},
};
use tokio_postgres::Row;

use self::queue::{CallQueue, Item, Queued};
use super::{
    connection::{Connection, Links, Slot},
    decode,
    encode::{Acquires, Releases},
    errors::{Failure, Kind},
    liveness::DeathWatch,
};
use crate::{
    Result,
    backend::HintSender,
    lease::{
        Answer, Busy, Decision, Incarnation, LeaseId, LeaseKey, Lifetime, Moment, Outcome, Patience, Released, Request,
        Resource,
    },
};

/// While one call takes longer than this and others wait, another connection is used or opened.
const PATIENCE: Duration = Duration::from_millis(2);

/// So many calls that wait behind one under way are worth a connection of their own at once; fewer
/// go together when it returns, and cost the server less.
const WORTH: usize = 4;

/// An additional connection without work is closed after this.
const IDLE: Duration = Duration::from_secs(30);

/// No further connection is asked for so long after one was refused: a server that is full must not be asked
/// again with every call.
const REFUSED: Duration = Duration::from_secs(1);

/// A name that a stranger's transaction had locked goes alone for so long, so that it delays no other.
const APART: Duration = Duration::from_secs(5);

/// A release that meets a stranger's open transaction is tried so often, each for the functions' lock timeout.
const RELEASE_TRIES: u32 = 5;

/// Who the calls are from.
#[derive(Clone, Debug)]
pub(super) struct Caller {
    pub(super) namespace: String,
    pub(super) history: i8,
    /// Where hints for this instance go; `None` where nobody can listen.
    pub(super) channel: Option<String>,
}

/// One of those who make calls.
struct Worker {
    /// Its own connection, opened when it is needed.
    slot: Slot,
    /// Whether it may use the connection that the instance has.
    first: bool,
}

/// The workers and their calls.
pub(super) struct Ops {
    links: Arc<Links>,
    caller: Caller,
    hints: HintSender,
    deaths: Arc<DeathWatch>,
    queue: Mutex<CallQueue>,
    apart: Mutex<HashMap<Resource, Moment>>,
    wake: Notify,
    /// Until then no further connection is asked for.
    refused: Mutex<Option<Moment>>,
    /// Opsers that are opening a connection; no other worker is started while there is one.
    connecting: AtomicUsize,
    workers: AtomicUsize,
    idle: AtomicUsize,
    closed: AtomicBool,
}

impl Ops {
    pub(super) fn start(
        links: Arc<Links>,
        caller: Caller,
        hints: HintSender,
        deaths: Arc<DeathWatch>,
    ) -> Arc<Self> {
        let ops = Arc::new(Self {
            links,
            caller,
            hints,
            deaths,
            queue: Mutex::default(),
            apart: Mutex::default(),
            wake: Notify::new(),
            refused: Mutex::default(),
            connecting: AtomicUsize::new(0),
            workers: AtomicUsize::new(1),
            idle: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
        });
        ops.set_to_work(true);
        ops
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
        self.push(Item::Acquire { request: request.clone(), session, answer });
        answered.await.unwrap_or_else(|_| Err(closed()))
    }

    pub(super) async fn release(
        self: &Arc<Self>,
        key: &LeaseKey,
        outcome: &Outcome,
    ) -> Result<Answer<Released>, Failure> {
        let (answer, answered) = oneshot::channel();
        self.push(Item::Release { key: key.clone(), outcome: outcome.clone(), answer });
        answered.await.unwrap_or_else(|_| Err(closed()))
    }

    fn push(&self, item: Item) {
        if self.closed.load(Ordering::SeqCst) {
            return item.fail(&closed());
        }
        let alone = self.is_apart(item.resource());
        let mut queue = self.queue.lock();
        queue.push(Queued { item, alone, tries: 0 });
        let waiting = queue.len();
        drop(queue);
        let under_way = self.workers.load(Ordering::SeqCst) > self.idle.load(Ordering::SeqCst);
        if !under_way || alone || waiting >= WORTH {
            self.wake.notify_last();
        }
    }

    fn is_apart(&self, resource: &Resource) -> bool {
        let mut apart = self.apart.lock();
        if apart.is_empty() {
            return false;
        }
        let now = self.links.connector.options.clock.now();
        apart.retain(|_, until| *until > now);
        apart.contains_key(resource)
    }

    /// Starts a worker that is counted already.
    fn set_to_work(self: &Arc<Self>, first: bool) {
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
            && count_one_more(&self.workers, self.links.connector.options.connections) {
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
    fn leave_if_spare(&self) -> bool {
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

    /// A statement that failed did nothing. Those that were together are tried each alone: one
    /// of them may be in a stranger's transaction.
    fn failed(&self, batch: Vec<Queued>, failure: &Failure, incarnation: Incarnation) {
        failure.hurry(batch.iter().map(|queued| queued.item.resource()), &self.hints);
        let several = batch.len() > 1;
        let mut again = Vec::new();
        for Queued { item, tries, .. } in batch {
            match failure.kind {
                Kind::Locked | Kind::Overtaken if several => again.push(Queued { item, alone: true, tries }),
                Kind::Overtaken if tries < 8 => again.push(Queued { item, alone: true, tries: tries + 1 }),
                Kind::Locked => {
                    self.set_apart(item.resource(), failure, incarnation);
                    // A release must come through: while it does not, others wait for a lease that nobody wants.
                    if matches!(item, Item::Release { .. }) && tries < RELEASE_TRIES {
                        self.queue.lock().push(Queued { item, alone: true, tries: tries + 1 });
                    } else {
                        refuse(item, failure, incarnation);
                    }
                }
                _ => item.fail(failure),
            }
        }
        self.queue.lock().push_again(again);
        self.wake.notify_last();
    }

    /// The name goes alone for a while. Who asks for it would wait as long for the same answer: it has it now.
    fn set_apart(&self, resource: &Resource, failure: &Failure, incarnation: Incarnation) {
        let until = self.links.connector.options.clock.now().after(APART);
        self.apart.lock().insert(resource.clone(), until);
        let asks = self.queue.lock().take_asks_for(resource);
        for queued in asks {
            refuse(queued.item, failure, incarnation);
        }
    }
}

/// What is locked by a stranger is busy to one who does not wait.
fn refuse(item: Item, failure: &Failure, incarnation: Incarnation) {
    match item {
        Item::Acquire { request, answer, .. } if request.patience == Patience::Try => {
            let value = Decision::Busy(Busy::default());
            drop(answer.send(Ok(Answer::new(value, incarnation))));
        }
        item => item.fail(failure),
    }
}

impl std::fmt::Debug for Ops {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ops").field("workers", &self.workers).finish_non_exhaustive()
    }
}

/// Counts one more if that stays within the limit: in one step, since several look at once.
fn count_one_more(count: &AtomicUsize, most: usize) -> bool {
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

fn closed() -> Failure {
    Failure::new(Kind::Unavailable, "the connection to postgres was closed")
}

