//! Elections: a command that runs in one place, takes over, steps down.

use std::{fs, process::Stdio};

use rustix::process::Signal;

use crate::place::{Place, Running, on_any_backend, parent_of, read_soon, state_of, until};

fn candidate(place: &Place, id: &str, args: &[&str], script: &str) -> Running {
    place.start(&[&["elect", "boss", "--id", id], args, &["-c", script]].concat())
}

fn leader(place: &Place) -> Option<String> {
    let ran = place.run(&["elect", "boss", "--leader", "--json"]);
    ran.json()["leader"].as_str().map(str::to_owned)
}

#[test]
fn one_leads_and_another_takes_over() {
    let place = Place::new();
    let lead =
        |id: &str| format!("echo $LEASEHOLD_MODE $LEASEHOLD_FENCE > {}; exec sleep 600", place.path(id).display());
    let mut a = candidate(&place, "a", &["--value", "10.0.0.5:80"], &lead("a"));
    let first = read_soon(&place.path("a"));
    assert!(first.starts_with("leader "), "{first}");
    let mut b = candidate(&place, "b", &[], &lead("b"));
    until("b waits", || place.waiters("boss") == 1);
    assert_eq!(leader(&place).as_deref(), Some("a"));
    let shown = place.run(&["elect", "boss", "--leader"]);
    shown.assert_code(0);
    assert!(shown.stdout.starts_with("a  10.0.0.5:80  leads for "), "{shown:?}");
    a.signal(Signal::TERM);
    assert_eq!(a.code(), 143, "interrupted: it does not campaign again");
    let second = read_soon(&place.path("b"));
    let fence = |text: &str| text.split(' ').nth(1).unwrap().parse::<u64>().unwrap();
    assert!(fence(&second) > fence(&first));
    b.signal(Signal::TERM);
    b.wait();
    assert_eq!(
        place.run(&["history", "--failures", "--no-headers"]).stdout,
        "",
        "a leader that is stopped has not failed"
    );
    let none = place.run(&["elect", "boss", "--leader"]);
    none.assert_code(1);
    assert_eq!(none.stderr, "leasehold: nobody leads boss\n");
}

#[test]
fn one_who_follows_buries_what_its_command_left_behind() {
    let place = Place::new();
    let (pid, go) = (place.path("pid"), place.path("go"));
    let daemon = format!("echo $$ > {}; while ! test -e {}; do sleep .01; done", pid.display(), go.display());
    let script = format!("setsid sh -c '{daemon}' & while ! test -e {0}.go; do sleep .01; done; exit 1", pid.display());
    let a = candidate(&place, "a", &["--backoff", "10ms..10ms"], &script);
    let daemon: i32 = read_soon(&pid).parse().unwrap();
    let _b = candidate(&place, "b", &[], "exec sleep 600");
    until("b waits", || place.waiters("boss") == 1);
    fs::write(place.path("pid.go"), "").unwrap();
    until("a follows", || leader(&place).as_deref() == Some("b") && place.waiters("boss") == 1);
    until("the daemon is a's", || parent_of(daemon) == a.pid());
    fs::write(go, "").unwrap();
    until("the daemon is reaped", || state_of(daemon).is_none());
    let children = || fs::read_to_string(format!("/proc/{0}/task/{0}/children", a.pid())).unwrap();
    until("and its supervisor", || children().is_empty());
}

#[test]
fn a_leader_that_ends_well_ends_and_one_that_fails_campaigns_again() {
    let place = Place::new();
    let times = place.path("times");
    let script = format!("echo x >> {0}; test $(wc -l < {0}) -ge 3", times.display());
    let ran = place.run(&["elect", "boss", "--backoff", "20ms..50ms", "-c", &script]);
    ran.assert_code(0);
    assert_eq!(fs::read_to_string(&times).unwrap(), "x\nx\nx\n");
    assert_eq!(ran.stderr.matches("campaigning again").count(), 2, "{ran:?}");
    place.run(&["elect", "boss", "--once", "-c", "exit 4"]).assert_code(4);
    place.run(&["elect", "boss", "--", "no-such-command-here"]).assert_code(127);
}

#[test]
fn a_leader_says_why_it_no_longer_leads() {
    on_any_backend::a_leader_says_why_it_no_longer_leads(&Place::new());
}

#[test]
fn a_leader_can_be_made_to_step_down() {
    let place = Place::new();
    let lead = |id: &str| format!("echo x >> {}; exec sleep 600", place.path(id).display());
    let mut a = candidate(&place, "a", &["--backoff", "20ms"], &lead("a"));
    read_soon(&place.path("a"));
    let b = candidate(&place, "b", &[], &lead("b"));
    until("b waits", || place.waiters("boss") == 1);
    place.run(&["elect", "boss", "--resign"]).assert_code(0);
    read_soon(&place.path("b"));
    assert_eq!(leader(&place).as_deref(), Some("b"));
    until("a campaigns again", || place.waiters("boss") == 1);
    drop(b);
    until("a leads again", || fs::read_to_string(place.path("a")).unwrap() == "x\nx\n");
    a.signal(Signal::INT);
    assert_eq!(a.code(), 130);
    place.run(&["elect", "boss", "--resign"]).assert_code(1);

    let mut command = place.leasehold(&["elect", "boss", "--once", "-c", &lead("c")]);
    command.stderr(Stdio::piped());
    let once = Running::of(command);
    read_soon(&place.path("c"));
    place.run(&["elect", "boss", "--resign"]).assert_code(0);
    let once = once.finish();
    once.assert_code(121);
    assert!(once.stderr.contains("boss was evicted: asked to step down by `leasehold elect --resign`"), "{once:?}");
}

#[test]
fn observers_see_each_change() {
    let place = Place::new();
    let mut command = place.leasehold(&["elect", "boss", "--observe", "--json"]);
    command.stdout(Stdio::piped());
    let seen = place.path("seen");
    command.stdout(fs::File::create(&seen).unwrap());
    let _observer = Running::of(command);
    let leaders = || -> Vec<String> {
        let text = fs::read_to_string(&seen).unwrap();
        text.lines()
            .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["leader"].to_string())
            .collect()
    };
    until("nobody leads", || leaders() == ["null"]);
    let a = candidate(&place, "a", &[], "exec sleep 600");
    until("a leads", || leaders().last().is_some_and(|last| last == "\"a\""));
    drop(a);
    let _b = candidate(&place, "b", &[], "exec sleep 600");
    until("b leads", || leaders().last().is_some_and(|last| last == "\"b\""));
}

#[test]
fn one_who_campaigns_can_be_interrupted() {
    let place = Place::new();
    let _leader = candidate(&place, "a", &[], "exec sleep 600");
    until("a leads", || leader(&place).is_some());
    let mut waiter = candidate(&place, "b", &[], "echo never");
    until("b waits", || place.waiters("boss") == 1);
    waiter.signal(Signal::HUP);
    assert_eq!(waiter.code(), 129);
    assert_eq!(place.waiters("boss"), 0);
}
