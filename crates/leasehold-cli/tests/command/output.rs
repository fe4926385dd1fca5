//! Standard output and input are the child's; everything of ours goes to standard error.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};

use crate::sandbox::{Ran, Running, Sandbox, is_alive, parent_of, read_soon, until};

/// All bytes there are, no newline at the end.
fn every_byte() -> Vec<u8> {
    (0..=255).cycle().take(100_000).collect()
}

#[test]
fn a_report_to_a_pipe_waits_for_no_reader() {
    let sandbox = Sandbox::new();
    let pipe = sandbox.path("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
    let args = ["run", "--report", pipe.to_str().unwrap(), "x", "--", "true"];
    let ran = sandbox.run(&args);
    ran.assert_code(0);
    assert!(ran.stderr.contains("pipe: nobody reads it"), "{ran:?}");
    // Open for both, a pipe never waits for the other end.
    let reader = fs::File::options().read(true).write(true).open(&pipe).unwrap();
    sandbox.run(&args).assert_code(0);
    let mut line = String::new();
    BufReader::new(reader).read_line(&mut line).unwrap();
    assert!(line.contains("\"outcome\":\"completed\""), "{line}");
}

#[test]
fn a_report_to_a_dash_is_printed() {
    let sandbox = Sandbox::new();
    let mut command = sandbox.leasehold(&["run", "--report", "-", "x", "--", "true"]);
    command.current_dir(sandbox.path("."));
    let ran = Ran::of(command);
    ran.assert_code(0);
    assert_eq!(ran.json()["outcome"], "completed");
    assert!(!sandbox.path("-").exists());
}

#[test]
fn standard_output_is_the_childs_byte_for_byte() {
    let sandbox = Sandbox::new();
    let file = sandbox.path("bytes");
    fs::write(&file, every_byte()).unwrap();
    let alone = Command::new("cat").arg(&file).output().unwrap().stdout;
    assert_eq!(alone, every_byte());
    for flags in [&[][..], &["-v"], &["-vv"], &["-q"], &["--json"], &["-vv", "--json"]] {
        let args = [&["run"], flags, &["x", "--", "cat", file.to_str().unwrap()]].concat();
        let output = sandbox.leasehold(&args).output().unwrap();
        assert!(output.status.success());
        assert_eq!(output.stdout, alone, "{flags:?}");
    }
}

#[test]
fn all_is_quiet_when_all_is_well() {
    let sandbox = Sandbox::new();
    let ran = sandbox.run(&["run", "x", "--", "true"]);
    ran.assert_code(0);
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("", ""));
    let told = sandbox.run(&["run", "-vv", "x", "--", "true"]);
    assert!(told.stderr.lines().count() >= 3, "{told:?}");
    assert!(told.stderr.lines().all(|line| line.starts_with("leasehold: ")), "{told:?}");
}

#[test]
fn standard_error_of_the_child_passes_too() {
    let sandbox = Sandbox::new();
    let ran = sandbox.run(&["run", "x", "-c", "echo out; echo err >&2"]);
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("out\n", "err\n"));
}

