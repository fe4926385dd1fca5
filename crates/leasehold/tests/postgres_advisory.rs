//! Advisory locks: session level and transaction level.
#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{error::Error, time::Duration};

use leasehold::{
    ErrorKind,
    backends::postgres::advisory::{self, Advisory, Key, Sharing},
};
use leasehold_testkit::{postgres::Postgres, until};
use tokio::task::JoinSet;
use tokio_postgres::{Client, NoTls};

#[allow(dead_code, reason = "its main reads the environment, which is not ours here")]
#[path = "../examples/advisory_job.rs"]
mod advisory_job;

#[tokio::test(flavor = "multi_thread")]
async fn the_example_of_a_unique_job_runs() {
    let server = Postgres::start();
    advisory_job::run(&server.url()).await.unwrap();
}

async fn client(server: &Postgres) -> Client {
    connect(&server.url()).await
}

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::runtime::Handle::current().spawn(connection);
    client
}

/// A server and two instances on it, the second with the role `waiter`.
async fn server_and_two() -> (Postgres, Advisory, Advisory) {
    let server = Postgres::start();
    server.psql("create role waiter login");
    let one = Advisory::connect(&server.url()).await.unwrap();
    let two = Advisory::connect(&server.url_of("waiter", "postgres")).await.unwrap();
    (server, one, two)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_lock_excludes_other_connections_and_other_tasks() {
    let (server, one, two) = server_and_two().await;
    let guard = one.try_acquire("job:123").await.unwrap().unwrap();
    assert_eq!(guard.key(), Key::Number(614_867_089_669_398_140));
    assert!(one.try_acquire("job:123").await.unwrap().is_none(), "one connection is given it once");
    assert!(two.try_acquire("job:123").await.unwrap().is_none());
    assert_eq!(server.psql("select pg_try_advisory_lock(614867089669398140)"), "f", "anyone can contend by the key");
    let error = two.acquire("job:123", Duration::from_millis(150)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WaitElapsed);

    let began = server.psql("select clock_timestamp()");
    let waiting = {
        let two = two.clone();
        tokio::runtime::Handle::current().spawn(async move { two.acquire("job:123", Duration::from_secs(60)).await })
    };
    // A statement that blocks holds a snapshot, which keeps dead rows: the one who waits asks, and is idle until it
    // asks again.
    let idle = format!(
        "select count(*) from pg_stat_activity where usename = 'waiter' and query_start > '{began}' and state = 'idle'"
    );
    until(|| server.psql(&idle) != "0");
    assert!(!waiting.is_finished(), "it is held");
    assert!(guard.release().await.unwrap());
    let next = waiting.await.unwrap().unwrap();
    next.check().unwrap();
    assert!(next.release().await.unwrap());
    assert_eq!((one.held(), two.held()), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_lock_is_capped_dropped_and_lost_with_its_connection() {
    let server = Postgres::start();
    let few = Advisory::connect_with_limit(&server.url(), 2).await.unwrap();
    let (first, second) = (few.try_acquire("a").await.unwrap().unwrap(), few.try_acquire("b").await.unwrap().unwrap());
    assert!(few.try_acquire("c").await.unwrap_err().to_string().contains("as many as may be"));
    drop(first);
    let again = few.acquire("a", Duration::from_secs(5)).await.unwrap();
    // A future that is dropped at any time leaves no lock behind.
    drop(again);
    for _ in 0..20 {
        let _dropped = tokio::time::timeout(Duration::from_micros(300), few.try_acquire("a")).await;
    }
    // A dropped ask leaves no lock behind.
    let take = format!("select pg_try_advisory_lock({})", advisory::key("a"));
    until(|| server.psql(&take) == "t");
    second.check().unwrap();
    server.psql("select count(pg_terminate_backend(pid)) from pg_stat_activity where application_name = 'leasehold'");
    until(|| second.check().is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_stops_waiting_asks_no_more() {
    let (server, holder, waiter) = server_and_two().await;
    let _held = holder.try_acquire("a").await.unwrap().unwrap();
    let waiting = waiter.acquire("a", Duration::from_secs(60));
    tokio::time::timeout(Duration::from_millis(300), waiting).await.unwrap_err();
    let last_asked = || server.psql("select query_start from pg_stat_activity where usename = 'waiter'");
    // One may be under way.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let before = last_asked();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(last_asked(), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_could_not_be_released_is_taken_by_nobody_and_released_later() {
    let server = Postgres::start();
    server.psql("create role app login; revoke execute on function pg_advisory_unlock(bigint) from public");
    let locks = Advisory::connect(&server.url_of("app", "postgres")).await.unwrap();
    let guard = locks.try_acquire("a").await.unwrap().unwrap();
    assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::PermissionDenied);
    // The server would grant it to the same connection once more.
    assert!(locks.try_acquire("a").await.unwrap().is_none());
    server.psql("grant execute on function pg_advisory_unlock(bigint) to public");
    let take = format!("select pg_try_advisory_lock({})", advisory::key("a"));
    until(|| server.psql(&take) == "t");
    until(|| locks.held() == 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn transaction_locks_share_exclude_and_end_with_the_transaction() {
    let server = Postgres::start();
    let (mut one, mut two) = (client(&server).await, client(&server).await);
    let first = one.transaction().await.unwrap();
    let second = two.transaction().await.unwrap();
    advisory::lock_in_as(&first, ["config"], Sharing::Shared).await.unwrap();
    assert!(advisory::try_lock_in_as(&second, ["config"], Sharing::Shared).await.unwrap());
    assert!(!advisory::try_lock_in(&second, ["other", "config"]).await.unwrap(), "all or nothing");
    assert!(advisory::try_lock_in(&first, ["other"]).await.unwrap(), "nothing was kept of it");
    first.rollback().await.unwrap();
    assert!(advisory::try_lock_in(&second, ["other", "config"]).await.unwrap());
    second.commit().await.unwrap();
    assert_eq!(server.psql("select count(*) from pg_locks where locktype = 'advisory'"), "0");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_whose_lock_timeout_passed_certainly_has_no_lock() {
    let server = Postgres::start();
    let (mut one, mut two) = (client(&server).await, client(&server).await);
    let holder = one.transaction().await.unwrap();
    advisory::lock_in(&holder, ["a"]).await.unwrap();
    advisory::lock_in(&holder, [(47, 11)]).await.unwrap();
    let alone = format!("advisory lock {} on postgres", advisory::key("a"));
    let pair = String::from("advisory lock (47, 11) on postgres");
    let several = String::from("one of 2 advisory locks on postgres");
    for (keys, described) in [
        (vec![Key::from("a")], alone),
        (vec![Key::from((47, 11))], pair),
        (vec![Key::from("a"), Key::from((47, 11))], several),
    ] {
        let waiter = two.transaction().await.unwrap();
        waiter.batch_execute("set local lock_timeout = '50ms'").await.unwrap();
        let error = advisory::lock_in(&waiter, keys).await.unwrap_err();
        assert_eq!((error.kind(), error.outcome_unknown()), (ErrorKind::WaitElapsed, false), "{error}");
        assert!(error.to_string().starts_with(&described), "{error}");
        assert!(error.source().is_some_and(<dyn Error>::is::<tokio_postgres::Error>), "{error:?}");
        waiter.rollback().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_of_a_lock_in_a_transaction_does_not_advise_rights_to_a_schema() {
    let server = Postgres::start();
    server.psql("create role app login; revoke execute on function pg_advisory_xact_lock(bigint) from public");
    let mut app = connect(&server.url_of("app", "postgres")).await;
    let transaction = app.transaction().await.unwrap();
    let error = advisory::lock_in(&transaction, ["a"]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
    assert!(error.to_string().starts_with("postgres, in this transaction, says: "), "{error}");
    assert!(!error.to_string().contains("allow("), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn transfers_between_accounts_do_not_deadlock_and_keep_the_total() {
    let server = Postgres::start();
    server.psql("create table account (name text primary key, balance int); insert into account select 'account:' || n, 1000 from generate_series(0, 7) n");
    let mut tasks = JoinSet::new();
    for task in 0..64_usize {
        let mut client = client(&server).await;
        tasks.spawn(async move {
            for round in 0..10 {
                let (from, to) = ((task + round) % 8, (task * 3 + round * 5 + 1) % 8);
                if from == to {
                    continue;
                }
                let (from, to) = (format!("account:{from}"), format!("account:{to}"));
                let transaction = client.transaction().await.unwrap();
                advisory::lock_in(&transaction, [&from, &to]).await.unwrap();
                let balance = "select balance from account where name = $1";
                let rich: i32 = transaction.query_one(balance, &[&from]).await.unwrap().get(0);
                let poor: i32 = transaction.query_one(balance, &[&to]).await.unwrap().get(0);
                // Read, then written: without the locks money would be lost.
                let set = "update account set balance = $2 where name = $1";
                transaction.execute(set, &[&from, &(rich - 1)]).await.unwrap();
                transaction.execute(set, &[&to, &(poor + 1)]).await.unwrap();
                transaction.commit().await.unwrap();
            }
        });
    }
    tokio::time::timeout(Duration::from_secs(60), tasks.join_all()).await.expect("no deadlock");
    assert_eq!(server.psql("select sum(balance) from account"), "8000");
}

#[tokio::test(flavor = "multi_thread")]
async fn session_locks_are_shared_and_taken_by_the_servers_own_numbers() {
    let server = Postgres::start();
    let (one, two) = (Advisory::connect(&server.url()).await.unwrap(), Advisory::connect(&server.url()).await.unwrap());
    for key in [Key::from("config"), Key::from(4711), Key::from((47, 11))] {
        let shares = async |advisory: &Advisory| advisory.try_acquire_as(key, Sharing::Shared).await.unwrap();
        let (first, second, third) =
            (shares(&one).await.unwrap(), shares(&one).await.unwrap(), shares(&two).await.unwrap());
        assert!(two.try_acquire(key).await.unwrap().is_none(), "{key:?} is shared by another connection");
        assert!(one.try_acquire(key).await.unwrap().is_none(), "{key:?} is shared by this one");
        for guard in [first, third] {
            assert!(guard.release().await.unwrap());
        }
        assert!(two.try_acquire(key).await.unwrap().is_none(), "{key:?} is shared once more");
        assert!(second.release().await.unwrap());
        let alone = two.try_acquire(key).await.unwrap().unwrap();
        assert!(shares(&one).await.is_none());
        assert!(alone.release().await.unwrap());
    }
    let other = client(&server).await;
    let held = one.try_acquire(4711).await.unwrap().unwrap();
    let try_it = "select pg_try_advisory_lock(4711), pg_try_advisory_lock(0, 4711)";
    let row = other.query_one(try_it, &[]).await.unwrap();
    assert_eq!((row.get(0), row.get(1)), (false, true), "a pair is no number");
    held.release().await.unwrap();
    let pair = one.try_acquire((47, 11)).await.unwrap().unwrap();
    let row = other.query_one("select pg_try_advisory_lock(47, 11)", &[]).await.unwrap();
    assert!(!row.get::<_, bool>(0));
    pair.release().await.unwrap();
}
