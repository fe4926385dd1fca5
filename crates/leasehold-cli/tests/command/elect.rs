//! Elections: a command that runs in one place, takes over, steps down.

use std::{fs, process::Stdio};

use rustix::process::Signal;

use crate::sandbox::{Running, Sandbox, is_alive, json_lines, parent_of, read_soon, state_of, until};

fn candidate(sandbox: &Sandbox, id: &str, args: &[&str], script: &str) -> Running {
    sandbox.start(&[&["elect", "boss", "--id", id], args, &["-c", script]].concat())
}

fn leader(sandbox: &Sandbox) -> Option<String> {
    let ran = sandbox.run(&["elect", "boss", "--leader", "--json"]);
    ran.json()["leader"].as_str().map(str::to_owned)
}

#[test]
fn one_leads_and_another_takes_over() {
    let sandbox = Sandbox::new();
    let lead =
        |id: &str| format!("echo $LEASEHOLD_MODE $LEASEHOLD_FENCE > {}; exec sleep 600", sandbox.path(id).display());
    let mut a = candidate(&sandbox, "a", &["--value", "10.0.0.5:80"], &lead("a"));
    let first = read_soon(&sandbox.path("a"));
    assert!(first.starts_with("leader "), "{first}");
    let mut b = candidate(&sandbox, "b", &[], &lead("b"));
    until("b waits", || sandbox.waiters("boss") == 1);
    assert_eq!(leader(&sandbox).as_deref(), Some("a"));
    let shown = sandbox.run(&["elect", "boss", "--leader"]);
    shown.assert_code(0);
    assert!(shown.stdout.starts_with("a  10.0.0.5:80  leads for "), "{shown:?}");
    a.signal(Signal::TERM);
    assert_eq!(a.code(), 143, "interrupted: it does not campaign again");
    let second = read_soon(&sandbox.path("b"));
    let fence = |text: &str| text.split(' ').nth(1).unwrap().parse::<u64>().unwrap();
    assert!(fence(&second) > fence(&first));
    b.signal(Signal::TERM);
    b.wait();
    assert_eq!(
        sandbox.run(&["history", "--failures", "--no-headers"]).stdout,
        "",
        "a leader that is stopped has not failed"
    );
    let none = sandbox.run(&["elect", "boss", "--leader"]);
    none.assert_code(1);
    let list = sandbox.to_paste("list --waiting boss");
    let told = format!("leasehold: nobody leads boss\nleasehold:   see who campaigns: {list}\n");
    assert_eq!(none.stderr, told);
    assert_eq!(sandbox.run(&["elect", "boss", "--resign"]).stderr, told);
}

#[test]
fn one_who_follows_buries_what_its_command_left_behind() {
    let sandbox = Sandbox::new();
    let go = sandbox.path("go");
    let daemon = format!("echo $$ > $PID_FILE; while ! test -e {}; do sleep .01; done", go.display());
    let script = format!("setsid sh -c '{daemon}' & while ! test -e $PID_FILE.go; do sleep .01; done; exit 1");
    let a = candidate(&sandbox, "a", &["--backoff", "10ms..10ms"], &script);
    let daemon = sandbox.told_pid();
    let _b = candidate(&sandbox, "b", &[], "exec sleep 600");
    until("b waits", || sandbox.waiters("boss") == 1);
    fs::write(sandbox.path("pid.go"), "").unwrap();
    until("a follows", || leader(&sandbox).as_deref() == Some("b") && sandbox.waiters("boss") == 1);
    until("the daemon is a's", || parent_of(daemon) == a.pid());
    fs::write(go, "").unwrap();
    until("the daemon is reaped", || state_of(daemon).is_none());
    let children = || fs::read_to_string(format!("/proc/{0}/task/{0}/children", a.pid())).unwrap();
    until("and its supervisor", || children().is_empty());
}

#[test]
fn a_daemon_of_an_earlier_term_outlives_a_term_whose_command_cannot_be_run() {
    let sandbox = Sandbox::new();
    let program = sandbox.path("lead");
    std::os::unix::fs::symlink("/bin/sh", &program).unwrap();
    let script = format!(
        "rm {}; setsid sh -c 'echo $$ > $PID_FILE; exec sleep 999' > /dev/null 2>&1 &
         while ! test -s $PID_FILE; do sleep .01; done; exit 1",
        program.display()
    );
    let ran = sandbox.run(&["elect", "boss", "--backoff", "100ms", "--", program.to_str().unwrap(), "-c", &script]);
    ran.assert_code(127);
    assert!(is_alive(sandbox.told_pid()), "{ran:?}");
}