#[test]
fn standard_input_passes() {
    let sandbox = Sandbox::new();
    let mut command = sandbox.leasehold(&["run", "x", "--", "cat"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let writer = thread::spawn(move || stdin.write_all(&every_byte()).unwrap());
    let mut read = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut read).unwrap();
    writer.join().unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(read, every_byte());
}

#[test]
fn options_of_the_command_are_its_own() {
    let sandbox = Sandbox::new();
    let ran = sandbox.run(&["run", "x", "printf", "%s|", "-n", "-v", "--json", "--", "-b", "memory:"]);
    assert_eq!(ran.stdout, "-n|-v|--json|--|-b|memory:|");
    let ran = sandbox.run(&["run", "-n", "x", "--", "printf", "%s|", "-n", "--help", "--version"]);
    assert_eq!(ran.stdout, "-n|--help|--version|");
    let listed = sandbox.run(&["run", "x", "ls", "-n", "-v", "/"]);
    listed.assert_code(0);
    assert!(listed.stdout.contains("proc"), "{listed:?}");
}

#[test]
fn a_shell_string_runs_in_the_shell_of_the_environment() {
    let sandbox = Sandbox::new();
    let ran = sandbox.run(&["run", "x", "-c", "echo $0 \"two  words\""]);
    assert_eq!(ran.stdout, "/bin/sh two  words\n");
    let mut command = sandbox.leasehold(&["run", "x", "-c", "echo $BASH_VERSION"]);
    command.env("SHELL", "/bin/bash");
    assert!(!Ran::of(command).stdout.trim().is_empty());
}

#[test]
fn the_child_finds_its_lease_in_the_environment() {
    let sandbox = Sandbox::new();
    let env = sandbox.path("env");
    let mut command =
        sandbox.leasehold(&["run", "--ttl", "20", "--holder", "me:1", "x", "-c", &format!("env > {}", env.display())]);
    command.env("LEASEHOLD_FENCE", "inherited").env("LEASEHOLD_TTL_MS", "inherited").env("LEASEHOLD_HELD", "0");
    Ran::of(command).assert_code(0);
    let env = crate::sandbox::pairs(&env);
    for (name, value) in [
        ("LEASEHOLD_HELD", "1"),
        ("LEASEHOLD_LOCK", "x"),
        ("LEASEHOLD_MODE", "exclusive"),
        ("LEASEHOLD_HOLDER", "me:1"),
        ("LEASEHOLD_TTL_MS", "20000"),
        ("LEASEHOLD_BACKEND", "file"),
    ] {
        assert_eq!(env[name], value, "{name}");
    }
    assert!(env["LEASEHOLD_LEASE"].starts_with("lh2_"));
    assert!(env["LEASEHOLD_FENCE"].parse::<u64>().unwrap() > 1_700_000_000_000_000);
}

#[test]
fn a_child_can_check_its_lease_wherever_the_locks_are() {
    let sandbox = Sandbox::new();
    let exe = env!("CARGO_BIN_EXE_leasehold");
    let url = sandbox.url();
    let script = format!("{exe} check && {exe} renew --ttl 1m && {exe} check --json");
    let args = ["run", "-b", &url, "--namespace", "billing", "x", "-c", &script];
    let ran = Ran::of(sandbox.bare(&args));
    ran.assert_code(0);
    assert_eq!(ran.json()["held"], true);
}

#[test]
fn a_reader_that_is_gone_does_not_end_us() {
    let sandbox = Sandbox::new();
    let done = sandbox.path("done");
    let script = format!("sleep .3; echo done > {}", done.display());
    let mut command = sandbox.leasehold(&["run", "-vv", "x", "-c", &script]);
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stderr.take());
    assert!(child.wait().unwrap().success());
    assert!(done.exists());
}

#[test]
fn a_reader_that_does_not_read_does_not_delay_us() {
    let sandbox = Sandbox::new();
    // A pipe filled to the brim: whoever writes to it without looking waits for ever.
    let (reader, mut writer) = std::io::pipe().unwrap();
    let brim = thread::spawn({
        let mut writer = writer.try_clone().unwrap();
        move || {
            let _closed = writer.write_all(&vec![b'x'; 1 << 20]);
        }
    });
    thread::sleep(Duration::from_millis(100));
    let ready = sandbox.path("ready");
    let script = format!("touch {}; exec sleep 600 2> /dev/null", ready.display());
    let mut command = sandbox.leasehold(&["run", "-vv", "x", "-c", &script]);
    command.stderr(writer.try_clone().unwrap());
    let mut holder = Running::of(command);
    until("it runs", || ready.exists());
    let fence = sandbox.fence("x");
    sandbox.run(&["evict", "x", "--fence", &fence, "--reason", "r", "--yes"]).assert_code(0);
    assert_eq!(holder.code(), 121);
    drop(reader);
    let _ = writer.flush();
    drop(writer);
    brim.join().unwrap();
}

#[test]
fn a_list_cut_short_by_its_reader_is_no_failure() {
    let sandbox = Sandbox::new();
    let mut command = sandbox.leasehold(&["list"]);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    command.stdout(writer).stderr(Stdio::piped());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
}

