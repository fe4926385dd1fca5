//! Events: what happens to resources, for everyone who watches.

use std::{
    fmt,
    pin::Pin,
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
};

use futures_core::Stream;
use parking_lot::Mutex;

use super::queue::{LossyQueue, Received};
use crate::lease::{Event, Names};

/// A stream of events about resources, as they happen.
///
/// A reader that is too slow, or a backend that was cut off, misses events: the stream then
/// yields [`Missed`], and the reader should list the resources again.
pub type EventStream = Pin<Box<dyn Stream<Item = Result<Event, Missed>> + Send>>;

/// Some events were missed, so what the reader knows may be out of date.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Missed;

impl fmt::Display for Missed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("events were missed; list again")
    }
}

impl std::error::Error for Missed {}

/// How many events are queued for a slow reader before they are dropped.
const LIMIT: usize = 1024;

/// Sends events to streams; costs nothing while no stream is open.
#[derive(Clone, Default)]
pub struct EventHub(Arc<EventStreams>);

#[derive(Default)]
struct EventStreams {
    watchers: Mutex<Vec<Arc<Watcher>>>,
    count: AtomicUsize,
}

struct Watcher {
    names: Names,
    queue: LossyQueue<Event>,
}

impl EventHub {
    /// Creates a hub without streams.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns whether nobody watches.
    pub fn is_idle(&self) -> bool {
        self.0.count.load(Ordering::SeqCst) == 0
    }

    /// Sends an event to every stream that watches its resource.
    pub fn send(&self, event: &Event) {
        for watcher in &*self.0.watchers.lock() {
            if watcher.names.include(&event.resource) {
                watcher.queue.push(event.clone());
            }
        }
    }

    /// Tells every stream that events may have been missed.
    pub fn missed(&self) {
        for watcher in &*self.0.watchers.lock() {
            watcher.queue.miss();
        }
    }

    /// Returns a stream of the events about these resources from now on.
    pub fn watch(&self, names: Names) -> EventStream {
        let watcher = Arc::new(Watcher { names, queue: LossyQueue::new(LIMIT) });
        let mut watchers = self.0.watchers.lock();
        watchers.push(Arc::clone(&watcher));
        self.0.count.store(watchers.len(), Ordering::SeqCst);
        Box::pin(Subscription { hub: Arc::downgrade(&self.0), watcher })
    }
}

impl fmt::Debug for EventHub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventHub").field("streams", &self.0.count).finish_non_exhaustive()
    }
}

impl Drop for EventStreams {
    fn drop(&mut self) {
        self.watchers.get_mut().iter().for_each(|watcher| watcher.queue.close());
    }
}

/// One stream; dropping it ends the subscription.
struct Subscription {
    hub: Weak<EventStreams>,
    watcher: Arc<Watcher>,
}

impl Stream for Subscription {
    type Item = Result<Event, Missed>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Poll::Ready(ready!(self.watcher.queue.poll_next(context)).map(|item| match item {
            Received::Value(event) => Ok(event),
            Received::Missed => Err(Missed),
        }))
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        if let Some(hub) = self.hub.upgrade() {
            let mut watchers = hub.watchers.lock();
            watchers.retain(|watcher| !Arc::ptr_eq(watcher, &self.watcher));
            hub.count.store(watchers.len(), Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, task::Waker};

    use super::*;
    use crate::lease::{Claim, EventKind, Holder, Resource, Timestamp};

    fn event(name: &str) -> Event {
        let resource = Resource::new(name).unwrap();
        Event::new(Timestamp::default(), resource, Holder::unique(), Claim::EXCLUSIVE, EventKind::Waiting)
    }

    async fn next(stream: &mut EventStream) -> Option<Result<Event, Missed>> {
        poll_fn(|context| stream.as_mut().poll_next(context)).await
    }

    #[tokio::test]
    async fn a_slow_reader_reads_that_it_missed_events_of_its_own_names_only() {
        let hub = EventHub::new();
        let mut slow = hub.watch(Names::All);
        let mut other = hub.watch(Names::Exactly(Resource::new("b").unwrap()));
        hub.send(&event("b"));
        for _ in 0..LIMIT {
            hub.send(&event("a"));
        }
        assert_eq!(next(&mut slow).await, Some(Err(Missed)));
        assert!(next(&mut slow).await.unwrap().is_ok(), "what came last is still there");
        assert_eq!(next(&mut other).await.unwrap().unwrap().resource.as_str(), "b");
        assert!(other.as_mut().poll_next(&mut Context::from_waker(Waker::noop())).is_pending());
        hub.missed();
        assert_eq!(next(&mut other).await, Some(Err(Missed)));
        drop((slow, hub));
        assert_eq!(next(&mut other).await, None);
    }

    #[test]
    fn a_hub_whose_streams_were_dropped_is_idle() {
        let hub = EventHub::new();
        let stream = hub.watch(Names::All);
        assert!(!hub.is_idle());
        drop(stream);
        assert!(hub.is_idle());
    }
}
