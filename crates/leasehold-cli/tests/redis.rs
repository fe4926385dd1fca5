//! The command on a Redis server, as on a directory.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test that cannot go on fails, on real time")]

mod sandbox;

use std::{
    env, fs,
    io::Write,
    net::TcpListener,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant, SystemTime},
};

use leasehold_testkit::{Flow, Proxy, redis::Server};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, Signal, pidfd_open},
};
use sandbox::{Ran, Running, Sandbox, on_any_backend, read_soon, state_of, switches, until};

fn on(sandbox: &Sandbox, url: &str, args: &[&str]) -> Command {
    let mut command = sandbox.bare(args);
    command.env("LEASEHOLD_URL", url);
    command
}

#[test]
fn run_list_history_and_doctor_work_as_on_a_directory() {
    let (sandbox, server) = (Sandbox::new(), Server::start());
    let run = |args: &[&str]| Ran::of(on(&sandbox, &server.url(), args));
    let ran = run(&["run", "hello", "--", "echo", "I hold the lock"]);
    ran.assert_code(0);
    assert_eq!(ran.stdout, "I hold the lock\n");

    let ready = sandbox.path("ready");
    let script = format!("touch {}; exec sleep 600", ready.display());
    let mut holder = on(&sandbox, &server.url(), &["run", "--note", "release 4.2", "deploy", "-c", &script]);
    holder.stdout(Stdio::null()).stderr(Stdio::null());
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

    run(&["check", "hello", "--succeeded-within", "1h"]).assert_code(0);
    assert!(run(&["history", "--skipped"]).stdout.contains("deploy  1 "), "the skipped run is remembered");
    let history = run(&["history"]);
    history.assert_code(0);
    assert!(history.stdout.contains("hello"), "{history:?}");
    let doctor = run(&["doctor"]);
    assert!(doctor.stdout.contains("noeviction"), "{doctor:?}");
    assert_eq!(doctor.stdout.matches("reachable").count(), 1, "{doctor:?}");
    assert!(!run(&["history"]).stdout.contains("doctor"), "doctor leaves no trace");
}

#[test]
fn init_tries_the_rights_and_makes_nothing() {
    let (sandbox, server) = (Sandbox::new(), Server::start());
    let ready = Ran::of(on(&sandbox, &server.url(), &["init"]));
    ready.assert_code(0);
    assert!(ready.stdout.contains("needs nothing made"), "{ready:?}");
    server.ask(&["ACL", "SETUSER", "weak", "on", ">w", "~leasehold:*", "&*", "+@all", "-hset", "-hdel"]);
    let refused = Ran::of(on(&sandbox, &format!("redis://weak:w@127.0.0.1:{}", server.port()), &["init"]));
    refused.assert_code(77);
}

#[test]
fn doctor_names_each_node_of_a_quorum_once() {
    let (sandbox, servers) = (Sandbox::new(), [Server::start(), Server::start(), Server::start()]);
    let hosts: Vec<String> = servers.iter().map(|server| format!("127.0.0.1:{}", server.port())).collect();
    let url = format!("redlock://{}/0?longest_ttl=0", hosts.join(","));
    let doctor = Ran::of(on(&sandbox, &url, &["doctor", "--json"])).json();
    let findings = doctor["findings"].as_array().unwrap();
    for host in &hosts {
        assert!(findings.iter().all(|finding| !finding["subject"].as_str().unwrap().contains(host)), "{doctor}");
        let words = |finding: &&serde_json::Value| finding["words"].as_str().unwrap().matches(host).count() == 1;
        let of_node = findings.iter().filter(|finding| finding["subject"] == "reachable").find(words);
        assert!(of_node.is_some(), "{doctor}");
        assert!(
            findings.iter().all(|finding| finding["words"].as_str().unwrap().matches(host).count() <= 1),
            "{doctor}"
        );
    }
}