/// Runs the command with a standard output that nobody reads.
fn unread(sandbox: &Sandbox, args: &[&str]) -> (i32, String) {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = sandbox.leasehold(args).stdout(writer).stderr(Stdio::piped()).output().unwrap();
    (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn an_answer_keeps_its_code_when_its_reader_has_left() {
    let sandbox = Sandbox::new();
    sandbox.run(&["run", "job", "--", "true"]).assert_code(0);
    let lease = sandbox.run(&["acquire", "x", "--ttl", "1m"]).stdout;
    sandbox.run(&["release", "--lease", lease.trim()]).assert_code(0);
    for (args, code) in [
        (&["check", "nothere", "--succeeded-within", "1h", "--json"][..], 1),
        (&["check", "job", "--succeeded-within", "1h", "--json"], 0),
        (&["check", "--json", "--lease", lease.trim()], 1),
        (&["inspect", "--json", "nothere"], 1),
        (&["inspect", "job"], 0),
        (&["elect", "boss", "--leader", "--json"], 1),
        (&["history", "--json"], 0),
        (&["elect", "boss", "--observe"], 0),
    ] {
        assert_eq!(unread(&sandbox, args).0, code, "{args:?}");
    }
    let (code, stderr) = unread(&sandbox, &["acquire", "x", "--ttl", "1m"]);
    assert_eq!((code, sandbox.holders("x")), (69, 0), "{stderr}");
    assert!(stderr.contains("so it was released: nobody reads standard output"), "{stderr}");
}

#[test]
fn a_report_to_standard_output_that_nobody_reads_is_told() {
    let sandbox = Sandbox::new();
    let (code, stderr) = unread(&sandbox, &["run", "--report", "-", "x", "--", "true"]);
    assert_eq!((code, stderr.as_str()), (0, "leasehold: warning: --report: nobody reads standard output\n"));
}

#[test]
fn arguments_and_names_of_any_bytes_pass() {
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt};
    let sandbox = Sandbox::new();
    let mut command = sandbox.leasehold(&["run", "ein Schloß ☃", "--", "printf", "%s"]);
    command.arg(OsStr::from_bytes(b"\xff\xfe '\"\n"));
    assert_eq!(command.output().unwrap().stdout, b"\xff\xfe '\"\n");
}

#[test]
fn the_child_gets_no_descriptors_but_its_own() {
    let sandbox = Sandbox::new();
    let open = |args: &[&str]| {
        let script = "for fd in /proc/$$/fd/*; do readlink $fd; done";
        let ran = sandbox.run(&[&["run"], args, &["x", "-c", script]].concat());
        ran.stdout
            .lines()
            .filter(|line| !line.contains("pipe:") && *line != "/dev/null")
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert_eq!(open(&["--no-inherit"]), [""; 0]);
    let inherited = open(&[]);
    assert!(inherited.len() == 1 && inherited[0].contains("/presence/"), "{inherited:?}");
}

#[test]
fn a_lock_whose_process_is_gone_names_those_that_keep_it() {
    let sandbox = Sandbox::new();
    let pids = sandbox.path("pids");
    let script = format!("sleep 600 & echo $$ $! > {}; wait", pids.display());
    let mut run = sandbox.start(&["run", "x", "-c", &script]);
    let text = read_soon(&pids);
    let (command, left) = text.split_once(' ').unwrap();
    let (left, holder) = (left.trim(), run.pid());
    until("sleep runs in the place of a copy of the shell", || {
        fs::read_to_string(format!("/proc/{left}/comm")).is_ok_and(|name| name == "sleep\n")
    });
    assert!(!sandbox.run(&["inspect", "x"]).stdout.contains("is gone"));
    // Stopped, the run cannot end what is left when its supervisor is killed.
    let supervisor = Pid::from_raw(parent_of(command.parse().unwrap())).unwrap();
    run.signal(Signal::STOP);
    kill_process(supervisor, Signal::KILL).unwrap();
    run.signal(Signal::KILL);
    run.wait();
    until("the command is gone", || !is_alive(command.parse().unwrap()));
    let shown = sandbox.run(&["inspect", "x"]).stdout;
    assert!(shown.contains(&format!("{holder} is gone; the lock is kept by {left} sleep\n")), "{shown}");
}
