//! Acquires and releases: calls that come together share a round trip and a commit.
//!
//! A few workers, each with its connection, take what waits. One that is alone
//! under no load does all; others are added while calls wait longer than a
//! moment, and leave when there is nothing to do.

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

use self::queue::{CallQueue, Item, Queued};
use super::{
    connection::Links,
    errors::{Failure, Kind},
    liveness::DeathWatch,
};
use crate::{
    Result,
    backend::HintSender,
    lease::{Answer, Busy, Decision, Incarnation, LeaseKey, Moment, Outcome, Patience, Released, Request, Resource},
};

/// This many calls that wait behind one under way are worth a connection of their own at once; fewer
/// go together when it returns, and cost the server less.
const WORTH: usize = 4;

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

/// The workers and their calls.
pub(super) struct Ops {
    links: Arc<Links>,
    caller: Caller,
    hints: HintSender,
    deaths: Arc<DeathWatch>,
    queue: Mutex<CallQueue>,
    apart: Mutex<HashMap<Resource, Moment>>,
    wake: Notify,
    /// When a worker may try again to open another connection, after the server refused one.
    refused: Mutex<Option<Moment>>,
    /// Workers that are opening a connection; no other worker is started while there is one.
    connecting: AtomicUsize,
    workers: AtomicUsize,
    idle: AtomicUsize,
    closed: AtomicBool,
}

impl Ops {
    pub(super) fn start(links: Arc<Links>, caller: Caller, hints: HintSender, deaths: Arc<DeathWatch>) -> Arc<Self> {
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

    /// Isolates this name for a while, and fails its queued acquires now: they would wait as long for the same answer.
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

fn closed() -> Failure {
    Failure::new(Kind::Unavailable, "the connection to postgres was closed")
}
