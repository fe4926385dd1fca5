//! What the command does alike on every backend, tried on a directory and on servers.

use std::{
    fs,
    os::unix::process::ExitStatusExt,
    path::Path,
    process::Stdio,
    thread,
    time::{Duration, Instant},
};

use rustix::process::Signal;
use serde_json::Value;

use super::{Ran, Running, Sandbox, is_alive, kill, read_soon, state_of, until};

/// All of it.
pub(crate) fn everything(sandbox: &Sandbox) {
    a_stopped_waiter_leaves_the_queue(sandbox);
    one_who_waits_says_what_for(sandbox);
    what_outlives_a_command_is_stopped(sandbox);
    a_command_that_ignores_term_is_killed(sandbox);
    a_failure_and_a_skip_run_their_hooks(sandbox);
    a_run_that_is_told_to_end_runs_its_hook(sandbox);
    runs_are_counted_and_recorded(sandbox);
    a_lock_that_min_hold_keeps_says_so(sandbox);
    a_signal_in_min_hold_leaves_the_lock(sandbox);
    a_success_counts_though_min_hold_keeps_the_lock(sandbox);
    a_name_without_history_is_told(sandbox);
    a_leader_says_why_it_no_longer_leads(sandbox);
    one_who_was_evicted_is_told_by_whom(sandbox);
    a_command_to_paste_works_in_another_shell(sandbox);
    a_lease_is_renewed_for_as_long_as_before(sandbox);
    a_lease_tied_to_a_process(sandbox);
}

/// What `acquire --while-pid` promises.
pub(crate) fn a_lease_tied_to_a_process(sandbox: &Sandbox) {
    a_script_that_is_killed_frees_its_lock_within_a_second(sandbox);
    a_lock_whose_script_and_keeper_are_killed_passes_on(sandbox);
    a_process_whose_lock_was_taken_away_is_told_why(sandbox);
}

/// One who waits leaves the queue while it is stopped, so that nobody waits behind it.
pub(crate) fn a_stopped_waiter_leaves_the_queue(sandbox: &Sandbox) {
    let mut holder = sandbox.hold("x");
    let mut waiter = sandbox.start(&["run", "x", "--", "true"]);
    until("it waits", || sandbox.waiters("x") == 1);
    waiter.signal(Signal::TSTP);
    until("it stops", || state_of(waiter.pid()) == Some('T'));
    assert_eq!(sandbox.waiters("x"), 0, "nobody waits behind one that is stopped");
    waiter.signal(Signal::CONT);
    until("it waits again", || sandbox.waiters("x") == 1);
    holder.signal(Signal::TERM);
    assert_eq!((holder.code(), waiter.code()), (143, 0));

    // The background process of `--while-pid` leaves it, too.
    let mut holder = sandbox.hold("x");
    let mut command = sandbox.command("sleep");
    command.arg("999");
    let sleeper = Running::of(command);
    let mut command = sandbox.leasehold(&["acquire", "x", "--while-pid", &sleeper.pid().to_string()]);
    command.stdout(Stdio::piped());
    let waiter = Running::of(command);
    until("it waits", || sandbox.waiters("x") == 1);
    waiter.signal(Signal::TSTP);
    until("it stops", || state_of(waiter.pid()) == Some('T'));
    assert_eq!(sandbox.keeper(), None, "nobody waits in its place");
    until("the queue is left", || sandbox.waiters("x") == 0);
    waiter.signal(Signal::CONT);
    until("it waits again", || sandbox.waiters("x") == 1);
    holder.signal(Signal::TERM);
    assert_eq!(holder.code(), 143);
    let kept = waiter.finish();
    kept.assert_code(0);
    sandbox.run(&["release", "--lease", kept.stdout.trim()]).assert_code(0);
    until("its keeper ends", || sandbox.keeper().is_none());
}

