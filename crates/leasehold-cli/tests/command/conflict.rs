//! A lock that is busy: not waited for, waited for in vain, waited for.

use std::{fs, time::Duration};

use rustix::process::Signal;

use crate::sandbox::{AT_ONCE, Ran, Running, Sandbox, json_lines, on_any_backend::pasted, state_of, until};

#[test]
fn a_busy_lock_gives_75_and_names_its_holder() {
    let sandbox = Sandbox::new();
    let holder = sandbox.hold("hello");
    let ran = sandbox.run(&["run", "-n", "hello", "--", "echo", "never"]);
    ran.assert_code(75);
    assert_eq!(ran.stdout, "");
    let lines: Vec<&str> = ran.stderr.lines().collect();
    assert_eq!(lines.len(), 2, "{ran:?}");
    assert!(
        lines[0].starts_with("leasehold: hello is held by ") && lines[0].ends_with("— not waiting (-n)"),
        "{ran:?}"
    );
    assert!(lines[0].contains(&format!(":{} (", holder.pid())) && lines[0].contains(") for "), "{ran:?}");
    assert_eq!(lines[1], format!("leasehold:   see it: {}", sandbox.to_paste("inspect hello")));
    for args in [&["-w", "0"][..], &["-en"], &["-e", "--nb"], &["--timeout", "0"]] {
        sandbox.run(&[&["run"], args, &["hello", "--", "echo", "never"]].concat()).assert_code(75);
    }
}

#[test]
fn a_hint_means_the_place_that_was_asked() {
    let sandbox = Sandbox::new();
    let url = format!("{}?fsync=1&mode=0600", sandbox.url());
    let config = sandbox.path("my config.toml");
    fs::write(&config, format!("[backend.prod]\nurl = \"{url}\"\n")).unwrap();
    let config = config.to_str().unwrap();
    for flags in
        [&["-b", &url, "--namespace", "billing"][..], &["--config", config, "-b", "prod", "--namespace", "billing"]]
    {
        let ready = sandbox.path("ready");
        let script = format!("touch {}; exec sleep 600", ready.display());
        let _holder = Running::of(sandbox.bare(&[flags, &["run", "it's", "-c", &script]].concat()));
        until("the holder runs", || ready.exists());
        fs::remove_file(ready).unwrap();
        for ask in [&["run", "-n", "it's", "true"][..], &["acquire", "-w", "2", "--ttl", "1m", "it's"]] {
            let busy = Ran::of(sandbox.bare(&[flags, ask].concat()));
            busy.assert_code(75);
            let seen = pasted(&sandbox, &busy.stderr, "see it: ", &[]);
            seen.assert_code(0);
            assert!(seen.stdout.contains("HELD"), "{seen:?}");
            for line in seen.stdout.lines().filter(|line| line.contains("leasehold ")) {
                assert!(line.contains("--namespace billing") && line.contains("-b "), "{line}");
            }
        }
    }
}

/// As in the mail of a cron job, which somebody else reads.
#[test]
fn a_hint_means_the_same_place_for_another_user() {
    let sandbox = Sandbox::new();
    fs::create_dir_all(sandbox.path("config/leasehold")).unwrap();
    let config = format!("default = \"prod\"\n[backend.prod]\nurl = \"{}\"\n", sandbox.url());
    fs::write(sandbox.path("config/leasehold/config.toml"), config).unwrap();
    fs::write(sandbox.path("relative.toml"), format!("default = \"{}\"\n", sandbox.url())).unwrap();
    for (flags, variable) in [
        (&[][..], None),
        (&["-b", "file:"], Some("XDG_STATE_HOME")),
        (&[], Some("XDG_CONFIG_HOME")),
        (&["--config", "relative.toml"], None),
    ] {
        let command = |args: &[&str]| {
            let mut command = sandbox.bare(&[flags, args].concat());
            command.current_dir(sandbox.path(""));
            command.envs(variable.map(|name| (name, sandbox.path("config"))));
            command
        };
        let ready = sandbox.path("ready");
        let script = format!("touch {}; exec sleep 600", ready.display());
        let _holder = Running::of(command(&["run", "x", "-c", &script]));
        until("the holder runs", || ready.exists());
        fs::remove_file(ready).unwrap();
        let busy = Ran::of(command(&["run", "-n", "x", "true"]));
        busy.assert_code(75);
        let home = sandbox.path("elsewhere");
        let seen = pasted(&sandbox, &busy.stderr, "see it: ", &[("HOME", home.to_str().unwrap())]);
        assert!(seen.stdout.contains("HELD"), "{flags:?} {variable:?}: {busy:?} {seen:?}");
    }
}