#[test]
fn a_leader_that_ends_well_ends_and_one_that_fails_campaigns_again() {
    let sandbox = Sandbox::new();
    let times = sandbox.path("times");
    let script = format!("echo x >> {0}; test $(wc -l < {0}) -ge 3", times.display());
    let ran = sandbox.run(&["elect", "boss", "--backoff", "20ms..50ms", "-c", &script]);
    ran.assert_code(0);
    assert_eq!(fs::read_to_string(&times).unwrap(), "x\nx\nx\n");
    assert_eq!(ran.stderr.matches("campaigning again").count(), 2, "{ran:?}");
    sandbox.run(&["elect", "boss", "--once", "-c", "exit 4"]).assert_code(4);
    sandbox.run(&["elect", "boss", "--", "no-such-command-here"]).assert_code(127);
}

#[test]
fn one_who_is_told_to_end_says_what_it_no_longer_does() {
    let sandbox = Sandbox::new();
    let start = |id: &str, script: &str| {
        let mut command = sandbox.leasehold(&["elect", "boss", "--id", id, "--backoff", "1h", "-c", script]);
        command.stderr(Stdio::piped());
        Running::of(command)
    };
    let end = |candidate: Running, words: &str| {
        candidate.signal(Signal::TERM);
        let ran = candidate.finish();
        ran.assert_code(143);
        assert_eq!(ran.stderr.lines().last(), Some(format!("leasehold: {words}").as_str()), "{ran:?}");
    };
    let a = start("a", "exec sleep 600");
    until("a leads", || leader(&sandbox).is_some());
    let b = start("b", "exec sleep 600");
    until("b waits", || sandbox.waiters("boss") == 1);
    end(b, "b no longer campaigns for boss: ended by TERM");
    end(a, "a no longer leads boss: ended by TERM");

    let times = sandbox.path("times");
    let failing = start("c", &format!("echo x > {}; exit 3", times.display()));
    read_soon(&times);
    until("it pauses", || sandbox.holders("boss") == 0);
    end(failing, "c no longer campaigns for boss: ended by TERM");
}

#[test]
fn a_leader_can_be_made_to_step_down() {
    let sandbox = Sandbox::new();
    let lead = |id: &str| format!("echo x >> {}; exec sleep 600", sandbox.path(id).display());
    let mut a = candidate(&sandbox, "a", &["--backoff", "20ms"], &lead("a"));
    read_soon(&sandbox.path("a"));
    let b = candidate(&sandbox, "b", &[], &lead("b"));
    until("b waits", || sandbox.waiters("boss") == 1);
    sandbox.run(&["elect", "boss", "--resign"]).assert_code(0);
    read_soon(&sandbox.path("b"));
    assert_eq!(leader(&sandbox).as_deref(), Some("b"));
    until("a campaigns again", || sandbox.waiters("boss") == 1);
    drop(b);
    until("a leads again", || fs::read_to_string(sandbox.path("a")).unwrap() == "x\nx\n");
    a.signal(Signal::INT);
    assert_eq!(a.code(), 130);
    sandbox.run(&["elect", "boss", "--resign"]).assert_code(1);

    let mut command = sandbox.leasehold(&["elect", "boss", "--once", "-c", &lead("c")]);
    command.stderr(Stdio::piped());
    let once = Running::of(command);
    read_soon(&sandbox.path("c"));
    sandbox.run(&["elect", "boss", "--resign"]).assert_code(0);
    let once = once.finish();
    once.assert_code(121);
    assert!(once.stderr.contains("boss was evicted: asked to step down by `leasehold elect --resign`"), "{once:?}");
}

#[test]
fn observers_see_each_change() {
    let sandbox = Sandbox::new();
    let mut command = sandbox.leasehold(&["elect", "boss", "--observe", "--json"]);
    command.stdout(Stdio::piped());
    let seen = sandbox.path("seen");
    command.stdout(fs::File::create(&seen).unwrap());
    let _observer = Running::of(command);
    let leaders = || -> Vec<String> {
        let lines = json_lines(&fs::read_to_string(&seen).unwrap());
        lines.iter().map(|line| line["leader"].to_string()).collect()
    };
    until("nobody leads", || leaders() == ["null"]);
    let a = candidate(&sandbox, "a", &[], "exec sleep 600");
    until("a leads", || leaders().last().is_some_and(|last| last == "\"a\""));
    drop(a);
    let _b = candidate(&sandbox, "b", &[], "exec sleep 600");
    until("b leads", || leaders().last().is_some_and(|last| last == "\"b\""));
}

#[test]
fn one_who_campaigns_can_be_interrupted() {
    let sandbox = Sandbox::new();
    let _leader = candidate(&sandbox, "a", &[], "exec sleep 600");
    until("a leads", || leader(&sandbox).is_some());
    let mut waiter = candidate(&sandbox, "b", &[], "echo never");
    until("b waits", || sandbox.waiters("boss") == 1);
    waiter.signal(Signal::HUP);
    assert_eq!(waiter.code(), 129);
    assert_eq!(sandbox.waiters("boss"), 0);
}