#[test]
fn an_unreachable_server_is_69_and_one_clear_line_without_the_password() {
    let sandbox = Sandbox::new();
    let url = "redis://me:hunter2@127.0.0.1:1";
    let ran = Ran::of(on(&sandbox, url, &["--connect-timeout", "300ms", "run", "x", "--", "true"]));
    ran.assert_code(69);
    assert!(ran.took >= Duration::from_millis(300) && ran.stderr.contains("tried for 300ms"), "{ran:?}");
    assert_eq!(ran.stderr.lines().count(), 1, "{ran:?}");
    assert!(ran.stderr.contains("127.0.0.1:1") && !ran.stderr.contains("hunter2"), "{ran:?}");
}

#[test]
fn a_server_that_comes_late_is_waited_for() {
    let (sandbox, mut server) = (Sandbox::new(), Server::start());
    server.kill();
    for args in [&["run", "x", "--", "echo", "got it"][..], &["acquire", "y", "--ttl", "1m"], &["list"]] {
        let (running, errors) = sandbox.start_without_server(&server.url(), args);
        server.launch();
        let ran = running.finish();
        ran.assert_code(0);
        assert!(!ran.stdout.is_empty(), "{ran:?}");
        let said = fs::read_to_string(&errors).unwrap();
        assert!(
            said.lines().count() == 1 && said.contains("onnection refused") && said.contains("giving up in"),
            "{said}"
        );
        server.kill();
    }
    // The patience for the lock is the patience for its server, and a signal ends it.
    let ran = Ran::of(on(&sandbox, &server.url(), &["run", "-w", "300ms", "x", "--", "true"]));
    ran.assert_code(69);
    assert!(ran.stderr.contains("tried for 300ms"), "{ran:?}");
    for args in [&["run", "x", "--", "true"][..], &["acquire", "x", "--ttl", "1m"], &["elect", "x", "--", "true"]] {
        let (mut running, errors) = sandbox.start_without_server(&server.url(), args);
        running.signal(Signal::TERM);
        assert_eq!(running.code(), 143);
        let said = fs::read_to_string(&errors).unwrap();
        let ending = "leasehold: this candidate no longer campaigns for x: ended by TERM";
        assert_eq!(said.lines().any(|line| line == ending), args[0] == "elect", "{said}");
    }
}

/// It cannot tell whether it has left the queue, and whoever pressed Ctrl-Z wants the terminal back.
#[test]
fn a_waiter_that_is_cut_off_stops_when_it_is_asked_to() {
    let server = Server::start();
    let sandbox = Sandbox::on(&server.url());
    for (name, flow) in [("cut", None), ("silent", Some(Flow::Swallow)), ("late", Some(Flow::Hold))] {
        let _holder = sandbox.hold(name);
        let proxy = Proxy::to(server.port());
        let through = format!("redis://127.0.0.1:{}?answer_limit=20s", proxy.port());
        let mut waiter = Running::of(on(&sandbox, &through, &["run", name, "--", "true"]));
        until("it waits", || sandbox.waiters(name) == 1);
        match flow {
            None => proxy.cut(),
            Some(flow) => proxy.to_client(flow),
        }
        let asked = Instant::now();
        waiter.signal(Signal::TSTP);
        until("it stops", || state_of(waiter.pid()) == Some('T'));
        // Two seconds for leaving the queue, and as much for a busy machine.
        assert!(asked.elapsed() < Duration::from_secs(4), "{:?}", asked.elapsed());
        waiter.signal(Signal::CONT);
        proxy.to_client(Flow::Pass);
        proxy.mend();
        until("it goes on", || state_of(waiter.pid()) != Some('T'));
        waiter.signal(Signal::TERM);
        assert_eq!(waiter.code(), 143);
    }
}

#[test]
fn one_who_waits_for_a_lock_is_not_told_to_wait_for_the_server() {
    let (sandbox, server) = (Sandbox::new(), Server::start());
    let ready = sandbox.path("ready");
    let script = format!("touch {}; exec sleep 600", ready.display());
    let _holder = Running::of(on(&sandbox, &server.url(), &["run", "x", "-c", &script]));
    until("the holder runs", || ready.exists());
    let ran = Ran::of(on(&sandbox, &server.url(), &["run", "-w", "3s", "x", "--", "true"]));
    ran.assert_code(75);
    assert!(ran.stderr.contains("waiting for x") && !ran.stderr.contains("waiting for redis"), "{ran:?}");
}

