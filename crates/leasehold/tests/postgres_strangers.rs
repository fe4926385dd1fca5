//! What others do to the same database with its own means: it costs the library's users neither their view nor their leases.
#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod postgres_schema;
mod shared;

use std::{
    future::poll_fn,
    thread::{self, JoinHandle, Scope, ScopedJoinHandle},
    time::Duration,
};

use leasehold::{
    Leasehold, Result,
    backend::EventStream,
    blocking,
    clock::{Clock, SystemClock},
    lease::{HistoryFilter, ListFilter, Metadata, Names, Released},
};
use leasehold_testkit::{postgres::Postgres, until};
use postgres_schema::{install_schema, server_with_schema};
use serde_json::{Value, json};
use shared::hold_at_last;
use tokio::{runtime::Runtime, time::timeout};
use tokio_postgres::{Client, NoTls};

/// How many calls of the library wait for a lock.
const BLOCKED: &str =
    "select count(*) from pg_stat_activity where application_name = 'leasehold' and wait_event_type = 'Lock'";

fn connect(url: &str) -> Leasehold {
    blocking::wait(Leasehold::connect(url)).unwrap()
}

/// Postgres stores no NUL: in a batch, the one lease with such a text would fail all others.
#[test]
fn a_nul_in_metadata_is_replaced_and_fails_nobody() {
    let server = server_with_schema(&["fsync=off"]);
    let locks = connect(&server.url());
    let metadata = json!({"said": ["a\0b"]}).as_object().unwrap().clone();
    let guard = blocking::wait(locks.mutex("odd").metadata(metadata).acquire()).unwrap();
    let listed = blocking::wait(locks.list(&ListFilter::new(Names::All))).unwrap().leases;
    assert_eq!(listed[0].metadata.get("said"), Some(&json!(["a\u{fffd}b"])));
    blocking::wait(guard.release()).unwrap();
}

#[test]
fn metadata_that_has_no_form_here_is_shown_as_text_and_hides_nothing() {
    let server = server_with_schema(&["fsync=off"]);
    let locks = connect(&server.url());
    let mine = blocking::wait(locks.mutex("mine").acquire()).unwrap();
    server.psql(
        r#"select leasehold.acquire_lock('huge', 'a', 600, '{"n": 1e400, "kept": [1, {"two": null}]}');
        select leasehold.acquire_lock('deep', 'a', 600, ('{"n": ' || repeat('[', 200) || repeat(']', 200) || ', "kept": 1}')::jsonb);
        select leasehold.acquire_one('default', null, null, 'a', 'odd', md5('odd')::uuid, 'x', 2147483647, 2147483647, 600000000,
          -1, false, 'a', null, '[1, 2]', null);"#,
    );
    let huge = json!({"n": format!("1{}", "0".repeat(400)), "kept": [1, {"two": null}]});
    let deep = json!({"n": "[".repeat(200) + &"]".repeat(200), "kept": 1});
    let odd = json!({"metadata": [1, 2]});

    let listed = blocking::wait(locks.list(&ListFilter::new(Names::All))).unwrap().leases;
    let shown = |name: &str, leases: &[(String, Metadata)]| {
        let found = leases.iter().find(|(of, _)| of == name).unwrap_or_else(|| panic!("{name} is not shown"));
        Value::Object(found.1.clone())
    };
    let listed: Vec<_> = listed.into_iter().map(|lease| (lease.resource.to_string(), lease.metadata)).collect();
    let expected = [("huge", &huge), ("deep", &deep), ("odd", &odd), ("mine", &json!({}))];
    for (name, metadata) in expected {
        assert_eq!(&shown(name, &listed), metadata, "{name}");
    }

    server.psql(
        "select leasehold.release_lock('huge', 'a'); select leasehold.release_lock('deep', 'a');
        select leasehold.release_one('default', null, 'a', 'odd', md5('odd')::uuid, 'released', null, null)",
    );
    blocking::wait(mine.release()).unwrap();
    let ended = blocking::wait(locks.history(&HistoryFilter::new(Names::All))).unwrap();
    let ended: Vec<_> = ended.into_iter().map(|lease| (lease.resource.to_string(), lease.metadata)).collect();
    for (name, metadata) in expected {
        assert_eq!(&shown(name, &ended), metadata, "{name}");
    }
}

