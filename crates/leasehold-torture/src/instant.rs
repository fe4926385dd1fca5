//! The clock that the conductor and all workers share: one machine, one `CLOCK_BOOTTIME`.

use rustix::time::{ClockId, clock_gettime};

/// Microseconds since the machine started. Comparable between processes.
pub(crate) type Micros = u64;

/// Reads the clock without the library under test.
pub(crate) fn now() -> Micros {
    read(ClockId::Boottime)
}

/// The instant at which the wall clock showed this many microseconds since 1970, unless it was set meanwhile.
pub(crate) fn from_wall_clock(shown: Micros) -> Micros {
    (now() + shown).saturating_sub(read(ClockId::Realtime))
}

fn read(clock: ClockId) -> Micros {
    let time = clock_gettime(clock);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0) / 1000
}

/// Milliseconds as microseconds.
pub(crate) const fn millis(count: u64) -> Micros {
    count * 1000
}

/// A length in seconds, for a report.
pub(crate) fn seconds(length: Micros) -> String {
    format!("{}.{:03}", length / 1_000_000, length / 1000 % 1000)
}
