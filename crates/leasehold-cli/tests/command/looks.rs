//! Looking around: list, inspect, history, watch, evict, doctor.

use std::{fs, process::Stdio};

use rustix::process::Signal;

use crate::sandbox::{Ran, Running, Sandbox, json_lines, lock_and_event, until};

#[test]
fn a_list_shows_who_holds_and_who_waits() {
    let sandbox = Sandbox::new();
    let empty = sandbox.run(&["list"]);
    assert_eq!(empty.stdout, "0 locks, 0 waiting · file · namespace default\n");
    let _report = sandbox.hold("nightly-report");
    let _waiter = sandbox.start(&["run", "nightly-report", "--", "true"]);
    let _permit =
        sandbox.start(&["run", "-j", "4", "--permits", "2", "--holder", "job-17", "gpu", "--", "sleep", "600"]);
    let _reader = sandbox.start(&["run", "-s", "--holder", "web-1", "catalog", "--", "sleep", "600"]);
    until("the first reads", || sandbox.holders("catalog") == 1);
    let _reader = sandbox.start(&["run", "-s", "--holder", "web-2", "catalog", "--", "sleep", "600"]);
    until("all are there", || {
        sandbox.waiters("nightly-report") == 1 && sandbox.holders("gpu") == 1 && sandbox.holders("catalog") == 2
    });
    let lease = sandbox.run(&["acquire", "deploy", "--ttl", "10m", "--holder", "ci-7"]);
    lease.assert_code(0);

    let list = sandbox.run(&["ls"]);
    let lines: Vec<Vec<&str>> = list
        .stdout
        .lines()
        .map(|line| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect())
        .collect();
    assert_eq!(lines[0], ["NAME", "MODE", "HOLDER", "HELD", "EXPIRES", "WAITING", "FENCE", "NOTE"]);
    assert_eq!(lines[4][7], "/bin/sh", "{list:?}");
    assert_eq!(lines[1][..3], ["catalog", "shared ×2", "web-1, web-2"], "{list:?}");
    assert_eq!((lines[1][4], lines[1][5]), ("with process", "0"));
    assert_eq!(lines[2][..3], ["deploy", "exclusive", "ci-7"]);
    assert!(lines[2][4].starts_with("in 9m5"), "{list:?}");
    assert_eq!(lines[3][..3], ["gpu", "permit 2/4", "job-17"]);
    assert_eq!((lines[4][0], lines[4][5]), ("nightly-report", "1"));
    assert_eq!(lines[5], ["4 locks, 1 waiting · file · namespace default"]);

    let names = |args: &[&str]| -> Vec<String> {
        let list = sandbox.run(&[&["list", "--json"], args].concat()).json();
        list["locks"].as_array().unwrap().iter().map(|lock| lock["name"].as_str().unwrap().to_owned()).collect()
    };
    for prefix in ["n", "n*", "nightly-report*"] {
        assert_eq!(names(&[prefix]), ["nightly-report"]);
    }
    assert_eq!(names(&["--waiting"]), ["nightly-report"]);
    assert_eq!(names(&["--holder", "web-*"]), ["catalog"]);
    assert_eq!(names(&["--mode", "permit"]), ["gpu"]);
    assert_eq!(names(&["--older-than", "1h"]), [""; 0]);
    assert_eq!(names(&["--held", "--limit", "2"]), ["catalog", "deploy"]);
    assert_eq!(names(&["--sort", "waiters"])[0], "nightly-report");
    assert_eq!(names(&["--sort", "expiry"])[0], "deploy");
    assert_eq!(names(&["--sort", "age"])[0], "nightly-report");
    assert_eq!(sandbox.run(&["list", "--no-headers", "gpu"]).stdout.lines().count(), 1);
}

