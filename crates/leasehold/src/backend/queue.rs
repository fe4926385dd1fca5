//! A bounded queue for one reader, who learns when values were dropped.

use std::{
    collections::VecDeque,
    task::{Context, Poll, Waker},
};

use parking_lot::Mutex;

/// What a reader of a [`LossyQueue`] gets.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Received<T> {
    Value(T),
    /// Values were dropped since the last one that was read.
    Missed,
}

/// A bounded queue for one reader.
pub(super) struct LossyQueue<T> {
    limit: usize,
    state: Mutex<QueueState<T>>,
}

struct QueueState<T> {
    values: VecDeque<T>,
    missed: bool,
    closed: bool,
    reader: Option<Waker>,
}

impl<T> LossyQueue<T> {
    pub(super) fn new(limit: usize) -> Self {
        let state = QueueState { values: VecDeque::new(), missed: false, closed: false, reader: None };
        Self { limit, state: Mutex::new(state) }
    }

    /// Adds a value; a full queue is emptied first, and its reader then gets `Missed`.
    pub(super) fn push(&self, value: T) {
        self.change(|state| {
            if state.values.len() >= self.limit {
                state.values.clear();
                state.missed = true;
            }
            state.values.push_back(value);
        });
    }

    /// Empties the queue; its reader gets `Missed`.
    pub(super) fn miss(&self) {
        self.change(|state| {
            state.values.clear();
            state.missed = true;
        });
    }

    /// Ends the queue once what is in it has been read.
    pub(super) fn close(&self) {
        self.change(|state| state.closed = true);
    }

    fn change(&self, change: impl FnOnce(&mut QueueState<T>)) {
        let mut state = self.state.lock();
        change(&mut state);
        let reader = state.reader.take();
        drop(state);
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    /// The next value without waiting.
    pub(super) fn pop(&self) -> Option<Received<T>> {
        self.state.lock().pop()
    }

    pub(super) fn poll_next(&self, context: &Context<'_>) -> Poll<Option<Received<T>>> {
        let mut state = self.state.lock();
        match state.pop() {
            Some(item) => Poll::Ready(Some(item)),
            None if state.closed => Poll::Ready(None),
            None => {
                state.reader = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl<T> QueueState<T> {
    fn pop(&mut self) -> Option<Received<T>> {
        if std::mem::take(&mut self.missed) {
            return Some(Received::Missed);
        }
        self.values.pop_front().map(Received::Value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_says_that_values_were_missed() {
        let queue = LossyQueue::new(2);
        for value in 1..=3 {
            queue.push(value);
        }
        assert_eq!([queue.pop(), queue.pop(), queue.pop()], [Some(Received::Missed), Some(Received::Value(3)), None]);
    }

    #[test]
    fn a_closed_queue_ends_after_what_is_in_it() {
        let queue = LossyQueue::new(2);
        queue.push(1);
        queue.close();
        let context = Context::from_waker(Waker::noop());
        assert_eq!(queue.poll_next(&context), Poll::Ready(Some(Received::Value(1))));
        assert_eq!(queue.poll_next(&context), Poll::Ready(None));
    }
}
