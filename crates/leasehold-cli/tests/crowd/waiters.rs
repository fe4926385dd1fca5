//! Two hundred who wait: they sleep, and each hand-over wakes the one whose turn it is.

use std::{fs, time::Duration};

use rustix::process::Signal;

use crate::sandbox::{Running, Sandbox, parent_of, read_soon, switches, until};

const WAITERS: usize = 200;
const WATCHED_FOR: Duration = Duration::from_secs(5);

/// Processor time of a process so far, in clock ticks of 10 ms.
fn ticks(pid: i32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat[stat.rfind(')').unwrap() + 2..].split(' ').collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

#[test]
fn those_who_wait_sleep_and_a_hand_over_wakes_two() {
    let _alone = crate::alone();
    let sandbox = Sandbox::new();
    let holder = sandbox.hold("x");
    let turn = sandbox.path("turn");
    let script = format!("echo $$ >> {}; exec sleep 600", turn.display());
    let mut waiters: Vec<Running> = Vec::with_capacity(WAITERS);
    while waiters.len() < WAITERS {
        // A few at a time and quiet: what is measured is the waiting, not the rush, nor lines that explain it.
        waiters.extend((0..10).map(|_| sandbox.start(&["run", "-q", "x", "-c", &script])));
        until("they wait", || sandbox.waiters("x") == waiters.len());
    }
    let cpu = |waiters: &[Running]| -> u64 { waiters.iter().map(|waiter| ticks(waiter.pid())).sum() };
    let woken = |waiters: &[Running]| -> u64 { waiters.iter().map(|waiter| switches(waiter.pid())).sum() };
    // The threads that opened the directory end in the first windows, and each waiter asks once a minute whether word
    // was lost; a poller fills them all.
    let quiet = (0..6).any(|_| {
        let before = (cpu(&waiters), woken(&waiters));
        std::thread::sleep(WATCHED_FOR);
        let used = Duration::from_millis(10 * cpu(&waiters).saturating_sub(before.0));
        let switched = woken(&waiters).saturating_sub(before.1);
        println!("{WAITERS} waiters over {WATCHED_FOR:?}: {used:?} of processor time, {switched} context switches");
        used < WATCHED_FOR / 50 && switched < u64::try_from(WAITERS).unwrap()
    });
    assert!(quiet, "those who wait do not sleep");

    let mut woken_by_each = Vec::new();
    let mut current = holder;
    for served in 1..=10 {
        let before: Vec<u64> = waiters.iter().map(|waiter| switches(waiter.pid())).collect();
        current.signal(Signal::TERM);
        until("the next one runs", || fs::read_to_string(&turn).is_ok_and(|text| text.lines().count() == served));
        current.wait();
        std::thread::sleep(Duration::from_millis(300));
        let after = waiters.iter().zip(&before).filter(|(waiter, before)| switches(waiter.pid()) > **before).count();
        woken_by_each.push(after);
        let lines = read_soon(&turn);
        let child = lines.lines().last().unwrap().to_owned();
        let run = parent_of(parent_of(child.parse().unwrap()));
        let at = waiters.iter().position(|waiter| waiter.pid() == run).unwrap();
        current = waiters.remove(at);
    }
    println!("waiters woken by each hand-over: {woken_by_each:?}");
    // The next one runs, and the one behind it learns when to ask if the next one should not confirm.
    assert!(woken_by_each.iter().filter(|woken| **woken <= 2).count() >= 5, "{woken_by_each:?}");
}
