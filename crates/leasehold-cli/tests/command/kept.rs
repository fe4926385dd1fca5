//! Leases that live as long as another process: `acquire --while-pid`.

use std::{
    fs,
    os::{
        fd::AsRawFd,
        unix::{
            fs::PermissionsExt,
            process::{CommandExt, ExitStatusExt},
        },
    },
    process::Stdio,
    time::Instant,
};

use rustix::{
    io::{FdFlags, fcntl_setfd},
    process::{Pid, PidfdFlags, Signal, pidfd_open},
};

use crate::sandbox::{AT_ONCE, Ran, Running, Sandbox, is_alive, is_root, read_soon, skip, until};

fn evict(sandbox: &Sandbox) {
    let fence = sandbox.fence("x");
    sandbox.run(&["evict", "x", "--fence", &fence, "--reason", "host gone", "--yes"]).assert_code(0);
}

#[test]
fn the_lock_is_free_at_once_when_the_process_is_killed() {
    let sandbox = Sandbox::new();
    let mut running = sandbox.tied(&sandbox.url(), "", "exec sleep 999");
    assert_eq!(sandbox.holders("x"), 1);
    let killed = Instant::now();
    running.signal(Signal::KILL);
    running.wait();
    let mut next = sandbox.start(&["run", "x", "--", "true"]);
    assert_eq!(next.code(), 0);
    assert!(killed.elapsed() < AT_ONCE);
    until("nothing is left of it", || sandbox.processes().is_empty());
}

#[test]
fn a_script_that_releases_it_goes_on() {
    let sandbox = Sandbox::new();
    let exe = env!("CARGO_BIN_EXE_leasehold");
    let rest = format!("{exe} release --lease \"$lease\" && {exe} run -n x true && sleep 1; echo $?");
    let ran = sandbox.tied(&sandbox.url(), "", &rest).finish();
    ran.assert_code(0);
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("0\n", ""), "no signal came");
    until("nothing is left of it", || sandbox.processes().is_empty());
}

#[test]
fn a_process_whose_lock_is_lost_gets_a_signal() {
    let sandbox = Sandbox::new();
    for (choice, code, name) in [("", 15, "TERM"), ("--on-lost kill", 9, "KILL"), ("--on-lost signal:USR1", 10, "USR1")]
    {
        let running = sandbox.tied(&sandbox.url(), choice, "exec sleep 999");
        let pid = running.pid();
        until("it sleeps", || fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "sleep\n"));
        evict(&sandbox);
        let ran = running.finish();
        assert_eq!(ran.status.signal(), Some(code), "{choice}");
        let lost = format!("leasehold: LOST x: evicted by an operator. Sending {name} to sleep ({pid})");
        let lines: Vec<&str> = ran.stderr.lines().collect();
        assert_eq!(lines[0], lost);
        assert!(lines[1].starts_with("leasehold: x was evicted: host gone (by ") && lines.len() == 2, "{lines:?}");
    }
    let (go, rest) =
        (sandbox.path("go"), format!("while ! test -e {}; do sleep .01; done", sandbox.path("go").display()));
    let running = sandbox.tied(&sandbox.url(), "--on-lost continue", &rest);
    let kept_by = sandbox.keeper().unwrap();
    evict(&sandbox);
    until("its keeper has noticed", || !is_alive(kept_by));
    fs::write(go, "").unwrap();
    let ran = running.finish();
    ran.assert_code(0);
    let on = "leasehold: LOST x: evicted by an operator. sh (";
    assert!(
        ran.stderr.starts_with(on) && ran.stderr.contains(") goes on without the lock (--on-lost continue)\n"),
        "{ran:?}"
    );
}

#[test]
fn what_a_process_has_written_to_its_log_stays_when_it_is_told_of_the_loss() {
    let sandbox = Sandbox::new();
    let log = sandbox.path("log");
    let rest = format!("exec 2> {}; echo begun >&2; exec sleep 999", log.display());
    let running = sandbox.tied(&sandbox.url(), "", &rest);
    assert_eq!(read_soon(&log), "begun");
    evict(&sandbox);
    running.finish();
    let text = fs::read_to_string(&log).unwrap();
    assert!(text.starts_with("begun\nleasehold: LOST x: evicted by an operator. "), "{text}");
}

