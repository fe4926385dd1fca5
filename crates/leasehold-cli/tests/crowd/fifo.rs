//! Two hundred runs that wait for one lock, on three backends: each gets its turn once, in order.

use std::{fs, process::Command};

use leasehold_testkit::{postgres::Postgres, redis::Server};
use serde_json::Value;

use crate::sandbox::{Ran, Running, Sandbox, until};

const RUNS: usize = 200;

#[test]
fn on_a_directory() {
    let sandbox = Sandbox::new();
    each_runs_once(&sandbox, &sandbox.url());
}

#[test]
fn on_redis() {
    let server = Server::start();
    each_runs_once(&Sandbox::new(), &server.url());
}

#[test]
fn on_postgres() {
    // Each waiter has a connection of its own.
    let server = Postgres::start_with(&["fsync=off", "max_connections=250"]);
    let sandbox = Sandbox::new();
    Ran::of(on(&sandbox, &server.url(), &["init"])).assert_code(0);
    each_runs_once(&sandbox, &server.url());
}

fn on(sandbox: &Sandbox, url: &str, args: &[&str]) -> Command {
    let mut command = sandbox.bare(args);
    command.env("LEASEHOLD_URL", url);
    command
}

fn each_runs_once(sandbox: &Sandbox, url: &str) {
    let _alone = crate::alone();
    let turns = sandbox.path("turns");
    let go = sandbox.path("go");
    let gate = format!("until [ -e {} ]; do sleep 0.1; done", go.display());
    let mut holder = Running::of(on(sandbox, url, &["run", "-q", "x", "-c", &gate]));
    let listed = |state: &str| -> usize {
        let ran = Ran::of(on(sandbox, url, &["inspect", "--json", "x"]));
        // Beside two hundred processes that start, a server may take longer than a look waits for it.
        let page = serde_json::from_str::<Value>(&ran.stdout).unwrap_or_default();
        page[state].as_array().map_or(0, Vec::len)
    };
    until("the lock is held", || listed("holders") == 1);
    let mut runs: Vec<Running> = Vec::with_capacity(RUNS);
    while runs.len() < RUNS {
        // A few at a time: the start of each takes processor time.
        for number in runs.len()..runs.len() + 10 {
            let script = format!("echo {number} $LEASEHOLD_FENCE >> {}", turns.display());
            runs.push(Running::of(on(sandbox, url, &["run", "-q", "x", "-c", &script])));
        }
        until("they wait", || listed("waiters") == runs.len());
    }
    fs::write(&go, "").unwrap();
    assert_eq!(holder.code(), 0);
    assert!(runs.iter_mut().all(|run| run.code() == 0));
    let turns = fs::read_to_string(&turns).unwrap();
    let turns: Vec<(usize, u64)> = turns
        .lines()
        .map(|line| line.split_once(' ').map(|(run, fence)| (run.parse().unwrap(), fence.parse().unwrap())).unwrap())
        .collect();
    assert!(turns.iter().map(|(_, fence)| fence).is_sorted_by(|one, next| one < next), "fences rise: {turns:?}");
    assert!(turns.iter().map(|(run, _)| run / 10).is_sorted(), "those who came first run first: {turns:?}");
    let mut ran: Vec<usize> = turns.iter().map(|(run, _)| *run).collect();
    ran.sort_unstable();
    assert_eq!(ran, (0..RUNS).collect::<Vec<_>>(), "each ran once");
}