#[test]
fn redlock_nodes_that_do_not_vote_yet_are_waited_for() {
    let (sandbox, servers) = (Sandbox::new(), [Server::start(), Server::start(), Server::start()]);
    let hosts: Vec<String> = servers.iter().map(|server| format!("127.0.0.1:{}", server.port())).collect();
    let url = format!("redlock://{}/0?longest_ttl=3s", hosts.join(","));
    let ran =
        Ran::of(on(&sandbox, &url, &["--connect-timeout", "1m", "run", "--ttl", "2s", "x", "--", "echo", "got it"]));
    ran.assert_code(0);
    assert_eq!(ran.stdout, "got it\n");
    assert!(ran.stderr.lines().count() <= 1, "{ran:?}");
}

#[test]
fn nodes_that_are_too_young_to_vote_are_told_with_what_to_do() {
    let (sandbox, servers) = (Sandbox::new(), [Server::start(), Server::start(), Server::start()]);
    let hosts: Vec<String> = servers.iter().map(|server| format!("127.0.0.1:{}", server.port())).collect();
    let url = format!("redlock://{}", hosts.join(","));
    let refused = Ran::of(on(&sandbox, &url, &["run", "-w", "1s", "x", "--", "true"]));
    refused.assert_code(69);
    for words in ["; ready in ", ": try again then, or use --connect-timeout ", "0s or more, if any)"] {
        assert!(refused.stderr.contains(words), "{words}: {refused:?}");
    }
    let doctor = Ran::of(on(&sandbox, &url, &["doctor"]));
    doctor.assert_code(1);
    assert!(doctor.stdout.contains("FAIL  votes ") && doctor.stdout.contains("nothing is granted for "), "{doctor:?}");
}

