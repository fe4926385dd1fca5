//! Whoever of those who watch over a command is killed or stopped: nothing of the command goes on without the lock.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};

use crate::sandbox::{Running, Sandbox, is_alive, is_root, kill, parent_of, read_soon, skip, state_of, until};

/// Starts a command with a grandchild in its group and one that left it, none of which listens to TERM.
fn start(sandbox: &Sandbox, args: &[&str]) -> (Running, Vec<i32>) {
    let pids = sandbox.path("pids");
    let stubborn = "trap \"\" TERM; while :; do sleep .1; done";
    let away = sandbox.path("away");
    let script = format!(
        "trap '' TERM; sh -c '{stubborn}' & near=$!; setsid sh -c 'echo $$ > {0}; {stubborn}' & \
         while ! test -s {0}; do sleep .01; done; echo $$ $near $(cat {0}) > {1}; while :; do sleep .1; done",
        away.display(),
        pids.display()
    );
    let mut command = sandbox.leasehold(&[&["run"], args, &["x", "-c", &script]].concat());
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let running = Running::of(command);
    let family = read_soon(&pids).split(' ').map(|pid| pid.parse().unwrap()).collect();
    (running, family)
}

fn all_dead(family: &[i32]) -> bool {
    !family.iter().any(|pid| is_alive(*pid))
}

fn signal(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

#[test]
fn nothing_outlives_a_run_that_is_killed() {
    let sandbox = Sandbox::new();
    for cause in [Signal::KILL, Signal::ALARM, Signal::ABORT] {
        let (running, family) = start(&sandbox, &[]);
        running.signal(cause);
        let ran = running.finish();
        assert!(ran.stderr.contains("leasehold was killed while /bin/sh ran under its lock"), "{ran:?}");
        assert!(all_dead(&family), "{cause:?}: the last to hold our standard error was the supervisor");
        until("nothing is left", || sandbox.processes().is_empty());
        sandbox.run(&["run", "-n", "x", "--", "true"]).assert_code(0);
        fs::remove_file(sandbox.path("pids")).unwrap();
        fs::remove_file(sandbox.path("away")).unwrap();
    }
}

#[test]
fn the_supervisor_writes_its_lines_as_the_run_would() {
    let sandbox = Sandbox::new();
    for (args, begins) in [
        (&["--log-format", "json"][..], "{\"at\":"),
        (&["--json"], "{\"at\":"),
        (&["--log-format", "logfmt"], "at="),
        (&["--color", "always"], "leasehold: \u{1b}[33mwarning: \u{1b}[0mleasehold was killed"),
        (&["--quiet"], ""),
    ] {
        let (running, _family) = start(&sandbox, args);
        running.signal(Signal::KILL);
        let ran = running.finish();
        let last = ran.stderr.lines().last().unwrap_or_default();
        assert!(last.starts_with(begins) && last.is_empty() == begins.is_empty(), "{args:?}: {ran:?}");
        fs::remove_file(sandbox.path("pids")).unwrap();
        fs::remove_file(sandbox.path("away")).unwrap();
    }
}

#[test]
fn a_run_whose_supervisor_is_killed_stops_everything() {
    let sandbox = Sandbox::new();
    let (running, family) = start(&sandbox, &[]);
    let supervisor = parent_of(family[0]);
    assert_eq!(parent_of(supervisor), running.pid());
    kill(supervisor);
    let ran = running.finish();
    ran.assert_code(137);
    assert!(ran.stderr.contains("the supervisor of /bin/sh was killed"), "{ran:?}");
    assert!(all_dead(&family));
    sandbox.assert_deserted();
    assert_eq!(sandbox.holders("x"), 0, "released");
}

#[test]
fn the_supervisor_heeds_no_signal_that_means_the_command() {
    let sandbox = Sandbox::new();
    let (mut running, family) = start(&sandbox, &[]);
    let supervisor = parent_of(family[0]);
    for number in [Signal::TERM, Signal::INT, Signal::HUP, Signal::TSTP, Signal::USR1] {
        signal(supervisor, number);
    }
    thread::sleep(Duration::from_millis(200));
    assert!(is_alive(supervisor) && !running.has_ended());
    sandbox.run(&["run", "-n", "x", "--", "true"]).assert_code(75);
}

/// A `run` that was stopped for long may pass a signal on as soon as it continues, before it reads any report.
#[test]
fn the_pid_of_a_command_is_not_free_before_its_end_is_reported() {
    let sandbox = Sandbox::new();
    let pid = sandbox.path("pid");
    let mut running = sandbox.start(&["run", "x", "-c", &format!("echo $$ > {}; exec sleep 600", pid.display())]);
    let child: i32 = read_soon(&pid).parse().unwrap();
    running.signal(Signal::STOP);
    until("it is stopped", || state_of(running.pid()) == Some('T'));
    // Reports that nobody reads, until there is no room for more.
    for _ in 0..2000 {
        signal(child, Signal::STOP);
        until("the command is stopped", || state_of(child) == Some('T'));
        thread::sleep(Duration::from_micros(100));
        signal(child, Signal::CONT);
    }
    signal(child, Signal::TERM);
    until("the command has ended", || state_of(child).is_none_or(|state| state == 'Z'));
    thread::sleep(Duration::from_millis(300));
    assert_eq!(state_of(child), Some('Z'), "reaped");
    running.signal(Signal::CONT);
    assert_eq!(running.code(), 143);
    assert_eq!(state_of(child), None);
}

#[test]
fn with_kill_mode_process_only_the_command_dies_with_its_run() {
    let sandbox = Sandbox::new();
    let (running, family) = start(&sandbox, &["--kill-mode", "process"]);
    running.signal(Signal::KILL);
    until("the command is dead", || !is_alive(family[0]));
    thread::sleep(Duration::from_millis(200));
    assert!(is_alive(family[1]) && is_alive(family[2]));
    // Those who live on have inherited the lock.
    sandbox.run(&["run", "-n", "x", "--", "true"]).assert_code(75);
}

/// A program that gains root's rights and runs a command with them, as sudo does; `None` where nobody can make one.
fn sudo(folder: &Path) -> Option<String> {
    let found = Command::new("sh").args(["-c", "command -v setpriv"]).output().unwrap();
    let setpriv = String::from_utf8(found.stdout).unwrap();
    if !is_root() || setpriv.is_empty() {
        return None;
    }
    let copy = folder.join("sudo");
    fs::copy(setpriv.trim(), &copy).unwrap();
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o4755)).unwrap();
    let mut trial = Command::new("setpriv");
    trial.arg("--reuid=65534").arg(&copy).args(["--reuid=0", "true"]);
    trial.status().unwrap().success().then(|| copy.display().to_string())
}

