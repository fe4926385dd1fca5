//! Stopped and let go on: child and we stop together, and the lease is looked at before the child runs again.

use std::{fs, path::PathBuf, thread, time::Duration};

use rustix::process::Signal;

use crate::sandbox::{Running, Sandbox, state_of, until};

/// Stops a run, and waits until its child is stopped, too.
fn stop(holder: &Running, child: i32) {
    holder.signal(Signal::TSTP);
    until("both stop", || state_of(holder.pid()) == Some('T') && is_stopped(child));
}

/// Stopped, or waiting in the kernel for a child of its own that was stopped on its way to exec.
fn is_stopped(pid: i32) -> bool {
    matches!(state_of(pid), Some('T' | 'D'))
}

/// A run whose child ticks as long as it is not stopped.
struct Clockwork {
    holder: Running,
    child: i32,
    ticks: PathBuf,
}

impl Clockwork {
    fn start(sandbox: &Sandbox) -> Self {
        let ticks = sandbox.path("ticks");
        let script = format!("echo $$ > $PID_FILE; while :; do printf . >> {}; sleep .005; done", ticks.display());
        let (holder, child) = sandbox.start_script(&[], &script);
        Self { holder, child, ticks }
    }

    fn count(&self) -> usize {
        fs::read_to_string(&self.ticks).map_or(0, |text| text.len())
    }

    /// Stops it, and returns how often it has ticked.
    fn stop(&self) -> usize {
        stop(&self.holder, self.child);
        // A write that was under way when the signal came is done by then.
        thread::sleep(Duration::from_millis(100));
        self.count()
    }
}

#[test]
fn stopped_together_and_going_on_together() {
    let sandbox = Sandbox::new();
    let mut clockwork = Clockwork::start(&sandbox);
    until("it ticks", || clockwork.count() > 3);
    let before = clockwork.stop();
    thread::sleep(Duration::from_millis(200));
    assert_eq!(clockwork.count(), before, "nothing runs while stopped");
    sandbox.run(&["run", "-n", "x", "--", "true"]).assert_code(75);
    clockwork.holder.signal(Signal::CONT);
    until("it ticks again", || clockwork.count() > before);
    clockwork.holder.signal(Signal::TERM);
    assert_eq!(clockwork.holder.code(), 143);
    assert_eq!(sandbox.holders("x"), 0);
}

#[test]
fn a_child_that_ignores_the_request_is_stopped_all_the_same() {
    let sandbox = Sandbox::new();
    let script = "trap '' TSTP; echo $$ > $PID_FILE; while :; do sleep .01; done";
    let (holder, child) = sandbox.start_script(&[], script);
    stop(&holder, child);
    holder.signal(Signal::CONT);
    until("both go on", || state_of(holder.pid()) != Some('T') && !is_stopped(child));
}

#[test]
fn a_child_whose_lease_is_gone_never_runs_another_instruction() {
    let sandbox = Sandbox::new();
    let mut clockwork = Clockwork::start(&sandbox);
    let fence = sandbox.fence("x");
    let before = clockwork.stop();
    sandbox.run(&["evict", "x", "--fence", &fence, "--reason", "stopped for too long", "--yes"]).assert_code(0);
    clockwork.holder.signal(Signal::CONT);
    assert_eq!(clockwork.holder.code(), 121);
    assert_eq!(clockwork.count(), before);
    sandbox.assert_deserted();
}
