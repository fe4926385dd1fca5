//! Leases without a process: taken by one command, checked, renewed and released by others.

use std::{
    fs,
    io::Write,
    os::unix::fs::PermissionsExt,
    process::Stdio,
    thread,
    time::{Duration, Instant},
};

use rustix::process::Signal;

use crate::sandbox::{AT_ONCE, Ran, Sandbox, until};

fn acquire(sandbox: &Sandbox, args: &[&str]) -> String {
    let ran = sandbox.run(&[&["acquire"], args].concat());
    ran.assert_code(0);
    assert_eq!(ran.stderr, "");
    assert!(ran.stdout.starts_with("lh2_") && ran.stdout.ends_with('\n') && ran.stdout.lines().count() == 1, "{ran:?}");
    ran.stdout.trim().to_owned()
}

#[test]
fn taken_here_and_given_back_there() {
    let sandbox = Sandbox::new();
    let lease = acquire(&sandbox, &["deploy:prod", "--ttl", "15m", "--note", "release 4.2"]);
    let busy = sandbox.run(&["run", "-n", "deploy:prod", "--", "true"]);
    busy.assert_code(75);
    assert!(busy.stderr.contains("(release 4.2)"), "{busy:?}");
    for command in ["check", "release"] {
        let ran = sandbox.run(&[command, "--lease", &lease]);
        ran.assert_code(0);
        assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("", ""), "{command}");
    }
    sandbox.run(&["run", "-n", "deploy:prod", "--", "true"]).assert_code(0);
    let again = sandbox.run(&["release", "--lease", &lease]);
    again.assert_code(1);
    assert!(again.stderr.contains("released") && again.stderr.contains("nobody holds it now"), "{again:?}");
    sandbox.run(&["check", "--lease", &lease]).assert_code(1);
    sandbox.run(&["renew", "--lease", &lease, "--ttl", "1m"]).assert_code(1);
}

#[test]
fn a_lease_lapses_unless_it_is_renewed() {
    let sandbox = Sandbox::new();
    // Long enough for a busy machine to renew it in time.
    let renewed = acquire(&sandbox, &["y", "--ttl", "4"]);
    sandbox.run(&["renew", "--lease", &renewed, "--ttl", "1m"]).assert_code(0);
    let lease = acquire(&sandbox, &["x", "--ttl", "4"]);
    thread::sleep(Duration::from_millis(4200));
    let shorter = sandbox.run(&["renew", "--lease", &renewed, "--ttl", "1s"]);
    shorter.assert_code(0);
    assert!(shorter.stderr.contains(" from now, as before: 1s would be less"), "{shorter:?}");
    sandbox.run(&["check", "--lease", &renewed]).assert_code(0);
    let lapsed = sandbox.run(&["release", "--lease", &lease]);
    lapsed.assert_code(1);
    assert!(lapsed.stderr.contains("lapsed") && lapsed.stderr.contains("ago"), "{lapsed:?}");
    let _holder = sandbox.hold("x");
    let lapsed = sandbox.run(&["check", "--lease", &lease]);
    lapsed.assert_code(1);
    assert!(lapsed.stderr.contains("lapsed") && lapsed.stderr.contains("now held by"), "{lapsed:?}");
}

#[test]
fn the_handle_can_stay_out_of_the_process_list() {
    let sandbox = Sandbox::new();
    let file = sandbox.path("lease");
    let path = file.to_str().unwrap();
    let ran = sandbox.run(&["acquire", "x", "--ttl", "1m", "--lease-file", path]);
    ran.assert_code(0);
    assert_eq!(ran.stdout, "", "the handle is in the file");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    sandbox.run(&["check", "--lease-file", path]).assert_code(0);
    let lease = fs::read_to_string(&file).unwrap();

    let mut by_env = sandbox.leasehold(&["check"]);
    by_env.env("LEASEHOLD_LEASE", lease.trim());
    Ran::of(by_env).assert_code(0);

    for args in [["check", "--lease", "-"], ["check", "--lease-file", "-"]] {
        let mut by_stdin = sandbox.leasehold(&args);
        let mut child = by_stdin.stdin(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(lease.as_bytes()).unwrap();
        assert!(child.wait().unwrap().success());
    }

    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    let open = sandbox.run(&["release", "--lease-file", path]);
    open.assert_code(64);
    assert!(open.stderr.contains("chmod 600"), "{open:?}");
    assert_eq!(sandbox.holders("x"), 1);
}

#[test]
fn acquire_waits_gives_up_and_can_be_interrupted() {
    let sandbox = Sandbox::new();
    let lease = acquire(&sandbox, &["x", "--ttl", "10m"]);
    sandbox.run(&["acquire", "x", "--ttl", "1m", "-n"]).assert_code(75);
    sandbox.run(&["acquire", "x", "--ttl", "1m", "-n", "-E", "3"]).assert_code(3);
    let ran = sandbox.run(&["acquire", "x", "--ttl", "1m", "-w", "1"]);
    ran.assert_code(75);
    assert!(ran.took >= Duration::from_secs(1) && ran.stdout.is_empty(), "{ran:?}");

    let mut waiter = sandbox.start(&["acquire", "x", "--ttl", "1m"]);
    until("it waits", || sandbox.waiters("x") == 1);
    let sent = Instant::now();
    waiter.signal(Signal::INT);
    assert_eq!(waiter.code(), 130);
    assert!(sent.elapsed() < AT_ONCE);
    assert_eq!(sandbox.waiters("x"), 0);

    let mut command = sandbox.leasehold(&["acquire", "x", "--ttl", "1m"]);
    command.stdout(Stdio::piped());
    let waiter = crate::sandbox::Running::of(command);
    until("it waits", || sandbox.waiters("x") == 1);
    sandbox.run(&["release", "--lease", &lease]).assert_code(0);
    let got = waiter.finish();
    got.assert_code(0);
    sandbox.run(&["check", "--lease", got.stdout.trim()]).assert_code(0);
}

#[test]
fn readers_and_permits_can_be_taken_so_too() {
    let sandbox = Sandbox::new();
    acquire(&sandbox, &["x", "-s", "--ttl", "1m"]);
    acquire(&sandbox, &["x", "-s", "--ttl", "1m"]);
    sandbox.run(&["acquire", "x", "-n", "--ttl", "1m"]).assert_code(75);
    acquire(&sandbox, &["s", "-j", "3", "--permits", "2", "--ttl", "1m"]);
    sandbox.run(&["acquire", "s", "-n", "-j", "3", "--permits", "2", "--ttl", "1m"]).assert_code(75);
    acquire(&sandbox, &["s", "-n", "-j", "3", "--ttl", "1m"]);
}

#[test]
fn a_lease_that_cannot_be_handed_over_is_given_back() {
    let sandbox = Sandbox::new();
    let mut command = sandbox.leasehold(&["acquire", "x", "--ttl", "1m"]);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    command.stdout(writer).stderr(Stdio::piped());
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(69), "{output:?}");
    assert_eq!(sandbox.holders("x"), 0);
    let unwritable = sandbox.run(&["acquire", "x", "--ttl", "1m", "--lease-file", "/nonexistent/lease"]);
    unwritable.assert_code(69);
    assert_eq!(sandbox.holders("x"), 0);
}
