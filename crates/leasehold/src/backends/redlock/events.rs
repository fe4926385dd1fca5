//! What happens, as the first node that answers tells it.
//!
//! That node tells of a grant when it makes it. Whether a majority follows is
//! seen in a listing, and so is the fence in the rare case that it was raised. A
//! leading node that was away tells of a lease that it is given back as of a grant.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use futures_core::Stream;

use super::Shared;
use crate::{
    Result,
    backend::{EventStream, Missed},
    lease::{Event, Names},
};

/// Follows all nodes and tells what the leading one tells: each thing happens on several of them.
pub(super) async fn watch(shared: &Arc<Shared>, names: Names) -> Result<EventStream> {
    let answers = shared
        .nodes
        .look(|backend| {
            let names = names.clone();
            async move { backend.watch(names).await }
        })
        .await;
    let streams = shared.nodes.found("following events on redlock", answers)?;
    Ok(Box::pin(Follower { shared: Arc::clone(shared), streams }))
}

struct Follower {
    shared: Arc<Shared>,
    streams: Vec<(usize, EventStream)>,
}

impl Stream for Follower {
    type Item = Result<Event, Missed>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let follower = &mut *self;
        let mut index = 0;
        while index < follower.streams.len() {
            let known: Vec<usize> = follower.streams.iter().map(|(at, _)| *at).collect();
            let nodes = &follower.shared.nodes;
            let leading = nodes.in_order_of_lead().into_iter().find(|at| known.contains(at));
            let (at, stream) = &mut follower.streams[index];
            match stream.as_mut().poll_next(context) {
                Poll::Ready(Some(event)) if Some(*at) == leading => return Poll::Ready(Some(event)),
                Poll::Ready(Some(_)) => {}
                Poll::Ready(None) => drop(follower.streams.remove(index)),
                Poll::Pending => index += 1,
            }
        }
        if follower.streams.is_empty() { Poll::Ready(None) } else { Poll::Pending }
    }
}
