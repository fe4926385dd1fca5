//! Pauses that grow from try to try, with jitter.

use std::time::Duration;

use crate::lease::random_u64;

/// Exponential backoff with full jitter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    next: Duration,
    most: Duration,
}

impl Backoff {
    /// Creates a backoff whose pause limit starts at `first` and doubles up to `most`.
    pub fn new(first: Duration, most: Duration) -> Self {
        let first = first.min(most);
        Self { first, next: first, most }
    }

    /// Returns the random pause to make before the next try, and doubles the limit.
    pub fn pause(&mut self) -> Duration {
        let span = self.next;
        self.next = span.saturating_mul(2).min(self.most);
        random_part(span)
    }

    /// Sets the pause limit back to `first`.
    pub fn reset(&mut self) {
        self.next = self.first;
    }
}

/// A random part of the span, never zero.
fn random_part(span: Duration) -> Duration {
    let thousandth = u32::try_from(random_u64() % 1001).unwrap_or(1000);
    (span * thousandth / 1000).max(Duration::from_micros(100))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_span_doubles_to_its_limit_and_starts_again() {
        let mut backoff = Backoff::new(Duration::from_millis(10), Duration::from_millis(35));
        let spans: Vec<Duration> = (0..4)
            .map(|_| {
                let span = backoff.next;
                backoff.pause();
                span
            })
            .collect();
        assert_eq!(spans, [10, 20, 35, 35].map(Duration::from_millis));
        backoff.reset();
        assert!(backoff.pause() <= Duration::from_millis(10));
    }
}