#[test]
fn a_holder_that_has_no_form_here_fails_those_who_ask_for_its_lock_and_nobody_else() {
    let server = server_with_schema(&["fsync=off"]);
    let locks = connect(&server.url());
    let only = server.psql("select pid from pg_stat_activity where application_name = 'leasehold'");
    server.psql(
        "select leasehold.acquire_one('default', null, null, 'a', 'odd', md5('odd')::uuid, 'x', 2147483647, 2147483647, 600000000,
          -1, false, repeat('a', 257), null, '{}', null)",
    );
    let tries: Vec<_> = (0..40)
        .map(|at| {
            let asks = locks.mutex(if at % 8 == 0 { String::from("odd") } else { format!("other:{at}") });
            thread::spawn(move || blocking::wait(asks.try_acquire()))
        })
        .collect();
    for (at, asked) in tries.into_iter().enumerate() {
        let answer = asked.join().unwrap();
        assert_eq!(answer.is_err(), at % 8 == 0, "{at}: {answer:?}");
    }
    assert_eq!(server.psql(&format!("select count(*) from pg_stat_activity where pid = {only}")), "1", "it was closed");
}

#[test]
fn bytes_are_counted_alike_in_databases_of_every_encoding() {
    let server = Postgres::start();
    server.psql("create database latin encoding 'LATIN1' lc_collate 'C' lc_ctype 'C' template template0");
    install_schema(&server.url_of("postgres", "latin"), None).unwrap();
    let call = |call: &str| server.try_psql("postgres", &format!("\\c latin\nselect leasehold.{call}"));
    for (refused, why) in [
        ("acquire_lock('x', repeat(chr(233), 129))", "a holder id needs 1 to 256 bytes"),
        ("acquire_lock(repeat(chr(233), 257), 'a')", "a lock name needs 1 to 512 bytes"),
        ("acquire(repeat(chr(233), 257))", "a lock name needs 1 to 512 bytes"),
    ] {
        let error = call(refused).unwrap_err();
        assert!(error.contains(why), "{refused}: {error}");
    }
    assert_eq!(call("acquire_lock(repeat(chr(233), 256), repeat(chr(233), 128))").unwrap(), "t");
}

/// Locks a table for this many seconds; returns once the lock is granted.
fn lock_table<'scope>(
    scope: &'scope Scope<'scope, '_>,
    server: &'scope Postgres,
    table: &'scope str,
    mode: &'scope str,
    seconds: u32,
) -> ScopedJoinHandle<'scope, ()> {
    let sitting = scope.spawn(move || {
        server.psql(&format!("begin; lock table leasehold.{table} in {mode} mode; select pg_sleep({seconds}); commit"));
    });
    // The library and its functions take weaker ones.
    let granted = format!(
        "select count(*) from pg_locks where relation = 'leasehold.{table}'::regclass
        and mode in ('ShareLock', 'AccessExclusiveLock') and granted"
    );
    until(|| server.psql(&granted) == "1");
    sitting
}

#[test]
fn a_locked_table_of_followers_ends_no_lease_that_lives_by_the_connection() {
    let server = server_with_schema(&["fsync=off"]);
    let locks = connect(&format!("{}?liveness=connection", server.url()));
    let guard = blocking::wait(locks.mutex("x").acquire()).unwrap();
    let mut events = blocking::wait(locks.watch(Names::All)).unwrap();
    thread::scope(|scope| {
        let sitting = lock_table(scope, &server, "watcher", "access exclusive", 3);
        // One more follower makes the instance register again, which the lock keeps it from doing.
        let _more = blocking::wait(locks.watch(Names::All)).unwrap();
        until(|| server.log().contains("canceling statement due to lock timeout"));
        sitting.join().unwrap();
    });
    thread::sleep(Duration::from_millis(500));
    guard.check().unwrap();
    assert_eq!(server.psql("select named from leasehold.locks"), "x", "its connection lives");
    blocking::wait(guard.release()).unwrap();
    assert_eq!(next(&mut events, Duration::from_secs(5)), "x", "followers hear on");
}

#[test]
fn a_connection_made_while_nobody_can_follow_serves_leases_and_later_followers() {
    let server = server_with_schema(&["fsync=off"]);
    let locks = connect(&format!("{}?liveness=connection", server.url()));
    let mut events = blocking::wait(locks.watch(Names::All)).unwrap();
    let before = server.psql("select max(id) from leasehold.session");
    thread::scope(|scope| {
        // Others may read who follows, and nobody may begin to.
        let sitting = lock_table(scope, &server, "watcher", "share", 5);
        server.psql("select pg_terminate_backend(pid) from leasehold.session");
        until(|| server.psql("select max(id) from leasehold.session") != before);
        let guard = hold_at_last(&locks, "x", Duration::from_secs(30));
        assert!(!sitting.is_finished(), "it was granted while the table was locked");
        sitting.join().unwrap();
        guard.check().unwrap();
        // Registering is tried again every three seconds.
        thread::sleep(Duration::from_secs(6));
        blocking::wait(guard.release()).unwrap();
    });
    assert_eq!(next(&mut events, Duration::from_secs(2)), "x", "followers hear again");
}

