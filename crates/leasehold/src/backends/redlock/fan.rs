//! Several calls at once, answered in the order the answers come.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    task::Poll,
};

type Call<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Calls under way, each known by a number such as its node's.
pub(super) struct Fan<T>(Vec<(usize, Call<T>)>);

impl<T> Fan<T> {
    pub(super) fn new() -> Self {
        Self(Vec::new())
    }

    pub(super) fn add(&mut self, at: usize, call: impl Future<Output = T> + Send + 'static) {
        self.0.push((at, Box::pin(call)));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next answer and whose it is; `None` when all have answered.
    ///
    /// # Cancel safety
    /// A dropped call loses nothing.
    pub(super) async fn next(&mut self) -> Option<(usize, T)> {
        if self.0.is_empty() {
            return None;
        }
        poll_fn(|context| {
            for index in 0..self.0.len() {
                let (at, call) = &mut self.0[index];
                if let Poll::Ready(answer) = call.as_mut().poll(context) {
                    let at = *at;
                    drop(self.0.remove(index));
                    return Poll::Ready(Some((at, answer)));
                }
            }
            Poll::Pending
        })
        .await
    }

    /// All answers, by the number of the call.
    pub(super) async fn all(mut self) -> Vec<(usize, T)> {
        let mut answers = Vec::with_capacity(self.0.len());
        while let Some(answer) = self.next().await {
            answers.push(answer);
        }
        answers.sort_by_key(|(at, _)| *at);
        answers
    }
}
