//! What is pushed to this instance: hints about its leases, events for those who watch.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
};

use futures_core::Stream;
use parking_lot::Mutex;
use tokio::sync::mpsc;

use super::{
    link::Listener,
    reply::{self, Push},
};
use crate::{
    backend::{EventStream, Hint, HintSender},
    lease::{Event, Names},
};

/// As many events wait for a slow reader; it misses those that come after.
const KEPT: usize = 1024;

/// Those inside this instance who are told.
pub(super) struct Told {
    pub(super) hints: HintSender,
    events: String,
    /// A push says nothing about copies: only a renewal does.
    durable: bool,
    streams: Mutex<Vec<Stage>>,
    misses: AtomicU64,
}

struct Stage {
    names: Names,
    sender: mpsc::Sender<Event>,
}

impl Told {
    pub(super) fn new(events: String, durable: bool) -> Arc<Self> {
        Arc::new(Self {
            hints: HintSender::new(),
            events,
            durable,
            streams: Mutex::default(),
            misses: AtomicU64::new(0),
        })
    }

    /// A stream of what happens to these from now on; it ends by being dropped.
    pub(super) fn follow(&self, names: Names) -> EventStream {
        let (sender, receiver) = mpsc::channel(KEPT);
        self.streams.lock().push(Stage { names, sender });
        Box::pin(Follower(receiver))
    }

    /// Whether anyone watches.
    pub(super) fn is_followed(&self) -> bool {
        let mut streams = self.streams.lock();
        streams.retain(|stage| !stage.sender.is_closed());
        !streams.is_empty()
    }

    /// How often pushes may have been missed.
    pub(super) fn misses(&self) -> u64 {
        self.misses.load(Ordering::SeqCst)
    }
}

impl Listener for Told {
    fn message(&self, channel: &[u8], message: &[u8]) {
        if channel != self.events.as_bytes() {
            match reply::push(message) {
                Some(Push { hint: Hint::Granted { .. }, resource: Some(resource) }) if self.durable => {
                    self.hints.send(Hint::Changed { resource });
                }
                Some(push) => self.hints.send(push.hint),
                None => {}
            }
            return;
        }
        let Some(event) = reply::event(message) else { return };
        for stage in &*self.streams.lock() {
            if stage.names.include(&event.resource) {
                let _slow_readers_miss_some = stage.sender.try_send(event.clone());
            }
        }
    }

    fn missed(&self) {
        self.misses.fetch_add(1, Ordering::SeqCst);
        self.hints.send(Hint::Missed);
    }
}

struct Follower(mpsc::Receiver<Event>);

impl Stream for Follower {
    type Item = Event;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Event>> {
        self.0.poll_recv(context)
    }
}
