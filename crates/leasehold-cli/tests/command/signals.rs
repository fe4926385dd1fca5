//! Signals to us: while waiting we leave the queue, while running they are the child's.

use std::{
    fs,
    time::{Duration, Instant},
};

use rustix::process::Signal;

use crate::sandbox::{AT_ONCE, Running, Sandbox, is_alive, read_soon, until};

const ENDING: [Signal; 4] = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT];

#[test]
fn one_who_waits_leaves_the_queue_at_once() {
    let sandbox = Sandbox::new();
    let _holder = sandbox.hold("x");
    for signal in ENDING {
        let mut waiter = sandbox.start(&["run", "x", "--", "echo", "never"]);
        until("it waits", || sandbox.waiters("x") == 1);
        let sent = Instant::now();
        waiter.signal(signal);
        let code = waiter.code();
        let took = sent.elapsed();
        assert_eq!(code, 128 + signal.as_raw());
        assert!(took < AT_ONCE, "{signal:?} took {took:?}");
        assert_eq!(sandbox.waiters("x"), 0, "no place is left behind");
    }
}

#[test]
fn signals_reach_the_child_which_is_dead_before_the_lock_is_free() {
    let sandbox = Sandbox::new();
    for signal in ENDING {
        // The child takes its time to end: whoever gets the lock before it is dead finds it alive.
        let script = "trap 'sleep .3; exit 9' INT TERM HUP QUIT; echo $$ > $PID_FILE; while :; do sleep .02; done";
        let (mut holder, child) = sandbox.start_script(&[], script);
        let check = format!("kill -0 {child} 2> /dev/null && exit 1; exit 0");
        let mut next = sandbox.start(&["run", "x", "-c", &check]);
        until("the next one waits", || sandbox.waiters("x") == 1);
        holder.signal(signal);
        assert_eq!(holder.code(), 9, "the child's own code, after {signal:?}");
        assert_eq!(next.code(), 0, "the child was dead when the lock passed on, after {signal:?}");
        fs::remove_file(sandbox.path("pid")).unwrap();
    }
    sandbox.assert_deserted();
}

#[test]
fn a_grandchild_gets_the_signal_too() {
    let sandbox = Sandbox::new();
    for signal in ENDING {
        // A script ignores INT and QUIT for what it starts with `&`; TERM for the group comes after its end.
        let (mut holder, grandchild) = sandbox.start_script(&[], "sh -c 'sleep 999' & echo $! > $PID_FILE; wait");
        holder.signal(signal);
        assert_eq!(holder.code(), 128 + signal.as_raw());
        assert!(!is_alive(grandchild), "{signal:?}");
        sandbox.assert_deserted();
        fs::remove_file(sandbox.path("pid")).unwrap();
    }
}

/// Sends a signal twice to a command that ignores it: only the second starts the grace of these options.
fn assert_second_kills(signal: Signal, options: &[&str], longer_than_grace: Duration) {
    let sandbox = Sandbox::new();
    let mut holder = start_stubborn(&sandbox, options);
    holder.signal(signal);
    std::thread::sleep(longer_than_grace);
    assert!(!holder.has_ended(), "the first {signal:?} is the child's own business");
    holder.signal(signal);
    assert_eq!(holder.code(), 137);
    sandbox.assert_deserted();
}

#[test]
fn a_second_interrupt_means_it() {
    assert_second_kills(Signal::INT, &["--kill-after", ".3"], Duration::from_millis(600));
}

/// Starts a command that ignores INT and TERM.
fn start_stubborn(sandbox: &Sandbox, args: &[&str]) -> Running {
    let ready = sandbox.path("ready");
    let script = format!("trap '' INT TERM; touch {}; while :; do sleep .02; done", ready.display());
    let holder = sandbox.start(&[&["run"], args, &["x", "-c", &script]].concat());
    until("it runs", || ready.exists());
    holder
}

#[test]
fn with_kill_after_one_term_is_enough_for_a_command_that_ignores_it() {
    let sandbox = Sandbox::new();
    let mut holder = start_stubborn(&sandbox, &["--kill-after", ".3"]);
    holder.signal(Signal::TERM);
    assert_eq!(holder.code(), 137);
    sandbox.assert_deserted();
}

/// Where `--kill-after` is not given, the grace is a quarter of the ttl.
#[test]
fn a_second_term_starts_the_grace_in_any_case() {
    assert_second_kills(Signal::TERM, &["--ttl", "1s"], Duration::from_millis(700));
}

#[test]
fn other_signals_are_passed_on() {
    let sandbox = Sandbox::new();
    let (ready, heard) = (sandbox.path("ready"), sandbox.path("heard"));
    let script = format!(
        "trap 'echo USR1 >> {0}' USR1; trap 'echo USR2 >> {0}' USR2; trap 'echo WINCH >> {0}' WINCH; trap 'exit 0' TERM; touch {1}; while :; do sleep .02; done",
        heard.display(),
        ready.display()
    );
    let mut holder = sandbox.start(&["run", "x", "-c", &script]);
    until("it runs", || ready.exists());
    for (signal, name) in [(Signal::USR1, "USR1"), (Signal::USR2, "USR2"), (Signal::WINCH, "WINCH")] {
        holder.signal(signal);
        until(name, || fs::read_to_string(&heard).is_ok_and(|text| text.contains(name)));
    }
    holder.signal(Signal::TERM);
    assert_eq!(holder.code(), 0);
}

#[test]
fn with_kill_mode_process_one_process_is_signalled() {
    let sandbox = Sandbox::new();
    let pids = sandbox.path("pids");
    let script = format!("sleep 999 & echo $! > {}; wait", pids.display());
    let mut holder = sandbox.start(&["run", "--kill-mode", "process", "x", "-c", &script]);
    let worker: i32 = read_soon(&pids).parse().unwrap();
    holder.signal(Signal::TERM);
    assert_eq!(holder.code(), 143);
    assert!(is_alive(worker), "the worker is its parent's business");
    assert_eq!(sandbox.holders("x"), 0, "and keeps no lock");
}

#[test]
fn what_we_were_started_to_ignore_stays_ignored_for_us_and_the_child() {
    let sandbox = Sandbox::new();
    let ready = sandbox.path("ready");
    let exe = env!("CARGO_BIN_EXE_leasehold");
    let script =
        format!("trap '' HUP; exec {exe} run x -c 'touch {}; kill -HUP $$; sleep .5; exit 7'", ready.display());
    let mut command = sandbox.command("sh");
    command.args(["-c", &script]).env("LEASEHOLD_URL", sandbox.url());
    let mut holder = Running::of(command);
    until("it runs", || ready.exists());
    holder.signal(Signal::HUP);
    assert_eq!(holder.code(), 7, "nohup holds for both");
}
