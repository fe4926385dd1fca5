//! What is pushed to this instance: hints about its leases, events for those who watch.

use std::{collections::HashSet, sync::Arc};

use super::{
    connection::PushSink,
    keys::Keys,
    record::{self, Push},
};
use crate::backend::{EventHub, Hint, HintSender, coalesce};

/// Hands pushes to the readers of this instance.
pub(super) struct Notifications {
    pub(super) hints: HintSender,
    pub(super) watchers: EventHub,
    /// The channels of events.
    events: HashSet<Vec<u8>>,
    /// Whether grants need durability acknowledgements. A push does not say whether they came, so that a renewal has to
    /// find it out.
    durable: bool,
}

impl Notifications {
    pub(super) fn new(keys: &Keys, durable: bool) -> Arc<Self> {
        let events = keys.all().iter().map(|partition| partition.names.events.clone().into_bytes()).collect();
        Arc::new(Self { hints: HintSender::new(), watchers: EventHub::new(), events, durable })
    }
}

impl PushSink for Notifications {
    fn message(&self, channel: &[u8], message: &[u8]) {
        if self.events.contains(channel) {
            for event in &record::events(message) {
                self.watchers.send(event);
            }
            return;
        }
        for Push { hint, resource } in record::pushes(message) {
            match (hint, resource) {
                (Hint::Granted { .. }, Some(resource)) if self.durable => self.hints.send(Hint::Changed { resource }),
                (hint, _) => {
                    if matches!(hint, Hint::Granted { .. }) {
                        coalesce::caller_was_pushed();
                    }
                    self.hints.send(hint);
                }
            }
        }
    }

    fn missed(&self) {
        self.hints.send(Hint::Missed);
        self.watchers.missed();
    }
}
