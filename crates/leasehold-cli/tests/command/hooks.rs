//! Commands that are told how a run ended.

use std::process::Stdio;

use rustix::process::Signal;

use crate::sandbox::{Running, Sandbox, is_alive, read_soon, until};

#[test]
fn two_signals_at_once_end_the_run_and_not_its_hook() {
    let sandbox = Sandbox::new();
    let told = sandbox.path("told");
    let hook = format!("sleep .1; cat > {}", told.display());
    let _holder = sandbox.hold("x");
    let mut waiter = sandbox.start(&["run", "--on-failure", &hook, "x", "--", "true"]);
    until("it waits", || sandbox.waiters("x") == 1);
    for signal in [Signal::STOP, Signal::TERM, Signal::HUP, Signal::CONT] {
        waiter.signal(signal);
    }
    assert!([129, 143].contains(&waiter.code()));
    assert!(told.exists());
}

#[test]
fn what_a_hook_prints_stays_out_of_standard_output() {
    let sandbox = Sandbox::new();
    let ran = sandbox.run(&["run", "--on-failure", "echo told", "x", "-c", "echo mine; exit 1"]);
    ran.assert_code(1);
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("mine\n", "told\n"));
}

#[test]
fn a_signal_that_asks_us_to_end_ends_a_hook_and_what_it_started() {
    let sandbox = Sandbox::new();
    let pids = sandbox.path("pids");
    let hook = format!("sleep 999 & echo $$ $! > {}; wait", pids.display());
    let mut command = sandbox.leasehold(&["run", "--on-failure", &hook, "x", "--", "false"]);
    command.stderr(Stdio::piped());
    let running = Running::of(command);
    let pids = read_soon(&pids);
    running.signal(Signal::TERM);
    let ran = running.finish();
    ran.assert_code(1);
    assert!(ran.stderr.contains("warning: --on-failure: killed on TERM"), "{ran:?}");
    assert!(!pids.split(' ').any(|pid| is_alive(pid.parse().unwrap())), "{pids}");
}
