//! The child's exit code is ours, exactly; what went wrong before it has its own.

use std::fs;

use crate::sandbox::{Sandbox, until};

#[test]
fn every_exit_code_of_the_child_passes() {
    let sandbox = Sandbox::new();
    for code in 0..=255 {
        sandbox.run(&["run", "x", "--", "sh", "-c", &format!("exit {code}")]).assert_code(code);
    }
}

#[test]
fn a_child_that_died_of_a_signal_gives_128_and_its_number() {
    let sandbox = Sandbox::new();
    for number in [1, 2, 3, 6, 8, 9, 10, 11, 12, 13, 14, 15, 24, 30, 31] {
        let ran = sandbox.run(&["run", "x", "--", "sh", "-c", &format!("kill -{number} $$")]);
        ran.assert_code(128 + number);
    }
}

#[test]
fn a_command_that_is_not_there_gives_127_and_one_that_cannot_run_126() {
    let sandbox = Sandbox::new();
    let missing = sandbox.run(&["run", "x", "--", "no-such-command-here"]);
    missing.assert_code(127);
    assert_eq!(missing.stderr, "leasehold: cannot run no-such-command-here: No such file or directory\n");

    let text = sandbox.path("text");
    fs::write(&text, "not a program\n").unwrap();
    let refused = sandbox.run(&["run", "x", "--", text.to_str().unwrap()]);
    refused.assert_code(126);
    assert!(refused.stderr.contains("Permission denied"), "{refused:?}");

    sandbox.run(&["run", "x", "--", "/"]).assert_code(126);

    let failures = sandbox.history(&["x", "--failures"]);
    assert!(
        failures.len() == 3 && failures.iter().all(|ended| ended["problem"]["kind"] == "exec_failed"),
        "{failures:?}"
    );
}

#[test]
fn the_childs_own_127_is_told_apart_by_the_report() {
    let sandbox = Sandbox::new();
    let report = sandbox.path("report.json");
    let outcome = |command: &[&str]| {
        let args = [&["run", "--report", report.to_str().unwrap(), "x", "--"], command].concat();
        sandbox.run(&args).assert_code(127);
        serde_json::from_str::<serde_json::Value>(&fs::read_to_string(&report).unwrap()).unwrap()["outcome"].to_string()
    };
    assert_eq!(outcome(&["sh", "-c", "exit 127"]), "\"failed\"");
    assert_eq!(outcome(&["no-such-command-here"]), "\"exec_failed\"");
}

#[test]
fn a_command_held_too_long_is_stopped_with_124() {
    let sandbox = Sandbox::new();
    let ran = sandbox.run(&["run", "--max-hold", ".3", "x", "--", "sleep", "600"]);
    ran.assert_code(124);
    assert!(ran.took.as_millis() >= 300, "{ran:?}");
    assert!(ran.stderr.contains("as long as --max-hold allows"), "{ran:?}");

    let stubborn = sandbox.run(&[
        "run",
        "--max-hold",
        ".2",
        "--kill-after",
        ".2",
        "x",
        "-c",
        "trap '' TERM; sleep 600 & wait; wait",
    ]);
    stubborn.assert_code(124);
    sandbox.assert_deserted();
    let history = sandbox.run(&["history", "x", "--json"]);
    assert!(history.stdout.lines().all(|line| line.contains("\"event\":\"max_hold\"")), "{history:?}");
}

#[test]
fn how_the_work_ended_is_in_the_history() {
    let sandbox = Sandbox::new();
    sandbox.run(&["run", "x", "--", "true"]).assert_code(0);
    sandbox.run(&["run", "x", "--", "sh", "-c", "exit 3"]).assert_code(3);
    sandbox.run(&["run", "x", "--", "sh", "-c", "kill -9 $$"]).assert_code(137);
    let history = sandbox.history(&["x"]);
    let endings: Vec<(&str, Option<&str>)> =
        history.iter().map(|ended| (ended["event"].as_str().unwrap(), ended["problem"]["details"].as_str())).collect();
    assert_eq!(endings, [("failed", Some("signal KILL")), ("failed", Some("exit code 3")), ("released", None)]);
}

/// Nobody can suspend the machine for a test: that the alarm is set on the clock that runs meanwhile is all there is.
#[test]
fn a_suspended_machine_does_not_prolong_max_hold() {
    let sandbox = Sandbox::new();
    let running = sandbox.start(&["run", "--max-hold", "1h", "x", "--", "sleep", "600"]);
    let is_alarm = |info: &str| {
        let after = |key: &str| info.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default();
        let left = after("it_value: (").split(',').next().and_then(|seconds| seconds.parse::<u64>().ok());
        after("clockid: ") == "7" && left.is_some_and(|left| (1800..3600).contains(&left))
    };
    until("an alarm on CLOCK_BOOTTIME is set", || {
        let infos = fs::read_dir(format!("/proc/{}/fdinfo", running.pid())).unwrap().flatten();
        infos.filter_map(|entry| fs::read_to_string(entry.path()).ok()).any(|info| is_alarm(&info))
    });
}