#[test]
fn a_name_in_a_strangers_transaction_delays_no_other_however_many_ask_for_it() {
    let server = server_with_schema(&["fsync=off"]);
    let locks = connect(&server.url());
    for name in ["stuck", "other"] {
        blocking::wait(blocking::wait(locks.mutex(name).acquire()).unwrap().release()).unwrap();
    }
    let (runtime, stranger) = stranger(&server);
    let lock = "begin; select * from leasehold.resource where name = 'stuck' for update";
    runtime.block_on(stranger.batch_execute(lock)).unwrap();
    let callers: Vec<_> = (0..50)
        .map(|_| {
            let asks = locks.mutex("stuck").wait(Duration::from_secs(60));
            thread::spawn(move || blocking::wait(async { asks.acquire().await?.release().await }).unwrap())
        })
        .collect();
    until(|| server.psql(BLOCKED) != "0");
    // As long as a call waits for a lock, and more: they came together, and now each would go alone.
    thread::sleep(Duration::from_millis(1500));
    for _ in 0..20 {
        blocking::wait(blocking::wait(locks.mutex("other").acquire()).unwrap().release()).unwrap();
        let blocked: u32 = server.psql(BLOCKED).parse().unwrap();
        // One goes alone; one that was asked for before that was known may go beside it.
        assert!(blocked <= 3, "{blocked} of 8 connections are blocked");
    }
    runtime.block_on(stranger.batch_execute("commit")).unwrap();
    for caller in callers {
        caller.join().unwrap();
    }
}

/// Waits for a lock on a thread of its own, and releases it.
fn take_turn(locks: &Leasehold, name: &str) -> JoinHandle<Result<Released>> {
    let waits = locks.mutex(name).ttl(Duration::from_secs(6)).wait(Duration::from_secs(60));
    thread::spawn(move || blocking::wait(async { waits.acquire().await?.release().await }))
}

/// Releases `x` and waits until all have had their turns.
fn end_turns(server: &Postgres, waiters: Vec<JoinHandle<Result<Released>>>) {
    server.psql("select leasehold.release_lock('x', 'a')");
    for waiter in waiters {
        waiter.join().unwrap().unwrap();
    }
}

/// Watches that whoever waits for `x` keeps its place while a stranger's transaction with this statement is open. That
/// is for 10 s, longer than the place lives without a renewal.
fn keeps_its_place_during(server: &Postgres, statement: &str) {
    let (runtime, stranger) = stranger(server);
    runtime.block_on(stranger.batch_execute(&format!("begin; {statement}"))).unwrap();
    for _ in 0..20 {
        thread::sleep(Duration::from_millis(500));
        let place = "select count(*) from leasehold.entry where name = 'x' and expires_at > clock_timestamp()";
        assert_eq!(server.psql(place), "1", "its place expired");
    }
    runtime.block_on(stranger.batch_execute("commit")).unwrap();
}

#[test]
fn many_who_wait_for_a_name_in_a_strangers_transaction_cost_nobody_else_their_place() {
    let server = server_with_schema(&["fsync=off"]);
    server.psql("select leasehold.acquire_lock('stuck', 'a', 600); select leasehold.acquire_lock('x', 'a', 600)");
    let locks = connect(&server.url());
    let waiters: Vec<_> = (0..100).map(|_| take_turn(&locks, "stuck")).chain([take_turn(&locks, "x")]).collect();
    until(|| server.psql("select count(*) from leasehold.entry") == "101");
    // To wait for each of them takes 40 s.
    keeps_its_place_during(&server, "select leasehold.release_lock('stuck', 'a')");
    end_turns(&server, waiters);
}

#[test]
fn many_names_in_a_strangers_transaction_cost_who_waits_for_another_no_place() {
    let server = server_with_schema(&["fsync=off"]);
    let names: Vec<String> = (0..40).map(|number| format!("stuck{number}")).chain([String::from("x")]).collect();
    server.psql("select count(leasehold.acquire_lock('stuck' || n, 'a', 600)) from generate_series(0, 39) n");
    server.psql("select leasehold.acquire_lock('x', 'a', 600)");
    let locks = connect(&server.url());
    let waiters: Vec<_> = names.iter().map(|name| take_turn(&locks, name)).collect();
    until(|| server.psql("select count(*) from leasehold.entry") == "41");
    // To wait for each name once takes 16 s.
    keeps_its_place_during(&server, "select * from leasehold.resource where name like 'stuck%' for update");
    server.psql("select count(leasehold.release_lock('stuck' || n, 'a')) from generate_series(0, 39) n");
    end_turns(&server, waiters);
}

