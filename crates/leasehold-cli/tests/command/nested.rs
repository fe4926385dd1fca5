//! Locks inside locks: the same one is refused at once, another is fine.

use crate::sandbox::{AT_ONCE, Sandbox, until};

const EXE: &str = env!("CARGO_BIN_EXE_leasehold");

#[test]
fn the_same_lock_again_is_refused_instead_of_waiting_for_ever() {
    let sandbox = Sandbox::new();
    let ran = sandbox.run(&["run", "x", "--", EXE, "run", "x", "--", "echo", "never"]);
    ran.assert_code(64);
    assert!(ran.took < AT_ONCE, "{ran:?}");
    assert_eq!(ran.stdout, "");
    assert!(ran.stderr.contains("x is held by the run that started this one"), "{ran:?}");
    assert!(ran.stderr.contains("--reentrant"), "{ran:?}");
    // Two levels down, and as one of several.
    sandbox.run(&["run", "x", "--", EXE, "run", "y", "--", EXE, "run", "x", "--", "true"]).assert_code(64);
    sandbox.run(&["run", "x", "--", EXE, "run", "a", "--also", "x", "--", "true"]).assert_code(64);
    sandbox.run(&["run", "-s", "x", "--", EXE, "run", "x", "--", "true"]).assert_code(64);
    sandbox.run(&["run", "x", "--", EXE, "run", "-s", "x", "--", "true"]).assert_code(64);
    sandbox.run(&["run", "-j", "2", "s", "--", EXE, "run", "-j", "2", "s", "--", "true"]).assert_code(64);
}

#[test]
fn readers_share_with_the_run_that_started_them_unless_a_writer_waits() {
    let sandbox = Sandbox::new();
    sandbox.run(&["run", "-s", "x", "--", EXE, "run", "-s", "x", "--", "true"]).assert_code(0);
    sandbox.run(&["run", "-s", "x", "--", EXE, "acquire", "-s", "-w", "5", "x", "--ttl", "1m"]).assert_code(0);

    let (go, reading) = (sandbox.path("go"), sandbox.path("reading"));
    let inner = format!(
        "touch {}; until [ -e {} ]; do sleep .01; done; exec {EXE} run -s y -- true",
        reading.display(),
        go.display()
    );
    let mut reader = sandbox.start(&["run", "-s", "y", "-c", &inner]);
    until("the first reads", || reading.exists());
    let _writer = sandbox.start(&["run", "y", "--", "true"]);
    until("a writer waits", || sandbox.waiters("y") == 1);
    std::fs::write(go, "").unwrap();
    assert_eq!(reader.code(), 64, "waiting behind the writer would never end");
    let runs = sandbox.run(&["history", "--skipped", "--json", "y*"]).stdout;
    assert!(runs.lines().all(|line| line.contains("\"skips\":0")), "what is refused is not skipped: {runs}");
}

#[test]
fn another_lock_is_fine_and_so_is_the_same_name_elsewhere() {
    let sandbox = Sandbox::new();
    let ran = sandbox.run(&["run", "x", "--", EXE, "run", "y", "-c", "echo $LEASEHOLD_LOCK_STACK"]);
    ran.assert_code(0);
    let names: Vec<String> =
        ran.json().as_array().unwrap().iter().map(|entry| entry["lock"].as_str().unwrap().to_owned()).collect();
    assert_eq!(names, ["x", "y"]);
    sandbox.run(&["run", "x", "--", EXE, "--namespace", "other", "run", "-n", "x", "--", "true"]).assert_code(0);
    let odd = "[\"x\"], {'y'} ü";
    sandbox.run(&["run", odd, "--", EXE, "run", "-n", "x", "--", "true"]).assert_code(0);
    sandbox.run(&["run", odd, "--", EXE, "run", "-n", odd, "--", "true"]).assert_code(64);
}

#[test]
fn reentrant_runs_under_the_lock_that_is_held() {
    let sandbox = Sandbox::new();
    let fence = "echo $LEASEHOLD_LOCK $LEASEHOLD_FENCE";
    let script =
        format!("{fence}; {EXE} run --reentrant x -c '{fence}; exit 5'; code=$?; {EXE} check || exit 1; exit $code");
    let ran = sandbox.run(&["run", "x", "-c", &script]);
    ran.assert_code(5);
    let lines: Vec<&str> = ran.stdout.lines().collect();
    assert_eq!(lines.len(), 2);
    assert_eq!(lines[0], lines[1], "the same lease");
    // Outside of any it is a plain run.
    sandbox.run(&["run", "--reentrant", "x", "--", "true"]).assert_code(0);
    // One of two is held already; the other is taken.
    let ran =
        sandbox.run(&["run", "x", "--", EXE, "run", "--reentrant", "x", "--also", "y", "-c", "echo $LEASEHOLD_LOCK"]);
    assert_eq!(ran.stdout, "y\n");
}

#[test]
fn a_reentrant_run_whose_lease_has_ended_reports_a_loss() {
    let sandbox = Sandbox::new();
    let old = sandbox.run(&["acquire", "x", "--ttl", "1m"]).stdout.trim().to_owned();
    sandbox.run(&["release", "--lease", &old]).assert_code(0);
    let metrics = sandbox.path("metrics");
    std::fs::create_dir(&metrics).unwrap();
    let inner = format!(
        "export LEASEHOLD_LEASE={old}; exec {EXE} run --reentrant --report - --metrics-textfile {} x -- echo never",
        metrics.display()
    );
    let ran = sandbox.run(&["run", "x", "-c", &inner]);
    ran.assert_code(121);
    assert!(ran.stderr.contains("x is no longer held by the run that started this one"), "{ran:?}");
    let report = ran.json();
    assert_eq!((&report["outcome"], &report["reason"]), (&"lost".into(), &"gone".into()), "{report}");
    let metrics = std::fs::read_to_string(metrics.join("leasehold.prom")).unwrap();
    assert!(metrics.contains("leasehold_lost_total{") && !metrics.contains("outcome=\"error\""), "{metrics}");

    let ran = sandbox.run(&["run", "x", "--", EXE, "run", "--report", "-", "x", "--", "echo", "never"]);
    ran.assert_code(64);
    let report = ran.json();
    assert_eq!((&report["outcome"], &report["reason"]), (&"backend_error".into(), &"usage".into()), "{report}");
}

#[test]
fn acquire_under_the_same_lock_is_refused_too() {
    let sandbox = Sandbox::new();
    sandbox.run(&["run", "x", "--", EXE, "acquire", "x", "--ttl", "1m"]).assert_code(64);
    sandbox.run(&["run", "x", "--", EXE, "acquire", "x", "-n", "--ttl", "1m"]).assert_code(75);
    sandbox.run(&["elect", "--once", "x", "--", EXE, "elect", "x", "--", "true"]).assert_code(64);
}
