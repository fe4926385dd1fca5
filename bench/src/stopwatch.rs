//! Reads the clocks that a measurement needs: elapsed time and processor time, in nanoseconds.

use rustix::time::{ClockId, clock_gettime};

/// Elapsed and processor time since a start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stopwatch {
    elapsed: u64,
    cpu: u64,
}

impl Stopwatch {
    pub(crate) fn start() -> Self {
        Self { elapsed: now(), cpu: cpu() }
    }

    pub(crate) fn nanos(self) -> f64 {
        (now() - self.elapsed) as f64
    }

    /// User and system time of all threads of this process.
    pub(crate) fn cpu_nanos(self) -> f64 {
        (cpu() - self.cpu) as f64
    }
}

/// The monotonic clock, which all processes of a machine share.
pub(crate) fn now() -> u64 {
    read(ClockId::Monotonic)
}

fn cpu() -> u64 {
    read(ClockId::ProcessCPUTime)
}

fn read(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}