/// Starts a process that ties `x` to itself, where nobody may copy its descriptors: Yama allows that to parents only.
fn start_guarded(sandbox: &Sandbox, stderr: impl Into<Stdio>) -> Running {
    let lease = sandbox.path("lease");
    let script = format!(
        "strace -D -f -qq -o /dev/null -e trace=pidfd_getfd -e inject=pidfd_getfd:error=EPERM \
         {} acquire x --while-pid $$ --lease-file {} > /dev/null; exec sleep 999",
        env!("CARGO_BIN_EXE_leasehold"),
        lease.display()
    );
    let mut command = sandbox.command("sh");
    command.args(["-c", &script]).env("LEASEHOLD_URL", sandbox.url()).stderr(stderr);
    let running = Running::of(command);
    until("it has the lock", || lease.exists());
    running
}

#[test]
fn a_process_whose_descriptors_may_not_be_copied_is_told_of_the_loss_too() {
    let sandbox = Sandbox::new();
    let log = sandbox.path("log");
    fs::write(&log, "begun\n").unwrap();
    let mut running = start_guarded(&sandbox, fs::File::options().append(true).open(&log).unwrap());
    evict(&sandbox);
    running.wait();
    let text = fs::read_to_string(&log).unwrap();
    assert!(text.starts_with("begun\nleasehold: LOST x: evicted by an operator. Sending TERM to "), "{text}");
}

#[test]
fn a_process_whose_standard_error_nobody_reads_gets_its_signal() {
    let sandbox = Sandbox::new();
    // One who opens a FIFO that nobody reads waits.
    let fifo = sandbox.path("fifo");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let reader = fs::File::options().read(true).write(true).open(&fifo).unwrap();
    let writer = fs::File::options().write(true).open(&fifo).unwrap();
    drop(reader);
    let mut running = start_guarded(&sandbox, writer);
    evict(&sandbox);
    assert_eq!(running.wait().signal(), Some(15));
}

#[test]
fn the_keeper_stays_whoever_asks_it_to_end() {
    let sandbox = Sandbox::new();
    let log = sandbox.path("log");
    let running = sandbox.tied(&sandbox.url(), "", &format!("exec 2> {}; exec sleep 999", log.display()));
    let kept_by = sandbox.keeper().unwrap();
    for signal in [Signal::TERM, Signal::HUP, Signal::INT] {
        rustix::process::kill_process(Pid::from_raw(kept_by).unwrap(), signal).unwrap();
    }
    let pid = running.pid();
    let told = format!("leasehold: keeps x until process {pid} ends; release it with its handle, or evict it");
    assert_eq!(read_soon(&log), told, "once for three signals");
    assert!(is_alive(kept_by));
    assert_eq!(sandbox.holders("x"), 1);
    let stat = fs::read_to_string(format!("/proc/{kept_by}/stat")).unwrap();
    let session = stat[stat.rfind(')').unwrap()..].split(' ').nth(4).unwrap().to_owned();
    assert_eq!(session, kept_by.to_string(), "a session of its own");
    for stream in 0..3 {
        let leads_to = || fs::read_link(format!("/proc/{kept_by}/fd/{stream}")).unwrap();
        until("it lets go of what it wrote to", || leads_to().to_str() == Some("/dev/null"));
    }
    drop(running);
}

#[test]
fn a_process_that_ends_when_the_keeper_is_asked_to_end_is_told_nothing() {
    let sandbox = Sandbox::new();
    let running = sandbox.tied(&sandbox.url(), "", "exec sleep 999");
    let kept_by = sandbox.keeper().unwrap();
    // As a service manager does.
    for pid in [kept_by, running.pid()] {
        rustix::process::kill_process(Pid::from_raw(pid).unwrap(), Signal::TERM).unwrap();
    }
    assert_eq!(running.finish().stderr, "");
    until("the lock is free", || sandbox.holders("x") == 0);
}

#[test]
fn init_is_sent_no_signal_when_a_lock_is_lost() {
    let sandbox = Sandbox::new();
    for choice in [&[][..], &["--on-lost", "kill"], &["--on-lost", "signal:USR1"]] {
        let ran = sandbox.run(&[&["acquire", "x", "--while-pid", "1"], choice].concat());
        ran.assert_code(64);
        assert!(ran.stderr.contains("process 1 is init") && ran.stderr.contains("--on-lost continue"), "{ran:?}");
    }
    assert_eq!(sandbox.keeper(), None);
    let kept = sandbox.run(&["acquire", "x", "--while-pid", "1", "--on-lost", "continue"]);
    kept.assert_code(0);
    sandbox.run(&["release", "--lease", kept.stdout.trim()]).assert_code(0);
    until("nothing is left of it", || sandbox.processes().is_empty());
}