#[test]
fn the_code_of_a_conflict_can_be_chosen() {
    let sandbox = Sandbox::new();
    let _holder = sandbox.hold("x");
    for code in [0, 1, 3, 255] {
        let ran = sandbox.run(&["run", "-n", "-E", &code.to_string(), "x", "--", "echo", "never"]);
        ran.assert_code(code);
        assert_eq!(ran.stdout, "");
    }
    let fine = sandbox.run(&["run", "-n", "-E", "0", "x", "--", "true"]);
    assert_eq!(fine.stderr, "", "what is fine makes no mail");
    let told = sandbox.run(&["run", "-v", "-n", "-E", "0", "x", "--", "true"]);
    assert!(told.stderr.contains("not waiting"), "{told:?}");
    let quiet = sandbox.run(&["run", "-q", "-n", "x", "--", "true"]);
    quiet.assert_code(75);
    assert_eq!(quiet.stderr, "");
}

#[test]
fn patience_ends_when_it_was_told_to() {
    let sandbox = Sandbox::new();
    let _holder = sandbox.hold("x");
    for wait in [".2", "0.2s", "200ms"] {
        let ran = sandbox.run(&["run", "-w", wait, "x", "--", "echo", "never"]);
        ran.assert_code(75);
        assert!(ran.took >= Duration::from_millis(200), "{ran:?}");
        assert!(ran.took < AT_ONCE, "{ran:?}");
        assert!(ran.stderr.contains("gave up after 200ms (-w)"), "{ran:?}");
    }
    assert_eq!(sandbox.waiters("x"), 0);
}

#[test]
fn a_wait_off_a_terminal_says_what_it_waits_for() {
    let sandbox = Sandbox::new();
    let _holder = sandbox.hold("x");
    for (format, begins) in [("text", "leasehold: waiting for x — held by "), ("logfmt", "at=")] {
        let ran = sandbox.run(&["run", "--log-format", format, "-w", "2500ms", "x", "--", "true"]);
        ran.assert_code(75);
        let waiting: Vec<&str> = ran.stderr.lines().filter(|line| line.contains("waiting for x")).collect();
        assert!(waiting.len() == 1 && waiting[0].starts_with(begins), "{ran:?}");
    }
    let logfmt = sandbox.run(&["run", "--log-format", "logfmt", "-n", "x", "--", "true"]);
    let line = logfmt.stderr.lines().next().unwrap();
    assert!(
        line.contains(" event=not_acquired ") && line.contains(" message=\"x is held by ") && line.contains(" lock=x"),
        "{line}"
    );
    let json = sandbox.run(&["run", "--log-format", "json", "-n", "x", "--", "true"]);
    assert!(json_lines(&json.stderr).iter().any(|event| event["event"] == "not_acquired"), "{json:?}");
}

#[test]
fn a_long_wait_off_a_terminal_is_explained_at_doubling_intervals() {
    let sandbox = Sandbox::new();
    let _holder = sandbox.hold("x");
    let log = sandbox.path("log");
    let mut command = sandbox.leasehold(&["--log-format", "json", "run", "x", "--", "true"]);
    command.stderr(fs::File::create(&log).unwrap());
    let _waiter = Running::of(command);
    let waited = || -> Vec<u64> {
        let text = fs::read_to_string(&log).unwrap();
        let events = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        events.filter(|event| event["event"] == "waiting").filter_map(|event| event["waited_ms"].as_u64()).collect()
    };
    until("it has explained itself three times", || waited().len() == 3);
    let waited = waited();
    assert!(waited[0] >= 2000 && waited[1] - waited[0] >= 2000 && waited[2] - waited[1] >= 4000, "{waited:?}");
}

#[test]
fn one_who_waits_gets_it_when_it_is_free() {
    let sandbox = Sandbox::new();
    let mut holder = sandbox.hold("x");
    let out = sandbox.path("out");
    let mut waiter = sandbox.start(&["run", "-w", "20", "x", "-c", &format!("echo got it > {}", out.display())]);
    until("it waits", || sandbox.waiters("x") == 1);
    assert!(!out.exists());
    holder.signal(Signal::TERM);
    assert_eq!(holder.code(), 143);
    assert_eq!(waiter.code(), 0);
    assert_eq!(fs::read_to_string(out).unwrap(), "got it\n");
}

#[test]
fn readers_share_and_writers_do_not() {
    let sandbox = Sandbox::new();
    let read = |args: &[&str]| sandbox.run(&[&["run", "-n", "-s"], args, &["x", "--", "true"]].concat());
    let reader = {
        let ready = sandbox.path("reading");
        let running = sandbox.start(&["run", "-s", "x", "-c", &format!("touch {}; exec sleep 600", ready.display())]);
        until("it reads", || ready.exists());
        running
    };
    read(&[]).assert_code(0);
    sandbox.run(&["run", "-n", "x", "--", "true"]).assert_code(75);
    sandbox.run(&["run", "-n", "-x", "x", "--", "true"]).assert_code(75);
    let waits = sandbox.start(&["run", "--holder", "writer-1", "x", "--", "true"]);
    until("a writer waits", || sandbox.waiters("x") == 1);
    let behind = read(&[]);
    behind.assert_code(75);
    assert!(behind.stderr.contains("; writer-1 waits to write — not waiting (-n)"), "{behind:?}");
    drop((waits, reader));
    let _writer = sandbox.hold("x");
    read(&[]).assert_code(75);
}

