//! The command on a Redis server, as on a directory.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test that cannot go on fails, on real time")]

mod place;

use std::{process::Command, thread, time::Duration};

use leasehold_testkit::{Proxy, redis::Server};
use place::{Place, Ran, Running, read_soon, until};

fn on(place: &Place, url: &str, args: &[&str]) -> Command {
    let mut command = place.bare(args);
    command.env("LEASEHOLD_URL", url).env_remove("REDISCLI_AUTH");
    command
}

#[test]
fn run_list_history_and_doctor_work_as_on_a_directory() {
    let (place, server) = (Place::new(), Server::start());
    let run = |args: &[&str]| Ran::of(on(&place, &server.url(), args));
    let ran = run(&["run", "hello", "--", "echo", "I hold the lock"]);
    ran.assert_code(0);
    assert_eq!(ran.stdout, "I hold the lock\n");

    let ready = place.path("ready");
    let script = format!("touch {}; exec sleep 600", ready.display());
    let mut holder = on(&place, &server.url(), &["run", "--note", "release 4.2", "deploy", "-c", &script]);
    holder.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    let mut holder = holder.spawn().unwrap();
    until("the holder runs", || ready.exists());
    let busy = run(&["run", "-n", "deploy", "--", "echo", "never"]);
    busy.assert_code(75);
    assert!(busy.stderr.contains("deploy is held by") && busy.stderr.contains("release 4.2"), "{busy:?}");
    let listed = run(&["list"]);
    listed.assert_code(0);
    assert!(listed.stdout.contains("deploy") && listed.stdout.contains("exclusive"), "{listed:?}");
    holder.kill().unwrap();
    holder.wait().unwrap();

    let history = run(&["history"]);
    history.assert_code(0);
    assert!(history.stdout.contains("hello"), "{history:?}");
    let doctor = run(&["doctor"]);
    assert!(doctor.stdout.contains("reachable") && doctor.stdout.contains("noeviction"), "{doctor:?}");
}

#[test]
fn an_unreachable_server_is_69_and_one_clear_line_without_the_password() {
    let place = Place::new();
    let ran = Ran::of(on(&place, "redis://me:hunter2@127.0.0.1:1", &["run", "x", "--", "true"]));
    ran.assert_code(69);
    assert_eq!(ran.stderr.lines().count(), 1, "{ran:?}");
    assert!(ran.stderr.contains("127.0.0.1:1") && !ran.stderr.contains("hunter2"), "{ran:?}");
}

/// Cut off from the server, everything under a lock is gone before the next holder's command starts.
#[test]
fn what_is_cut_off_is_dead_before_the_next_one_starts() {
    const RUNS: usize = 12;
    let (place, server) = (Place::new(), Server::start());
    let proxy = Proxy::to(server.port());
    let through = format!("redis://127.0.0.1:{}?answer_limit=300ms", proxy.port());
    let mut holders = Vec::new();
    let mut waiters = Vec::new();
    for at in 0..RUNS {
        let (name, pid) = (format!("x{at}"), place.path(&format!("pid-{at}")));
        let script = format!("sh -c 'echo $$ > {}; exec sleep 600' & wait", pid.display());
        holders.push(Running::of(on(&place, &through, &["run", "--ttl", "2s", &name, "-c", &script])));
        let grandchild = read_soon(&pid);
        let overlap = place.path(&format!("overlap-{at}"));
        let state = format!("/proc/{}/status", grandchild.trim());
        let look = format!("if grep -q '^State:.[RSD]' {state} 2>/dev/null; then touch {}; fi", overlap.display());
        waiters.push(Running::of(on(&place, &server.url(), &["run", &name, "-c", &look])));
    }
    thread::sleep(Duration::from_millis(300));
    proxy.cut();
    for holder in holders {
        holder.finish().assert_code(121);
    }
    for (at, waiter) in waiters.into_iter().enumerate() {
        waiter.finish().assert_code(0);
        assert!(!place.path(&format!("overlap-{at}")).exists(), "run {at}: two at once");
    }
}
