//! The clock that the conductor and all workers share: one machine, one `CLOCK_BOOTTIME`.

use rustix::time::{ClockId, clock_gettime};

/// Microseconds since the machine started. Comparable between processes.
pub(crate) type Micros = u64;

/// Reads the clock without the library under test.
pub(crate) fn now() -> Micros {
    let time = clock_gettime(ClockId::Boottime);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0) / 1000
}

/// Microseconds in so many milliseconds.
pub(crate) const fn millis(count: u64) -> Micros {
    count * 1000
}

/// A length in seconds, for a report.
pub(crate) fn seconds(length: Micros) -> String {
    format!("{}.{:03}", length / 1_000_000, length / 1000 % 1000)
}