#[test]
fn a_prefix_that_no_name_has_is_told() {
    let sandbox = Sandbox::new();
    let _holder = sandbox.hold("deploy:prod");
    let told = sandbox.run(&["list", "dpeloy"]);
    told.assert_code(0);
    let words = format!(
        "leasehold: nobody holds or waits for a lock whose name begins with dpeloy\n\
         leasehold:   a similar name: {}\n",
        sandbox.to_paste("list deploy:prod")
    );
    assert_eq!(told.stderr, words);
    assert!(sandbox.run(&["list", "qqqq*"]).stderr.ends_with("begins with qqqq\n"));
    for args in [&["list", "deploy:*"][..], &["list", "--waiting", "deploy"], &["list", "--no-headers", "q"]] {
        assert_eq!(sandbox.run(args).stderr, "", "{args:?}");
    }
    assert_eq!(sandbox.run(&["list", "--json", "q"]).stderr, "");
}

#[test]
fn a_live_list_follows_what_happens() {
    let sandbox = Sandbox::new();
    let out = sandbox.path("out");
    let mut command = sandbox.leasehold(&["list", "-w"]);
    command.stdout(fs::File::create(&out).unwrap());
    let _live = Running::of(command);
    let shows = |text: &str| fs::read_to_string(&out).unwrap().contains(text);
    until("it begins", || shows("0 locks"));
    let _holder = sandbox.hold("x");
    until("it shows the lock", || shows("1 lock, 0 waiting"));
}

#[test]
fn inspect_tells_all_about_one_lock() {
    let sandbox = Sandbox::new();
    let unknown = sandbox.run(&["inspect", "x"]);
    unknown.assert_code(1);
    assert!(unknown.stderr.starts_with("leasehold: nobody holds x"), "{unknown:?}");
    sandbox.run(&["run", "x", "-c", "exit 1"]).assert_code(1);
    let free = sandbox.run(&["inspect", "x"]);
    free.assert_code(0);
    assert!(free.stdout.starts_with("x   –   FREE\n") && free.stdout.contains("1 acquired"), "{free:?}");
    assert!(free.stdout.contains("1 failed") && free.stdout.contains("--failures"), "{free:?}");

    let holder = sandbox.hold("x");
    let _waiter = sandbox.start(&["run", "--note", "it is \"me\"", "x", "--", "true"]);
    until("it waits", || sandbox.waiters("x") == 1);
    let held = sandbox.run(&["inspect", "x"]).stdout;
    let fence = sandbox.fence("x");
    for words in [
        "x   exclusive   HELD\n",
        &format!(":{}  \"/bin/sh\"\n", holder.pid()),
        "ends with process",
        &format!("fence     {fence}\n"),
        "waiting   1. ",
        "last 24h  2 acquired",
        &format!("  next      {}\n", sandbox.to_paste("history --failures x")),
        &format!("            {}\n", sandbox.to_paste(&format!("evict --fence {fence} --reason \"…\" x"))),
    ] {
        assert!(held.contains(words), "{words}: {held}");
    }
}

#[test]
fn history_can_be_asked_for_what_matters() {
    let sandbox = Sandbox::new();
    for script in ["exit 0", "exit 1", "exit 0"] {
        sandbox.run(&["run", "a", "-c", script]);
    }
    sandbox.run(&["run", "ab", "-c", "exit 2"]);
    let _holder = sandbox.hold("a");
    sandbox.run(&["run", "-w", "1", "a", "--", "true"]).assert_code(75);
    let events = |args: &[&str]| -> Vec<String> { sandbox.history(args).iter().map(lock_and_event).collect() };
    assert_eq!(events(&["a"]), ["a gave_up", "a released", "a failed", "a released"]);
    assert_eq!(events(&["--failures"]), ["a gave_up", "ab failed", "a failed"]);
    assert_eq!(events(&["a*", "--event", "failed"]), ["ab failed", "a failed"]);
    assert_eq!(events(&["--event", "gave_up,failed", "--limit", "2"]), ["a gave_up", "ab failed"]);
    assert_eq!(events(&["--limit", "1"]), ["a gave_up"]);
    assert_eq!(events(&["--since", "1h"]).len(), 5);
    assert_eq!(events(&["--until", "1h"]).len(), 0);
    assert_eq!(events(&["--since", "2026-01-01", "--until", "2099-01-01T00:00:00Z"]).len(), 5);
    let text = sandbox.run(&["history", "a", "--failures"]).stdout;
    assert!(text.starts_with("ENDED ") && text.contains("exit code 1  \"/bin/sh\""), "{text}");
}

