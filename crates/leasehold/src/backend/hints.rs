//! Hints: what a backend pushes to one of its instances.
//!
//! A hint is delivered on the thread that sends it, so that a grant wakes its
//! waiter without waking another thread. A sink only updates state and wakes
//! tasks; it never calls the backend.

use std::{
    fmt,
    future::poll_fn,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::RwLock;

use super::queue::{LossyQueue, Received};
use crate::lease::{Fence, LeaseId, Resource};

/// How many hints are queued for a slow reader before they are dropped and it reads `Missed`.
const LIMIT: usize = 4096;

/// A message that a backend pushes to an instance about its leases.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Hint {
    /// This waiting lease may have been granted.
    Granted {
        /// The lease.
        id: LeaseId,
        /// The fence of the grant.
        fence: Fence,
        /// Whether the grant ends within seconds unless a renewal confirms it.
        provisional: bool,
    },
    /// This lease may have been taken away.
    Evicted {
        /// The lease.
        id: LeaseId,
    },
    /// Something changed for the waiters of this resource.
    Changed {
        /// The resource.
        resource: Resource,
    },
    /// Hints were missed: everything may have changed.
    Missed,
}

impl Hint {
    /// Creates a hint of a grant that is not provisional.
    pub const fn granted(id: LeaseId, fence: Fence) -> Self {
        Self::Granted { id, fence, provisional: false }
    }
}

impl From<Received<Hint>> for Hint {
    fn from(received: Received<Hint>) -> Self {
        match received {
            Received::Value(hint) => hint,
            Received::Missed => Self::Missed,
        }
    }
}

/// The sending end of an instance's hints.
#[derive(Clone, Default)]
pub struct HintSender(Arc<HintReaders>);

#[derive(Default)]
struct HintReaders {
    /// Replaced as a whole, so that no lock is held while a sink runs.
    sinks: RwLock<Arc<Vec<(u64, Sink)>>>,
    next: AtomicU64,
}

#[derive(Clone)]
enum Sink {
    Function(Arc<dyn Fn(Hint) + Send + Sync>),
    Queue(Arc<LossyQueue<Hint>>),
}

impl HintSender {
    /// Creates a sender without readers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sends a hint to every reader; if there is no reader, the hint is dropped.
    pub fn send(&self, hint: Hint) {
        let sinks = Arc::clone(&self.0.sinks.read());
        if let [(_, Sink::Function(deliver))] = sinks.as_slice() {
            deliver(hint);
            return;
        }
        for (_, sink) in sinks.iter() {
            match sink {
                Sink::Function(deliver) => deliver(hint.clone()),
                Sink::Queue(queue) => queue.push(hint.clone()),
            }
        }
    }

    /// Returns a reader of the hints that are sent from now on.
    pub fn subscribe(&self) -> Hints {
        let queue = Arc::new(LossyQueue::new(LIMIT));
        let id = self.0.add(Sink::Queue(Arc::clone(&queue)));
        Hints { delivery: HintDelivery { hub: Arc::downgrade(&self.0), id }, queue }
    }
}

impl fmt::Debug for HintSender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HintSender").finish_non_exhaustive()
    }
}

impl HintReaders {
    fn add(&self, sink: Sink) -> u64 {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        Arc::make_mut(&mut *self.sinks.write()).push((id, sink));
        id
    }
}

impl Drop for HintReaders {
    fn drop(&mut self) {
        for (_, sink) in self.sinks.get_mut().iter() {
            if let Sink::Queue(queue) = sink {
                queue.close();
            }
        }
    }
}

/// The receiving end of a [`HintSender`]: the hints for one instance.
pub struct Hints {
    delivery: HintDelivery,
    queue: Arc<LossyQueue<Hint>>,
}

impl Hints {
    /// Returns the next hint; `None` if the backend is gone.
    ///
    /// # Cancel safety
    /// Dropping the future loses no hint.
    pub async fn next(&mut self) -> Option<Hint> {
        poll_fn(|context| self.queue.poll_next(context)).await.map(Hint::from)
    }

    /// Calls `sink` with every hint until the returned [`HintDelivery`] is dropped.
    ///
    /// `sink` runs on the thread that sends the hint. A backend may hold a lock while it sends, so `sink` must not call
    /// the backend, block or panic.
    pub fn deliver_to(self, sink: impl Fn(Hint) + Send + Sync + 'static) -> HintDelivery {
        let sink: Arc<dyn Fn(Hint) + Send + Sync> = Arc::new(sink);
        let mut delivery = HintDelivery { hub: Weak::new(), id: 0 };
        if let Some(hub) = self.delivery.hub.upgrade() {
            delivery = HintDelivery { hub: Arc::downgrade(&hub), id: hub.add(Sink::Function(Arc::clone(&sink))) };
        }
        // What was queued before goes first; a hint that arrives meanwhile may be delivered twice.
        while let Some(item) = self.queue.pop() {
            sink(item.into());
        }
        delivery
    }
}

impl fmt::Debug for Hints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hints").finish_non_exhaustive()
    }
}

/// A subscription made by [`Hints::deliver_to`]; dropping it ends the subscription.
pub struct HintDelivery {
    hub: Weak<HintReaders>,
    id: u64,
}

impl Drop for HintDelivery {
    fn drop(&mut self) {
        if let Some(hub) = self.hub.upgrade() {
            Arc::make_mut(&mut *hub.sinks.write()).retain(|(id, _)| *id != self.id);
        }
    }
}

impl fmt::Debug for HintDelivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HintDelivery").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use parking_lot::Mutex;

    use super::*;

    fn granted(fence: u64) -> Hint {
        Hint::granted(LeaseId::from_u128(7), Fence::new(fence))
    }

    #[tokio::test]
    async fn a_slow_reader_reads_that_it_missed_some() {
        let sender = HintSender::new();
        let mut hints = sender.subscribe();
        for fence in 0..=LIMIT as u64 {
            sender.send(granted(fence));
        }
        assert_eq!(hints.next().await, Some(Hint::Missed));
        assert_eq!(hints.next().await, Some(granted(LIMIT as u64)));
        drop(sender);
        assert_eq!(hints.next().await, None);
    }

    #[test]
    fn delivery_begins_with_what_was_queued_and_ends_when_dropped() {
        let sender = HintSender::new();
        let hints = sender.subscribe();
        sender.send(granted(1));
        let seen = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&seen);
        let delivery = hints.deliver_to(move |hint| sink.lock().push((hint, thread::current().id())));
        let sending = sender.clone();
        let elsewhere = thread::spawn(move || {
            sending.send(granted(2));
            thread::current().id()
        });
        let elsewhere = elsewhere.join().unwrap();
        drop(delivery);
        sender.send(granted(3));
        let here = thread::current().id();
        assert_eq!(*seen.lock(), [(granted(1), here), (granted(2), elsewhere)], "on the thread that sends");
    }
}
