//! What followers read: events of the names they asked for.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use futures_core::Stream;
use tokio::sync::broadcast::{Receiver, error::RecvError};

use crate::{
    backend::EventStream,
    lease::{Event, Names},
};

/// The events of these names.
pub(super) fn of(names: Names, events: Receiver<Event>) -> EventStream {
    Box::pin(Follower { names, next: Box::pin(receive(events)) })
}

type Receipt = (Result<Event, RecvError>, Receiver<Event>);

struct Follower {
    names: Names,
    next: Pin<Box<dyn Future<Output = Receipt> + Send>>,
}

async fn receive(mut events: Receiver<Event>) -> Receipt {
    (events.recv().await, events)
}

impl Stream for Follower {
    type Item = Event;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Event>> {
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