#[test]
fn a_name_in_a_strangers_transaction_hides_no_death_of_the_holder_of_another() {
    let server = server_with_schema(&["fsync=off"]);
    let (runtime, holder) = stranger(&server);
    runtime.block_on(holder.batch_execute("select leasehold.acquire('stuck'), leasehold.acquire('x')")).unwrap();
    let locks = connect(&server.url());
    let wait = |name| {
        // Asks by itself every 20 s.
        let waits = locks.mutex(name).ttl(Duration::from_secs(60)).wait(Duration::from_secs(60));
        thread::spawn(move || blocking::wait(waits.acquire()).unwrap())
    };
    let [stuck, other] = ["stuck", "x"].map(wait);
    until(|| server.psql("select count(*) from leasehold.entry") == "2");
    let (_other_runtime, stranger) = stranger(&server);
    let lock = "begin; select * from leasehold.resource where name = 'stuck' for update";
    runtime.block_on(stranger.batch_execute(lock)).unwrap();
    drop(holder);
    let died = SystemClock.now();
    let _granted = other.join().unwrap();
    let took = SystemClock.now().since(died);
    assert!(took < Duration::from_secs(10), "it was granted after {took:?}");
    runtime.block_on(stranger.batch_execute("commit")).unwrap();
    drop(stuck.join().unwrap());
}

#[test]
fn a_history_that_takes_long_delays_no_grant() {
    let server = server_with_schema(&["fsync=off"]);
    let locks = connect(&server.url());
    // Only who asks for the history needs its table.
    server.psql("select leasehold.record('off'); select leasehold.acquire_lock('x', 'a', 600)");
    let waits = locks.mutex("x").ttl(Duration::from_secs(60)).wait(Duration::from_secs(60));
    let waiter = thread::spawn(move || blocking::wait(waits.acquire()).unwrap());
    until(|| server.psql("select count(*) from leasehold.entry") == "1");
    thread::scope(|scope| {
        let _sitting = lock_table(scope, &server, "ended", "access exclusive", 3);
        let asking = scope.spawn(|| blocking::wait(locks.history(&HistoryFilter::new(Names::All))));
        until(|| server.psql(BLOCKED) == "1");
        server.psql("select leasehold.release_lock('x', 'a')");
        let guard = waiter.join().unwrap();
        assert!(!asking.is_finished(), "the waiter held only after the history was shown");
        guard.check().unwrap();
    });
}

#[test]
fn a_lease_lost_at_its_deadline_costs_no_further_connection() {
    let server = server_with_schema(&["fsync=off"]);
    let locks = connect(&server.url());
    let only = server.psql("select pid from pg_stat_activity where application_name = 'leasehold'");
    let lost = blocking::wait(locks.mutex("x").ttl(Duration::from_secs(2)).acquire()).unwrap();
    let (runtime, stranger) = stranger(&server);
    let lock = "begin; select * from leasehold.resource where name = 'x' for update";
    runtime.block_on(stranger.batch_execute(lock)).unwrap();
    until(|| lost.check().is_err());
    runtime.block_on(stranger.batch_execute("commit")).unwrap();
    // Soon nothing is held any more that a call on that connection could delay.
    let asked = format!("select count(*) from pg_stat_activity where pid = {only} and query like '%list_ended(%'");
    until(|| {
        blocking::wait(locks.history(&HistoryFilter::new(Names::All))).unwrap();
        server.psql(&asked) == "1"
    });
}

/// A connection of somebody else, and the runtime that it needs.
fn stranger(server: &Postgres) -> (Runtime, Client) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (stranger, connection) = runtime.block_on(tokio_postgres::connect(&server.url(), NoTls)).unwrap();
    runtime.spawn(connection);
    (runtime, stranger)
}

/// What the next event is about.
fn next(events: &mut EventStream, patience: Duration) -> String {
    let next = async {
        loop {
            // A stream that was cut off says first that it missed some.
            if let Ok(event) = poll_fn(|context| events.as_mut().poll_next(context)).await.unwrap() {
                return event;
            }
        }
    };
    let event = blocking::wait(async { Ok(timeout(patience, next).await) }).unwrap();
    event.expect("an event comes").resource.to_string()
}