#[test]
fn a_semaphore_lets_so_many_in_and_one_name_has_one_shape() {
    let sandbox = Sandbox::new();
    let enter = |number: usize| -> Running {
        let ready = sandbox.path(&format!("in-{number}"));
        let script = format!("touch {}; exec sleep 600", ready.display());
        let running = sandbox.start(&["run", "-j", "3", "gpu", "-c", &script]);
        until("it is in", || ready.exists());
        running
    };
    let _first = enter(1);
    let _second = enter(2);
    sandbox.run(&["run", "-n", "-j", "3", "--permits", "2", "gpu", "--", "true"]).assert_code(75);
    sandbox.run(&["run", "-n", "-j", "3", "gpu", "--", "true"]).assert_code(0);
    let _third = enter(3);
    sandbox.run(&["run", "-n", "-j", "3", "gpu", "--", "true"]).assert_code(75);

    let other = sandbox.run(&["run", "-n", "-j", "5", "gpu", "--", "true"]);
    other.assert_code(64);
    assert!(other.stderr.contains("a semaphore of 5") && other.stderr.contains("a semaphore of 3"), "{other:?}");
    sandbox.run(&["run", "-n", "gpu", "--", "true"]).assert_code(64);
}

#[test]
fn several_locks_are_taken_all_or_none() {
    let sandbox = Sandbox::new();
    let holder = sandbox.hold("b");
    sandbox.run(&["run", "-n", "c", "--also", "a", "--also", "b", "--", "true"]).assert_code(75);
    assert_eq!((sandbox.holders("a"), sandbox.holders("c")), (0, 0));
    drop(holder);
    let env = sandbox.path("env");
    let script = format!("env > {}", env.display());
    sandbox.run(&["run", "c", "--also", "a", "--also", "b", "--also", "a", "-c", &script]).assert_code(0);
    let env = crate::sandbox::pairs(&env);
    assert_eq!(env["LEASEHOLD_LOCK"], "c");
    let stack: serde_json::Value = serde_json::from_str(&env["LEASEHOLD_LOCK_STACK"]).unwrap();
    let mut names: Vec<&str> = stack.as_array().unwrap().iter().map(|entry| entry["lock"].as_str().unwrap()).collect();
    assert_eq!(names.pop(), Some("c"), "the one that was named first is the innermost");
    names.sort_unstable();
    assert_eq!(names, ["a", "b"]);
    for name in ["a", "b", "c"] {
        assert_eq!(sandbox.holders(name), 0);
    }
}

#[test]
fn one_who_waits_for_the_second_of_two_locks_names_it_and_lets_both_go_when_it_stops() {
    let sandbox = Sandbox::new();
    let holder = sandbox.hold("zz");
    let ran = sandbox.run(&["run", "-w", "2500ms", "aa", "--also", "zz", "--", "true"]);
    ran.assert_code(75);
    let waits: Vec<&str> = ran.stderr.lines().filter(|line| line.contains("waiting for ")).collect();
    let [line] = waits[..] else { panic!("{ran:?}") };
    assert!(line.starts_with("leasehold: waiting for zz — held by "), "{line}");
    assert!(line.contains(&format!(":{} ", holder.pid())), "{line}");

    let waiter = sandbox.start(&["run", "aa", "--also", "zz", "--", "true"]);
    let counts = || (sandbox.holders("aa"), sandbox.waiters("zz"));
    until("it has the first and waits for the second", || counts() == (1, 1));
    waiter.signal(Signal::TSTP);
    until("it stops", || state_of(waiter.pid()) == Some('T'));
    assert_eq!(counts(), (0, 0));
}

#[test]
fn a_short_job_keeps_the_lock_for_its_shortest_hold() {
    let sandbox = Sandbox::new();
    let ran = sandbox.run(&["run", "--min-hold", ".5", "x", "--", "sh", "-c", "exit 4"]);
    ran.assert_code(4);
    assert!(ran.took >= Duration::from_millis(500), "{ran:?}");

    let done = sandbox.path("done");
    let mut holder = sandbox.start(&["run", "--min-hold", "600", "x", "-c", &format!("touch {}", done.display())]);
    until("the job has ended", || done.exists() && sandbox.processes() == [holder.pid()]);
    sandbox.run(&["run", "-n", "x", "--", "true"]).assert_code(75);
    std::thread::sleep(Duration::from_millis(50));
    holder.signal(Signal::TERM);
    assert_eq!(holder.code(), 0, "the job had ended well");
    assert_eq!(sandbox.holders("x"), 1, "the rest of the hold needs no process");

    let ready = sandbox.path("ready");
    let script = format!("touch {}; exec sleep 600", ready.display());
    let mut running = sandbox.start(&["run", "--min-hold", "600", "y", "-c", &script]);
    until("the job runs", || ready.exists());
    running.signal(Signal::TERM);
    assert_eq!(running.code(), 143, "one signal ends the job and the holding");
    assert_eq!(sandbox.holders("y"), 0);
}
