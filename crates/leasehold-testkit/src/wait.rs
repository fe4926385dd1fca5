//! Waiting for what must come, but not for ever.

#![allow(clippy::disallowed_methods, reason = "a test waits on real time")]

use std::{
    thread,
    time::{Duration, Instant},
};

/// What a test waits for comes within this, also on a busy machine.
const LIMIT: Duration = Duration::from_secs(30);

/// Waits until it is so; a test whose wait is in vain fails where it waits.
#[track_caller]
pub fn until(is_so: impl FnMut() -> bool) {
    assert!(within(LIMIT, is_so), "it did not come to pass within {LIMIT:?}");
}

/// Whether it comes to be so within the limit.
pub(crate) fn within(limit: Duration, mut is_so: impl FnMut() -> bool) -> bool {
    let began = Instant::now();
    while began.elapsed() < limit {
        if is_so() {
            return true;
        }
        thread::sleep(Duration::from_millis(10));
    }
    false
}
