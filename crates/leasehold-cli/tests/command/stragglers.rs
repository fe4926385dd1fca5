//! What a command leaves behind when it ends.

use std::{
    fs,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use rustix::process::Signal;

use crate::sandbox::{Ran, Running, Sandbox, is_alive, read_soon, skip, until};

/// A command that starts a `sleep` in the background, tells its pid, and ends.
const LEAVES_A_SLEEP: &str = "sleep 999 > /dev/null 2>&1 & echo $! > $PID_FILE";

#[test]
fn what_stays_in_the_group_is_stopped_before_the_release_and_named() {
    let sandbox = Sandbox::new();
    let (ran, pid) = sandbox.run_script(&[], LEAVES_A_SLEEP);
    ran.assert_code(0);
    assert!(!is_alive(pid));
    assert_eq!(ran.stderr, format!("leasehold: /bin/sh ended and left sleep ({pid}) running: TERM, then KILL in 5s\n"));
}

#[test]
fn the_lock_is_kept_until_those_who_are_waited_for_have_ended() {
    let sandbox = Sandbox::new();
    let go = sandbox.path("go");
    let script = format!(
        "(echo > {}; while ! test -e {}; do sleep .01; done) > /dev/null 2>&1 & exit 3",
        sandbox.path("ready").display(),
        go.display()
    );
    let mut command = sandbox.leasehold(&["run", "--stragglers", "wait", "x", "-c", &script]);
    command.stderr(Stdio::piped());
    let mut running = Running::of(command);
    read_soon(&sandbox.path("ready"));
    thread::sleep(Duration::from_millis(500));
    assert!(!running.has_ended(), "the lock is kept");
    sandbox.run(&["run", "-n", "x", "--", "true"]).assert_code(75);
    fs::write(go, "").unwrap();
    let ran = running.finish();
    ran.assert_code(3);
    assert!(ran.stderr.contains("the lock is kept until sh (") && ran.stderr.lines().count() == 1, "{ran:?}");
}

#[test]
fn those_who_are_waited_for_are_stopped_when_the_lock_is_lost() {
    let sandbox = Sandbox::new();
    let shell = sandbox.path("shell");
    let script = format!("echo $$ > {}; {LEAVES_A_SLEEP}", shell.display());
    let (running, pid) = sandbox.start_script(&["--stragglers", "wait"], &script);
    until("the shell is gone", || !is_alive(read_soon(&shell).parse().unwrap()));
    let fence = sandbox.fence("x");
    sandbox.run(&["evict", "x", "--fence", &fence, "--reason", "host gone", "--yes"]).assert_code(0);
    running.finish().assert_code(121);
    assert!(!is_alive(pid));
}

#[test]
fn those_who_are_left_run_on_without_the_lock() {
    let sandbox = Sandbox::new();
    // With `--kill-mode process` nobody looks for them.
    for (options, are_named) in [(["--stragglers", "leave"], true), (["--kill-mode", "process"], false)] {
        let (ran, pid) = sandbox.run_script(&options, LEAVES_A_SLEEP);
        ran.assert_code(0);
        assert!(is_alive(pid), "{options:?}");
        assert_eq!(ran.stderr.contains(&format!("sleep ({pid}) goes on without the lock")), are_named, "{ran:?}");
        sandbox.run(&["run", "-n", "x", "--", "true"]).assert_code(0);
        fs::remove_file(sandbox.path("pid")).unwrap();
    }
}

#[test]
fn kill_mode_process_leaves_no_choice() {
    let sandbox = Sandbox::new();
    for choice in ["stop", "wait"] {
        let ran = sandbox.run(&["run", "--kill-mode", "process", "--stragglers", choice, "x", "--", "true"]);
        ran.assert_code(64);
        assert!(ran.stderr.contains("--kill-mode process"), "{ran:?}");
    }
    sandbox.run(&["run", "--kill-mode", "process", "--stragglers", "leave", "x", "--", "true"]).assert_code(0);
}

/// A command that starts a process in a group of its own, then does the rest.
fn starts_a_group(rest: &str) -> String {
    let worker = "sh -c \"echo \\$\\$ > $PID_FILE; exec sleep 999\"";
    format!("bash -c 'set -m; {worker} > /dev/null 2>&1 & while ! test -s $PID_FILE; do sleep .01; done'; {rest}")
}

#[test]
fn a_group_of_its_own_is_stopped_too_however_the_command_ends() {
    let sandbox = Sandbox::new();
    let max_hold = ["--max-hold", "5s", "--ttl", "10m"];
    for (args, rest, signal, code) in [
        (&[][..], "exit 3", None, 3),
        (&[], "exec sleep 999", Some(Signal::TERM), 143),
        (&max_hold, "exec sleep 999", None, 124),
    ] {
        let (holder, worker) = sandbox.start_script(args, &starts_a_group(rest));
        if let Some(signal) = signal {
            holder.signal(signal);
        }
        holder.finish().assert_code(code);
        assert!(!is_alive(worker), "{rest} {signal:?}");
        fs::remove_file(sandbox.path("pid")).unwrap();
    }
}

#[test]
fn a_group_of_its_own_is_waited_for_and_gets_the_signals_that_come_meanwhile() {
    let sandbox = Sandbox::new();
    let shell = sandbox.path("shell");
    let script = format!("echo $$ > {}; {}", shell.display(), starts_a_group("exit 3"));
    let mut command = sandbox.leasehold(&["run", "--stragglers", "wait", "x", "-c", &script]);
    let said = sandbox.path("said");
    command.stderr(fs::File::create(&said).unwrap());
    let mut running = Running::of(command);
    let worker = sandbox.told_pid();
    let words = format!("until sleep ({worker}) ends");
    until("it says that it waits", || fs::read_to_string(&said).unwrap().contains(&words));
    assert!(is_alive(worker) && !running.has_ended(), "the lock is kept");
    running.signal(Signal::TERM);
    assert_eq!(running.code(), 3);
    assert!(!is_alive(worker));
}

#[test]
fn a_group_of_its_own_is_left_alone_if_asked() {
    let sandbox = Sandbox::new();
    let (ran, worker) = sandbox.run_script(&["--stragglers", "leave"], &starts_a_group("exit 0"));
    ran.assert_code(0);
    assert!(is_alive(worker), "{ran:?}");
}

#[test]
fn a_stubborn_one_is_killed_after_the_grace() {
    let sandbox = Sandbox::new();
    let script = "sh -c 'trap \"\" TERM; echo $$ > $PID_FILE; while :; do sleep .05; done' > /dev/null 2>&1 &
                  while ! test -s $PID_FILE; do sleep .01; done; exit 3";
    let (ran, stubborn) = sandbox.run_script(&["--kill-after", ".3"], script);
    ran.assert_code(3);
    assert!(ran.took >= Duration::from_millis(300), "{ran:?}");
    assert!(!is_alive(stubborn));
}

#[test]
fn a_daemon_lives_on_and_keeps_no_lock() {
    let sandbox = Sandbox::new();
    let script = "setsid sh -c 'echo $$ > $PID_FILE; exec sleep 999' < /dev/null > /dev/null 2>&1 &
                  while ! test -s $PID_FILE; do sleep .01; done";
    let (ran, daemon) = sandbox.run_script(&[], script);
    ran.assert_code(0);
    assert!(is_alive(daemon), "a daemon is meant to stay");
    let inherited = fs::read_dir(format!("/proc/{daemon}/fd")).unwrap().count();
    assert!(inherited > 3, "it has closed nothing");
    let next = sandbox.run(&["run", "-n", "x", "--", "true"]);
    next.assert_code(0);
}

#[test]
fn a_daemon_may_take_the_lock_again_later() {
    let sandbox = Sandbox::new();
    let (away, gone, code) = (sandbox.path("away"), sandbox.path("gone"), sandbox.path("code"));
    let exe = env!("CARGO_BIN_EXE_leasehold");
    // Its environment still says that the lock is held by those who started it.
    let daemon = format!(
        "touch {}; while ! test -e {}; do sleep .01; done; {exe} run -n x true; echo $? > {}",
        away.display(),
        gone.display(),
        code.display()
    );
    let script = format!(
        "setsid sh -c '{daemon}' < /dev/null > /dev/null 2>&1 & while ! test -e {}; do sleep .01; done",
        away.display()
    );
    sandbox.run(&["run", "x", "-c", &script]).assert_code(0);
    fs::write(gone, "").unwrap();
    assert_eq!(read_soon(&code), "0");
}

/// Only root can choose the number of a process, in a namespace of its own: for others there is nothing to see here.
#[test]
fn another_process_with_the_number_of_the_command_gets_no_signal() {
    let sandbox = Sandbox::new();
    let (exe, shell, pid) = (env!("CARGO_BIN_EXE_leasehold"), sandbox.path("shell"), sandbox.path("pid"));
    let script = sandbox.path("script");
    fs::write(&script, format!("echo $$ > {}; {}", shell.display(), starts_a_group("exit 3"))).unwrap();
    let scene = format!(
        "set -m; {exe} run --stragglers wait x sh {} & run=$!
         while ! test -s {}; do sleep .01; done; command=$(cat {})
         while test -e /proc/$command; do sleep .01; done
         while test \"$other\" != $command; do
             echo $((command - 1)) > /proc/sys/kernel/ns_last_pid; sleep 999 & other=$!
         done
         kill $run; wait $run; echo $?; kill -0 $other && echo alive",
        script.display(),
        pid.display(),
        shell.display()
    );
    let namespace = ["--pid", "--fork", "--kill-child", "--mount-proc"];
    if !Command::new("unshare").args(namespace).arg("true").status().is_ok_and(|status| status.success()) {
        return skip("unshare --pid, the right of root to a namespace of its own");
    }
    let mut command = sandbox.command("unshare");
    command.args(namespace).args(["bash", "-c", &scene]).env("LEASEHOLD_URL", sandbox.url());
    let ran = Ran::of(command);
    assert_eq!(ran.stdout, "3\nalive\n", "{ran:?}");
}
