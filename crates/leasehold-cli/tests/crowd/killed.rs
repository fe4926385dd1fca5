//! A run that is killed: its command is dead before the next one starts, and the next one starts soon.

use std::{
    env, fs,
    path::Path,
    time::{Duration, Instant},
};

use rustix::process::Signal;

use crate::sandbox::{AT_ONCE, Running, Sandbox, is_alive, read_soon, until};

/// How often a run is killed: `LEASEHOLD_KILLS=1000` for as many.
fn times() -> usize {
    env::var("LEASEHOLD_KILLS").map_or(30, |times| times.parse().unwrap())
}

/// A command that tells, when it starts, which of these processes can still run.
///
/// One that exits is listed for a moment after its files are closed, and executes nothing any more: flag 4.
fn witness(sandbox: &Sandbox, pids: &Path, seen: &Path) -> Running {
    let script = format!(
        "for pid in $(cat {}); do \
         if read -r _ _ state _ _ _ _ _ flags _ 2> /dev/null < /proc/$pid/stat && [ $((flags & 4)) = 0 ]; \
         then found=\"$found $pid($state)\"; fi; \
         done; echo \"alive:$found\" > {}",
        pids.display(),
        seen.display()
    );
    sandbox.start(&["run", "x", "-c", &script])
}

fn waiting(sandbox: &Sandbox) -> bool {
    // The queue is in the record; asking the command would take longer than what is measured.
    let record = fs::read_to_string(sandbox.path("locks/default/records/x.json"));
    record.is_ok_and(|record| record.matches("\"claim\"").count() == 2)
}

#[test]
fn the_command_is_dead_before_the_next_one_starts() {
    let _alone = crate::alone();
    let sandbox = Sandbox::new();
    let (pids, seen) = (sandbox.path("pids"), sandbox.path("seen"));
    let times = times();
    let mut passed_on = Vec::with_capacity(times);
    for round in 0..times {
        let holder = sandbox.start(&["run", "x", "-c", &format!("echo $$ > {}; exec sleep 999", pids.display())]);
        let child: i32 = read_soon(&pids).parse().unwrap();
        let mut next = witness(&sandbox, &pids, &seen);
        until("the next one waits", || waiting(&sandbox));
        assert!(is_alive(child));
        let killed = Instant::now();
        holder.signal(Signal::KILL);
        while !fs::read_to_string(&seen).is_ok_and(|text| text.ends_with('\n')) {
            assert!(killed.elapsed() < Duration::from_secs(30), "round {round}: the lock never passed on");
            std::thread::sleep(Duration::from_millis(1));
        }
        passed_on.push(killed.elapsed());
        assert_eq!(read_soon(&seen), "alive:", "round {round}");
        assert_eq!(next.code(), 0);
        drop(holder);
        fs::remove_file(&pids).unwrap();
        fs::remove_file(&seen).unwrap();
    }
    passed_on.sort_unstable();
    let (median, most) = (passed_on[times / 2], passed_on[times - 1]);
    println!("{times} kills: the next command ran after {median:?} (median), {most:?} (most)");
    assert!(median < Duration::from_millis(250) && most < AT_ONCE, "{median:?}, {most:?}");
}

#[test]
fn the_lock_waits_for_what_the_command_has_started() {
    let _alone = crate::alone();
    let sandbox = Sandbox::new();
    let (pids, seen) = (sandbox.path("pids"), sandbox.path("seen"));
    for round in 0..times() {
        let script = format!("sleep 999 & echo $$ $! > {}; wait", pids.display());
        let holder = sandbox.start(&["run", "x", "-c", &script]);
        let family = read_soon(&pids);
        let mut next = witness(&sandbox, &pids, &seen);
        until("the next one waits", || waiting(&sandbox));
        holder.signal(Signal::KILL);
        assert_eq!(read_soon(&seen), "alive:", "round {round}: {family} had to be gone");
        assert_eq!(next.code(), 0);
        drop(holder);
        fs::remove_file(&pids).unwrap();
        fs::remove_file(&seen).unwrap();
    }
}

#[test]
fn without_inheritance_the_lock_passes_on_with_the_run_itself() {
    let _alone = crate::alone();
    let sandbox = Sandbox::new();
    let pids = sandbox.path("pids");
    // Only the command dies with its run; what it started goes on and would keep the lock.
    let script = format!("sleep 999 & echo $! > {}; wait", pids.display());
    let args = ["run", "--no-inherit", "--kill-mode", "process", "x", "-c", &script];
    let holder = sandbox.start(&args);
    let lingering: i32 = read_soon(&pids).parse().unwrap();
    let mut next = sandbox.start(&["run", "x", "--", "true"]);
    until("the next one waits", || waiting(&sandbox));
    holder.signal(Signal::KILL);
    assert_eq!(next.code(), 0);
    assert!(is_alive(lingering), "as was asked for");
}