/// A wait off a terminal says after two seconds what it waits for.
fn one_who_waits_says_what_for(sandbox: &Sandbox) {
    let mut holder = sandbox.hold("busy");
    // The time to connect counts as well, and a busy machine may need a second for that.
    let ran = sandbox.run(&["run", "-w", "4s", "busy", "--", "true"]);
    ran.assert_code(75);
    let line = ran.stderr.lines().find(|line| line.starts_with("leasehold: waiting for busy — held by "));
    assert!(line.is_some_and(|line| line.contains(&format!(":{} ", holder.pid()))), "{ran:?}");
    // Killed, it would leave its lease to the clock.
    holder.signal(Signal::TERM);
    holder.wait();
}

/// What a command leaves behind in its session is stopped before the lock is free.
fn what_outlives_a_command_is_stopped(sandbox: &Sandbox) {
    let pid = sandbox.path("left-behind");
    let script = format!("sleep 999 > /dev/null 2>&1 & echo $! > {}", pid.display());
    let ran = sandbox.run(&["run", "leaves", "-c", &script]);
    ran.assert_code(0);
    let left: i32 = read_soon(&pid).parse().unwrap();
    assert!(!is_alive(left) && ran.stderr.contains(&format!("({left}) running: TERM, then KILL in 5s")), "{ran:?}");
    sandbox.run(&["run", "-n", "leaves", "--", "true"]).assert_code(0);
}

/// With `--kill-after`, KILL follows a TERM that the command ignores, and the lock is released.
fn a_command_that_ignores_term_is_killed(sandbox: &Sandbox) {
    let ready = sandbox.path("ignores");
    let script = format!("trap '' TERM; touch {}; while :; do sleep .02; done", ready.display());
    let mut stubborn = sandbox.start(&["run", "--kill-after", ".3", "stubborn", "-c", &script]);
    until("it runs", || ready.exists());
    stubborn.signal(Signal::TERM);
    assert_eq!(stubborn.code(), 137);
    sandbox.run(&["run", "-n", "stubborn", "--", "true"]).assert_code(0);
}

