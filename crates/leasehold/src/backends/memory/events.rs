//! What happens on a place, for those who follow it.

use std::{
    future::Future,
    pin::Pin,
    task::{self, Poll, ready},
};

use futures_core::Stream;
use tokio::sync::broadcast::{self, error::RecvError};

use crate::{
    backend::EventStream,
    lease::{Event, EventKind, Names, Resource, Timestamp},
    model::{Context, Effects, Ended, Entry, Granted, State},
};

/// Events kept for a follower that lags; then it misses the oldest.
const KEPT: usize = 1024;

/// Tells followers what happens; costs nothing while there are none.
pub(super) struct Events(broadcast::Sender<Event>);

impl Events {
    pub(super) fn new() -> Self {
        Self(broadcast::Sender::new(KEPT))
    }

    /// Tells what an operation did, in the order it happened. Called under the shard's latch.
    pub(super) fn publish(&self, resource: &Resource, state: &State, effects: &Effects, context: &Context<'_>) {
        if effects.is_empty() || self.0.receiver_count() == 0 {
            return;
        }
        let tell = |entry: &Entry, at: Timestamp, kind: EventKind| {
            let (holder, claim) = (entry.holder.clone(), entry.claim);
            let _no_follower = self.0.send(Event { at, resource: resource.clone(), holder, claim, kind });
        };
        let tell_granted = |granted: &[Granted]| {
            for Granted { id, fence, .. } in granted {
                let ended = effects.ended.iter().map(|ended| &ended.entry);
                if let Some(entry) = state.entries.iter().chain(ended).find(|entry| entry.id == *id) {
                    tell(entry, context.wall, EventKind::Acquired { fence: *fence });
                }
            }
        };

        let mut granted = effects.granted.as_slice();
        for Ended { entry, ended_at, ending, .. } in &effects.ended {
            // What was granted and ended by one operation was granted first.
            if let Some(at) = granted.iter().position(|granted| granted.id == entry.id) {
                let (before, rest) = granted.split_at(at + 1);
                tell_granted(before);
                granted = rest;
            }
            let fence = entry.held().map(|held| held.fence);
            tell(entry, *ended_at, EventKind::Ended { ending: *ending, fence });
        }
        tell_granted(granted);
        let queued = effects.queued.and_then(|id| state.entries.iter().find(|entry| entry.id == id));
        if let Some(entry) = queued {
            tell(entry, context.wall, EventKind::Waiting);
        }
    }

    pub(super) fn follow(&self, names: Names) -> EventStream {
        Box::pin(Follower { names, next: Box::pin(receive(self.0.subscribe())) })
    }
}

type Receipt = (Result<Event, RecvError>, broadcast::Receiver<Event>);

struct Follower {
    names: Names,
    next: Pin<Box<dyn Future<Output = Receipt> + Send>>,
}

async fn receive(mut events: broadcast::Receiver<Event>) -> Receipt {
    (events.recv().await, events)
}

impl Stream for Follower {
    type Item = Event;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<Option<Event>> {
        loop {
            let (event, events) = ready!(self.next.as_mut().poll(cx));
            self.next = Box::pin(receive(events));
            match event {
                Ok(event) if self.names.include(&event.resource) => return Poll::Ready(Some(event)),
                Ok(_) | Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return Poll::Ready(None),
            }
        }
    }
}
