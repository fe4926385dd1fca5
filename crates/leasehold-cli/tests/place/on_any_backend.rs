//! What the command does alike on every backend, tried on a directory and on servers.

use std::{fs, process::Stdio, thread, time::Duration};

use rustix::process::Signal;
use serde_json::Value;

use super::{Place, Running, state_of, until};

/// All of it.
pub(crate) fn everything(place: &Place) {
    a_stopped_waiter_leaves_the_queue(place);
    a_failure_and_a_skip_run_their_hooks(place);
    runs_are_counted_and_recorded(place);
    a_lock_that_min_hold_keeps_says_so(place);
    a_name_without_history_is_told(place);
    a_leader_says_why_it_no_longer_leads(place);
    one_who_was_evicted_is_told_by_whom(place);
}

/// One who waits leaves the queue while it is stopped, so that nobody waits behind it.
pub(crate) fn a_stopped_waiter_leaves_the_queue(place: &Place) {
    let mut holder = place.hold("x");
    let mut waiter = place.start(&["run", "x", "--", "true"]);
    until("it waits", || place.waiters("x") == 1);
    waiter.signal(Signal::TSTP);
    until("it stops", || state_of(waiter.pid()) == Some('T'));
    assert_eq!(place.waiters("x"), 0, "nobody waits behind one that is stopped");
    waiter.signal(Signal::CONT);
    until("it waits again", || place.waiters("x") == 1);
    holder.signal(Signal::TERM);
    assert_eq!((holder.code(), waiter.code()), (143, 0));
}

/// A failure and a skip run their hooks, and nothing else does.
pub(crate) fn a_failure_and_a_skip_run_their_hooks(place: &Place) {
    let (failed, skipped) = (place.path("failed"), place.path("skipped"));
    let (on_failure, on_skip) = (format!("cat > {}", failed.display()), format!("cat > {}; exit 9", skipped.display()));
    let run = |args: &[&str]| {
        let hooks = ["run", "--on-failure", &on_failure, "--on-skip", &on_skip];
        place.run(&[&hooks, args].concat())
    };
    let report = |path: &std::path::Path| -> Value {
        let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        fs::remove_file(path).unwrap();
        serde_json::from_str(&text).unwrap()
    };
    run(&["x", "--", "true"]).assert_code(0);
    assert!(!failed.exists() && !skipped.exists());

    run(&["x", "-c", "exit 3"]).assert_code(3);
    let told = report(&failed);
    assert_eq!((&told["lock"], &told["exit_code"], &told["outcome"]), (&"x".into(), &3.into(), &"failed".into()));
    assert_eq!(told["reason"], "exit_code");
    run(&["--max-hold", ".1", "x", "--", "sleep", "600"]).assert_code(124);
    assert_eq!(report(&failed)["outcome"], "max_hold");

    let _holder = place.hold("x");
    let busy = run(&["-n", "x", "--", "true"]);
    busy.assert_code(75);
    assert!(busy.stderr.contains("warning: --on-skip: ended with exit status: 9"), "{busy:?}");
    assert_eq!(report(&skipped)["outcome"], "not_acquired");
    assert!(!failed.exists());
}

/// Metrics count runs, and the records say which succeeded and how many were skipped.
pub(crate) fn runs_are_counted_and_recorded(place: &Place) {
    let folder = place.path("counted");
    fs::create_dir(&folder).unwrap();
    let run = |args: &[&str]| place.run(&[&["run", "--metrics-textfile", folder.to_str().unwrap()], args].concat());
    run(&["job", "--", "true"]).assert_code(0);
    let holder = place.hold("job");
    run(&["-n", "job", "--", "true"]).assert_code(75);
    drop(holder);
    let metrics = fs::read_to_string(folder.join("leasehold.prom")).unwrap();
    for outcome in ["acquired", "busy"] {
        let series = metrics.lines().find(|line| {
            line.starts_with("leasehold_acquire_total{") && line.contains(&format!("outcome=\"{outcome}\""))
        });
        assert!(series.is_some_and(|line| line.ends_with(" 1")), "{outcome}: {metrics}");
    }
    place.run(&["check", "job", "--succeeded-within", "1h"]).assert_code(0);
    let skipped = place.run(&["history", "--skipped"]);
    let of_job = |line: &str| line.split_whitespace().take(2).eq(["job", "1"]);
    assert!(skipped.stdout.lines().any(of_job), "{skipped:?}");
}

/// `list` and `inspect` show that the command has ended while `--min-hold` keeps the lock.
pub(crate) fn a_lock_that_min_hold_keeps_says_so(place: &Place) {
    let mut kept = place.start(&["run", "--min-hold", "600s", "--meta", "a=b", "kept", "-c", "exit 3"]);
    until("its command has ended", || !place.inspect("kept")["holders"][0]["command_ended"].is_null());
    let holder = place.inspect("kept")["holders"][0].clone();
    assert_eq!(holder["command_ended"]["exit_code"], 3, "{holder}");
    assert!((1..600_000).contains(&holder["command_ended"]["kept_for_ms"].as_u64().unwrap()), "{holder}");
    assert_eq!(holder["metadata"], serde_json::json!({"a": "b"}), "{holder}");
    let shown = place.run(&["inspect", "kept"]).stdout;
    assert!(shown.contains("  command   ended with code 3; the lock is kept for "), "{shown}");
    assert!(shown.contains("  meta      {\"a\":\"b\"}\n"), "{shown}");
    let listed = place.run(&["list"]).stdout;
    assert!(listed.lines().any(|line| line.starts_with("kept") && line.contains("(ended, kept for ")), "{listed}");
    let refused = place.run(&["run", "-n", "kept", "--", "true"]);
    refused.assert_code(75);
    assert!(refused.stderr.contains(" (ended, kept for "), "{refused:?}");
    kept.signal(Signal::TERM);
    assert_eq!(kept.code(), 3);
    let ended = place.run(&["history", "--json", "kept"]).json();
    assert_eq!((&ended["event"], &ended["metadata"]), (&"failed".into(), &serde_json::json!({"a": "b"})), "{ended}");

    let running = place.hold("runs");
    assert_eq!(place.inspect("runs")["holders"][0]["command_ended"], Value::Null);
    drop(running);
}

