//! Commands that are told how a run ended.

use std::{fs, process::Stdio};

use rustix::process::Signal;
use serde_json::Value;

use crate::place::{Place, Running, is_alive, read_soon};

#[test]
fn a_failure_and_a_skip_run_their_hooks_and_nothing_else_does() {
    let place = Place::new();
    let (failed, skipped) = (place.path("failed"), place.path("skipped"));
    let (on_failure, on_skip) = (format!("cat > {}", failed.display()), format!("cat > {}; exit 9", skipped.display()));
    let run = |args: &[&str]| {
        let hooks = ["run", "--on-failure", &on_failure, "--on-skip", &on_skip];
        place.run(&[&hooks, args].concat())
    };
    let report = |path: &std::path::Path| -> Value {
        let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        fs::remove_file(path).unwrap();
        serde_json::from_str(&text).unwrap()
    };
    run(&["x", "--", "true"]).assert_code(0);
    assert!(!failed.exists() && !skipped.exists());

    run(&["x", "-c", "exit 3"]).assert_code(3);
    let told = report(&failed);
    assert_eq!((&told["lock"], &told["exit_code"], &told["outcome"]), (&"x".into(), &3.into(), &"completed".into()));
    run(&["--max-hold", ".1", "x", "--", "sleep", "600"]).assert_code(124);
    assert_eq!(report(&failed)["outcome"], "max_hold");

    let _holder = place.hold("x");
    let busy = run(&["-n", "x", "--", "true"]);
    busy.assert_code(75);
    assert!(busy.stderr.contains("warning: --on-skip: ended with exit status: 9"), "{busy:?}");
    assert_eq!(report(&skipped)["outcome"], "not_acquired");
    assert!(!failed.exists());
}

#[test]
fn what_a_hook_prints_stays_out_of_standard_output() {
    let place = Place::new();
    let ran = place.run(&["run", "--on-failure", "echo told", "x", "-c", "echo mine; exit 1"]);
    ran.assert_code(1);
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("mine\n", "told\n"));
}

#[test]
fn a_signal_that_asks_us_to_end_ends_a_hook_and_what_it_started() {
    let place = Place::new();
    let pids = place.path("pids");
    let hook = format!("sleep 999 & echo $$ $! > {}; wait", pids.display());
    let mut command = place.leasehold(&["run", "--on-failure", &hook, "x", "--", "false"]);
    command.stderr(Stdio::piped());
    let running = Running::of(command);
    let pids = read_soon(&pids);
    running.signal(Signal::TERM);
    let ran = running.finish();
    ran.assert_code(1);
    assert!(ran.stderr.contains("warning: --on-failure: killed on TERM"), "{ran:?}");
    assert!(!pids.split(' ').any(|pid| is_alive(pid.parse().unwrap())), "{pids}");
}
