//! What the command does alike on every backend, tried on a directory and on servers.

use std::fs;

use rustix::process::Signal;
use serde_json::Value;

use super::{Place, state_of, until};

/// All of it.
pub(crate) fn everything(place: &Place) {
    a_stopped_waiter_leaves_the_queue(place);
    a_failure_and_a_skip_run_their_hooks(place);
    runs_are_counted_and_recorded(place);
}

/// One who waits leaves the queue while it is stopped, so that nobody waits behind it.
pub(crate) fn a_stopped_waiter_leaves_the_queue(place: &Place) {
    let mut holder = place.hold("x");
    let mut waiter = place.start(&["run", "x", "--", "true"]);
    until("it waits", || place.waiters("x") == 1);
    waiter.signal(Signal::TSTP);
    until("it stops", || state_of(waiter.pid()) == Some('T'));
    assert_eq!(place.waiters("x"), 0, "nobody waits behind one that is stopped");
    waiter.signal(Signal::CONT);
    until("it waits again", || place.waiters("x") == 1);
    holder.signal(Signal::TERM);
    assert_eq!((holder.code(), waiter.code()), (143, 0));
}

/// A failure and a skip run their hooks, and nothing else does.
pub(crate) fn a_failure_and_a_skip_run_their_hooks(place: &Place) {
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

/// Metrics count runs, and the records say which succeeded and how many were skipped.
pub(crate) fn runs_are_counted_and_recorded(place: &Place) {
    let folder = place.path("counted");
    fs::create_dir(&folder).unwrap();
    let run = |args: &[&str]| place.run(&[&["run", "--metrics-textfile", folder.to_str().unwrap()], args].concat());
    run(&["job", "--", "true"]).assert_code(0);
    let holder = place.hold("job");
    run(&["-n", "job", "--", "true"]).assert_code(75);
    drop(holder);
    let metrics = fs::read_to_string(folder.join("leasehold.prom")).unwrap();
    for outcome in ["acquired", "busy"] {
        let series = metrics.lines().find(|line| {
            line.starts_with("leasehold_acquire_total{") && line.contains(&format!("outcome=\"{outcome}\""))
        });
        assert!(series.is_some_and(|line| line.ends_with(" 1")), "{outcome}: {metrics}");
    }
    place.run(&["check", "job", "--succeeded-within", "1h"]).assert_code(0);
    let skipped = place.run(&["history", "--skipped"]);
    let of_job = |line: &str| line.split_whitespace().take(2).eq(["job", "1"]);
    assert!(skipped.stdout.lines().any(of_job), "{skipped:?}");
}