/// `history NAME` distinguishes a name that nothing is known of from one that has not ended, or not in that way.
pub(crate) fn a_name_without_history_is_told(place: &Place) {
    place.run(&["run", "nightly-report", "--", "true"]).assert_code(0);
    for (args, hint) in [
        (&["history", "nightyl-report"][..], "leasehold history nightly-report"),
        (&["history", "--failures", "nightyl-report"], "leasehold history nightly-report"),
        (&["history", "--skipped", "nightyl-report"], "leasehold history --skipped nightly-report"),
        (&["inspect", "nightyl-report"], "leasehold inspect nightly-report"),
        (
            &["check", "--succeeded-within", "90m", "nightyl-report"],
            "leasehold check --succeeded-within 1h30m nightly-report",
        ),
        (&["history", "qqq"], "see which names there are: leasehold history"),
    ] {
        let ran = place.run(args);
        ran.assert_code(1);
        let words = format!("nobody holds {}, and the history has nothing of it", args.last().unwrap());
        assert!(ran.stderr.contains(&words) && ran.stderr.contains(hint), "{ran:?}");
        assert_eq!(ran.stdout, "");
    }
    let told = place.run(&["history", "--json", "nightyl-report"]);
    told.assert_code(1);
    assert!(told.stdout.is_empty() && told.stderr.contains("\"event\":\"unknown\""), "{told:?}");

    let none = place.run(&["history", "--failures", "nightly-report"]);
    none.assert_code(0);
    assert_eq!((none.stdout.as_str(), none.stderr.as_str()), ("", "leasehold: nothing of this kind in the history\n"));
    let never = place.run(&["history", "--skipped", "nightly-report"]);
    never.assert_code(0);
    assert!(never.stderr.contains("nightly-report was never skipped: last success "), "{never:?}");
    place.run(&["history", "qqq*"]).assert_code(0);

    let holder = place.hold("first");
    let held = place.run(&["history", "first"]);
    held.assert_code(0);
    assert!(held.stderr.contains("nothing of first has ended yet: it is held"), "{held:?}");
    place.run(&["history", "--skipped", "first"]).assert_code(0);
    drop(holder);
}

/// A leader that campaigns again says why it led no longer.
pub(crate) fn a_leader_says_why_it_no_longer_leads(place: &Place) {
    let log = place.path("log");
    let lead = |name: &str, script: &str| {
        let mut command = place.leasehold(&["--json", "elect", name, "--id", "a", "--backoff", "1h", "-c", script]);
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
    until("it leads", || place.holders("boss-3") == 1);
    place.run(&["elect", "boss-3", "--resign"]).assert_code(0);
    assert_eq!(reason("evicted by an operator: asked to step down by `leasehold elect --resign` (by "), "evicted");
}

/// A run whose lock was taken away says who did it and why, and so does the answer about a lease.
pub(crate) fn one_who_was_evicted_is_told_by_whom(place: &Place) {
    let evict = |name: &str| {
        let fence = place.fence(name);
        place.run(&["evict", name, "--fence", &fence, "--reason", "host gone", "--yes"]).assert_code(0);
    };
    let mut command = place.leasehold(&["run", "taken", "--", "sleep", "600"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let running = Running::of(command);
    until("it holds", || place.holders("taken") == 1);
    evict("taken");
    let ran = running.finish();
    ran.assert_code(121);
    assert!(ran.stderr.contains("leasehold: taken was evicted: host gone (by "), "{ran:?}");

    let lease = place.run(&["acquire", "leased", "--ttl", "10m"]).stdout;
    evict("leased");
    // How another one ended afterwards does not matter.
    place.run(&["run", "leased", "--", "true"]).assert_code(0);
    let gone = place.run(&["check", "--lease", lease.trim()]);
    gone.assert_code(1);
    assert!(gone.stderr.contains("evicted ") && gone.stderr.contains(" ago: host gone (by "), "{gone:?}");
}

/// Runs that hold or wait have one connection each: `connections` counts those of everybody.
pub(crate) fn a_run_that_holds_or_waits_has_one_connection(place: &Place, connections: impl Fn() -> usize) {
    let before = connections();
    let _holder = place.hold("one-each");
    until("the holder has one", || connections() == before + 1);
    let _waiter = place.start(&["run", "one-each", "--", "true"]);
    until("it waits", || place.waiters("one-each") == 1);
    until("the waiter has one", || connections() == before + 2);
    thread::sleep(Duration::from_millis(500));
    assert_eq!(connections(), before + 2, "nor do they get more later");
}
