//! Clocks that are read before a wait, or that go back: nobody is granted what ended before it began.
#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod postgres_schema;

use std::{thread, time::Duration};

use leasehold_testkit::{postgres::Postgres, until};
use postgres_schema::server_with_schema;
use tokio::runtime::Runtime;
use tokio_postgres::{Client, NoTls};

fn installed() -> (Postgres, Runtime) {
    let server = server_with_schema(&["fsync=off"]);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    (server, runtime)
}

/// A transaction that did this and stays open.
fn open_transaction(server: &Postgres, runtime: &Runtime, sql: &str) -> Client {
    runtime.block_on(async {
        let (client, connection) = tokio_postgres::connect(&server.url(), NoTls).await.unwrap();
        tokio::runtime::Handle::current().spawn(connection);
        client.batch_execute(&format!("begin; {sql}")).await.unwrap();
        client
    })
}

/// What a call answered, and when the transaction that it waited for was about to end.
struct Waited {
    answer: String,
    until: String,
}

/// Calls while the transaction is open, and ends it in this way this long after the call began to wait.
fn call_behind(server: &Postgres, runtime: &Runtime, open: &Client, call: &str, end: &str, after: Duration) -> Waited {
    thread::scope(|scope| {
        let calling = scope.spawn(|| server.psql(call));
        until(|| server.psql("select count(*) from pg_stat_activity where wait_event_type = 'Lock'") == "1");
        thread::sleep(after);
        let until = server.psql("select clock_timestamp()");
        runtime.block_on(open.batch_execute(end)).unwrap();
        Waited { answer: calling.join().unwrap(), until }
    })
}

/// 1. A takes a name in a transaction. 2. B asks for it, and waits for longer than its ttl. 3. A rolls back.
#[test]
fn a_lease_that_was_waited_for_lasts_as_long_as_any_other() {
    let (server, runtime) = installed();
    server.psql("select leasehold.acquire_lock('known', 'z'); select leasehold.release_lock('known', 'z')");
    for name in ["known", "new"] {
        let first = open_transaction(&server, &runtime, &format!("select leasehold.acquire_lock('{name}', 'a')"));
        let asks = format!("select leasehold.acquire_lock('{name}', 'b', 1)");
        let waited = call_behind(&server, &runtime, &first, &asks, "rollback", Duration::from_millis(1200));
        assert_eq!(waited.answer, "t");
        let lasts = format!(
            "select expires_at - acquired_at = '1 s' and acquired_at >= '{}' from leasehold.resource where name = '{name}'",
            waited.until
        );
        assert_eq!(server.psql(&lasts), "t", "{name}: a second from when it was granted");
    }
}

/// 1. A takes a free name in a transaction. 2. B asks for it and waits. 3. A gives it back and commits.
#[test]
fn what_ended_and_what_came_after_it_do_not_overlap() {
    let (server, runtime) = installed();
    server.psql("select leasehold.acquire_lock('x', 'z'); select leasehold.release_lock('x', 'z')");
    let first = open_transaction(&server, &runtime, "select leasehold.acquire_lock('x', 'a')");
    let give_back = "select leasehold.release_lock('x', 'a'); commit";
    let asks = "select leasehold.acquire_lock('x', 'b')";
    assert_eq!(call_behind(&server, &runtime, &first, asks, give_back, Duration::from_millis(50)).answer, "t");
    assert_eq!(server.psql("select leasehold.release_lock('x', 'b')"), "t");
    let overlaps = "select count(*) from leasehold.released one, leasehold.released other
                    where one.locked < other.locked and one.released > other.locked";
    assert_eq!(server.psql(overlaps), "0");
    assert_eq!(server.psql("select count(*) from leasehold.released"), "3");
}

/// 1. A release waits for a stranger's transaction. 2. The lease runs out. 3. The stranger lets go.
#[test]
fn a_release_or_extension_that_waited_past_the_end_comes_too_late() {
    let (server, runtime) = installed();
    for (call, ends) in [("release_lock('x', 'a')", 1), ("extend_lock('x', 'a', 60)", 0)] {
        server.psql("select leasehold.acquire_lock('x', 'a', 1)");
        let stranger = open_transaction(&server, &runtime, "select 1 from leasehold.resource for update");
        let call = format!("select leasehold.{call}");
        assert_eq!(
            call_behind(&server, &runtime, &stranger, &call, "rollback", Duration::from_millis(1200)).answer,
            "f"
        );
        let recorded = server.psql("select count(*) from leasehold.ended where ending = 'expired'");
        assert_eq!(recorded, ends.to_string(), "{call}");
        server.psql("delete from leasehold.ended");
    }
}

/// As if the lease had been granted before the server's clock went back by an hour.
#[test]
fn after_the_clock_went_back_leases_are_extended_released_and_taken() {
    let (server, _runtime) = installed();
    server.psql("select leasehold.acquire_lock('x', 'a')");
    server.psql(
        "update leasehold.resource set acquired_at = acquired_at + interval '1 h', renewed_at = renewed_at + interval '1 h',
           asked_at = asked_at + interval '1 h', expires_at = expires_at + interval '1 h' where name = 'x'",
    );
    assert_eq!(server.psql("select leasehold.acquire_lock('x', 'b')"), "f", "it is held by what the clock says");
    assert_eq!(server.psql("select leasehold.extend_lock('x', 'a', 60)"), "t");
    assert_eq!(server.psql("select leasehold.release_lock('x', 'a')"), "t");
    assert_eq!(server.psql("select released >= locked from leasehold.released"), "t");
    let fence = server.psql("select fence from leasehold.resource where name = 'x'");
    assert_eq!(server.psql("select leasehold.acquire_lock('x', 'b')"), "t");
    let above = format!(
        "select fence > {fence} and expires_at < now() + interval '31 s' from leasehold.resource where name = 'x'"
    );
    assert_eq!(server.psql(&above), "t");
}
