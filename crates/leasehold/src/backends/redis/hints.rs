//! What is pushed to this instance: hints about its leases, events for those who watch.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use super::{
    link::Listener,
    reply::{self, Push},
};
use crate::backend::{EventHub, Hint, HintSender};

/// Those inside this instance who are told.
pub(super) struct Told {
    pub(super) hints: HintSender,
    events: String,
    /// A push says nothing about copies: only a renewal does.
    durable: bool,
    pub(super) watchers: EventHub,
    misses: AtomicU64,
}

impl Told {
    pub(super) fn new(events: String, durable: bool) -> Arc<Self> {
        Arc::new(Self {
            hints: HintSender::new(),
            events,
            durable,
            watchers: EventHub::new(),
            misses: AtomicU64::new(0),
        })
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
        if let Some(event) = reply::event(message) {
            self.watchers.send(&event);
        }
    }

    fn missed(&self) {
        self.misses.fetch_add(1, Ordering::SeqCst);
        self.hints.send(Hint::Missed);
        self.watchers.missed();
    }
}