#[test]
fn a_server_of_another_kind_is_told_from_a_redis() {
    let sandbox = Sandbox::new();
    let web = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let url = format!("redis://127.0.0.1:{}", web.local_addr().unwrap().port());
    let _answers = thread::spawn(move || {
        for client in web.incoming() {
            let _client_left = client.unwrap().write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    let ran = Ran::of(on(&sandbox, &url, &["list"]));
    ran.assert_code(78);
    assert!(ran.stderr.contains("not as a Redis server does") && !ran.stderr.contains("arse error"), "{ran:?}");
}

#[test]
fn a_wait_that_ends_while_the_server_is_away_found_no_busy_lock() {
    let server = Server::start();
    let sandbox = Sandbox::on(&server.url());
    let _holder = sandbox.hold("x");
    let said = sandbox.path("said");
    let mut command = sandbox.leasehold(&["run", "-w", "5s", "x", "--", "true"]);
    command.stderr(fs::File::create(&said).unwrap());
    let mut waiter = Running::of(command);
    until("it waits", || sandbox.waiters("x") == 1);
    drop(server);
    assert_eq!(waiter.code(), 69);
    let said = fs::read_to_string(said).unwrap();
    assert!(said.contains("still waiting for x") && !said.contains("is busy"), "{said}");
}

#[test]
fn a_command_that_goes_on_without_its_lock_is_told_once() {
    let (sandbox, server) = (Sandbox::new(), Server::start());
    let run = |args: &[&str]| Ran::of(on(&sandbox, &server.url(), args));
    let (ready, go) = (sandbox.path("ready"), sandbox.path("go"));
    let script = format!("touch {}; until [ -e {} ]; do sleep .05; done", ready.display(), go.display());
    let args = ["run", "--on-lost", "continue", "--ttl", "600ms", "x", "-c", &script];
    let mut command = on(&sandbox, &server.url(), &args);
    let said = sandbox.path("said");
    command.stderr(fs::File::create(&said).unwrap());
    let mut running = Running::of(command);
    until("it runs", || ready.exists());
    let fence = run(&["inspect", "--json", "x"]).json()["fence"].to_string();
    run(&["evict", "x", "--fence", &fence, "--reason", "test", "--yes"]).assert_code(0);
    until("it is told", || fs::read_to_string(&said).unwrap().contains("LOST x"));
    let before = switches(running.pid());
    thread::sleep(Duration::from_millis(800));
    let often = switches(running.pid()) - before;
    assert!(often < 200, "there is nothing to wait for but the end of the command, and it woke {often} times");
    fs::write(go, "").unwrap();
    assert_eq!(running.code(), 121);
    let said = fs::read_to_string(said).unwrap();
    assert!(!said.contains("cannot renew"), "{said}");
}

#[test]
fn what_is_said_of_a_lost_connection_never_shows_the_password() {
    let (sandbox, server) = (Sandbox::new(), Server::with(&["--save", "", "--requirepass", "hunter2"]));
    let proxy = Proxy::to(server.port());
    let url = format!("redis://:hunter2@127.0.0.1:{}?answer_limit=200ms", proxy.port());
    let ready = sandbox.path("ready");
    let script = format!("touch {}; sleep 600", ready.display());
    let mut command = on(&sandbox, &url, &["run", "-vv", "--ttl", "1500ms", "x", "-c", &script]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let running = Running::of(command);
    until("it runs", || ready.exists());
    // Asked for and not answered, then out of reach.
    proxy.to_client(Flow::Swallow);
    thread::sleep(Duration::from_millis(800));
    proxy.cut();
    let ran = running.finish();
    ran.assert_code(121);
    assert!(ran.stderr.contains(&format!("127.0.0.1:{}", proxy.port())), "it says what cannot be reached: {ran:?}");
    assert!(ran.stderr.lines().count() > 1 && !format!("{ran:?}").contains("hunter2"), "{ran:?}");
}

#[test]
fn a_signal_in_a_hold_that_is_shorter_than_the_ttl_names_the_ttl() {
    let (sandbox, server) = (Sandbox::new(), Server::start());
    let mut command = on(&sandbox, &server.url(), &["run", "--min-hold", "2s", "--ttl", "60s", "x", "--", "true"]);
    command.stderr(Stdio::piped());
    let left = Running::of(command);
    let shown = || Ran::of(on(&sandbox, &server.url(), &["inspect", "x"])).stdout;
    until("its command has ended", || shown().contains("the lock is kept for "));
    left.signal(Signal::TERM);
    let left = left.finish();
    left.assert_code(0);
    let words = left.stderr.split(": x stays locked for ").nth(1).unwrap_or_else(|| panic!("{left:?}"));
    assert!(words.trim_end().ends_with("s more (to the end of its ttl)"), "{left:?}");
    until("the hold is over, and the lease goes on", || shown().contains("; the lock is free when its lease ends"));
    let busy = Ran::of(on(&sandbox, &server.url(), &["run", "-n", "x", "--", "true"]));
    busy.assert_code(75);
    assert!(busy.stderr.contains(" (ended, free when its lease ends)"), "{busy:?}");
}

#[test]
fn a_password_in_the_place_of_the_user_is_told() {
    let (sandbox, server) = (Sandbox::new(), Server::with(&["--save", "", "--requirepass", "hunter2"]));
    let refused = Ran::of(on(&sandbox, &format!("redis://hunter2@127.0.0.1:{}", server.port()), &["list"]));
    refused.assert_code(77);
    assert!(
        refused.stderr.contains("; a password follows a colon (USER:PASSWORD@host, :PASSWORD@host); "),
        "{refused:?}"
    );
    let refused = Ran::of(on(&sandbox, &format!("redis://127.0.0.1:{}", server.port()), &["list"]));
    assert!(refused.stderr.contains("give user and password in the URL"), "{refused:?}");
}

#[test]
fn a_leader_that_was_not_renewed_in_time_says_so() {
    let (sandbox, server) = (Sandbox::new(), Server::start());
    let proxy = Proxy::to(server.port());
    let url = format!("redis://127.0.0.1:{}?answer_limit=200ms", proxy.port());
    let (ready, log) = (sandbox.path("ready"), sandbox.path("log"));
    let script = format!("touch {}; exec sleep 600", ready.display());
    let mut command =
        on(&sandbox, &url, &["--json", "elect", "boss", "--ttl", "1500ms", "--backoff", "1h", "-c", &script]);
    command.stderr(fs::File::create(&log).unwrap());
    let _leader = Running::of(command);
    until("it leads", || ready.exists());
    proxy.to_client(Flow::Swallow);
    let told =
        || fs::read_to_string(&log).unwrap().lines().find(|line| line.contains("no longer leads")).map(str::to_owned);
    until("it says why", || told().is_some());
    let told = told().unwrap();
    assert!(told.contains("no longer leads boss: not renewed in time; campaigning again in 1h"), "{told}");
    assert!(told.contains("\"reason\":\"renew_timeout\""), "{told}");
}

#[test]
fn a_lease_tied_to_a_process_is_renewed_and_ends_with_it() {
    let (sandbox, server) = (Sandbox::new(), Server::start());
    let mut running = sandbox.tied(&server.url(), "--ttl 3s", "exec sleep 999");
    thread::sleep(Duration::from_secs(4));
    let busy = Ran::of(on(&sandbox, &server.url(), &["run", "-n", "x", "--", "true"]));
    busy.assert_code(75);
    assert!(busy.stderr.contains("(sh)"), "it says whose it is: {busy:?}");
    running.signal(Signal::KILL);
    running.wait();

    let mut running = sandbox.tied(&server.url(), "--ttl 10m", "exec sleep 999");
    running.signal(Signal::KILL);
    running.wait();
    Ran::of(on(&sandbox, &server.url(), &["run", "-w", "20s", "x", "--", "true"])).assert_code(0);
}

#[test]
fn a_script_that_releases_its_lease_goes_on_though_no_history_is_kept() {
    let (sandbox, server) = (Sandbox::new(), Server::start());
    let exe = env!("CARGO_BIN_EXE_leasehold");
    // Long enough for the renewal that finds the lease gone.
    let rest = format!("{exe} release --lease \"$lease\"; sleep 3; exit 5");
    for history in ["all", "problems", "off"] {
        let url = format!("{}?history={history}", server.url());
        sandbox.tied(&url, "--ttl 3s", &rest).finish().assert_code(5);
    }
}

#[test]
fn a_process_is_told_before_a_lease_that_cannot_be_renewed_ends() {
    let (sandbox, server) = (Sandbox::new(), Server::start());
    let proxy = Proxy::to(server.port());
    let url = format!("redis://127.0.0.1:{}?answer_limit=300ms", proxy.port());
    let running = sandbox.tied(&url, "--ttl 3s", "exec sleep 999");
    proxy.cut();
    let ran = running.finish();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&ran.status), Some(15), "{ran:?}");
    let words = "leasehold: LOST x: not renewed in time. Sending TERM to ";
    assert!(ran.stderr.starts_with(words), "{ran:?}");
}

/// Starts a family that does not listen to TERM; gives the pids of the command and of its grandchild.
fn start_family(sandbox: &Sandbox, url: &str, args: &[&str]) -> (Running, Vec<i32>) {
    let pids = sandbox.path("pids");
    let script = format!(
        "trap '' TERM; sh -c 'trap \"\" TERM; while :; do sleep .1; done' & echo $$ $! > {}; while :; do sleep .1; done",
        pids.display()
    );
    let mut command = on(sandbox, url, &[&["run"], args, &["x", "-c", &script]].concat());
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let running = Running::of(command);
    let family = read_soon(&pids).split(' ').map(|pid| pid.parse().unwrap()).collect();
    (running, family)
}

#[test]
fn a_command_whose_run_is_stopped_is_dead_before_its_lease_ends() {
    let (sandbox, server) = (Sandbox::new(), Server::start());
    let (running, family) = start_family(&sandbox, &server.url(), &["--ttl", "3s", "--kill-after", "500ms"]);
    let mut next = on(&sandbox, &server.url(), &["run", "x", "-c"]);
    let alive = family.iter().map(|pid| format!("kill -0 {pid} 2>/dev/null && exit 1")).collect::<Vec<_>>().join("; ");
    next.arg(format!("{alive}; exit 0"));
    let mut next = Running::of(next);
    let queue = "leasehold:{default}:entries:x";
    until("the next one waits", || server.ask(&["HLEN", queue]).to_string() == "2");
    running.signal(Signal::STOP);
    assert_eq!(next.code(), 0, "the family was dead when the lock passed on");
    running.signal(Signal::CONT);
    let ran = running.finish();
    ran.assert_code(121);
    assert!(ran.stderr.contains("leasehold hangs or is stopped: stopping /bin/sh"), "{ran:?}");
    // Once it goes on, nothing is left of the lease that could be warned of.
    assert!(!ran.stderr.contains("cannot renew") && !ran.stderr.contains("0ms"), "{ran:?}");
}

#[test]
fn one_who_goes_on_after_a_stop_that_outlasted_its_lease_is_told_of_the_loss() {
    let (sandbox, server) = (Sandbox::new(), Server::start());
    let (running, _family) = start_family(&sandbox, &server.url(), &["--ttl", "2s"]);
    running.signal(Signal::TSTP);
    until("it stops", || state_of(running.pid()) == Some('T'));
    Ran::of(on(&sandbox, &server.url(), &["run", "x", "--", "true"])).assert_code(0);
    running.signal(Signal::CONT);
    let ran = running.finish();
    ran.assert_code(121);
    let lines: Vec<&str> = ran.stderr.lines().collect();
    assert!(lines[0].starts_with("leasehold: LOST x: not renewed in time"), "{lines:?}");
    assert_eq!(lines[1..], ["leasehold: /bin/sh ended by KILL. The lock was not ours to release."]);
}

/// A process, told from a later one with the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Process {
    pid: i32,
    born: u64,
}

impl Process {
    fn of(pid: i32) -> Self {
        Self::in_line(&fs::read_to_string(format!("/proc/{pid}/stat")).unwrap())
    }

    fn in_line(stat: &str) -> Self {
        let after_name = stat.rfind(')').unwrap();
        let born = stat[after_name..].split(' ').nth(20).unwrap().parse().unwrap();
        Self { pid: stat.split(' ').next().unwrap().parse().unwrap(), born }
    }

    /// Becomes readable when it has ended.
    fn watch(self) -> OwnedFd {
        pidfd_open(Pid::from_raw(self.pid).unwrap(), PidfdFlags::empty()).unwrap()
    }

    /// What a shell does to write down how it is, with no program started for it.
    fn look(self, to: &Path) -> String {
        let Self { pid, .. } = self;
        format!(
            "{{ read -r line < /proc/{pid}/stat && echo \"$line\" && while read -r line; do echo \"$line\"; done \
             < /proc/{pid}/status; }} > {} 2>/dev/null",
            to.display()
        )
    }

    /// Whether it could execute another instruction when it was looked at: the dead cannot, nor those with KILL pending.
    fn could_run(self, seen: &str) -> bool {
        let Some(stat) = seen.lines().next() else { return false };
        let is_doomed = seen.lines().any(|line| {
            let mask = line.strip_prefix("SigPnd:").or_else(|| line.strip_prefix("ShdPnd:"));
            let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
            mask & (1 << (Signal::KILL.as_raw() - 1)) != 0
        });
        let is_dead = stat[stat.rfind(')').unwrap()..].starts_with(") Z");
        Self::in_line(stat) == self && !is_dead && !is_doomed
    }
}

/// A way to the server that can be cut, and the commands that use it.
struct Lane<'a> {
    number: usize,
    sandbox: &'a Sandbox,
    server: &'a Server,
    proxy: Proxy,
}

