//! Tables stay small and calls stay cheap, also where nobody but SQL callers uses them.
#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod postgres_schema;

use std::{
    env,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use leasehold::Leasehold;
use leasehold_testkit::{postgres::Postgres, until};
use postgres_schema::server_with_schema;
use tokio::{
    runtime::Handle,
    task::{JoinSet, spawn_blocking},
    time::sleep,
};
use tokio_postgres::{Client, NoTls};

fn installed(settings: &[&str]) -> Postgres {
    server_with_schema(&[&["fsync=off"], settings].concat())
}

const IDLE: &str = "insert into leasehold.resource (namespace, name, freed_at)
                    select 'default', 'order:' || n, now() - interval '3 days' from generate_series(1, 2000) n";

#[test]
fn sql_callers_alone_leave_little_behind() {
    let server = installed(&[]);
    server.psql(IDLE);
    // Crashed holders of unique names, and what they leave in the history.
    server.psql(
        "select count(leasehold.acquire_lock('crashed:' || n, 'a')) from generate_series(1, 500) n;
         update leasehold.resource set expires_at = now() - interval '3 days', fence = fence - 259200000000
           where name like 'crashed:%';
         insert into leasehold.ended (id, namespace, name, mode, units, capacity, holder, metadata, asked_at, ended_at, ending)
         select gen_random_uuid(), 'default', 'job', 'x', 1, 1, 'a', '{}', now(), now() - interval '8 days', 'released'
         from generate_series(1, 2000) n",
    );
    let left = "select (select count(*) from leasehold.resource where name like 'order:%')
      + (select count(*) from leasehold.resource where name like 'crashed:%')
      + (select count(*) from leasehold.ended where name = 'job')";
    let calls = "do $$ begin for n in 1..3000 loop
        perform leasehold.acquire_lock('live:' || n % 10, 'a'), leasehold.release_lock('live:' || n % 10, 'a');
        if n % 20 = 0 then commit; end if;
      end loop; end $$";
    until(|| {
        server.psql(calls);
        server.psql(left).parse::<u32>().unwrap() < 100
    });
    let expired =
        server.psql("select count(*) > 300 from leasehold.ended where name like 'crashed:%' and ending = 'expired'");
    assert_eq!(expired, "t", "what crashed is recorded");
}

#[test]
fn callers_with_a_new_name_each_time_remove_more_than_they_add() {
    let server = installed(&["synchronous_commit=off"]);
    server.psql(
        "insert into leasehold.resource (namespace, name, freed_at)
         select 'default', 'order:' || n, now() - interval '3 days' from generate_series(1, 12000) n;
         insert into leasehold.ended (id, namespace, name, mode, units, capacity, holder, metadata, asked_at, ended_at, ending)
         select gen_random_uuid(), 'default', 'old', 'x', 1, 1, 'a', '{}', now(), now() - interval '8 days', 'released'
         from generate_series(1, 12000) n",
    );
    server.psql(
        // Which calls look for old rows, and where, is left to chance: the same chance in every run.
        "do $$ begin perform setseed(0.5); for n in 1..8000 loop
           perform leasehold.acquire_lock('new:' || n, 'a'), leasehold.release_lock('new:' || n, 'a');
           if n % 20 = 0 then commit; end if;
         end loop; end $$",
    );
    let left = server.psql(
        "select (select count(*) from leasehold.resource where name like 'order:%'),
                (select count(*) from leasehold.ended where name = 'old')",
    );
    let (names, history) = left.split_once('|').unwrap();
    assert!(names.parse::<u32>().unwrap() < 4000 && history.parse::<u32>().unwrap() < 4000, "{left} of 12000 are left");
}

#[test]
fn callers_lock_no_other_names_until_their_transaction_ends() {
    let server = installed(&["synchronous_commit=off"]);
    server.psql(IDLE);
    let seen = server.psql(
        "begin;
         select count(leasehold.acquire_lock('new:' || n, 'a')) from generate_series(1, 5000) n;
         select count(leasehold.release_lock('new:' || n, 'a')) from generate_series(1, 5000) n;
         select count(*) from leasehold.resource where name like 'order:%';
         commit",
    );
    assert_eq!(seen, "5000\n5000\n2000", "it removed names that others may ask for");
}

#[test]
fn upkeep_rests_after_it_was_through() {
    let server = installed(&[]);
    let maintain = |pause: &str| server.psql(&format!("select leasehold.maintain('7 days', 1000, '{pause}')"));
    assert_eq!(maintain("1 h"), "0");
    server.psql(IDLE);
    assert_eq!(maintain("1 h"), "0", "it rests");
    assert_eq!(maintain("0"), "250");
    // One pass that was not through with all goes on, whatever the pause.
    assert_eq!(maintain("1 h"), "250");
}

#[test]
fn upkeep_removes_more_sessions_than_the_server_has_locks() {
    let server = installed(&["max_locks_per_transaction=10", "max_connections=20"]);
    server.psql(
        "insert into leasehold.session select nextval('leasehold.session_id'), 1, now(), 'gone' from generate_series(1, 3000);
         insert into leasehold.session_lease (id, name, session)
         select gen_random_uuid(), 'job', s.id from leasehold.session s",
    );
    let left = "select (select count(*) from leasehold.session) + (select count(*) from leasehold.session_lease)";
    until(|| {
        server.psql("select leasehold.maintain()");
        server.psql(left) == "0"
    });
}

#[test]
fn a_statement_takes_more_names_than_the_server_has_locks() {
    let server = installed(&["max_locks_per_transaction=10", "max_connections=20"]);
    for holder in ["a", "a"] {
        let taken = format!(
            "select count(*) filter (where leasehold.acquire_lock('job:' || n, '{holder}', 600)) from generate_series(1, 20000) n"
        );
        assert_eq!(server.psql(&taken), "20000");
        let given = format!(
            "select count(*) filter (where leasehold.release_lock('job:' || n, '{holder}')) from generate_series(1, 20000) n"
        );
        assert_eq!(server.psql(&given), "20000");
    }
}

/// A table that fits on a few pages looks cheap to read as a whole, and plans are kept while it grows.
#[test]
fn sql_callers_find_names_by_their_key() {
    let server = installed(&["autovacuum=off"]);
    let calls = "do $$ begin for n in 1..50 loop
        perform leasehold.acquire_lock('job:' || n % 10, 'a'), leasehold.extend_lock('job:' || n % 10, 'a', 60),
          leasehold.fence_of('job:' || n % 10, 'a'), leasehold.acquire_lock('job:' || n % 10, 'b'),
          leasehold.release_lock('job:' || n % 10, 'a');
      end loop; end $$";
    let scans = || -> Vec<u32> {
        let counted = "select seq_scan || ' ' || idx_scan from pg_stat_user_tables where schemaname = 'leasehold' and relname = 'resource'";
        server.psql(counted).split(' ').map(|count| count.parse().unwrap()).collect()
    };
    server.psql(calls);
    server.psql("vacuum analyze leasehold.resource");
    let before = scans();
    server.psql(calls);
    until(|| scans().iter().sum::<u32>() >= before.iter().sum::<u32>() + 200);
    // The blocks that tidying up looks at are no scan of the table.
    assert!(scans()[0] <= before[0] + 5, "{before:?}, then {:?}", scans());
}

#[test]
fn sql_callers_choose_what_is_recorded() {
    let server = installed(&[]);
    let ends = "select leasehold.acquire_lock('x', 'a'); select leasehold.release_lock('x', 'a');
                select leasehold.acquire('y') as id \\gset\nselect leasehold.acquit(:'id', 'Timeout')";
    let mut recorded = Vec::new();
    for choice in ["all", "problems", "off"] {
        server.psql(&format!("select leasehold.record('{choice}')"));
        server.psql(ends);
        recorded.push(server.psql("with ended as (delete from leasehold.ended returning ending) select string_agg(ending, ' ' order by ending) from ended"));
    }
    assert_eq!(recorded, ["failed released", "failed", ""]);
    assert!(server.try_psql("postgres", "select leasehold.record('some')").is_err());
}

async fn client(server: &Postgres) -> Client {
    let (client, connection) = tokio_postgres::connect(&server.url(), NoTls).await.unwrap();
    Handle::current().spawn(connection);
    client
}

/// Queues, tries and SQL callers; a transaction that keeps an old snapshot for a tenth of the time makes the tables grow, and
/// they stop growing within another tenth. `LEASEHOLD_SECONDS=600` for a snapshot of a minute and a curve that is worth a look.
#[tokio::test(flavor = "multi_thread")]
async fn tables_stop_growing_after_an_old_snapshot() {
    let seconds = env::var("LEASEHOLD_SECONDS").map_or(20, |seconds| seconds.parse().unwrap());
    // A short run has no time for the default, a minute.
    let nap = format!("autovacuum_naptime={}s", (seconds / 20).clamp(1, 30));
    let server = spawn_blocking(move || installed(&["synchronous_commit=off", &nap])).await.unwrap();
    let pairs = Arc::new(AtomicU64::new(0));
    let over = Arc::new(AtomicBool::new(false));
    let mut work = JoinSet::new();
    for instance in 0..2 {
        let locks = Leasehold::builder().wait_forever().connect(&server.url()).await.unwrap();
        for task in 0..6 {
            let (locks, pairs, over) = (locks.clone(), Arc::clone(&pairs), Arc::clone(&over));
            work.spawn(async move {
                while !over.load(Relaxed) {
                    let guard = if task < 4 {
                        Some(locks.mutex("queue").acquire().await.unwrap())
                    } else {
                        locks.mutex("queue").try_acquire().await.unwrap()
                    };
                    if let Some(guard) = guard {
                        guard.release().await.unwrap();
                        pairs.fetch_add(1, Relaxed);
                    }
                }
            });
        }
        let (client, over) = (client(&server).await, Arc::clone(&over));
        let pair = format!(
            "select leasehold.acquire_lock('sql:{instance}', 'a'); select leasehold.release_lock('sql:{instance}', 'a')"
        );
        work.spawn(async move {
            while !over.load(Relaxed) {
                client.batch_execute(&pair).await.unwrap();
            }
        });
    }
    let snapshot = client(&server).await;
    let tenth = Duration::from_millis(seconds * 100);
    let mut sizes = Vec::new();
    println!("tenth, resource kB, entry kB, pairs/s");
    for part in 1..=10 {
        match part {
            5 => snapshot.batch_execute("begin isolation level repeatable read; select 1").await.unwrap(),
            6 => snapshot.batch_execute("commit").await.unwrap(),
            _ => {}
        }
        let before = pairs.load(Relaxed);
        sleep(tenth).await;
        let size = |table: &str| -> u64 {
            server.psql(&format!("select pg_relation_size('leasehold.{table}') / 1024")).parse().unwrap()
        };
        let (resource, entry) = (size("resource"), size("entry"));
        println!("{part}, {resource}, {entry}, {}", (pairs.load(Relaxed) - before) * 10 / seconds);
        sizes.push(resource + entry);
    }
    over.store(true, Relaxed);
    work.join_all().await;
    assert!(sizes[9] <= sizes[4].max(sizes[5]), "the tables still grow: {sizes:?} kB");
}
