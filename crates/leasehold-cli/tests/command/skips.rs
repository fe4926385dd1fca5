//! Skipped and successful runs, remembered for those who look after jobs.

use std::{fs, process::Command};

use crate::sandbox::{Ran, Running, Sandbox, until};

#[test]
fn skips_and_successes_are_counted_and_shown() {
    let sandbox = Sandbox::new();
    let never = sandbox.run(&["check", "job", "--succeeded-within", "26h"]);
    never.assert_code(1);
    assert!(never.stderr.contains("nobody holds job, and the history has nothing of it"), "{never:?}");
    sandbox.run(&["run", "job", "--", "true"]).assert_code(0);
    let fine = sandbox.run(&["check", "job", "--succeeded-within", "26h"]);
    fine.assert_code(0);
    assert_eq!(fine.stderr, "");

    let holder = sandbox.hold("job");
    for args in [&["-n"][..], &["-w", "1"], &["-n", "-E", "0"]] {
        sandbox.run(&[&["run"], args, &["job", "--", "true"]].concat());
    }
    let record = sandbox.inspect("job")["runs"].clone();
    assert_eq!(record["skips"], 3, "{record}");
    assert!(record["held_by"].as_str().unwrap().contains(&format!(":{}:", holder.pid())), "{record}");
    let text = sandbox.run(&["inspect", "job"]).stdout;
    assert!(text.contains("runs      skipped 3 times, last ") && text.contains("; last success "), "{text}");
    let table = sandbox.run(&["history", "--skipped"]).stdout;
    assert!(table.starts_with("NAME  SKIPPED  LAST SKIP") && table.lines().count() == 2, "{table}");
    assert_eq!(sandbox.run(&["history", "--skipped", "--json", "j*"]).json()["skips"], 3);
    assert_eq!(sandbox.run(&["history", "--skipped", "--json", "other"]).stdout, "");

    // Others that only succeeded come behind it, and the limit says that it left them out.
    for name in ["older", "newer"] {
        sandbox.run(&["run", name, "--", "true"]).assert_code(0);
    }
    let table = sandbox.run(&["history", "--skipped"]);
    let columns = |line: &str| line.split_whitespace().take(2).map(str::to_owned).collect::<Vec<_>>();
    let rows: Vec<_> = table.stdout.lines().skip(1).map(columns).collect();
    assert_eq!(rows, [["job", "3"], ["newer", "0"], ["older", "0"]], "{table:?}");
    assert_eq!((table.stdout.matches(" ago").count(), table.stderr.as_str()), (4, ""), "{table:?}");
    let only = sandbox.run(&["history", "--skipped", "--limit", "1"]);
    assert_eq!(only.stdout.lines().count(), 2, "{only:?}");
    assert_eq!(only.stderr, "leasehold: 1 shown; there are more: use a higher --limit\n");
    assert_eq!(sandbox.run(&["history", "--skipped", "--json", "older"]).json()["skips"], 0);
}

#[test]
fn a_success_that_is_too_old_or_never_came_is_told() {
    let sandbox = Sandbox::new();
    sandbox.run(&["run", "job", "-c", "exit 3"]).assert_code(3);
    sandbox.run(&["check", "job", "--succeeded-within", "26h"]).assert_code(1);
    sandbox.run(&["run", "job", "--", "true"]).assert_code(0);
    std::thread::sleep(std::time::Duration::from_millis(20));
    let old = sandbox.run(&["check", "job", "--succeeded-within", "10ms", "--json"]);
    old.assert_code(1);
    assert_eq!(old.json()["succeeded_within"], false);
    sandbox.run(&["check", "job"]).assert_code(64);
    sandbox.run(&["check", "--succeeded-within", "1h"]).assert_code(64);
}

/// A run some of whose system calls are slow.
fn slow_run(sandbox: &Sandbox, name: &str, slow: &[&str]) -> Command {
    let mut run = sandbox.command("strace");
    run.args(["-f", "-qq", "--seccomp-bpf", "-o", "/dev/null", "-e"]).args(slow);
    run.args([env!("CARGO_BIN_EXE_leasehold"), "run", name, "--", "true"]).env("LEASEHOLD_URL", sandbox.url());
    run
}

#[test]
fn no_success_is_lost_while_another_process_folds_the_records() {
    let sandbox = Sandbox::new();
    sandbox.run(&["run", "other", "--", "true"]).assert_code(0);
    let records = sandbox.path("locks/default/logs/runs.ndjson");
    // Few lines, which are soon read.
    let line = fs::read_to_string(&records).unwrap().trim_end().to_owned() + &" ".repeat(100_000) + "\n";
    fs::write(&records, line.repeat((8 << 20) / line.len() + 1)).unwrap();
    let slow = ["trace=rename", "-e", "inject=rename:delay_enter=700ms"];
    let folding = Running::of(slow_run(&sandbox, "folder", &slow));
    let is_folded = |file: fs::DirEntry| {
        file.file_name().to_string_lossy().starts_with(".new-") && file.metadata().is_ok_and(|file| file.len() > 0)
    };
    until("it has read them", || fs::read_dir(sandbox.path("locks/default/logs")).unwrap().flatten().any(is_folded));
    sandbox.run(&["run", "job", "--", "true"]).assert_code(0);
    folding.finish().assert_code(0);
    for job in ["other", "folder", "job"] {
        sandbox.run(&["check", job, "--succeeded-within", "26h"]).assert_code(0);
    }
}

#[test]
fn a_success_is_recorded_on_a_slow_disk_too() {
    let sandbox = Sandbox::new();
    sandbox.run(&["run", "other", "--", "true"]).assert_code(0);
    let records = sandbox.path("locks/default/logs/runs.ndjson");
    let slow = ["trace=write", "-e", "inject=write:delay_enter=500ms", "-P", records.to_str().unwrap()];
    Ran::of(slow_run(&sandbox, "job", &slow)).assert_code(0);
    sandbox.run(&["check", "job", "--succeeded-within", "26h"]).assert_code(0);
}

#[test]
fn a_success_that_cannot_be_recorded_is_told() {
    let sandbox = Sandbox::new();
    sandbox.run(&["init"]).assert_code(0);
    fs::create_dir(sandbox.path("locks/default/logs/runs.ndjson")).unwrap();
    let ran = sandbox.run(&["run", "job", "--", "true"]);
    ran.assert_code(0);
    assert!(ran.stderr.contains("the success of job was not recorded"), "{ran:?}");
}
