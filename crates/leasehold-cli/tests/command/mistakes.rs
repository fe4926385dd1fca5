//! Mistakes: one clear line, the right code, and nothing changed.

use std::{
    fs,
    os::unix::{fs::PermissionsExt, process::CommandExt},
    process::{Command, Stdio},
};

use crate::sandbox::{Ran, Sandbox};

/// One line that says it, perhaps one with what to do.
fn assert_clear(ran: &Ran, code: i32, words: &str) {
    ran.assert_code(code);
    let lines: Vec<&str> = ran.stderr.lines().collect();
    assert!(matches!(lines.len(), 1 | 2), "{ran:?}");
    assert!(lines[0].starts_with("leasehold: ") && !lines[0].starts_with("leasehold:   "), "{ran:?}");
    assert!(lines.get(1).is_none_or(|hint| hint.starts_with("leasehold:   ")), "{ran:?}");
    assert!(ran.stderr.contains(words), "{words}: {ran:?}");
    assert_eq!(ran.stdout, "", "{ran:?}");
}

#[test]
fn a_name_that_begins_with_a_hyphen_leaves_room_for_a_command_behind_its_own_hyphens() {
    let sandbox = Sandbox::new();
    for args in [&["run", "--", "-x", "--", "echo", "hi"][..], &["run", "--", "-x", "echo", "hi"]] {
        let ran = sandbox.run(args);
        ran.assert_code(0);
        assert_eq!(ran.stdout, "hi\n");
    }
    sandbox.run(&["run", "--", "-x", "--"]).assert_code(64);
    let shell = sandbox.run(&["run", "-w", "5", "-c", "echo hi", "--", "x"]);
    shell.assert_code(0);
    assert_eq!(shell.stdout, "hi\n");
}

#[test]
fn a_server_that_is_not_there_is_told_with_what_to_check() {
    let sandbox = Sandbox::new();
    for (url, words) in [
        ("redis://a..b", "; check the host name; tried for 1s"),
        ("redis+cluster://a..b", "; check the host name; tried for 1s"),
        ("redis://127.0.0.1:1", "; does it run there?; tried for 1s"),
        ("postgres://a..b/x", "; check the host name; tried for 1s"),
        ("postgres://a..b/x?liveness=connection", "; check the host name; tried for 1s"),
        ("postgres://127.0.0.1:1/x", "; does it run there?; tried for 1s"),
        ("postgres://%2Fnonexistent/x", "postgres at /nonexistent/.s.PGSQL.5432, database x: "),
    ] {
        // Long enough for the answer of a busy machine, after which it is tried again.
        let ran = Ran::of(sandbox.bare(&["-b", url, "--connect-timeout", "1s", "list"]));
        assert_clear(&ran, 69, words);
    }
    // It accepts connections and says nothing, as a server without TLS does during a handshake.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("rediss://{}", listener.local_addr().unwrap());
    let ran = Ran::of(sandbox.bare(&["-b", &url, "--connect-timeout", "300ms", "run", "x", "true"]));
    assert_clear(&ran, 69, " did not answer; does the server speak TLS? otherwise redis://; tried for 300ms");
}

#[test]
fn a_server_that_hangs_up_is_described_by_what_it_did_and_not_by_the_last_moment() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for client in listener.incoming() {
            std::thread::sleep(std::time::Duration::from_millis(20));
            drop(client);
        }
    });
    let ran = Sandbox::new().run(&["-b", &url, "--connect-timeout", "1s", "list"]);
    ran.assert_code(69);
    assert!(ran.stderr.contains("cannot reach") && ran.stderr.contains("tried for 1s"), "{ran:?}");
    assert!(!ran.stderr.contains("did not answer within"), "{ran:?}");
}