#[test]
fn one_who_waits_for_a_lock_that_min_hold_keeps_is_told() {
    let sandbox = Sandbox::new();
    let _kept = sandbox.start(&["run", "--min-hold", "600s", "x", "-c", "exit 3"]);
    until("its command has ended", || !sandbox.inspect("x")["holders"][0]["command_ended"].is_null());
    let waited = sandbox.run(&["run", "-w", "2.5", "x", "--", "true"]);
    waited.assert_code(75);
    assert!(waited.stderr.contains(" (ended, kept for "), "{waited:?}");
}

#[test]
fn a_place_in_the_queue_that_was_lost_is_no_failure() {
    let sandbox = Sandbox::new();
    let _holder = sandbox.hold("x");
    let waiter = sandbox.start(&["run", "--holder", "w", "x", "--", "true"]);
    until("it waits", || sandbox.waiters("x") == 1);
    waiter.signal(Signal::KILL);
    drop(waiter);
    until("history tells", || sandbox.run(&["history", "x"]).stdout.contains("disconnected"));
    let failures = sandbox.run(&["history", "--failures", "x"]);
    assert!(!failures.stdout.contains("disconnected"), "{failures:?}");
}

#[test]
fn watch_tells_what_happens_as_it_happens() {
    let sandbox = Sandbox::new();
    let (all, some) = (sandbox.path("all"), sandbox.path("some"));
    let watch = |args: &[&str], out: &std::path::Path| {
        let mut command = sandbox.leasehold(&[&["watch"], args].concat());
        let log = fs::File::create(out.with_extension("err")).unwrap();
        command.arg("-v").stdout(fs::File::create(out).unwrap()).stderr(log);
        let running = Running::of(command);
        until("it watches", || fs::read_to_string(out.with_extension("err")).unwrap().contains("watching"));
        running
    };
    let _all = watch(&["--json"], &all);
    let _some = watch(&["x*", "--event", "released"], &some);
    sandbox.run(&["run", "x", "--", "true"]).assert_code(0);
    sandbox.run(&["run", "y", "--", "true"]).assert_code(0);
    until("all are told", || fs::read_to_string(&all).unwrap().lines().count() == 4);
    let events: Vec<String> = json_lines(&fs::read_to_string(&all).unwrap()).iter().map(lock_and_event).collect();
    assert_eq!(events, ["x acquired", "x released", "y acquired", "y released"]);
    let some = fs::read_to_string(some).unwrap();
    assert!(some.lines().count() == 1 && some.contains("released") && some.contains("  x  exclusive  "), "{some}");
}