/// Only root can make a process that another user may not signal: for others there is nothing to see here.
#[test]
fn a_process_that_may_not_be_signalled_is_named() {
    let sandbox = Sandbox::new();
    for folder in [sandbox.path("."), sandbox.path("home")] {
        fs::create_dir_all(&folder).unwrap();
        fs::set_permissions(folder, fs::Permissions::from_mode(0o777)).unwrap();
    }
    let Some(sudo) = sudo(&sandbox.path(".")) else {
        return skip("root, setpriv, and programs that may gain rights");
    };
    let exe = sandbox.path("leasehold");
    fs::copy(env!("CARGO_BIN_EXE_leasehold"), &exe).unwrap();
    let pid = sandbox.path("pid");
    let script = format!("{sudo} --reuid=0 sleep 999 & echo $! > {}; wait", pid.display());
    let mut command = sandbox.command("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(exe).args(["run", "x", "-c", &script]);
    command.env("LEASEHOLD_URL", sandbox.url()).stdout(Stdio::null()).stderr(Stdio::piped());
    let running = Running::of(command);
    let privileged: i32 = read_soon(&pid).parse().unwrap();
    until("it has its rights", || fs::read_to_string(format!("/proc/{privileged}/comm")).unwrap() == "sleep\n");
    running.signal(Signal::KILL);
    thread::sleep(Duration::from_millis(500));
    assert!(is_alive(privileged));
    sandbox.run(&["run", "-n", "x", "--", "true"]).assert_code(75);
    kill(privileged);
    let ran = running.finish();
    assert!(ran.stderr.contains(&format!("not permitted to stop sleep ({privileged})")), "{ran:?}");
    until("the lock is free", || sandbox.run(&["run", "-n", "x", "--", "true"]).code() == 0);
}