/// What is typed, and what the error says, where `URL` stands for the one of the sandbox.
const USAGE_ERRORS: &[(&[&str], &str)] = &[
    (&["run"], "<NAME>"),
    (&["run", "x"], "run needs a command"),
    (&["run", "x", "--"], "run needs a command"),
    (&["elect", "--", "echo", "hi"], "elect needs the name of a lock before `--`"),
    (&["run", "--", "echo", "hi"], "the name of a lock before `--`"),
    (&["run", "-w", "5", "--", "echo", "hi"], "the name of a lock before `--`"),
    (&["run", "-nE", "3", "--ttl", "5s", "--", "echo", "hi"], "the name of a lock before `--`"),
    (&["release", "x"], "`leasehold -b URL evict NAME`"),
    (&["--namespace", "n", "-q", "renew", "x", "--ttl", "1m"], "`leasehold -b URL --namespace n evict NAME`"),
    (&["release", "x", "-b", "redis://h:1"], "`leasehold -b redis://h:1 evict NAME`"),
    (&["--namespace", "list", "run", "--bogus", "x", "true"], "leasehold:   see: leasehold run --help\n"),
    (&["run", "x", "-c", "true", "true"], "cannot be used with"),
    (&["run", "x", "--frobnicate"], "no option --frobnicate"),
    (&["run", "--frobnicate", "x", "true"], "run has no option --frobnicate\n"),
    (&["elect", "-n", "x", "true"], "elect has no option -n\n"),
    (&["elect", "x", "-w", "3", "true"], "elect has no option -w\n"),
    (&["run", "-u", "9"], "acquire NAME --while-pid $$"),
    (&["run", "--unlock", "x", "true"], "acquire NAME --while-pid $$"),
    (&["run", "9"], "acquire NAME --while-pid $$"),
    (&["run", "-en", "9"], "acquire NAME --while-pid $$"),
    (&["run", "-o", "x", "true"], "leave -o out"),
    (&["run", "-Fn", "x", "true"], "leave -F out"),
    (&["run", "", "true"], "must not be empty"),
    (&["run", "two\nlines", "true"], "control characters"),
    (&["run", "-w", "soon", "x", "true"], "no length of time"),
    (&["run", "-w", "-1", "x", "true"], "-1"),
    (&["run", "-n", "-w", "3", "x", "true"], "cannot be used with"),
    (&["run", "-s", "-x", "x", "true"], "cannot be used with"),
    (&["run", "-s", "-j", "2", "x", "true"], "cannot be used with"),
    (&["run", "-s", "--also", "y", "x", "true"], "cannot be used with"),
    (&["run", "-E", "256", "x", "true"], "256"),
    (&["run", "-E", "-1", "x", "true"], "-1"),
    (&["run", "-E", "x", "x", "true"], "'x' for '--conflict-exit-code <N>': write a number\n"),
    (&["acquire", "x", "--while-pid", "abc"], "'abc' for '--while-pid <PID>': write a number\n"),
    (&["run", "-j", "0", "x", "true"], "permits"),
    (&["run", "-j", "2", "--permits", "3", "x", "true"], "cannot take 3 permits"),
    (&["run", "--permits", "3", "x", "true"], "--limit"),
    (&["run", "--ttl", "0", "x", "true"], "ttl 0ms is out of range"),
    (&["run", "--ttl", "-5s", "x", "true"], "have no sign"),
    (&["run", "--max-hold", "0", "x", "true"], "--max-hold 0 would stop the command at once"),
    (&["run", "--min-hold", "3s", "--max-hold", "1s", "x", "true"], "--min-hold 3s is longer than --max-hold 1s"),
    (&["run", "--bogus", "x", "true"], "leasehold:   see: leasehold run --help\n"),
    (&["run", "--wiat", "3", "x", "true"], "a similar argument exists: '--wait'\n"),
    (&["run", "--ttl", "100ms", "x", "true"], "too short"),
    (&["run", "--ttl", "99d", "x", "true"], "out of range"),
    (&["run", "--ttl", "30s", "--kill-after", "10s", "x", "true"], "use --ttl 32s or more"),
    (&["run", "--on-lost", "signal:NOPE", "x", "true"], "no signal NOPE"),
    (&["run", "--on-lost", "panic", "x", "true"], "terminate, kill, signal:NAME or continue"),
    (&["run", "--kill-mode", "all", "x", "true"], "group"),
    (&["run", "--holder", "", "x", "true"], "--holder"),
    (&["run", "--note", "a\tb", "x", "true"], "--note"),
    (&["run", "--meta", "nonsense", "x", "true"], "KEY=VALUE"),
    (&["run", "--meta", "{nonsense", "x", "true"], "JSON"),
    (&["run", "--report", "/nonexistent/report", "x", "true"], "--report"),
    (
        &["run", "--metrics-textfile", "/nonexistent", "x", "true"],
        "--metrics-textfile: /nonexistent is not a directory",
    ),
    (&["acquire", "x"], "needs --ttl"),
    (&["acquire", "x", "--ttl", "0"], "--ttl"),
    (&["acquire"], "<NAME>"),
    (&["acquire", "x", "-n", "-E", "0", "--ttl", "1m"], "-E 0 would let the script go on without the lock"),
    (&["acquire", "x", "-n", "-E", "0", "--while-pid", "1"], "-E 0 would let the script go on without the lock"),
    (&["renew", "--lease", "lh2_x"], "--lease: "),
    (&["check"], "which lease?"),
    (
        &["check", "x"],
        "is it held? leasehold -b URL inspect x; did it succeed lately? leasehold -b URL check --succeeded-within 26h x\n",
    ),
    (&["check", "--lease", "nonsense"], "lh2_"),
    (&["check", "--lease-file", "/nonexistent"], "/nonexistent"),
    (&["release", "--lease", "a", "--lease-file", "b"], "cannot be used with"),
    (&["elect", "x"], "elect needs a command"),
    (&["elect", "x", "--leader", "--observe"], "cannot be used with"),
    (&["elect", "x", "--leader", "--", "true"], "cannot be used with"),
    (&["elect", "--backoff", "3s..1s", "x", "true"], "shorter than the first"),
    (&["evict", "x"], "--fence"),
    (&["evict", "x y"], "see the fence: leasehold -b URL inspect 'x y'\n"),
    (&["--namespace", "n", "evict", "x", "--reason", "r"], "see the fence: leasehold -b URL --namespace n inspect x\n"),
    (
        &["evict", "x", "-b", "redis://h:1", "--namespace", "n", "--reason", "r"],
        "see the fence: leasehold -b redis://h:1 --namespace n inspect x\n",
    ),
    (&["evict", "-b", "redis://h:1", "x"], "see the fence: leasehold -b redis://h:1 inspect x\n"),
    (&["evict", "x", "--fence", "", "--reason", "r"], "write a number\n"),
    (&["release", "--lease", ""], "--lease: the handle is empty\nleasehold:   did `acquire` fail? add `|| exit`"),
    (&["check", "--lease", " "], "the handle is empty"),
    (&["evict", "x", "--fence", "1", "--reason", " ", "--yes"], "--reason"),
    (&["evict", "x", "--fence", "first", "--reason", "r", "--yes"], "first"),
    (&["history", "--since", "yesterday"], "2h (ago)"),
    (&["history", "--event", "vanished"], "vanished"),
    (&["history", "--event", "crashed"], "'disconnected', or 'expired' where its lease had to run out\n"),
    (&["history", "--event", "relased"], "a similar value exists: 'released'\n"),
    (&["list", "--sort", "size"], "size"),
    (&["frobnicate"], "frobnicate"),
    (&["status"], "here this is: leasehold -b URL list\n"),
    (&["ps", "--namespace", "n"], "here this is: leasehold -b URL --namespace n list\n"),
    (&["unlock", "x"], "here this is: leasehold -b URL release\n"),
    (&["lock", "x", "true"], "here this is: leasehold -b URL run\n"),
    (&["kill", "x"], "here this is: leasehold -b URL evict\n"),
    (&["log"], "here this is: leasehold -b URL history\n"),
    (&["show", "x"], "here this is: leasehold -b URL inspect\n"),
    (&["--frobnicate"], "--frobnicate"),
    (&["completions", "tcsh"], "tcsh"),
    (&["man", "frobnicate"], "frobnicate"),
];

