//! A lock that is lost: everything under it is stopped, the code is 121, nothing is released.

use std::{fs, path::Path, process::Stdio};

use crate::sandbox::{AT_ONCE, Ran, Running, Sandbox, is_alive, kill, read_soon, until};

/// Starts a holder that writes the pids of its command and grandchild, and gives them.
fn start_family(sandbox: &Sandbox, args: &[&str]) -> (Running, i32, i32) {
    let pids = sandbox.path("pids");
    let script = format!("sh -c 'exec sleep 999' & echo $$ $! > {}; wait; wait", pids.display());
    let mut command = sandbox.leasehold(&[&["run"], args, &["x", "-c", &script]].concat());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let running = Running::of(command);
    let text = read_soon(&pids);
    fs::remove_file(pids).unwrap();
    let (child, grandchild) = text.split_once(' ').unwrap();
    (running, child.parse().unwrap(), grandchild.parse().unwrap())
}

fn evict(sandbox: &Sandbox) {
    let fence = sandbox.fence("x");
    sandbox.run(&["evict", "x", "--fence", &fence, "--reason", "host gone", "--yes"]).assert_code(0);
}

/// Runs the command and evicts it once `ready` exists.
fn run_evicted(sandbox: &Sandbox, args: &[&str], ready: &Path) -> Ran {
    let mut command = sandbox.leasehold(args);
    command.stderr(Stdio::piped());
    let running = Running::of(command);
    until("it runs", || ready.exists());
    evict(sandbox);
    let ran = running.finish();
    ran.assert_code(121);
    ran
}

#[test]
fn a_holder_that_was_killed_is_in_the_history_though_nobody_looked_at_its_lock() {
    let sandbox = Sandbox::new();
    let running = sandbox.hold("x");
    kill(running.pid());
    until("it and its command are gone", || sandbox.processes().is_empty());
    let history = sandbox.run(&["history", "--failures", "x"]);
    assert!(history.stdout.contains("disconnected"), "{history:?}");
}

#[test]
fn an_evicted_holder_stops_its_command_and_all_below_it() {
    let sandbox = Sandbox::new();
    let report = sandbox.path("report");
    let (running, child, grandchild) = start_family(&sandbox, &["--report", report.to_str().unwrap()]);
    assert!(is_alive(child) && is_alive(grandchild));
    evict(&sandbox);
    let ran = running.finish();
    ran.assert_code(121);
    assert!(!is_alive(child) && !is_alive(grandchild), "no survivor");
    let lines: Vec<&str> = ran.stderr.lines().collect();
    assert_eq!(lines[0], "leasehold: LOST x: evicted by an operator. Stopping /bin/sh (TERM, then KILL in 5s)");
    assert_eq!(lines[1], "leasehold: /bin/sh ended by TERM. The lock was not ours to release.");
    assert!(lines[2].starts_with("leasehold: x was evicted: host gone (by ") && lines.len() == 3, "{lines:?}");
    let report: serde_json::Value = serde_json::from_str(&fs::read_to_string(report).unwrap()).unwrap();
    assert_eq!((&report["outcome"], &report["reason"]), (&"lost".into(), &"evicted".into()));
    assert_eq!((&report["exit_code"], &report["child"]["signal"]), (&121.into(), &"TERM".into()));
    let history = sandbox.run(&["history", "x", "--json"]).stdout;
    assert_eq!(history.lines().count(), 1, "evicted, and not released on top: {history}");
    assert!(history.contains("host gone"));
}

#[test]
fn one_that_does_not_listen_to_term_is_killed_after_the_grace() {
    let sandbox = Sandbox::new();
    let (ready, told) = (sandbox.path("ready"), sandbox.path("told"));
    let script =
        format!("trap 'touch {}' TERM; touch {}; while :; do sleep .05; done", told.display(), ready.display());
    let ran = run_evicted(&sandbox, &["run", "--kill-after", "2", "x", "-c", &script], &ready);
    assert!(told.exists(), "it has its grace");
    assert!(ran.stderr.contains("ended by KILL"), "{ran:?}");
    sandbox.assert_deserted();
}

