//! Stopped and let go on: child and we stop together, and the lease is looked at before the child runs again.

use std::{fs, thread, time::Duration};

use rustix::process::Signal;

use crate::sandbox::{Sandbox, read_soon, state_of, until};

fn count(path: &std::path::Path) -> usize {
    fs::read_to_string(path).map_or(0, |text| text.len())
}

/// Stopped, or waiting in the kernel for a child of its own that was stopped on its way to exec.
fn is_stopped(pid: i32) -> bool {
    matches!(state_of(pid), Some('T' | 'D'))
}

#[test]
fn stopped_together_and_going_on_together() {
    let sandbox = Sandbox::new();
    let (pid, ticks) = (sandbox.path("pid"), sandbox.path("ticks"));
    let script = format!("echo $$ > {}; while :; do printf . >> {}; sleep .01; done", pid.display(), ticks.display());
    let mut holder = sandbox.start(&["run", "x", "-c", &script]);
    let child: i32 = read_soon(&pid).parse().unwrap();
    until("it ticks", || count(&ticks) > 3);
    holder.signal(Signal::TSTP);
    until("both stop", || state_of(holder.pid()) == Some('T') && is_stopped(child));
    // A write that was under way when the signal came is done by then.
    thread::sleep(Duration::from_millis(100));
    let before = count(&ticks);
    thread::sleep(Duration::from_millis(200));
    assert_eq!(count(&ticks), before, "nothing runs while stopped");
    sandbox.run(&["run", "-n", "x", "--", "true"]).assert_code(75);
    holder.signal(Signal::CONT);
    until("it ticks again", || count(&ticks) > before);
    holder.signal(Signal::TERM);
    assert_eq!(holder.code(), 143);
    assert_eq!(sandbox.holders("x"), 0);
}

#[test]
fn a_child_that_ignores_the_request_is_stopped_all_the_same() {
    let sandbox = Sandbox::new();
    let pid = sandbox.path("pid");
    let script = format!("trap '' TSTP; echo $$ > {}; while :; do sleep .01; done", pid.display());
    let holder = sandbox.start(&["run", "x", "-c", &script]);
    let child: i32 = read_soon(&pid).parse().unwrap();
    holder.signal(Signal::TSTP);
    until("both stop", || state_of(holder.pid()) == Some('T') && is_stopped(child));
    holder.signal(Signal::CONT);
    until("both go on", || state_of(holder.pid()) != Some('T') && !is_stopped(child));
}

#[test]
fn a_child_whose_lease_is_gone_never_runs_another_instruction() {
    let sandbox = Sandbox::new();
    let (pid, ticks) = (sandbox.path("pid"), sandbox.path("ticks"));
    let script = format!("echo $$ > {}; while :; do printf . >> {}; sleep .005; done", pid.display(), ticks.display());
    let mut holder = sandbox.start(&["run", "x", "-c", &script]);
    let child: i32 = read_soon(&pid).parse().unwrap();
    let fence = sandbox.fence("x");
    holder.signal(Signal::TSTP);
    until("both stop", || state_of(holder.pid()) == Some('T') && is_stopped(child));
    // A write that was under way when the signal came is done by then.
    thread::sleep(Duration::from_millis(100));
    let before = count(&ticks);
    sandbox.run(&["evict", "x", "--fence", &fence, "--reason", "stopped for too long", "--yes"]).assert_code(0);
    holder.signal(Signal::CONT);
    assert_eq!(holder.code(), 121);
    assert_eq!(count(&ticks), before);
    sandbox.assert_deserted();
}