#[test]
fn usage_errors_are_told_in_a_line_and_change_nothing() {
    let sandbox = Sandbox::new();
    let long = "x".repeat(513);
    let too_long: (&[&str], &str) = (&["run", &long, "true"], "512 bytes");
    for (args, words) in USAGE_ERRORS.iter().copied().chain([too_long]) {
        let ran = sandbox.run(args);
        assert_clear(&ran, 64, &words.replace(" -b URL ", &format!(" -b {} ", sandbox.url())));
    }
    assert!(!sandbox.path("locks").exists(), "nothing was made");
    for (args, times) in
        [(&["run", "-u", "9"][..], 2), (&["run", "9"], 2), (&["run", "x"], 2), (&["run", "--", "echo", "hi"], 1)]
    {
        let ran = Ran::of(sandbox.bare(&[&["-b", "file:///x y", "--namespace", "n"], args].concat()));
        assert_eq!(ran.stderr.matches("leasehold -b 'file:///x y' --namespace n ").count(), times, "{ran:?}");
    }
}

#[test]
fn a_usage_error_is_json_where_the_environment_asks_for_it() {
    let sandbox = Sandbox::new();
    for (value, is_json) in [("1", true), ("true", true), ("0", false), ("false", false), ("", false)] {
        for args in [&["frobnicate"][..], &["run", "x"]] {
            let mut command = sandbox.leasehold(args);
            command.env("LEASEHOLD_JSON", value);
            let ran = Ran::of(command);
            ran.assert_code(64);
            assert_eq!(ran.stderr.starts_with('{'), is_json, "{value}: {ran:?}");
        }
    }
}