/// Only root can start a process of another user: for others there is nothing to see here.
#[test]
fn a_process_that_may_not_be_signalled_is_refused_unless_it_may_go_on() {
    if !is_root() {
        return skip("root");
    }
    let sandbox = Sandbox::new();
    fs::set_permissions(sandbox.path("."), fs::Permissions::from_mode(0o777)).unwrap();
    let own = std::process::id().to_string();
    let as_nobody = |args: &[&str]| {
        let mut command = sandbox.leasehold(args);
        command.uid(65534).gid(65534);
        Ran::of(command)
    };
    let acquire = |choice: &[&str]| as_nobody(&[&["acquire", "x", "--while-pid", &own], choice].concat());
    for choice in [&[][..], &["--on-lost", "kill"], &["--on-lost", "signal:USR1"]] {
        let ran = acquire(choice);
        ran.assert_code(64);
        let words = format!("may not send a signal to process {own}, which gets one if the lock is lost");
        assert!(ran.stderr.contains(&words) && ran.stderr.contains("--on-lost continue"), "{ran:?}");
    }
    assert_eq!(sandbox.keeper(), None);
    let kept = acquire(&["--on-lost", "continue"]);
    kept.assert_code(0);
    as_nobody(&["release", "--lease", kept.stdout.trim()]).assert_code(0);
    until("nothing is left of it", || sandbox.processes().is_empty());
}

#[test]
fn one_who_waits_leaves_the_queue_when_nobody_wants_the_lease_any_more() {
    let sandbox = Sandbox::new();
    let _holder = sandbox.hold("x");
    let own = std::process::id().to_string();
    let start = || {
        let waiter = sandbox.start(&["acquire", "x", "--while-pid", &own]);
        until("it waits", || sandbox.waiters("x") == 1);
        waiter
    };
    let mut asked = start();
    asked.signal(Signal::TERM);
    assert_eq!(asked.code(), 143);
    assert_eq!(sandbox.waiters("x"), 0);

    let killed = start();
    killed.signal(Signal::KILL);
    until("the queue is left", || sandbox.waiters("x") == 0);
    drop(killed);

    let mut process = std::process::Command::new("sleep").arg("999").spawn().unwrap();
    let mut waiter = sandbox.start(&["acquire", "x", "--while-pid", &process.id().to_string()]);
    until("it waits", || sandbox.waiters("x") == 1);
    process.kill().unwrap();
    assert_eq!(waiter.code(), 75);
    process.wait().unwrap();
    sandbox.run(&["acquire", "x", "-n", "--while-pid", &own]).assert_code(75);
    assert_eq!(sandbox.keeper(), None);
}

#[test]
fn a_pidfd_can_stand_for_the_process() {
    let sandbox = Sandbox::new();
    let mut process = std::process::Command::new("sleep").arg("999").spawn().unwrap();
    let pid = Pid::from_raw(i32::try_from(process.id()).unwrap()).unwrap();
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).unwrap();
    fcntl_setfd(&pidfd, FdFlags::empty()).unwrap();
    let ran = sandbox.run(&["acquire", "x", "--while-fd", &pidfd.as_raw_fd().to_string()]);
    ran.assert_code(0);
    sandbox.run(&["check", "--lease", ran.stdout.trim()]).assert_code(0);
    process.kill().unwrap();
    process.wait().unwrap();
    until("the lock is free", || sandbox.holders("x") == 0);

    let no_pidfd = sandbox.run(&["acquire", "x", "--while-fd", "1"]);
    no_pidfd.assert_code(64);
    assert!(no_pidfd.stderr.contains("no open pidfd"), "{no_pidfd:?}");
    let gone = Ran::of(sandbox.leasehold(&["acquire", "x", "--while-pid", &pid.as_raw_pid().to_string()]));
    gone.assert_code(64);
    assert!(gone.stderr.contains("there is no process"), "{gone:?}");
}
