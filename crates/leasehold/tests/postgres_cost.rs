//! What locks cost the server, counted: losers write nothing, no helper is parsed again, queues reuse their room.
#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod postgres_schema;

use std::time::Duration;

use leasehold::Leasehold;
use leasehold_testkit::{postgres::Postgres, until};
use postgres_schema::server_with_schema;
use tokio::task::JoinSet;

/// A server on which nothing but the test takes transaction numbers.
fn quiet_server(settings: &[&str]) -> Postgres {
    server_with_schema(&[&["fsync=off", "autovacuum=off"], settings].concat())
}

/// The next transaction that writes gets this number.
fn next_writer(server: &Postgres) -> String {
    server.psql("select pg_snapshot_xmax(pg_current_snapshot())")
}

/// Many at once, so that they share statements, and one alone.
async fn try_and_fail(locks: &Leasehold, name: &'static str) {
    let mut tries = JoinSet::new();
    for _ in 0..40 {
        let mutex = locks.mutex(name);
        tries.spawn(async move { mutex.try_acquire().await.unwrap().is_none() });
    }
    assert!(tries.join_all().await.into_iter().all(|failed| failed));
    assert!(locks.mutex(name).try_acquire().await.unwrap().is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn losers_write_nothing() {
    let server = quiet_server(&[]);
    // No renewal, which writes, comes between.
    let long = Duration::from_secs(600);
    let locks = Leasehold::builder().ttl(long).connect(&server.url()).await.unwrap();
    let bound = Leasehold::connect(&format!("{}?liveness=connection", server.url())).await.unwrap();
    let _by_ttl = locks.mutex("ttl").acquire().await.unwrap();
    let _by_connection = bound.mutex("connection").acquire().await.unwrap();
    let _reader = locks.read("read").acquire().await.unwrap();
    let _readers = [locks.read("readers").acquire().await.unwrap(), locks.read("readers").acquire().await.unwrap()];
    let _permits =
        [locks.semaphore("api", 2).acquire().await.unwrap(), locks.semaphore("api", 2).acquire().await.unwrap()];

    let _before_others = locks.mutex("queue").acquire().await.unwrap();
    let behind = locks.mutex("queue");
    let mut waiting = JoinSet::new();
    waiting.spawn(async move { behind.acquire().await.unwrap() });
    while server.psql("select waiting from leasehold.resource where name = 'queue'") != "1" {
        tokio::task::yield_now().await;
    }

    let before = next_writer(&server);
    for name in ["ttl", "connection", "read", "readers", "queue"] {
        try_and_fail(&locks, name).await;
        assert_eq!(server.psql(&format!("select leasehold.acquire_lock('{name}', 'psql')")), "f");
        assert_eq!(next_writer(&server), before, "{name}: a failed try took a transaction number");
    }
    assert!(locks.semaphore("api", 2).try_acquire().await.unwrap().is_none());
    assert_eq!(next_writer(&server), before, "a failed try for a permit took a transaction number");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_helper_is_parsed_again_in_every_call() {
    const OFTEN: usize = 300;
    let server = quiet_server(&["track_functions=all"]);
    let locks = Leasehold::connect(&format!("{}?connections=1", server.url())).await.unwrap();
    let held = locks.mutex("held").acquire().await.unwrap();
    for _ in 0..OFTEN {
        locks.mutex("job").acquire().await.unwrap().release().await.unwrap();
        assert!(locks.mutex("held").try_acquire().await.unwrap().is_none());
    }
    let mut waiting = JoinSet::new();
    for _ in 0..OFTEN {
        let mutex = locks.mutex("held");
        waiting.spawn(async move { mutex.acquire().await.unwrap().release().await.unwrap() });
    }
    held.release().await.unwrap();
    waiting.join_all().await;
    for call in ["acquire_lock('sql', 'psql')", "extend_lock('sql', 'psql', 60)", "release_lock('sql', 'psql')"] {
        server.psql(&format!("select leasehold.{call} from generate_series(1, {OFTEN})"));
    }
    locks.close().await.unwrap();
    // Functions in the language sql are counted where they were not inlined: in the few calls before a plan is kept.
    let called_often = |which: &str| {
        server.psql(&format!(
            "select coalesce(string_agg(f.funcname, ' ' order by f.funcname), 'none') from pg_stat_user_functions f \
             join pg_proc p on p.oid = f.funcid join pg_language l on l.oid = p.prolang \
             where f.schemaname = 'leasehold' and f.calls >= {OFTEN} / 3 and {which}"
        ))
    };
    // A connection tells what it counted when it ends.
    until(|| called_often("p.proname in ('acquire_lock', 'acquire_one')") == "acquire_lock acquire_one");
    assert_eq!(called_often(r"l.lanname = 'sql' and p.proname like '\_%'"), "none");
}

/// A table that fits on a few pages looks cheap to read as a whole, once the server has counted them.
#[tokio::test(flavor = "multi_thread")]
async fn names_are_found_by_their_key_however_few_there_are() {
    const TIMES: usize = 100;
    let server = quiet_server(&[]);
    let take_each = async || {
        let locks = Leasehold::connect(&format!("{}?connections=1", server.url())).await.unwrap();
        for at in 0..TIMES {
            locks.mutex(format!("job:{}", at % 10)).acquire().await.unwrap().release().await.unwrap();
        }
        locks.close().await.unwrap();
    };
    let scans = || -> Vec<usize> {
        let counted = "select seq_scan || ' ' || idx_scan from pg_stat_user_tables \
                       where schemaname = 'leasehold' and relname = 'resource'";
        server.psql(counted).split(' ').map(|count| count.parse().unwrap()).collect()
    };
    take_each().await;
    server.psql("vacuum analyze leasehold.resource");
    let before = scans();
    take_each().await;
    // A connection tells what it counted when it ends.
    until(|| scans().iter().sum::<usize>() >= before.iter().sum::<usize>() + 2 * TIMES);
    assert!(scans()[0] <= before[0] + 2, "{before:?}, then {:?}", scans());
}

#[tokio::test(flavor = "multi_thread")]
async fn history_reads_what_it_shows_however_much_there_is() {
    let server = quiet_server(&[]);
    server.psql(
        "insert into leasehold.ended (id, namespace, name, mode, units, capacity, holder, metadata, asked_at, ended_at, ending) \
         select gen_random_uuid(), 'default', 'job:' || n % 1000, 'x', 1, 1, 'a', '{}', now(), now() - n * interval '1 s', \
         case n when 150000 then 'failed' else 'released' end from generate_series(1, 200000) n; analyze leasehold.ended",
    );
    for (which, names, failures) in [
        ("newest", "null", false),
        ("failures", "null", true),
        ("one name", "'job:7'", false),
        ("its failures", "'job:7'", true),
    ] {
        let call = format!("leasehold.list_ended('default', {names}, null, {failures}, null, null, 20)");
        // The first call of a connection reads the catalog too.
        let plan =
            server.psql(&format!("select from {call}; explain (analyze, buffers, costs off) select * from {call}"));
        let pages: usize = plan
            .lines()
            .find_map(|line| line.trim().strip_prefix("Buffers: shared hit="))
            .and_then(|count| count.split_whitespace().next())
            .and_then(|count| count.parse().ok())
            .unwrap_or_else(|| panic!("{plan}"));
        assert!(pages < 200, "{which}: {pages} pages of some 4,000 were read");
    }
}

/// As the library does by itself, after 20 s.
#[tokio::test(flavor = "multi_thread")]
async fn what_piled_up_is_removed_whole() {
    let server = quiet_server(&[]);
    let _locks = Leasehold::connect(&server.url()).await.unwrap();
    server.psql(
        "insert into leasehold.ended (id, namespace, name, mode, units, capacity, holder, metadata, asked_at, ended_at, ending) \
         select gen_random_uuid(), 'space:' || n % 3, 'job', 'x', 1, 1, 'a', '{}', now(), now() - interval '8 days', 'released' \
         from generate_series(1, 5000) n; \
         insert into leasehold.session select nextval('leasehold.session_id'), 1, now(), 'gone' from generate_series(1, 9000); \
         insert into leasehold.resource (namespace, name, freed_at) \
         select 'default', 'order:' || n, now() - interval '2 days' from generate_series(1, 25000) n",
    );
    let left = "select (select count(*) from leasehold.ended) + (select count(*) from leasehold.resource where namespace <> '') \
                + (select count(*) from leasehold.session)";
    for _ in 0..240 {
        if server.psql(left) == "0" {
            return;
        }
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    panic!("{} rows of 39,000 are left", server.psql(left));
}

#[tokio::test(flavor = "multi_thread")]
async fn queues_reuse_their_room() {
    let server = quiet_server(&[]);
    let _locks = Leasehold::connect(&server.url()).await.unwrap();
    server.psql(
        "insert into leasehold.entry (id, namespace, name, mode, units, capacity, holder, metadata, ttl_us, expires_at, \
         asked_at, renewed_at) select gen_random_uuid(), 'default', 'past', 'x', 1, 1, 'a', '{}', 1, now(), now(), now() \
         from generate_series(1, 6000); delete from leasehold.entry",
    );
    for _ in 0..240 {
        if server.psql("select vacuum_count from pg_stat_all_tables where relname = 'entry'") != "0" {
            return;
        }
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    panic!("nobody made room where six thousand had waited");
}