#[test]
fn settings_that_cannot_be_used_are_78() {
    let sandbox = Sandbox::new();
    let bad = sandbox.path("bad.toml");
    fs::write(&bad, "default = \"x\"\ncolour = \"red\"\n").unwrap();
    for (args, words) in [
        (&["-b", "gopher://x", "list"][..], "scheme \"gopher\"; known here: file:, "),
        (&["-b", "memory:", "run", "x", "true"], "one process"),
        (&["-b", "memory:", "acquire", "x", "--ttl", "1m"], "one process"),
        (&["-b", "file:relative", "list"], "relative"),
        (&["-b", "file:///x?colour=red", "list"], "colour"),
        (&["-b", "redlock://a,b,c?colour=red", "list"], "colour"),
        (&["-b", "redlock://a", "list"], "not 1: for one server use redis://"),
        (&["-b", "redlock://a,b,c,d", "list"], "not 4: an even number"),
        (&["-b", "prod", "list"], "prod"),
        (&["--namespace", "a/b", "list"], "namespace"),
        (&["--config", "/nonexistent.toml", "list"], "/nonexistent.toml"),
        (&["--config", bad.to_str().unwrap(), "list"], "bad.toml:2: unknown field `colour`"),
    ] {
        assert_clear(&Ran::of(sandbox.bare(args)), 78, words);
    }
    let other = sandbox.path("other");
    fs::create_dir_all(other.join("default/things")).unwrap();
    let url = format!("file://{}", other.display());
    assert_clear(&Ran::of(sandbox.bare(&["-b", &url, "run", "x", "true"])), 78, "other files");
}

/// A process without rights of its own, if we have any to give up.
fn as_nobody(sandbox: &Sandbox, command: &mut Command) {
    if rustix::process::geteuid().is_root() {
        fs::set_permissions(sandbox.path("."), fs::Permissions::from_mode(0o755)).unwrap();
        command.uid(65534).gid(65534);
    }
}

#[test]
fn a_directory_that_may_not_be_used_is_77() {
    let sandbox = Sandbox::new();
    sandbox.run(&["run", "x", "true"]).assert_code(0);
    let locks = sandbox.path("locks");
    fs::set_permissions(&locks, fs::Permissions::from_mode(0o000)).unwrap();
    for args in [&["run", "x", "--", "echo", "never"][..], &["list"], &["acquire", "x", "--ttl", "1m"]] {
        let mut command = sandbox.leasehold(args);
        as_nobody(&sandbox, &mut command);
        assert_clear(&Ran::of(command), 77, "locks");
    }
    fs::set_permissions(&locks, fs::Permissions::from_mode(0o700)).unwrap();
}