impl Lane<'_> {
    fn file(&self, name: &str) -> PathBuf {
        self.sandbox.path(&format!("{name}-{}", self.number))
    }

    /// Cuts off a command and its grandchild, neither of which listens to TERM, while another waits for the lock.
    /// How long the first had been dead when the second began.
    fn cut_once(&self, time: usize) -> Duration {
        let run = format!("run {time} of lane {}", self.number);
        let (pids, began) = (self.file("pids"), self.file("began"));
        let seen = [self.file("child"), self.file("grandchild")];
        let name = format!("x{}", self.number);
        let script = format!(
            "trap '' TERM; sh -c 'trap \"\" TERM; while :; do sleep .2; done' & echo $$ $! > {}; \
             while :; do sleep .2; done",
            pids.display()
        );
        let through = format!("redis://127.0.0.1:{}?answer_limit=300ms", self.proxy.port());
        let times = ["--ttl", "2s", "--kill-after", "400ms"];
        let mut holder = on(self.sandbox, &through, &[&["run"], &times[..], &[name.as_str(), "-c", &script]].concat());
        holder.stderr(Stdio::null());
        let mut holder = Running::of(holder);
        let family: Vec<Process> = read_soon(&pids).split(' ').map(|pid| Process::of(pid.parse().unwrap())).collect();
        let ends: Vec<OwnedFd> = family.iter().map(|process| process.watch()).collect();
        let looks: Vec<String> = family.iter().zip(&seen).map(|(process, to)| process.look(to)).collect();
        let script = format!(": > {}; {}; exit 0", began.display(), looks.join("; "));
        let mut next = Running::of(on(self.sandbox, &self.server.url(), &["run", &name, "-c", &script]));
        let queue = format!("leasehold:{{default}}:entries:{name}");
        until("the next one waits", || self.server.ask(&["HLEN", &queue]).to_string() == "2");

        // At any phase between two renewals.
        thread::sleep(Duration::from_millis(u64::try_from(time * 67 % 700).unwrap()));
        match (time + self.number) % 3 {
            0 => self.proxy.cut(),
            1 => self.proxy.to_client(Flow::Swallow),
            _ => self.proxy.to_server(Flow::Hold),
        }
        for end in &ends {
            let limit = Timespec { tv_sec: 30, tv_nsec: 0 };
            let ended = poll(&mut [PollFd::new(end, PollFlags::IN)], Some(&limit)).unwrap();
            assert_eq!(ended, 1, "{run}: it is not stopped");
        }
        let dead = SystemTime::now();
        assert_eq!((holder.code(), next.code()), (121, 0), "{run}");
        for (process, seen) in family.iter().zip(&seen) {
            let seen = fs::read_to_string(seen).unwrap();
            assert!(!process.could_run(&seen), "{run}: two at once: {seen}");
        }
        let began_at = fs::metadata(&began).unwrap().modified().unwrap();
        self.proxy.cut();
        self.proxy.mend();
        for file in [&pids, &began, &seen[0], &seen[1]] {
            fs::remove_file(file).unwrap();
        }
        began_at.duration_since(dead).unwrap_or_default()
    }
}