#[test]
fn evict_takes_away_what_was_looked_at_and_nothing_else() {
    let sandbox = Sandbox::new();
    let mut holder = sandbox.hold("x");
    let fence = sandbox.fence("x");
    let wrong = sandbox.run(&["evict", "x", "--fence", "4182", "--reason", "host gone", "--yes"]);
    wrong.assert_code(1);
    assert!(wrong.stderr.contains("nothing was changed") && wrong.stderr.contains(&fence), "{wrong:?}");
    let look = sandbox.to_paste("inspect x");
    assert!(wrong.stderr.ends_with(&format!("leasehold:   see who holds it: {look}\n")), "{wrong:?}");
    sandbox.run(&["evict", "y", "--fence", &fence, "--reason", "host gone", "--yes"]).assert_code(1);
    let unconfirmed = sandbox.run(&["evict", "x", "--fence", &fence, "--reason", "host gone"]);
    unconfirmed.assert_code(64);
    assert!(unconfirmed.stderr.contains("--yes"), "{unconfirmed:?}");
    // As `inspect` prints it.
    for reason in ["…", "...", " "] {
        let pasted = sandbox.run(&["evict", "--fence", &fence, "--reason", reason, "x", "--yes"]);
        pasted.assert_code(64);
        assert!(pasted.stderr.contains("--reason: say why"), "{pasted:?}");
    }
    assert_eq!(sandbox.holders("x"), 1);
    assert!(!holder.has_ended());
    let mut command = sandbox.leasehold(&["evict", "x", "--fence", &fence, "--reason", "host gone", "--yes"]);
    command.env("SUDO_USER", "alice").env("SSH_CONNECTION", "10.0.0.7 5022 10.0.0.1 22");
    Ran::of(command).assert_code(0);
    assert_eq!(holder.code(), 121);
    let free = sandbox.run(&["evict", "x", "--fence", &fence, "--reason", "host gone", "--yes"]);
    free.assert_code(1);
    let history = sandbox.to_paste("history x");
    assert!(free.stderr.ends_with(&format!("leasehold:   see how it ended: {history}\n")), "{free:?}");
    let history = sandbox.run(&["history", "x"]).stdout;
    assert!(history.contains("evicted") && history.contains("host gone (by alice@"), "{history}");
    assert!(history.contains(" from 10.0.0.7)"), "{history}");
}

#[test]
fn doctor_tells_what_is_well_and_what_is_not() {
    let sandbox = Sandbox::new();
    let ran = sandbox.run(&["doctor"]);
    ran.assert_code(0);
    for words in ["ok    reachable ", " median, ", "fences: yes · fair queue: yes", "0 failures, "] {
        assert!(ran.stdout.contains(words), "{words}: {ran:?}");
    }
    let is_temporary = ["/tmp", "/var/tmp"].iter().any(|temporary| sandbox.path("locks").starts_with(temporary));
    assert_eq!(ran.stdout.contains("warn  temporary "), is_temporary, "{ran:?}");
    sandbox.run(&["acquire", "x", "--ttl", "1m"]).assert_code(0);
    fs::write(sandbox.path("locks/default/records/x.json"), "nonsense").unwrap();
    let ran = sandbox.run(&["doctor"]);
    ran.assert_code(1);
    assert!(ran.stdout.contains("FAIL  record"), "{ran:?}");
    let file = sandbox.path("file");
    fs::write(&file, "").unwrap();
    let url = format!("file://{}/locks", file.display());
    let ran = sandbox.run(&["-b", &url, "doctor"]);
    ran.assert_code(1);
    assert!(ran.stdout.contains("FAIL  reachable"), "{ran:?}");
    let url = format!("file://{}/locks", sandbox.path("not-mounted").display());
    let ran = sandbox.run(&["-b", &url, "doctor"]);
    ran.assert_code(1);
    assert!(ran.stdout.contains("FAIL  place") && ran.stdout.contains("not-mounted does not exist"), "{ran:?}");
    sandbox.run(&["-b", &url, "list"]).assert_code(78);
}

#[test]
fn a_watcher_that_is_killed_is_forgotten() {
    let sandbox = Sandbox::new();
    let mut command = sandbox.leasehold(&["watch", "-v"]);
    let log = sandbox.path("log");
    command.stderr(fs::File::create(&log).unwrap()).stdout(Stdio::null());
    let watcher = Running::of(command);
    until("it watches", || fs::read_to_string(&log).unwrap().contains("watching"));
    watcher.signal(Signal::KILL);
    drop(watcher);
    sandbox.run(&["run", "x", "--", "true"]).assert_code(0);
}
