//! Turns a panic of a backend into a failure of the call that panicked, so that nobody waits for its answer for ever.

use std::{
    future::poll_fn,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    task::Poll,
    thread,
};

use crate::{Error, Result};

/// Completes with an error if the call panics.
pub(crate) async fn catch_panic<T>(call: impl Future<Output = Result<T>>) -> Result<T> {
    let mut call = pin!(call);
    poll_fn(|context| {
        let polled = catch_unwind(AssertUnwindSafe(|| call.as_mut().poll(context)));
        polled.unwrap_or_else(|_panic| Poll::Ready(Err(Error::unanswered("the backend panicked"))))
    })
    .await
}

/// Runs a clean-up if it is dropped during a panic.
///
/// Call `disarm` on success, since `drop` cannot tell whose panic it is: during another panic, a destructor may poll
/// this call to its success.
pub(crate) struct OnPanic<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> OnPanic<F> {
    pub(crate) fn new(clean_up: F) -> Self {
        Self(Some(clean_up))
    }

    pub(crate) fn disarm(mut self) {
        self.0 = None;
    }
}

impl<F: FnOnce()> Drop for OnPanic<F> {
    fn drop(&mut self) {
        if let Some(clean_up) = self.0.take()
            && thread::panicking()
        {
            clean_up();
        }
    }
}