/// Cut off from the server, everything under a lock is gone before the next holder's command starts.
///
/// `LEASEHOLD_CUTS=1000` takes two minutes, the usual dozen a few seconds.
#[test]
fn what_is_cut_off_is_dead_before_the_next_one_starts() {
    let cuts: usize = env::var("LEASEHOLD_CUTS").map_or(12, |cuts| cuts.parse().unwrap());
    let lanes = cuts.clamp(1, 25);
    let (sandbox, server) = (Sandbox::new(), Server::start());
    let mut spare: Vec<Duration> = thread::scope(|scope| {
        let lane = |number| {
            let lane = Lane { number, sandbox: &sandbox, server: &server, proxy: Proxy::to(server.port()) };
            scope.spawn(move || (0..cuts.div_ceil(lanes)).map(|time| lane.cut_once(time + number)).collect::<Vec<_>>())
        };
        let working: Vec<_> = (0..lanes).map(lane).collect();
        working.into_iter().flat_map(|lane| lane.join().unwrap()).collect()
    });
    spare.sort_unstable();
    let (runs, least, median) = (spare.len(), spare[0], spare[spare.len() / 2]);
    println!("{runs} cuts, no overlap; dead before the next began by {least:?} at least, {median:?} in the median");
}

#[test]
fn what_is_alike_on_every_backend_is_so_here() {
    let server = Server::start();
    let sandbox = Sandbox::on(&server.url());
    on_any_backend::everything(&sandbox);
    on_any_backend::a_run_that_holds_or_waits_has_one_connection(&sandbox, || server.clients());
    let protected = Server::with(&["--requirepass", "s3cret"]);
    on_any_backend::a_password_stays_in_its_variable(&format!("redis://:s3cret@127.0.0.1:{}", protected.port()));
}
