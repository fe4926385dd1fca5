//! Deadlines are alarms: the kernel counts them on the clock that runs on while the machine is suspended.
//!
//! No test can suspend the machine. What rings when it wakes up is a timer of `CLOCK_BOOTTIME`, and the kernel names
//! the clock of each timer that a process has.

#![cfg(all(feature = "memory", target_os = "linux"))]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on says so by its panic")]

use std::{fs, ops::RangeInclusive, time::Duration};

use leasehold::{
    Leasehold,
    clock::{Clock, SystemClock},
};
use tokio::time::{sleep, timeout};

/// `CLOCK_BOOTTIME`, as the kernel writes it.
const BOOT_TIME: &str = "clockid: 7";
/// What must come, comes within this, however busy the machine is.
const LIMIT: Duration = Duration::from_secs(30);

/// Whether this process has an alarm that rings in this many seconds.
fn is_alarm_set(seconds: &RangeInclusive<u64>) -> bool {
    let timers =
        fs::read_dir("/proc/self/fdinfo").unwrap().filter_map(|entry| fs::read_to_string(entry.ok()?.path()).ok());
    timers.filter(|timer| timer.lines().any(|line| line == BOOT_TIME)).any(|timer| {
        let left = timer.lines().find_map(|line| line.strip_prefix("it_value: (")?.split(',').next()?.parse().ok());
        left.is_some_and(|left: u64| seconds.contains(&left))
    })
}

async fn is_soon_set(seconds: RangeInclusive<u64>) {
    let set = async {
        while !is_alarm_set(&seconds) {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(LIMIT, set).await.unwrap_or_else(|_| panic!("no alarm rings in {seconds:?} seconds"));
}

#[tokio::test]
async fn the_deadline_of_a_lease_is_an_alarm_also_after_an_earlier_one_has_rung() {
    let locks = Leasehold::connect("memory:alarms").await.unwrap();
    let long = locks.mutex("long").ttl(Duration::from_secs(100_000)).acquire().await.unwrap();
    is_soon_set(97_000..=98_000).await;
    let short = locks.mutex("short").max_hold(Duration::from_secs(1)).acquire().await.unwrap();
    timeout(LIMIT, short.lost()).await.expect("the earlier alarm rings");
    is_soon_set(97_000..=98_000).await;
    drop(long);
}

#[tokio::test]
async fn an_alarm_rings_at_its_moment_and_at_once_when_that_has_passed() {
    let clock = SystemClock;
    for moment in [clock.now().after(Duration::from_secs(1)), clock.now()] {
        timeout(LIMIT, clock.alarm_at(moment)).await.expect("it rings");
        assert!(clock.now() >= moment);
    }
    let mut alarm = clock.alarm_at(clock.now().after(Duration::from_secs(5000)));
    assert!(timeout(Duration::ZERO, &mut alarm).await.is_err());
    assert!(is_alarm_set(&(4900..=5000)));
}
