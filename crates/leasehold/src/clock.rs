//! The clocks: no other module reads the time.
//!
//! Deadlines use a clock that keeps running while the machine is suspended: a laptop
//! that was shut for an hour must not treat its lease as valid when it wakes up. The
//! wall clock dates records and gives fences a lower bound; it never decides expiry.

use std::{
    cell::Cell,
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    thread::LocalKey,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::lease::{Moment, Timestamp};

/// A future that completes when a moment is reached.
pub type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A source of time: [`SystemClock`], except in tests.
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// Reads the steady clock, which keeps running while the machine is suspended.
    fn now(&self) -> Moment;
    /// Reads the wall clock.
    fn wall(&self) -> Timestamp;
    /// Reads both clocks; [`SystemClock`] does so for about the cost of reading one.
    fn now_and_wall(&self) -> (Moment, Timestamp) {
        (self.now(), self.wall())
    }
    /// Completes at `moment`. If the machine is suspended, it may complete later by the length of the suspension.
    fn sleep_until(&self, moment: Moment) -> Sleep;
    /// Completes at `moment`. If the machine is suspended at that time, it completes when the machine resumes.
    fn alarm_at(&self, moment: Moment) -> Sleep {
        self.sleep_until(moment)
    }
}

/// The machine's own clocks.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Moment {
        boot_time()
    }

    #[allow(clippy::disallowed_methods, reason = "this is the module that reads time")]
    fn wall(&self) -> Timestamp {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp::from_micros(u64::try_from(since_epoch.as_micros()).unwrap_or(u64::MAX))
    }

    /// Reads the wall clock at most once in a millisecond on each thread; in between, counts on by the steady clock.
    fn now_and_wall(&self) -> (Moment, Timestamp) {
        thread_local! {
            static LAST: Cell<(Moment, Timestamp)> = const { Cell::new((Moment::from_micros(0), Timestamp::from_micros(0))) };
        }
        count_on(&LAST, boot_time, || self.wall())
    }

    fn sleep_until(&self, moment: Moment) -> Sleep {
        let left = moment.since(self.now());
        Box::pin(tokio::time::sleep(left))
    }

    fn alarm_at(&self, moment: Moment) -> Sleep {
        let left = moment.since(self.now());
        Box::pin(async move {
            // The runtime's timer stands still while the machine is suspended. A short
            // sleep needs no alarm, and where there is none, `check` is still right.
            if left < Duration::from_millis(500) || alarm(left).await.is_err() {
                tokio::time::sleep(left).await;
            }
        })
    }
}

#[cfg(target_os = "linux")]
fn boot_time() -> Moment {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let micros = u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0) / 1000;
    Moment::from_micros(micros)
}

#[cfg(not(target_os = "linux"))]
fn boot_time() -> Moment {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let micros = u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0) / 1000;
    Moment::from_micros(micros)
}

/// Returns the steady and the wall clock. Counts on from the last reading of the wall clock if that is younger than a
/// millisecond.
///
/// A thread can lose its processor between two readings. So the steady clock is read once more after the wall clock: what is
/// counted on may then be late, but never ahead, and does not go back with the next reading. A microsecond covers what
/// the clocks round off.
fn count_on(
    last: &'static LocalKey<Cell<(Moment, Timestamp)>>,
    steady: impl Fn() -> Moment,
    wall: impl Fn() -> Timestamp,
) -> (Moment, Timestamp) {
    let now = steady();
    let (read_at, wall_then) = last.get();
    let since = now.since(read_at);
    if since < Duration::from_millis(1) && now >= read_at {
        return (now, wall_then.after(since.saturating_sub(Duration::from_micros(1))));
    }
    let wall_now = wall();
    last.set((steady(), wall_now));
    (now, wall_now)
}

/// Sleeps on a kernel timer that counts the time the machine is suspended.
#[cfg(target_os = "linux")]
async fn alarm(left: Duration) -> std::io::Result<()> {
    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
    };

    let timer = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
    let once = Itimerspec {
        it_interval: Timespec { tv_sec: 0, tv_nsec: 0 },
        it_value: Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        },
    };
    timerfd_settime(&timer, TimerfdTimerFlags::empty(), &once)?;
    #[allow(deprecated, reason = "an OwnedFd keeps the promise that the unsafe successor asks for")]
    let timer = tokio::io::unix::AsyncFd::with_interest(timer, tokio::io::Interest::READABLE)?;
    let _rung = timer.readable().await?;
    Ok(())
}

#[cfg(not(target_os = "linux"))]
async fn alarm(_left: Duration) -> std::io::Result<()> {
    Err(std::io::ErrorKind::Unsupported.into())
}

/// A clock for tests, which stands still until it is advanced.
///
/// ```
/// use std::time::Duration;
/// use leasehold::clock::{Clock, ManualClock};
///
/// let clock = ManualClock::new();
/// let before = clock.now();
/// clock.advance(Duration::from_secs(3600));
/// assert_eq!(clock.now().since(before), Duration::from_secs(3600));
/// ```
#[derive(Clone, Debug)]
pub struct ManualClock(Arc<ManualTime>);

#[derive(Debug)]
struct ManualTime {
    hands: Mutex<Hands>,
    moved: Notify,
}

#[derive(Clone, Copy, Debug)]
struct Hands {
    now: Moment,
    wall: Timestamp,
}

impl ManualClock {
    /// Creates a clock that stands still at one hour after boot, on a day in 2026.
    pub fn new() -> Self {
        let hands =
            Hands { now: Moment::from_micros(3_600_000_000), wall: Timestamp::from_micros(1_790_000_000_000_000) };
        Self(Arc::new(ManualTime { hands: Mutex::new(hands), moved: Notify::new() }))
    }

    /// Advances both clocks and wakes the sleepers whose moment has come.
    pub fn advance(&self, length: Duration) {
        let mut hands = self.0.hands.lock();
        hands.now = hands.now.after(length);
        hands.wall = hands.wall.after(length);
        drop(hands);
        self.0.moved.notify_waiters();
    }

    /// Sets the wall clock alone, forwards or back.
    pub fn set_wall(&self, wall: Timestamp) {
        self.0.hands.lock().wall = wall;
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Moment {
        self.0.hands.lock().now
    }

    fn wall(&self) -> Timestamp {
        self.0.hands.lock().wall
    }

    fn sleep_until(&self, moment: Moment) -> Sleep {
        let time = Arc::clone(&self.0);
        Box::pin(async move {
            loop {
                let moved = time.moved.notified();
                if time.hands.lock().now >= moment {
                    return;
                }
                moved.await;
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_was_stopped_between_two_readings_dates_nothing_ahead() {
        thread_local! {
            static LAST: Cell<(Moment, Timestamp)> = const { Cell::new((Moment::from_micros(0), Timestamp::from_micros(0))) };
            static MICROS: Cell<u64> = const { Cell::new(1_000_000) };
        }
        let after = |micros| {
            MICROS.set(MICROS.get() + micros);
            MICROS.get()
        };
        let mut newest = Timestamp::default();
        for _ in 0..5000 {
            let (_, wall) = count_on(&LAST, || Moment::from_micros(after(1)), || Timestamp::from_micros(after(600)));
            assert!(newest <= wall && wall <= Timestamp::from_micros(MICROS.get()), "{newest:?} {wall:?}");
            newest = wall;
        }
    }
}
