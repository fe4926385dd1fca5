//! Waiting longer after each try, at a random moment of the span.

use std::time::Duration;

use crate::lease::LeaseId;

/// Exponential backoff with full jitter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Backoff {
    next: Duration,
    most: Duration,
}

impl Backoff {
    pub(crate) fn new(first: Duration, most: Duration) -> Self {
        Self { next: first.min(most), most }
    }

    /// How long to wait before the next try; the span doubles each time.
    pub(crate) fn pause(&mut self) -> Duration {
        let span = self.next;
        self.next = (span * 2).min(self.most);
        random_part(span)
    }
}

/// A random part of the span, never nothing.
fn random_part(span: Duration) -> Duration {
    // The bits of a new id are as random as any.
    let bits = LeaseId::random().as_u128() & 0xffff;
    let thousandth = u32::try_from(bits * 1000 / 0xffff).unwrap_or(1000);
    (span * thousandth / 1000).max(Duration::from_micros(100))
}