#[test]
fn a_backend_that_cannot_be_used_is_69() {
    let sandbox = Sandbox::new();
    let file = sandbox.path("file");
    fs::write(&file, "").unwrap();
    let url = format!("file://{}/locks", file.display());
    assert_clear(&Ran::of(sandbox.bare(&["-b", &url, "run", "x", "--", "echo", "never"])), 69, "not a directory");

    // A full disk: no file may grow.
    sandbox.run(&["run", "x", "true"]).assert_code(0);
    let mut command = sandbox.command("sh");
    let exe = env!("CARGO_BIN_EXE_leasehold");
    command.args(["-c", &format!("ulimit -f 0; trap '' XFSZ; exec {exe} run x -- echo never")]);
    command.env("LEASEHOLD_URL", sandbox.url());
    assert_clear(&Ran::of(command), 69, "free some space");
    sandbox.run(&["run", "x", "true"]).assert_code(0);

    // The directory goes away while the lock is waited for.
    let _holder = sandbox.hold("x");
    let mut command = sandbox.leasehold(&["run", "x", "--", "echo", "never"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    fs::remove_dir_all(sandbox.path("locks/default/records")).unwrap();
    let ran = Ran::of(command);
    assert_clear(&ran, 69, "records");
}

#[test]
fn a_release_that_cannot_be_made_is_told_and_strict_makes_it_an_error() {
    let sandbox = Sandbox::new();
    let (records, aside) = (sandbox.path("locks/default/records"), sandbox.path("aside"));
    let script = format!("mv {0} {1}; : > {0}; exit 3", records.display(), aside.display());
    let ran = sandbox.run(&["run", "x", "-c", &script]);
    ran.assert_code(3);
    assert!(ran.stderr.contains("warning: cannot release x"), "{ran:?}");
    fs::remove_file(&records).unwrap();
    fs::rename(&aside, &records).unwrap();
    let strict = sandbox.run(&["run", "--strict-release", "x", "-c", &script]);
    strict.assert_code(69);
    assert_eq!(strict.stderr.lines().count(), 1, "{strict:?}");
}

#[test]
fn a_line_for_a_shell_is_no_program() {
    let sandbox = Sandbox::new();
    for (command, line) in
        [(&["echo hi; ls"][..], "'echo hi; ls'"), (&["cat<x"], "'cat<x'"), (&["echo $X", "secret"], "'echo $X …'")]
    {
        let ran = sandbox.run(&[&["run", "x", "--"], command].concat());
        let shell = sandbox.to_paste(&format!("run x -c {line}"));
        assert_clear(&ran, 127, &format!("leasehold:   for a shell command: {shell}\n"));
    }
    for command in ["nonesuch", "/nonexistent/program"] {
        let ran = sandbox.run(&["run", "x", "--", command]);
        ran.assert_code(127);
        assert_eq!(ran.stderr.lines().count(), 1, "{ran:?}");
    }
    // A program may have such a name; here what runs it is not there.
    let odd = sandbox.path("a b");
    fs::write(&odd, "#!/nonexistent/interpreter\n").unwrap();
    fs::set_permissions(&odd, fs::Permissions::from_mode(0o755)).unwrap();
    let ran = sandbox.run(&["run", "x", "--", odd.to_str().unwrap()]);
    ran.assert_code(127);
    assert!(!ran.stderr.contains("for a shell command"), "{ran:?}");
}

#[test]
fn a_program_that_is_looked_for_in_another_place_is_told() {
    let sandbox = Sandbox::new();
    let here = sandbox.path("here");
    fs::create_dir(&here).unwrap();
    fs::write(here.join("report.sh"), "#!/bin/sh\n").unwrap();
    fs::set_permissions(here.join("report.sh"), fs::Permissions::from_mode(0o755)).unwrap();
    for (program, hint) in [
        ("report.sh", String::from("not found in PATH; there is ./report.sh")),
        ("bin/report.sh", format!("the working directory is {}", here.canonicalize().unwrap().display())),
    ] {
        let mut command = sandbox.leasehold(&["run", "x", "--", program]);
        command.current_dir(&here);
        assert_clear(&Ran::of(command), 127, &format!("leasehold:   {hint}\n"));
    }
    let mut command = sandbox.leasehold(&["run", "x", "--", "./report.sh"]);
    command.current_dir(&here);
    Ran::of(command).assert_code(0);
}

#[test]
fn help_and_version_are_answers() {
    let sandbox = Sandbox::new();
    for args in [&["--help"][..], &["run", "--help"], &["--version"], &["-V"], &["version"]] {
        let ran = sandbox.run(args);
        ran.assert_code(0);
        assert!(!ran.stdout.is_empty() && ran.stderr.is_empty(), "{ran:?}");
    }
    let alone = sandbox.run(&[]);
    alone.assert_code(64);
    assert!(alone.stdout.is_empty() && alone.stderr.contains("Examples:"), "{alone:?}");
    for name in ["serve", "top", "bench", "demo"] {
        let help = sandbox.run(&["--help"]).stdout;
        assert!(!help.contains(&format!("  {name} ")), "{name} is not there yet");
    }
}