/// Reads the report that a hook has written to this file, and removes it.
fn take_report(path: &Path) -> Value {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    fs::remove_file(path).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// A failure and a skip run their hooks, and nothing else does.
pub(crate) fn a_failure_and_a_skip_run_their_hooks(sandbox: &Sandbox) {
    let (failed, skipped) = (sandbox.path("failed"), sandbox.path("skipped"));
    let (on_failure, on_skip) = (format!("cat > {}", failed.display()), format!("cat > {}; exit 9", skipped.display()));
    let run = |args: &[&str]| {
        let hooks = ["run", "--on-failure", &on_failure, "--on-skip", &on_skip];
        sandbox.run(&[&hooks, args].concat())
    };
    run(&["x", "--", "true"]).assert_code(0);
    assert!(!failed.exists() && !skipped.exists());

    run(&["x", "-c", "exit 3"]).assert_code(3);
    let told = take_report(&failed);
    assert_eq!((&told["lock"], &told["exit_code"], &told["outcome"]), (&"x".into(), &3.into(), &"failed".into()));
    assert_eq!(told["reason"], "exit_code");
    run(&["--max-hold", ".1", "x", "--", "sleep", "600"]).assert_code(124);
    assert_eq!(take_report(&failed)["outcome"], "max_hold");

    assert_eq!(told["holders"], Value::Null, "{told}");

    let mut holder = sandbox.hold("x");
    let busy = run(&["-n", "x", "--", "true"]);
    busy.assert_code(75);
    assert!(busy.stderr.contains("warning: --on-skip: ended with exit status: 9"), "{busy:?}");
    let told = take_report(&skipped);
    assert_eq!(told["outcome"], "not_acquired");
    let held_by = &told["holders"][0];
    assert!(held_by["holder"].as_str().unwrap().contains(&format!(":{}:", holder.pid())), "{told}");
    assert!(held_by["acquired_at"].as_str().unwrap() <= told["ended_at"].as_str().unwrap(), "{told}");
    assert!(held_by["held_ms"].is_u64() && told["holders"].as_array().unwrap().len() == 1, "{told}");
    assert!(!failed.exists());
    // Killed, it would leave its lease to the clock.
    holder.signal(Signal::TERM);
    holder.wait();

    run(&["unstarted", "--", "/nonexistent/command"]).assert_code(127);
    let told = take_report(&failed);
    assert_eq!((&told["outcome"], &told["exit_code"]), (&"exec_failed".into(), &127.into()), "{told}");

    let args = ["run", "--on-failure", &on_failure, "--on-skip", &on_skip, "taken-away", "--", "sleep", "600"];
    let mut losing = sandbox.start(&args);
    until("it holds", || sandbox.holders("taken-away") == 1);
    let fence = sandbox.fence("taken-away");
    sandbox.run(&["evict", "taken-away", "--fence", &fence, "--reason", "test", "--yes"]).assert_code(0);
    assert_eq!(losing.code(), 121);
    let told = take_report(&failed);
    assert_eq!((&told["outcome"], &told["reason"]), (&"lost".into(), &"evicted".into()), "{told}");

    let exe = env!("CARGO_BIN_EXE_leasehold");
    let inner = [exe, "run", "--on-failure", &on_failure, "--on-skip", &on_skip, "within", "--", "true"];
    sandbox.run(&[&["run", "within", "--"], &inner[..]].concat()).assert_code(64);
    let told = take_report(&failed);
    assert_eq!((&told["outcome"], &told["reason"]), (&"backend_error".into(), &"usage".into()), "{told}");
    assert!(!skipped.exists(), "none of these was skipped");

    // What is refused before the backend is opened is not told to a hook.
    for (args, code) in [(&["--ttl", "0", "x", "--", "true"][..], 64), (&["-b", "no-profile", "x", "--", "true"], 78)] {
        run(args).assert_code(code);
        assert!(!failed.exists() && !skipped.exists(), "{args:?}");
    }
}

/// A signal that ends `run` before its command has succeeded is a failure, whether it waits or runs.
pub(crate) fn a_run_that_is_told_to_end_runs_its_hook(sandbox: &Sandbox) {
    let (failed, ready) = (sandbox.path("failed"), sandbox.path("ready"));
    let on_failure = format!("cat > {}", failed.display());
    let start = |script: &str| sandbox.start(&["run", "--on-failure", &on_failure, "x", "-c", script]);
    let end = |mut running: Running, code: i32| {
        running.signal(Signal::TERM);
        assert_eq!(running.code(), code);
    };
    let told = |waited: bool| {
        let told = take_report(&failed);
        assert_eq!((&told["outcome"], &told["reason"]), (&"interrupted".into(), &"TERM".into()), "{told}");
        assert_eq!((&told["exit_code"], told["child"].is_null()), (&143.into(), waited), "{told}");
    };
    let touch = format!("touch {}", ready.display());
    let running = start(&format!("{touch}; exec sleep 600"));
    until("it runs", || ready.exists());
    let waiting = start("echo never");
    until("another waits", || sandbox.waiters("x") == 1);
    end(waiting, 143);
    told(true);
    end(running, 143);
    told(false);

    fs::remove_file(&ready).unwrap();
    let graceful = start(&format!("trap 'exit 0' TERM; {touch}; while :; do sleep .02; done"));
    until("it runs", || ready.exists());
    end(graceful, 0);
    assert!(!failed.exists(), "a command that ends with 0 has done its work");
}

/// Metrics count runs, and the records say which succeeded and how many were skipped.
pub(crate) fn runs_are_counted_and_recorded(sandbox: &Sandbox) {
    let folder = sandbox.path("counted");
    fs::create_dir(&folder).unwrap();
    let run = |args: &[&str]| sandbox.run(&[&["run", "--metrics-textfile", folder.to_str().unwrap()], args].concat());
    run(&["job", "--", "true"]).assert_code(0);
    let holder = sandbox.hold("job");
    run(&["-n", "job", "--", "true"]).assert_code(75);
    drop(holder);
    let metrics = fs::read_to_string(folder.join("leasehold.prom")).unwrap();
    for outcome in ["acquired", "busy"] {
        let series = metrics.lines().find(|line| {
            line.starts_with("leasehold_acquire_total{") && line.contains(&format!("outcome=\"{outcome}\""))
        });
        assert!(series.is_some_and(|line| line.ends_with(" 1")), "{outcome}: {metrics}");
    }
    sandbox.run(&["check", "job", "--succeeded-within", "1h"]).assert_code(0);
    let skipped = sandbox.run(&["history", "--skipped"]);
    let of_job = |line: &str| line.split_whitespace().take(2).eq(["job", "1"]);
    assert!(skipped.stdout.lines().any(of_job), "{skipped:?}");
}

/// `list` and `inspect` show that the command has ended while `--min-hold` keeps the lock.
pub(crate) fn a_lock_that_min_hold_keeps_says_so(sandbox: &Sandbox) {
    let mut kept = sandbox.start(&["run", "--min-hold", "600s", "--meta", "a=b", "kept", "-c", "exit 3"]);
    until("its command has ended", || !sandbox.inspect("kept")["holders"][0]["command_ended"].is_null());
    let holder = sandbox.inspect("kept")["holders"][0].clone();
    assert_eq!(holder["command_ended"]["exit_code"], 3, "{holder}");
    assert!((1..600_000).contains(&holder["command_ended"]["kept_for_ms"].as_u64().unwrap()), "{holder}");
    assert_eq!(holder["metadata"], serde_json::json!({"a": "b"}), "{holder}");
    let shown = sandbox.run(&["inspect", "kept"]).stdout;
    assert!(shown.contains("  command   ended with code 3; the lock is kept for "), "{shown}");
    assert!(shown.contains("  meta      {\"a\":\"b\"}\n"), "{shown}");
    let listed = sandbox.run(&["list"]).stdout;
    assert!(listed.lines().any(|line| line.starts_with("kept") && line.contains("(ended, kept for ")), "{listed}");
    let refused = sandbox.run(&["run", "-n", "kept", "--", "true"]);
    refused.assert_code(75);
    assert!(refused.stderr.contains(" (ended, kept for "), "{refused:?}");
    kept.signal(Signal::TERM);
    assert_eq!(kept.code(), 3);
    let fence = sandbox.fence("kept");
    sandbox.run(&["evict", "kept", "--fence", &fence, "--reason", "enough", "--yes"]).assert_code(0);
    let ended = sandbox.run(&["history", "--json", "kept"]).json();
    assert_eq!((&ended["event"], &ended["metadata"]), (&"evicted".into(), &serde_json::json!({"a": "b"})), "{ended}");

    let running = sandbox.hold("runs");
    assert_eq!(sandbox.inspect("runs")["holders"][0]["command_ended"], Value::Null);
    drop(running);
}

/// A host that is shut down in the hold leaves the lock for the rest of it, not for ever.
pub(crate) fn a_signal_in_min_hold_leaves_the_lock(sandbox: &Sandbox) {
    for signal in [Signal::TERM, Signal::HUP, Signal::INT] {
        let name = &format!("left-{}", signal.as_raw());
        let report = sandbox.path("report");
        let mut command = sandbox.leasehold(&["run", "--min-hold", "600s", "--ttl", "5s", "--report"]);
        command.args([report.to_str().unwrap(), name, "--also", &format!("{name}-too"), "--", "true"]);
        command.stderr(Stdio::piped());
        let left = Running::of(command);
        until("its command has ended", || !sandbox.inspect(name)["holders"][0]["command_ended"].is_null());
        left.signal(signal);
        let left = left.finish();
        left.assert_code(0);
        for name in [name, &format!("{name}-too")] {
            assert!(left.stderr.contains(&format!(": {name} stays locked for 9m")), "{left:?}");
            sandbox.run(&["run", "-n", name, "--", "true"]).assert_code(75);
            let holder = sandbox.inspect(name)["holders"][0].clone();
            assert!((500_000..=600_000).contains(&holder["expires_in_ms"].as_u64().unwrap()), "{holder}");
            assert_eq!(holder["command_ended"]["exit_code"], 0, "{holder}");
            let fence = sandbox.fence(name);
            sandbox.run(&["evict", name, "--fence", &fence, "--reason", "enough", "--yes"]).assert_code(0);
        }
        let report: Value = serde_json::from_str(&fs::read_to_string(report).unwrap()).unwrap();
        assert_eq!(report["outcome"], "completed", "{report}");
        sandbox.run(&["check", name, "--succeeded-within", "1h"]).assert_code(0);
    }

    // When the hold is over, the lock is free, and nothing has gone wrong.
    let left = sandbox.start(&["run", "--min-hold", "3s", "--ttl", "1s", "left", "--", "true"]);
    until("its command has ended", || !sandbox.inspect("left")["holders"][0]["command_ended"].is_null());
    left.signal(Signal::TERM);
    left.finish().assert_code(0);
    sandbox.run(&["run", "-w", "20s", "left", "--", "true"]).assert_code(0);
    assert_eq!(sandbox.run(&["history", "--failures", "left"]).stdout, "");
    assert_eq!(sandbox.inspect("left")["last_24h"]["lost"], 0);
}

/// A success is recorded when the command ends: a run that is killed in the hold has succeeded, one that failed has not.
pub(crate) fn a_success_counts_though_min_hold_keeps_the_lock(sandbox: &Sandbox) {
    let has_succeeded = |name: &str| sandbox.run(&["check", name, "--succeeded-within", "1h"]).code() == 0;
    let keep = |name: &str, script: &str| {
        let kept = sandbox.start(&["run", "--min-hold", "600s", name, "-c", script]);
        until("its command has ended", || !sandbox.inspect(name)["holders"][0]["command_ended"].is_null());
        kept
    };
    let kept = keep("kept-1", "true");
    until("it counts", || has_succeeded("kept-1"));
    assert_eq!(sandbox.holders("kept-1"), 1, "the hold is not over");
    kept.signal(Signal::KILL);
    drop(kept);
    assert!(has_succeeded("kept-1"));

    let mut failed = keep("kept-2", "exit 3");
    failed.signal(Signal::TERM);
    assert_eq!(failed.code(), 3);
    assert!(!has_succeeded("kept-2"));
}

/// `history NAME` distinguishes a name that nothing is known of from one that has not ended, or not in that way.
pub(crate) fn a_name_without_history_is_told(sandbox: &Sandbox) {
    sandbox.run(&["run", "nightly-report", "--", "true"]).assert_code(0);
    for (args, hint) in [
        (&["history", "nightyl-report"][..], "history nightly-report"),
        (&["history", "--failures", "nightyl-report"], "history nightly-report"),
        (&["history", "--skipped", "nightyl-report"], "history --skipped nightly-report"),
        (&["inspect", "nightyl-report"], "inspect nightly-report"),
        (&["check", "--succeeded-within", "90m", "nightyl-report"], "check --succeeded-within 1h30m nightly-report"),
        (&["history", "qqq"], "history"),
    ] {
        let ran = sandbox.run(args);
        ran.assert_code(1);
        let words = format!("nobody holds {}, and the history has nothing of it", args.last().unwrap());
        assert!(
            ran.stderr.contains(&words) && ran.stderr.ends_with(&format!(": {}\n", sandbox.to_paste(hint))),
            "{ran:?}"
        );
        assert_eq!(ran.stdout, "");
    }
    let told = sandbox.run(&["history", "--json", "nightyl-report"]);
    told.assert_code(1);
    assert!(told.stdout.is_empty() && told.stderr.contains("\"event\":\"unknown\""), "{told:?}");

    let none = sandbox.run(&["history", "--failures", "nightly-report"]);
    none.assert_code(0);
    assert_eq!((none.stdout.as_str(), none.stderr.as_str()), ("", "leasehold: nothing of this kind in the history\n"));
    let never = sandbox.run(&["history", "--skipped", "nightly-report"]);
    never.assert_code(0);
    let row: Vec<&str> = never.stdout.lines().last().unwrap_or_default().split_whitespace().collect();
    assert_eq!((&row[..2], row.last()), (&["nightly-report", "0"][..], Some(&"ago")), "{never:?}");
    sandbox.run(&["history", "qqq*"]).assert_code(0);

    let holder = sandbox.hold("first");
    let held = sandbox.run(&["history", "first"]);
    held.assert_code(0);
    assert!(held.stderr.contains("nothing of first has ended yet: it is held"), "{held:?}");
    sandbox.run(&["history", "--skipped", "first"]).assert_code(0);
    drop(holder);
}

/// A leader that campaigns again says why it led no longer.
pub(crate) fn a_leader_says_why_it_no_longer_leads(sandbox: &Sandbox) {
    let log = sandbox.path("log");
    let lead = |name: &str, script: &str| {
        let mut command = sandbox.leasehold(&["--json", "elect", name, "--id", "a", "--backoff", "1h", "-c", script]);
        command.stderr(fs::File::create(&log).unwrap());
        Running::of(command)
    };
    let told = || {
        let text = fs::read_to_string(&log).unwrap();
        text.lines().rfind(|line| line.contains("\"event\":\"backoff\"")).map(str::to_owned)
    };
    let reason = |words: &str| {
        until("it says why", || told().is_some());
        let event: Value = serde_json::from_str(&told().unwrap()).unwrap();
        let message = event["message"].as_str().unwrap();
        assert!(message.contains(" no longer leads ") && message.contains(words), "{event}");
        event["reason"].clone()
    };
    let _failed = lead("boss-1", "exit 7");
    assert_eq!(reason("its command ended with code 7; campaigning again in 1h"), "exit_code");
    let _killed = lead("boss-2", "kill -9 $$");
    assert_eq!(reason("its command was killed by KILL;"), "signal");
    let _resigned = lead("boss-3", "exec sleep 600");
    until("it leads", || sandbox.holders("boss-3") == 1);
    sandbox.run(&["elect", "boss-3", "--resign"]).assert_code(0);
    assert_eq!(reason("evicted by an operator: asked to step down by `leasehold elect --resign` (by "), "evicted");
}

/// A run whose lock was taken away says who did it and why, and so does the answer about a lease.
pub(crate) fn one_who_was_evicted_is_told_by_whom(sandbox: &Sandbox) {
    let evict = |name: &str| {
        let fence = sandbox.fence(name);
        sandbox.run(&["evict", name, "--fence", &fence, "--reason", "host gone", "--yes"]).assert_code(0);
    };
    let mut command = sandbox.leasehold(&["run", "taken", "--", "sleep", "600"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let running = Running::of(command);
    until("it holds", || sandbox.holders("taken") == 1);
    evict("taken");
    let ran = running.finish();
    ran.assert_code(121);
    assert!(ran.stderr.contains("leasehold: taken was evicted: host gone (by "), "{ran:?}");

    let lease = sandbox.run(&["acquire", "leased", "--ttl", "10m"]).stdout;
    evict("leased");
    // How another one ended afterwards does not matter.
    sandbox.run(&["run", "leased", "--", "true"]).assert_code(0);
    let gone = sandbox.run(&["check", "--lease", lease.trim()]);
    gone.assert_code(1);
    assert!(gone.stderr.contains("evicted ") && gone.stderr.contains(" ago: host gone (by "), "{gone:?}");
}

/// Its keeper releases the lease, however long that would last.
fn a_script_that_is_killed_frees_its_lock_within_a_second(sandbox: &Sandbox) {
    let measure = || {
        let mut script = sandbox.tied(&sandbox.url(), "--ttl 10m", "exec sleep 999");
        let killed = Instant::now();
        script.signal(Signal::KILL);
        script.wait();
        sandbox.run(&["run", "-w", "20s", "x", "--", "true"]).assert_code(0);
        killed.elapsed()
    };
    // A busy machine may delay some of them.
    let mut took: Vec<Duration> = (0..5).map(|_| measure()).collect();
    took.sort_unstable();
    assert!(took[2] < Duration::from_secs(1), "{took:?}");
}

/// At once where the lease ends with its process or connection, otherwise after its ttl.
fn a_lock_whose_script_and_keeper_are_killed_passes_on(sandbox: &Sandbox) {
    let url = sandbox.url();
    let by_clock = !url.starts_with("file:") && !url.contains("liveness=connection");
    let ttl = if by_clock { "--ttl 3s" } else { "--ttl 10m" };
    let mut script = sandbox.tied(&url, ttl, "exec sleep 999");
    let keeper = sandbox.keeper().unwrap();
    let killed = Instant::now();
    kill(keeper);
    script.signal(Signal::KILL);
    script.wait();
    sandbox.run(&["run", "-w", "20s", "x", "--", "true"]).assert_code(0);
    // The ttl, and 2 s for a busy machine.
    assert!(killed.elapsed() < Duration::from_secs(5), "{:?}", killed.elapsed());
}

/// The reason is on the standard error of the process itself, before its signal comes.
fn a_process_whose_lock_was_taken_away_is_told_why(sandbox: &Sandbox) {
    let script = sandbox.tied(&sandbox.url(), "", "exec sleep 999");
    let fence = sandbox.fence("x");
    sandbox.run(&["evict", "x", "--fence", &fence, "--reason", "host gone", "--yes"]).assert_code(0);
    let ran = script.finish();
    assert_eq!(ran.status.signal(), Some(15), "{ran:?}");
    assert!(ran.stderr.starts_with("leasehold: LOST x: evicted by an operator. Sending TERM to "), "{ran:?}");
}

/// Runs that hold or wait have one connection each: `connections` counts those of everybody.
pub(crate) fn a_run_that_holds_or_waits_has_one_connection(sandbox: &Sandbox, connections: impl Fn() -> usize) {
    let before = connections();
    let _holder = sandbox.hold("one-each");
    until("the holder has one", || connections() == before + 1);
    let _waiter = sandbox.start(&["run", "one-each", "--", "true"]);
    until("it waits", || sandbox.waiters("one-each") == 1);
    until("the waiter has one", || connections() == before + 2);
    thread::sleep(Duration::from_millis(500));
    assert_eq!(connections(), before + 2, "nor do they get more later");
}

/// A run that holds one lock and waits for another has a second connection, and no third.
pub(crate) fn a_run_of_two_locks_has_two_connections(sandbox: &Sandbox, connections: impl Fn() -> usize) {
    until("those who were killed are gone", || connections() == 0);
    let mut holder = sandbox.hold("two-b");
    until("the holder has one", || connections() == 1);
    let ready = sandbox.path("has-both");
    let script = format!("touch {}; exec sleep 600", ready.display());
    let _waiter = sandbox.start(&["run", "two-a", "--also", "two-b", "-c", &script]);
    until("it holds one and waits", || sandbox.holders("two-a") == 1 && sandbox.waiters("two-b") == 1);
    until("it has two", || connections() == 3);
    thread::sleep(Duration::from_millis(500));
    assert_eq!(connections(), 3, "nor does it get more later");
    holder.signal(Signal::TERM);
    holder.wait();
    until("it has both locks", || ready.exists());
    // The other is closed once it has not been needed for 10 s.
    until("it has one", || connections() == 1);
}

/// The command that was printed behind these words, run in a shell that knows the binary, with these variables.
pub(crate) fn pasted(sandbox: &Sandbox, printed: &str, behind: &str, variables: &[(&str, &str)]) -> Ran {
    let hint = printed.lines().find_map(|line| line.split_once(behind)).unwrap_or_else(|| panic!("{printed}")).1;
    let mut command = sandbox.command("sh");
    let folder = Path::new(env!("CARGO_BIN_EXE_leasehold")).parent().unwrap();
    command.args(["-c", hint]).env("PATH", format!("{}:/usr/bin:/bin", folder.display()));
    command.envs(variables.iter().copied());
    Ran::of(command)
}

/// What the environment said is in the printed command, for a shell that has no such variables.
fn a_command_to_paste_works_in_another_shell(sandbox: &Sandbox) {
    let with_variables = |args: &[&str]| {
        let mut command = sandbox.leasehold(args);
        command.env("LEASEHOLD_NAMESPACE", "of-env");
        Ran::of(command)
    };
    with_variables(&["acquire", "it's", "--ttl", "1m"]).assert_code(0);
    let busy = with_variables(&["run", "-n", "it's", "true"]);
    busy.assert_code(75);
    let seen = pasted(sandbox, &busy.stderr, "see it: ", &[]);
    seen.assert_code(0);
    assert!(seen.stdout.contains("HELD"), "{seen:?}");
    let seen = pasted(sandbox, &seen.stdout, "next      ", &[]);
    seen.assert_code(0);
    assert!(seen.stderr.contains("the history has nothing of it's: skipped once"), "{seen:?}");
}

/// A URL with the password `s3cret` is not printed but named: a shell that does not have it finds no other locks.
pub(crate) fn a_password_stays_in_its_variable(url: &str) {
    let sandbox = Sandbox::on(url);
    sandbox.run(&["acquire", "it's", "--ttl", "1m"]).assert_code(0);
    let busy = sandbox.run(&["run", "-n", "it's", "true"]);
    busy.assert_code(75);
    let here = pasted(&sandbox, &busy.stderr, "see it: ", &[("LEASEHOLD_URL", url)]);
    here.assert_code(0);
    assert!(here.stdout.contains("HELD"), "{here:?}");
    let next = pasted(&sandbox, &here.stdout, "next      ", &[("LEASEHOLD_URL", url)]);
    next.assert_code(0);
    for ran in [&busy, &here, &next] {
        assert!(!ran.stdout.contains("s3cret") && !ran.stderr.contains("s3cret"), "{ran:?}");
    }
    let elsewhere = pasted(&sandbox, &busy.stderr, "see it: ", &[]);
    elsewhere.assert_code(78);
    assert!(elsewhere.stderr.starts_with("leasehold: -b is empty\n"), "{elsewhere:?}");
}

/// `renew` without `--ttl` gives the lease as much time as it was given last.
fn a_lease_is_renewed_for_as_long_as_before(sandbox: &Sandbox) {
    let lease = sandbox.run(&["acquire", "renewed", "--ttl", "15m"]).stdout;
    let renew = |args: &[&str]| sandbox.run(&[&["renew", "--json", "--lease", lease.trim()], args].concat());
    for (args, ttl) in [(&[][..], 900_000), (&["--ttl", "1h"], 3_600_000), (&[], 3_600_000)] {
        let renewed = renew(args);
        renewed.assert_code(0);
        assert_eq!(renewed.json()["ttl_ms"], ttl, "{args:?}");
    }
    assert!(sandbox.inspect("renewed")["holders"][0]["expires_in_ms"].as_u64().unwrap() > 3_500_000);
    sandbox.run(&["release", "--lease", lease.trim()]).assert_code(0);
    renew(&[]).assert_code(1);
}
