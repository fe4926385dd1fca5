//! Calls that are made together, so that a backend can answer them in one round trip.

use std::{future::poll_fn, pin::Pin, sync::Arc, task::Poll};

use super::Backend;
use crate::{
    Result,
    lease::{Answer, Decision, LeaseKey, Outcome, Released, Request},
};

/// One of several operations that [`Backend::perform`] performs together.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Operation {
    /// Requests a lease; see [`Backend::acquire`].
    Acquire(Arc<Request>),
    /// Releases a lease; see [`Backend::release`].
    Release(LeaseKey, Outcome),
}

/// The result of an [`Operation`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Performed {
    /// The answer to a request.
    Acquired(Decision),
    /// The answer to a release.
    Released(Released),
}

type Answered = Result<Answer<Performed>>;

/// A call that is under way, or its answer.
enum PendingCall<'a> {
    Calling(Pin<Box<dyn Future<Output = Answered> + Send + 'a>>),
    Done(Answered),
}

/// Makes a call for each operation, all of them concurrently.
pub(crate) async fn perform_each(backend: &(impl Backend + ?Sized), operations: Vec<Operation>) -> Vec<Answered> {
    let call = |operation: Operation| {
        PendingCall::Calling(Box::pin(async move {
            match operation {
                Operation::Acquire(request) => Ok(backend.acquire(&request).await?.map(Performed::Acquired)),
                Operation::Release(key, outcome) => Ok(backend.release(&key, &outcome).await?.map(Performed::Released)),
            }
        }))
    };
    let mut calls: Vec<PendingCall<'_>> = operations.into_iter().map(call).collect();
    poll_fn(|context| {
        let mut all_done = true;
        for progress in &mut calls {
            if let PendingCall::Calling(call) = progress {
                match call.as_mut().poll(context) {
                    Poll::Ready(answer) => *progress = PendingCall::Done(answer),
                    Poll::Pending => all_done = false,
                }
            }
        }
        if all_done { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    let answers = calls.into_iter().filter_map(|progress| match progress {
        PendingCall::Done(answer) => Some(answer),
        PendingCall::Calling(_) => None,
    });
    answers.collect()
}