#[test]
fn on_lost_can_be_chosen() {
    let sandbox = Sandbox::new();
    let said = sandbox.path("said");
    let ready = sandbox.path("ready");
    let script = format!(
        "trap 'echo usr1 > {}; exit 5' USR1; trap 'exit 6' TERM; touch {}; while :; do sleep .02; done",
        said.display(),
        ready.display()
    );
    let mut signalled = sandbox.start(&["run", "--on-lost", "signal:USR1", "x", "-c", &script]);
    until("it runs", || ready.exists());
    evict(&sandbox);
    assert_eq!(signalled.code(), 121);
    assert_eq!(fs::read_to_string(&said).unwrap(), "usr1\n");
    fs::remove_file(&ready).unwrap();

    // After TERM it would have twenty seconds.
    let kill = ["run", "--on-lost", "kill", "--ttl", "2m", "--kill-after", "20s", "x", "-c"];
    let mut killed = sandbox.start(&[&kill[..], &[&format!("trap '' TERM; {script}")]].concat());
    until("it runs", || ready.exists());
    let before = std::time::Instant::now();
    evict(&sandbox);
    assert_eq!(killed.code(), 121);
    assert!(before.elapsed() < AT_ONCE, "KILL at once");
    fs::remove_file(&ready).unwrap();

    let out = sandbox.path("out");
    let script = format!("touch {}; sleep 1; echo done > {}", ready.display(), out.display());
    let ran = run_evicted(&sandbox, &["run", "--on-lost", "continue", "x", "-c", &script], &ready);
    assert!(ran.stderr.contains("warning: --on-lost continue") && ran.stderr.contains("LOST x"), "{ran:?}");
    assert_eq!(fs::read_to_string(out).unwrap(), "done\n", "it went on as wished");
}

#[test]
fn what_left_the_group_is_stopped_too_when_the_lock_is_lost() {
    let sandbox = Sandbox::new();
    let script = "setsid sh -c 'echo $$ > $PID_FILE; exec sleep 999' & wait";
    let (mut running, escaped) = sandbox.start_script(&[], script);
    evict(&sandbox);
    assert_eq!(running.code(), 121);
    assert!(!is_alive(escaped));
}

#[test]
fn a_nested_run_ends_with_the_outer_lock() {
    let sandbox = Sandbox::new();
    let inner = "trap '' TERM; echo $$ > $PID_FILE; while :; do sleep .05; done";
    let exe = env!("CARGO_BIN_EXE_leasehold");
    let mut outer = sandbox.start(&["run", "--kill-after", ".3", "x", "--", exe, "run", "y", "-c", inner]);
    let innermost = sandbox.told_pid();
    evict(&sandbox);
    assert_eq!(outer.code(), 121);
    assert!(!is_alive(innermost));
    until("y is free", || sandbox.holders("y") == 0);
}

#[test]
fn a_lock_that_was_taken_away_before_the_release_gives_121() {
    let sandbox = Sandbox::new();
    let exe = env!("CARGO_BIN_EXE_leasehold");
    // The command itself gives the lease back: when it ends, there is nothing left to release.
    let ran = sandbox.run(&["run", "x", "--", exe, "release"]);
    ran.assert_code(121);
    assert!(ran.stderr.contains("LOST x"), "{ran:?}");
}

#[test]
fn a_command_that_gives_its_own_lease_back_is_told_what_it_did() {
    let sandbox = Sandbox::new();
    let exe = env!("CARGO_BIN_EXE_leasehold");
    let ran = sandbox.run(&["run", "x", "-c", &format!("{exe} release; exec sleep 600")]);
    ran.assert_code(121);
    let told = "leasehold: x was released, with its handle: by the command, which has it (LEASEHOLD_LEASE)?";
    assert_eq!(ran.stderr.lines().last(), Some(told), "{ran:?}");
    // After an eviction the line names who evicted it, and says nothing of a release.
    let (ready, script) = (sandbox.path("ready"), format!("touch {}; exec sleep 600", sandbox.path("ready").display()));
    let evicted = run_evicted(&sandbox, &["run", "x", "-c", &script], &ready);
    assert!(!evicted.stderr.contains("was released"), "{evicted:?}");
}
