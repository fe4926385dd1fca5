//! What doctor finds on a Postgres server: each finding appears when it should, and not otherwise.
#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{sync::Arc, time::Duration};

use leasehold::{
    Leasehold,
    backend::{Finding, Severity},
    backends::postgres::{PostgresOptions, install},
    blocking,
    clock::{ManualClock, SystemClock},
};
use leasehold_testkit::{postgres::Postgres, until};
use tokio_postgres::NoTls;

fn prepared(settings: &[&str]) -> Postgres {
    let server = Postgres::start_with(settings);
    let limit = Duration::from_secs(10);
    let options = PostgresOptions::from_url(&server.url(), "default", Arc::new(SystemClock), limit).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(install(options, None)).unwrap();
    server
}

fn examined(url: &str) -> Vec<Finding> {
    blocking::wait(blocking::wait(Leasehold::connect(url)).unwrap().examine()).unwrap()
}

/// How bad it is, and in what words; `None` where nothing is said.
fn about(findings: &[Finding], subject: &str) -> Option<(Severity, String)> {
    findings
        .iter()
        .find(|finding| finding.subject == subject)
        .map(|finding| (finding.severity, finding.message.clone()))
}

fn severity(findings: &[Finding], subject: &str) -> Option<Severity> {
    about(findings, subject).map(|(severity, _)| severity)
}

#[test]
fn a_server_in_good_order_has_nothing_against_it() {
    let server = prepared(&["fsync=on"]);
    let mut findings = examined(&server.url());
    // How far away it is depends on what else the machine does.
    findings.retain(|finding| finding.subject != "reach");
    assert!(findings.iter().all(|finding| finding.severity < Severity::Warning), "{findings:?}");
    for subject in ["durability", "pooler", "connections", "keepalives"] {
        assert_eq!(severity(&findings, subject), Some(Severity::Ok), "{subject}: {findings:?}");
    }
}

#[test]
fn what_endangers_locks_is_found_and_named() {
    let server = prepared(&["fsync=off", "autovacuum=off", "max_connections=20"]);
    let url = server.url();
    let findings = examined(&url);
    assert_eq!(severity(&findings, "durability"), Some(Severity::Failure), "fsync is off");
    assert!(about(&findings, "dead rows").unwrap().1.contains("autovacuum is off"), "{findings:?}");

    // A transaction that used a lock and stays open, and one that only reads.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let sits = |name: &str, sql: &str| {
        runtime.block_on(async {
            let url = format!("{url}?application_name={name}");
            let (client, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
            tokio::runtime::Handle::current().spawn(connection);
            client.batch_execute(sql).await.unwrap();
            client
        })
    };
    let _reads = sits("reader", "begin; select 1");
    server.psql("select leasehold.acquire_lock('y', 'a')");
    let guarded = sits("ledger", "begin; select leasehold.guard('y', leasehold.fence_of('y', 'a'))");
    let user = sits("billing", "begin; select leasehold.acquire_lock('x', 'a')");
    let early = severity(&examined(&url), "open transaction");
    let age = "select clock_timestamp() - min(xact_start) from pg_stat_activity where application_name in ('billing', 'ledger')";
    if server.psql(&format!("select ({age}) < interval '2 s'")) == "t" {
        assert_eq!(early, None, "they have not lasted yet");
    }
    until(|| server.psql(&format!("select ({age}) > interval '2.1 s'")) == "t");
    let (severity_of_it, words) = about(&examined(&url), "open transaction").unwrap();
    assert_eq!(severity_of_it, Severity::Warning);
    assert!(words.contains("billing") && words.contains("ledger") && !words.contains("reader"), "{words}");
    for open in [user, guarded] {
        runtime.block_on(open.batch_execute("commit")).unwrap();
    }
    assert_eq!(severity(&examined(&url), "open transaction"), None);

    // As many connections as there may be.
    let crowd: Vec<_> = (0..9).map(|_| sits("crowd", "select 1")).collect();
    assert_eq!(severity(&examined(&url), "connections"), Some(Severity::Warning));
    drop(crowd);
}

#[test]
fn grants_that_a_crash_or_a_failover_forgets_are_told() {
    let server = prepared(&["fsync=on", "synchronous_commit=off"]);
    let url = server.url();
    let (severity_of_it, words) = about(&examined(&url), "durability").unwrap();
    assert!(severity_of_it == Severity::Warning && words.contains("synchronous_commit is off"), "{words}");
    assert_eq!(
        severity(&examined(&format!("{url}?durability=async")), "durability"),
        Some(Severity::Ok),
        "as was asked for"
    );
    assert_eq!(severity(&examined(&url), "failover"), None);
    let standby = server.standby();
    let (severity_of_it, words) = about(&examined(&url), "failover").unwrap();
    assert!(severity_of_it == Severity::Warning && words.contains("asynchronously"), "{words}");
    let refused = blocking::wait(Leasehold::connect(&standby.url())).unwrap_err();
    assert!(refused.to_string().contains("standby"), "{refused}");
}

#[test]
fn dead_rows_that_pile_up_are_told() {
    let server = prepared(&["fsync=off"]);
    server.psql(
        "insert into leasehold.resource (namespace, name) select 'default', n::text from generate_series(1, 200000) n",
    );
    assert_eq!(severity(&examined(&server.url()), "dead rows"), None);
    // As long as somebody may still look at what was, it stays.
    let mut looks = server.client("postgres");
    looks.args(["-c", "begin isolation level repeatable read; select 1; select pg_sleep(60)"]);
    let mut looks = looks.stdout(std::process::Stdio::null()).spawn().unwrap();
    until(|| {
        server.psql("select count(*) from pg_stat_activity where query like '%pg_sleep(60)%' and backend_xmin is not null and pid <> pg_backend_pid()") == "1"
    });
    for _ in 0..3 {
        server.psql("update leasehold.resource set last_fence = last_fence + 1");
    }
    let stat = "select n_dead_tup > 500000 from pg_stat_all_tables where relid = 'leasehold.resource'::regclass";
    until(|| server.psql(stat) == "t");
    let (severity_of_it, words) = about(&examined(&server.url()), "dead rows").unwrap();
    assert!(severity_of_it == Severity::Warning && words.contains("dead rows beside 200000 live"), "{words}");
    looks.kill().unwrap();
    looks.wait().unwrap();
}

#[test]
fn a_wall_clock_far_from_ours_is_told() {
    let server = prepared(&["fsync=on"]);
    assert_eq!(severity(&examined(&server.url()), "clock"), Some(Severity::Info));
    // It says what it says for ever, which is long ago.
    let builder = Leasehold::builder().clock(Arc::new(ManualClock::new()));
    let locks = blocking::wait(builder.connect(&server.url())).unwrap();
    assert_eq!(severity(&blocking::wait(locks.examine()).unwrap(), "clock"), Some(Severity::Warning));
}
