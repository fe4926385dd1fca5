//! What doctor finds on a Postgres server: each finding appears when it should, and not otherwise.
#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod postgres_schema;

use std::sync::Arc;

use leasehold::{
    Leasehold,
    backend::{Finding, Severity},
    blocking,
    clock::ManualClock,
};
use leasehold_testkit::until;
use postgres_schema::server_with_schema;
use tokio_postgres::NoTls;

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
    let server = server_with_schema(&["fsync=on"]);
    let mut findings = examined(&server.url());
    // How far away it is depends on what else the machine does.
    findings.retain(|finding| finding.subject != "reach");
    assert!(findings.iter().all(|finding| finding.severity < Severity::Warning), "{findings:?}");
    for subject in ["durability", "pooler", "connections"] {
        assert_eq!(severity(&findings, subject), Some(Severity::Ok), "{subject}: {findings:?}");
    }
    let findings = examined(&format!("{}?liveness=connection", server.url()));
    assert_eq!(severity(&findings, "keepalives"), Some(Severity::Ok), "{findings:?}");
}

#[test]
fn what_endangers_locks_is_found_and_named() {
    let server = server_with_schema(&["fsync=off", "autovacuum=off", "max_connections=20"]);
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
    let server = server_with_schema(&["fsync=on", "synchronous_commit=off"]);
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
    let server = server_with_schema(&["fsync=off"]);
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
    assert!(severity_of_it == Severity::Warning && words.contains("dead rows beside 200024 live"), "{words}");
    looks.kill().unwrap();
    looks.wait().unwrap();
}

#[test]
fn a_wall_clock_far_from_ours_is_told() {
    let server = server_with_schema(&["fsync=on"]);
    assert_eq!(severity(&examined(&server.url()), "clock"), Some(Severity::Info));
    // It says what it says for ever, which is long ago.
    let builder = Leasehold::builder().clock(Arc::new(ManualClock::new()));
    let locks = blocking::wait(builder.connect(&server.url())).unwrap();
    assert_eq!(severity(&blocking::wait(locks.examine()).unwrap(), "clock"), Some(Severity::Warning));
}

/// It is the same clock, so that all but a part of one round trip is a fault of the measurement.
#[test]
fn the_clock_of_this_machine_is_found_to_be_ours() {
    let server = server_with_schema(&["fsync=on"]);
    let apart = || -> f64 {
        let (_, words) = about(&examined(&server.url()), "clock").unwrap();
        words.split(' ').find_map(|word| word.parse().ok()).unwrap()
    };
    // A busy machine disturbs some of them.
    let nearest = (0..20).map(|_| apart()).fold(f64::INFINITY, f64::min);
    assert!(nearest < 0.5, "{nearest} ms");
}

/// Deletes and updates of a published table need rows that can be named.
#[test]
fn a_publication_of_all_tables_is_named_and_stops_no_upkeep() {
    let server = server_with_schema(&["fsync=on", "wal_level=logical"]);
    assert_eq!(severity(&examined(&server.url()), "publication"), None);
    server.psql(
        "create publication everything for all tables;
         select leasehold.acquire_lock('x', 'a'); select leasehold.release_lock('x', 'a');
         update leasehold.ended set ended_at = now() - interval '8 days'",
    );
    let findings = examined(&server.url());
    let (severity_of_it, words) = about(&findings, "publication").unwrap();
    assert!(severity_of_it == Severity::Warning && words.contains("everything"), "{words}");
    assert_eq!(severity(&findings, "upkeep"), None, "{findings:?}");
    assert_eq!(server.psql("select count(*) from leasehold.ended"), "0", "it was tidied up");
}

#[test]
fn upkeep_that_cannot_work_is_named() {
    let server = server_with_schema(&["fsync=on"]);
    server.psql(
        "create function no() returns trigger language plpgsql as 'begin raise exception $$not here$$; end';
                 create trigger no before update on leasehold.upkeep for each row execute function no()",
    );
    let (severity_of_it, words) = about(&examined(&server.url()), "upkeep").unwrap();
    assert!(severity_of_it == Severity::Failure && words.contains("not here"), "{words}");
}

#[test]
fn a_forgotten_prepared_transaction_is_named() {
    let server = server_with_schema(&["fsync=on", "max_prepared_transactions=5"]);
    server.psql(
        "select leasehold.acquire_lock('x', 'a');
         begin; select leasehold.guard('x', leasehold.fence_of('x', 'a')); prepare transaction 'forgotten';
         begin; select 1; prepare transaction 'harmless'",
    );
    until(|| server.psql("select bool_and(prepared < now() - interval '2.1 s') from pg_prepared_xacts") == "t");
    let (severity_of_it, words) = about(&examined(&server.url()), "prepared transaction").unwrap();
    assert!(
        severity_of_it == Severity::Failure && words.contains("forgotten") && !words.contains("harmless"),
        "{words}"
    );
    server.psql("commit prepared 'forgotten'; commit prepared 'harmless'");
    assert_eq!(severity(&examined(&server.url()), "prepared transaction"), None);
}

#[test]
fn what_a_role_cannot_see_is_said() {
    let server = server_with_schema(&["fsync=on"]);
    server.psql("create role app login; select leasehold.allow('app')");
    let url = server.url_of("app", "postgres");
    let (severity_of_it, words) = about(&examined(&url), "visibility").unwrap();
    assert_eq!(severity_of_it, Severity::Info, "{words}");
    server.psql(statement(&words));
    assert_eq!(severity(&examined(&url), "visibility"), None, "{words}");
}

/// The statement at the end of a finding's message.
fn statement(words: &str) -> &str {
    words.rsplit_once(": ").unwrap().1
}

#[test]
fn the_statement_for_another_isolation_works_as_printed() {
    let server = server_with_schema(&["fsync=on"]);
    server.psql("create role \"order\" login; select leasehold.allow('order')");
    let url = server.url_of("order", "postgres");
    server.psql("alter role \"order\" set default_transaction_isolation = 'serializable'");
    let (severity_of_it, words) = about(&examined(&url), "isolation").unwrap();
    assert_eq!(severity_of_it, Severity::Warning, "{words}");
    server.psql(statement(&words));
    assert_eq!(severity(&examined(&url), "isolation"), None, "{words}");
}

#[test]
fn a_short_statement_timeout_is_told() {
    let server = server_with_schema(&["fsync=on"]);
    server.psql("alter role postgres set statement_timeout = '300ms'");
    assert_eq!(severity(&examined(&server.url()), "statement timeout"), Some(Severity::Warning));
}

/// A standby does not know who of the primary's connections lives.
#[test]
fn a_standby_shows_what_lives_by_connections() {
    let server = server_with_schema(&["fsync=on"]);
    let standby = server.standby();
    let locks = blocking::wait(Leasehold::connect(&format!("{}?liveness=connection", server.url()))).unwrap();
    let _guard = blocking::wait(locks.mutex("x").acquire()).unwrap();
    until(|| standby.psql("select count(*) from leasehold.resource where id is not null") == "1");
    let views = "select (select count(*) from leasehold.locks), (select count(*) from leasehold.distributed_locks),
                   (select count(*) from leasehold.released)";
    assert_eq!(server.psql(views), "1|1|0");
    assert_eq!(standby.psql(views), "1|1|0");
}
