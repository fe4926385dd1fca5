//! Calls that meet at the worst moment, step by step: what one transaction sees of another.
#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod postgres_schema;

use std::{sync::Arc, time::Duration};

use leasehold::{
    Holder, Leasehold, Resource, Result, Ttl,
    backend::{Backend, Decision, Patience, Request},
    backends::postgres::{PostgresBackend, PostgresOptions},
    blocking,
    clock::SystemClock,
    lease::{Claim, LeaseId, LeaseKey, Outcome, Released},
};
use leasehold_testkit::{Flow, Proxy, postgres::Postgres, until};
use postgres_schema::{install_schema, many_by_hand};
use tokio::{
    runtime::Handle,
    task::{JoinHandle, JoinSet},
    time::timeout,
};
use tokio_postgres::{Client, NoTls};

/// Short ways to ask by hand, in the namespace `races`, with an id per label.
const BY_HAND: &str = r#"
set local client_min_messages = warning;
create schema if not exists by_hand;
create or replace function by_hand.ask(p_name text, p_label text, p_mode "char", p_ttl float, p_try boolean, p_session int default null)
returns setof leasehold.answer language sql volatile as $$
  select * from leasehold.acquire_many('races', null, p_session, 'a', array[p_name], array[md5(p_label)::uuid], array[p_mode],
    array[case p_mode when 'x' then 2147483647 else 1 end], array[2147483647], array[(p_ttl * 1000000)::bigint], array[case when p_try then -1 end],
    array[p_session is not null], array[p_label], array[null]::text[], array['{}'::jsonb], array[null]::bigint[])
$$;
create or replace function by_hand.give(p_name text, p_label text) returns "char" language sql volatile as $$
  select verdict from leasehold.release_many('races', null, 'a', array[p_name], array[md5(p_label)::uuid], array['released'],
    array[null]::text[], array[null]::text[])
$$;
create or replace function by_hand.renew(p_name text, p_label text, p_ttl float, p_metadata jsonb default null, p_mode "char" default null)
returns setof leasehold.answer language sql volatile as $$
  select * from leasehold.renew_each('races', null, null, '{}', 'a', array[p_name], array[md5(p_label)::uuid], array[(p_ttl * 1000000)::bigint],
    array[null]::bigint[], array[p_mode], array[case when p_mode is null then null else 1 end],
    array[case when p_mode is null then null else 2147483647 end], array[p_metadata])
$$;
"#;

fn installed() -> Arc<Postgres> {
    let server = Postgres::shared();
    install_schema(&server.url(), None).unwrap();
    // Tests of the same server do this one after the other.
    let many = many_by_hand("races");
    server.psql(&format!("begin; select pg_advisory_xact_lock(7); {BY_HAND} {many} commit"));
    server
}

/// A server of its own on which nobody gives up on the lock of a row: what is tested is an order, not how long it takes.
fn patient() -> Postgres {
    let server = Postgres::start();
    install_schema(&server.url(), None).unwrap();
    server.psql(BY_HAND);
    server.psql(&many_by_hand("races"));
    server.psql(
        "do $$ declare f regprocedure; begin
           for f in select oid from pg_proc
             where pronamespace = 'leasehold'::regnamespace and proconfig::text like '%lock_timeout%' loop
             execute format('alter function %s set lock_timeout = %L', f, '60s');
           end loop;
         end $$",
    );
    server
}

async fn client(server: &Postgres) -> Arc<Client> {
    let (client, connection) = tokio_postgres::connect(&server.url(), NoTls).await.unwrap();
    Handle::current().spawn(connection);
    Arc::new(client)
}

/// The first column of the first row, as text.
async fn one(client: &Client, sql: &str) -> Result<String, String> {
    let rows = client.simple_query(sql).await.map_err(|error| format!("{:?}", error.as_db_error()))?;
    let row = rows.iter().find_map(|message| match message {
        tokio_postgres::SimpleQueryMessage::Row(row) => Some(row.get(0).unwrap_or_default().to_owned()),
        _ => None,
    });
    Ok(row.unwrap_or_default())
}

/// Starts a statement and waits until it waits for a lock.
async fn blocked(server: &Postgres, client: &Arc<Client>, sql: &'static str) -> JoinHandle<Result<String, String>> {
    // Ready before, so that a short wait is seen.
    let looking = self::client(server).await;
    let pid = one(client, "select pg_backend_pid()").await.unwrap();
    let asking = Arc::clone(client);
    let task = Handle::current().spawn(async move { one(&asking, sql).await });
    let waits = format!("select count(*) from pg_locks where pid = {pid} and not granted");
    let seen = async { while !task.is_finished() && one(&looking, &waits).await.unwrap() != "1" {} };
    timeout(Duration::from_secs(10), seen).await.unwrap_or_else(|_| panic!("{sql} neither ended nor waited"));
    task
}

#[tokio::test(flavor = "multi_thread")]
async fn first_asks_for_a_name_do_not_wait_for_each_other_in_a_circle() {
    let server = patient();
    let (first, second) = (client(&server).await, client(&server).await);
    first.batch_execute("begin; select * from by_hand.ask('new', 'a', 'x', 30, false)").await.unwrap();
    // Two that ask for the same name in one call, before its row is there for all to see.
    let several = blocked(
        &server,
        &second,
        r#"select verdict from leasehold.acquire_many('races', null, null, 'a', array['new', 'new'],
           array[md5('b')::uuid, md5('c')::uuid], array['x', 'x']::"char"[], array[2147483647, 2147483647],
           array[2147483647, 2147483647], array[30000000, 30000000]::bigint[], array[null, null]::int[], array[false, false],
           array['b', 'c'], array[null, null]::text[], array['{}', '{}']::jsonb[], array[null, null]::bigint[])"#,
    )
    .await;
    assert_eq!(one(&first, "select verdict from by_hand.ask('new', 'd', 'x', 30, false)").await.unwrap(), "q");
    first.batch_execute("commit").await.unwrap();
    assert_eq!(several.await.unwrap().unwrap(), "q");
}

/// Names that are free are taken by one statement, which has looked at them before.
#[tokio::test(flavor = "multi_thread")]
async fn a_batch_of_free_names_is_taken_whole_or_not_at_all() {
    const ASK: &str = "select by_hand.ask_all('{n1,n2,n3,n4,n5}', 'all')";
    const GIVE: &str = "select by_hand.give_all('{n1,n2,n3,n4,n5}', 'all')";
    const HELD: &str =
        "select count(*) from leasehold.resource where namespace = 'races' and name like 'n_' and id is not null";
    let server = patient();
    let (first, second) = (client(&server).await, client(&server).await);
    // The first time, the names are new.
    for _ in 0..2 {
        assert_eq!(one(&second, ASK).await.unwrap(), "ggggg");
        assert_eq!(one(&second, GIVE).await.unwrap(), "fffff");
    }
    let recorded = "select count(distinct (id, name, fence)) || ' ' || count(*) filter (where ending = 'released' \
                    and holder = 'all' and ended_at >= acquired_at) from leasehold.ended where namespace = 'races'";
    assert_eq!(one(&second, recorded).await.unwrap(), "10 10");

    // 1. The names are seen free. 2. One is taken. 3. The batch comes to it.
    // Or 3. the other gives up, and times that were read before the wait would be too old.
    for (end, held) in [("commit", "1"), ("rollback", "0")] {
        first.batch_execute("begin; select * from by_hand.ask('n3', 'other', 'x', 30, false)").await.unwrap();
        let all = blocked(&server, &second, ASK).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
        first.batch_execute(end).await.unwrap();
        assert!(all.await.unwrap().unwrap_err().contains("LH002"), "{end}");
        assert_eq!(one(&second, HELD).await.unwrap(), held, "{end}");
        one(&first, "select by_hand.give('n3', 'other')").await.unwrap();
    }
    // The same on the way back.
    assert_eq!(one(&second, ASK).await.unwrap(), "ggggg");
    let row = "begin; update leasehold.resource set note = note where namespace = 'races' and name = 'n3'";
    first.batch_execute(row).await.unwrap();
    let all = blocked(&server, &second, GIVE).await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    first.batch_execute("rollback").await.unwrap();
    assert!(all.await.unwrap().unwrap_err().contains("LH002"));
    assert_eq!(one(&second, HELD).await.unwrap(), "5");

    // A guarded transaction goes on after the release of its lease.
    let fence = "select fence from leasehold.resource where namespace = 'races' and name = 'n4'";
    let fence = one(&second, fence).await.unwrap();
    first.batch_execute(&format!("begin; select leasehold.guard('n4', {fence}, 'races')")).await.unwrap();
    assert_eq!(one(&second, GIVE).await.unwrap(), "fffff");
    // The look finds it guarded, so that the others are not undone for it.
    assert_eq!(one(&second, ASK).await.unwrap(), "gggqg");
    first.batch_execute("commit").await.unwrap();
    assert_eq!(one(&second, GIVE).await.unwrap(), "fffff");
    // So does the way back for a lease that has ended, which nobody noticed yet.
    assert_eq!(one(&second, ASK).await.unwrap(), "ggggg");
    let ended = "update leasehold.resource set acquired_at = acquired_at - interval '1 hour', asked_at = null, \
                 renewed_at = renewed_at - interval '1 hour', expires_at = expires_at - interval '1 hour' \
                 where namespace = 'races' and name = 'n2'";
    second.batch_execute(ended).await.unwrap();
    assert_eq!(one(&second, GIVE).await.unwrap(), "fnfff");
    // One that asks twice, and endings that not everybody records.
    let twice = one(&second, "select by_hand.ask_all('{n1,n1,n2,n3,n4}', 'all')").await.unwrap();
    assert_eq!(twice, "ggggg");
    let failed = "select by_hand.give_all('{n1,n2,n3,n4}', 'all', 'p', 'failed')";
    assert_eq!(one(&second, failed).await.unwrap(), "ffff");
    let recorded = "select count(*) from leasehold.ended where namespace = 'races' and ending = 'failed'";
    assert_eq!(one(&second, recorded).await.unwrap(), "4");
    assert_eq!(one(&second, "select by_hand.ask_all('{n1,n2,n3,n4}', 'all')").await.unwrap(), "gggg");
    assert_eq!(one(&second, "select by_hand.give_all('{n1,n2,n3,n4}', 'all', 'p')").await.unwrap(), "ffff");
}

/// Repeats a call that undid itself because a busy machine held it up.
async fn unless_undone(client: &Client, sql: &str) {
    while let Err(error) = one(client, sql).await {
        assert!(error.contains("LH002"), "{error}");
        client.batch_execute("rollback").await.unwrap();
    }
}

/// The statements for a batch are planned once, while the table may be tiny.
#[tokio::test(flavor = "multi_thread")]
async fn a_batch_looks_up_each_name_however_many_there_are() {
    let server = patient();
    let client = client(&server).await;
    for _ in 0..8 {
        unless_undone(&client, "select by_hand.ask_all('{n1,n2,n3,n4}', 'all')").await;
        unless_undone(&client, "select by_hand.give_all('{n1,n2,n3,n4}', 'all')").await;
    }
    let many =
        "insert into leasehold.resource (namespace, name) select 'races', 'other' || n from generate_series(1, 5000) n";
    client.batch_execute(many).await.unwrap();
    for call in ["by_hand.ask_all('{n1,n2,n3,n4}', 'all')", "by_hand.give_all('{n1,n2,n3,n4}', 'all')"] {
        unless_undone(&client, &format!("begin; select {call}")).await;
        let read = "select seq_tup_read + idx_tup_fetch from pg_stat_xact_user_tables where relname = 'resource'";
        let read: u32 = one(&client, read).await.unwrap().parse().unwrap();
        client.batch_execute("commit").await.unwrap();
        // Those of the calls before may be counted, too.
        assert!(read < 500, "{call} read {read} rows");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_leases_live_by_is_in_nobodys_way() {
    let server = Postgres::start();
    install_schema(&server.url(), None).unwrap();
    let url = format!("{}?liveness=connection", server.url());
    let one = Leasehold::connect(&url).await.unwrap();
    let held = one.mutex("x").acquire().await.unwrap();
    // Neither of the next `init`,
    install_schema(&server.url(), None).unwrap();
    // nor of connections of another schema in the same database,
    let other = format!("{url}&schema=other_locks&init=1");
    let two = Leasehold::connect(&other).await.unwrap();
    let theirs = two.mutex("x").acquire().await.unwrap();
    assert!(Leasehold::connect(&other).await.unwrap().mutex("x").try_acquire().await.unwrap().is_none());
    // nor of one whose number comes again after two thousand million others.
    server.psql("select setval('leasehold.session_id', 2147483647)");
    let three = Leasehold::connect(&url).await.unwrap();
    assert!(three.mutex("x").try_acquire().await.unwrap().is_none());
    held.release().await.unwrap();
    let held = three.mutex("x").acquire().await.unwrap();
    // And its end is seen in its own schema, though others live that have its number.
    let session = server.psql("select session from other_locks.resource where name = 'x'");
    server.psql(&format!("select pg_terminate_backend(pid) from other_locks.session where id = {session}"));
    let next = Leasehold::connect(&other).await.unwrap().mutex("x").acquire().await.unwrap();
    assert!(next.fence() > theirs.fence());
    held.check().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_acquire_leaves_no_lock_of_the_connection_behind() {
    let server = installed();
    let (holder, caller) = (client(&server).await, client(&server).await);
    one(&holder, "select leasehold.acquire('refused')").await.unwrap();
    for _ in 0..20 {
        assert!(one(&caller, "select leasehold.acquire('refused')").await.unwrap_err().contains("is held by"));
        caller.batch_execute("begin; select leasehold.acquire('given up'); rollback").await.unwrap();
    }
    let kept = "select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()";
    assert_eq!(one(&caller, kept).await.unwrap(), "1", "one for the connection, however often it asked");
    // It is the one that its leases end with.
    one(&caller, "select leasehold.acquire('kept')").await.unwrap();
    assert!(one(&holder, "select leasehold.acquire('kept')").await.unwrap_err().contains("is held by"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_among_readers_that_has_expired_is_gone_to_its_release_and_new_to_its_ask() {
    let server = installed();
    let client = client(&server).await;
    let ask = async |label: &str, ttl: f64| {
        one(&client, &format!("select fence from by_hand.ask('readers', '{label}', 's', {ttl}, true)")).await.unwrap()
    };
    ask("a", 30.0).await;
    let first = ask("b", 0.05).await;
    ask("c", 0.05).await;
    tokio::time::sleep(Duration::from_millis(60)).await;
    let again = ask("b", 30.0).await;
    assert!(again.parse::<u64>().unwrap() > first.parse().unwrap(), "an end is an end: {first}, then {again}");
    ask("a2", 30.0).await;
    ask("e", 0.05).await;
    tokio::time::sleep(Duration::from_millis(60)).await;
    assert_eq!(one(&client, "select by_hand.give('readers', 'e')").await.unwrap(), "n");
    assert_eq!(one(&client, "select by_hand.give('readers', 'b')").await.unwrap(), "f");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_whose_connection_died_asks_again_and_lives_by_the_new_one() {
    let server = installed();
    let (old, new, caller) = (client(&server).await, client(&server).await, client(&server).await);
    let first: i32 = one(&old, "select leasehold.open_session('old')").await.unwrap().parse().unwrap();
    let second: i32 = one(&new, "select leasehold.open_session('new')").await.unwrap().parse().unwrap();
    let ask = async |label: &str, session: i32| {
        one(&caller, &format!("select fence from by_hand.ask('bound', '{label}', 's', 30, true, {session})"))
            .await
            .unwrap()
    };
    let pid = one(&old, "select pg_backend_pid()").await.unwrap();
    ask("a", second).await;
    ask("b", second).await;
    let lost = ask("c", first).await;
    one(&caller, &format!("select pg_terminate_backend({pid})")).await.unwrap();
    while one(&caller, &format!("select leasehold._session_dead({first})")).await.unwrap() == "f" {}
    // Soon enough after the last reader to be taken for one among readers.
    let found = ask("c", second).await;
    assert_ne!(lost, found);
    let by = server.psql("select session from leasehold.entry where name = 'bound' and holder = 'c'");
    assert_eq!(by, second.to_string());
    assert_eq!(server.psql("select ending from leasehold.ended where name = 'bound'"), "disconnected");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ask_that_comes_late_does_not_move_a_lease_back_to_the_connection_that_was_left() {
    let server = installed();
    let (old, new, caller) = (client(&server).await, client(&server).await, client(&server).await);
    let [left, now] = [&old, &new].map(|client| one(client, "select leasehold.open_session('moved')"));
    let (left, now) = (left.await.unwrap(), now.await.unwrap());
    let ask = async |name: &str, session: &str| {
        one(&caller, &format!("select verdict from by_hand.ask('{name}', 'a', 'x', 30, false, {session})"))
            .await
            .unwrap()
    };
    let session = |table: &str, name: &str| {
        server.psql(&format!("select session from leasehold.{table} where namespace = 'races' and name = '{name}'"))
    };
    assert_eq!(ask("moved", &left).await, "g");
    assert_eq!(ask("moved", &now).await, "g", "asked again by the connection there is now");
    assert_eq!(session("resource", "moved"), now);
    assert_eq!(ask("moved", &left).await, "g", "and what was sent first arrives last");
    assert_eq!(session("resource", "moved"), now);

    // A place in the queue of a connection that was left.
    one(&caller, "select verdict from by_hand.ask('queued', 'b', 'x', 30, false)").await.unwrap();
    assert_eq!(ask("queued", &left).await, "q");
    let renew = async |session: &str| {
        let sql = format!(
            "select count(*) from leasehold.renew_each('races', null, {session}, array[{left}], 'a', array['queued'], \
             array[md5('a')::uuid], array[30000000]::bigint[], array[null]::bigint[], array[null]::\"char\"[], \
             array[null]::int[], array[null]::int[], array[null]::jsonb[])"
        );
        one(&caller, &sql).await.unwrap()
    };
    assert_eq!(renew("null").await, "0", "nothing is said of it while there is no other connection");
    assert_eq!(session("entry", "queued"), left);
    assert_eq!(renew(&now).await, "1");
    assert_eq!(session("entry", "queued"), now);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_that_was_promised_is_not_taken_back_by_a_call_that_began_before() {
    let server = patient();
    let (first, second) = (client(&server).await, client(&server).await);
    one(&first, "select fence from by_hand.ask('ends', 'a', 's', 30, false)").await.unwrap();
    one(&first, "select fence from by_hand.ask('ends', 'b', 's', 1, false)").await.unwrap();
    one(&first, "select by_hand.give('ends', 'a')").await.unwrap();
    // 1. A renewal for an hour, not committed. 2. One for a second reads what was before. 3. The first commits.
    first.batch_execute("begin; select * from by_hand.renew('ends', 'b', 3600)").await.unwrap();
    let short = blocked(&server, &second, "select verdict from by_hand.renew('ends', 'b', 1, '{\"k\": 1}')").await;
    first.batch_execute("commit").await.unwrap();
    assert_eq!(short.await.unwrap().unwrap(), "g");
    assert_eq!(
        server.psql("select expires_at > now() + interval '30 min', metadata from leasehold.entry where name = 'ends'"),
        "t|{\"k\": 1}"
    );
}

/// A holder beside another, such as a reader, is stored elsewhere than one that has the name to itself; `guard` must not care.
#[tokio::test(flavor = "multi_thread")]
async fn a_guarded_holder_that_waited_before_releases_and_renews_and_nobody_passes() {
    let server = installed();
    let (holder, writer, caller) = (client(&server).await, client(&server).await, client(&server).await);
    let endings = ["give", "evict", "expire"];
    let of_readers = endings.map(|ending| (ending, "s"));
    for (ending, mode) in endings.map(|ending| (ending, "x")).into_iter().chain(of_readers).chain([("downgrade", "x")])
    {
        let name = format!("guarded {ending} {mode}");
        let ask = async |label: &str, mode: &str, ttl: f64| {
            let sql = format!("select verdict from by_hand.ask('{name}', '{label}', '{mode}', {ttl}, false)");
            one(&caller, &sql).await.unwrap()
        };
        ask("first", mode, 30.0).await;
        let (answer, table) = if mode == "s" { ("g", "entry") } else { ("q", "resource") };
        assert_eq!(ask("guarded", mode, if ending == "expire" { 3.0 } else { 30.0 }).await, answer);
        one(&caller, &format!("select by_hand.give('{name}', 'first')")).await.unwrap();
        let fence = server.psql(&format!("select fence from leasehold.{table} where name = '{name}'"));
        let wrong = format!("select leasehold.guard('{name}', {fence} + 1, 'races')");
        assert!(one(&writer, &wrong).await.unwrap_err().contains("is not held under fence"));
        let guard = format!("select leasehold.guard('{name}', {fence}, 'races')");
        writer.batch_execute(&format!("begin; {guard}")).await.unwrap();

        assert_eq!(ask("next", if ending == "downgrade" { "s" } else { "x" }, 30.0).await, "q");
        if ending != "expire" {
            let renew = format!("select verdict from by_hand.renew('{name}', 'guarded', 30)");
            assert_eq!(one(&holder, &renew).await.unwrap(), "g", "a renewal goes through");
        }
        match ending {
            "give" => {
                let give = format!("select by_hand.give('{name}', 'guarded')");
                assert_eq!(one(&holder, &give).await.unwrap(), "f", "a release does");
            }
            "evict" => {
                let evict =
                    format!("select verdict from leasehold.evict_fence('races', null, 'a', '{name}', {fence}, 'x')");
                assert_eq!(one(&holder, &evict).await.unwrap(), "e", "an eviction does");
            }
            "expire" => {
                let over = format!(
                    "select count(*) from leasehold.{table} where name = '{name}' and expires_at <= clock_timestamp()"
                );
                until(|| server.psql(&over) == "1");
            }
            _ => {
                let less = format!("select verdict from by_hand.renew('{name}', 'guarded', 30, null, 's')");
                let refused = one(&holder, &less).await.unwrap_err();
                assert!(refused.contains("guarded transaction"), "{refused}");
            }
        }
        let next = format!("select verdict from by_hand.renew('{name}', 'next', 30)");
        assert_eq!(one(&caller, &next).await.unwrap(), "q", "{ending}: nobody passes a guarded transaction");
        writer.batch_execute("commit").await.unwrap();
        if ending == "downgrade" {
            let less = format!("select verdict from by_hand.renew('{name}', 'guarded', 30, null, 's')");
            assert_eq!(one(&holder, &less).await.unwrap(), "g");
        }
        assert_eq!(one(&caller, &next).await.unwrap(), "g", "{ending}: it passed on when the transaction ended");
        if ending != "downgrade" {
            assert!(one(&writer, &guard).await.is_err(), "{ending}: the fence is stale");
        }
    }
}

/// Grants for one name come one after the other. What the last one has not let go of yet is not a guard.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_free_is_not_busy_and_what_is_busy_is_somebodys_however_many_try() {
    let server = patient();
    server.psql(
        "create function try(p_name text, p_mode \"char\", p_id uuid, out verdict \"char\", out holder text)
         language sql as $$ select verdict, coalesce(holder, holders -> 0 ->> 'holder') from leasehold.acquire_one('default',
           null, null, 'o', p_name, p_id, p_mode, case p_mode when 'p' then 1 else 2147483647 end,
           case p_mode when 'p' then 1000000 else 2147483647 end, 60000000, -1, false, 'me', null, '{}', null) $$",
    );
    let mut trying = JoinSet::new();
    for _ in 0..4 {
        let client = client(&server).await;
        trying.spawn(async move {
            for _ in 0..1000 {
                let permit = one(&client, "select verdict from try('permits', 'p', gen_random_uuid())").await.unwrap();
                assert_eq!(permit, "g", "a permit");
            }
            for _ in 0..1500 {
                let id = LeaseId::random();
                let lock = format!("select verdict::text || coalesce(holder, '') from try('lock', 'x', '{id}')");
                match one(&client, &lock).await.unwrap().as_str() {
                    "g" => {
                        let give = format!(
                            "select leasehold.release_one('default', null, 'o', 'lock', '{id}', 'released', null, null)"
                        );
                        one(&client, &give).await.unwrap();
                    }
                    busy => assert_eq!(busy, "bme", "held by nobody"),
                }
            }
        });
    }
    trying.join_all().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_first_in_line_asks_when_a_guarded_transaction_ends() {
    let server = installed();
    let (writer, caller) = (client(&server).await, client(&server).await);
    for (name, ttl) in [("released", 600), ("expired", 3)] {
        one(&caller, &format!("select verdict from by_hand.ask('{name}', 'held', 'x', {ttl}, false)")).await.unwrap();
        for label in ["first", "second"] {
            let ask = format!("select verdict from by_hand.ask('{name}', '{label}', 'x', 600, false)");
            assert_eq!(one(&caller, &ask).await.unwrap(), "q");
        }
        let guard =
            format!("select leasehold.guard(name, fence, namespace) from leasehold.resource where name = '{name}'");
        writer.batch_execute(&format!("begin; {guard}")).await.unwrap();
        if name == "released" {
            assert_eq!(one(&caller, "select by_hand.give('released', 'held')").await.unwrap(), "f");
        } else {
            let over =
                "select count(*) from leasehold.resource where name = 'expired' and expires_at < clock_timestamp()";
            until(|| server.psql(over) == "1");
        }
        one(&caller, &format!("update leasehold.entry set channel = 'here' where name = '{name}'")).await.unwrap();
        let again = async |label| {
            // A hint about the client's own lease would make it ask again at once.
            let renew = format!(
                "select coalesce(hints::text, '') || ask_again_us from leasehold.renew_each('races', 'here', null, '{{}}', 'a', \
                 array['{name}'], array[md5('{label}')::uuid], array[600000000], array[null]::bigint[], \
                 array[null]::\"char\"[], array[null]::int[], array[null]::int[], array[null]::jsonb[])"
            );
            one(&caller, &renew).await.unwrap().parse::<u64>().unwrap()
        };
        assert_eq!(again("first").await, 100_000, "{name}");
        assert!(again("second").await >= 1_000_000, "{name}: it is told when its turn comes");
        writer.batch_execute("commit").await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tidying_up_goes_on_past_names_that_are_locked_or_guarded() {
    let server = Postgres::start();
    install_schema(&server.url(), None).unwrap();
    server.psql("select leasehold.acquire_lock('lapsed:' || n, 'a', 3) from generate_series(1, 4) n");
    let stranger = client(&server).await;
    stranger
        .batch_execute(
            "begin; select * from leasehold.resource where name = 'lapsed:1' for update; \
             select leasehold.guard(name, fence) from leasehold.resource where name = 'lapsed:2'",
        )
        .await
        .unwrap();
    until(|| server.psql("select bool_and(expires_at < clock_timestamp()) from leasehold.resource") == "t");
    assert_eq!(server.psql("select leasehold.maintain()"), "2");
    assert_eq!(server.psql("select string_agg(name, ' ' order by name) from leasehold.ended"), "lapsed:3 lapsed:4");
    stranger.batch_execute("commit").await.unwrap();
    assert_eq!(server.psql("select leasehold.maintain()"), "2");
}

/// They start again one day, and a lease must not seem to end with the connection of another.
#[tokio::test(flavor = "multi_thread")]
async fn the_number_of_a_connection_that_lives_is_not_given_again() {
    let server = Postgres::start();
    install_schema(&server.url(), None).unwrap();
    let first = client(&server).await;
    let number = first.query_one("select leasehold.open_session('first')", &[]).await.unwrap().get::<_, i32>(0);
    server.psql(&format!("select setval('leasehold.session_id', {number}, false)"));
    assert_eq!(server.psql("select leasehold.open_session('second')"), (number + 1).to_string());
}

/// The lease would be dead to all others while its client believes in it.
#[test]
fn a_grant_by_a_connection_that_died_meanwhile_is_not_believed() {
    let server = Postgres::start();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    install_schema(&server.url(), None).unwrap();
    let url = format!("{}?liveness=connection", server.url());
    let locks = blocking::wait(Leasehold::connect(&url)).unwrap();
    let other = blocking::wait(Leasehold::connect(&url)).unwrap();
    blocking::wait(blocking::wait(locks.mutex("x").acquire()).unwrap().release()).unwrap();
    let stranger = runtime.block_on(client(&server));
    let lock = "begin; select * from leasehold.resource where name = 'x' for update";
    runtime.block_on(stranger.batch_execute(lock)).unwrap();
    let asking = locks.clone();
    let asked = std::thread::spawn(move || blocking::wait(asking.mutex("x").acquire()));
    let blocked =
        "select count(*) from pg_stat_activity where application_name = 'leasehold' and wait_event_type = 'Lock'";
    until(|| server.psql(blocked) != "0");
    let pid = server.psql("select pid from leasehold.session order by id limit 1");
    server.psql(&format!("select pg_terminate_backend({pid})"));
    until(|| server.psql(&format!("select count(*) from pg_stat_activity where pid = {pid}")) == "0");
    runtime.block_on(stranger.batch_execute("commit")).unwrap();
    let guard = asked.join().unwrap().unwrap();
    assert!(blocking::wait(other.mutex("x").try_acquire()).unwrap().is_none() || guard.check().is_err(), "two believe");
    guard.check().unwrap();
}

/// An instance whose leases end with its connection and whose requests go one of two ways; only the first can be bad.
async fn by_two_ways(server: &Postgres, namespace: &str) -> (Proxy, Proxy, PostgresBackend) {
    let (first, second) = (Proxy::to(server.port()), Proxy::to(server.port()));
    let url = format!(
        "postgres://postgres@127.0.0.1:{},127.0.0.1:{}/postgres?liveness=connection&connections=1",
        first.port(),
        second.port()
    );
    let limit = Duration::from_secs(10);
    let options = PostgresOptions::from_url(&url, namespace, Arc::new(SystemClock), limit).unwrap();
    let backend = PostgresBackend::open(options).await.unwrap();
    // Twice, so that nothing is left to be prepared.
    for _ in 0..2 {
        let before = request("before", Patience::Queue);
        backend.acquire(&before).await.unwrap();
        backend.release(&before.key, &Outcome::Completed).await.unwrap();
    }
    (first, second, backend)
}

fn request(name: &str, patience: Patience) -> Request {
    Request::new(LeaseKey::new(Resource::new(name).unwrap(), LeaseId::random()), Claim::EXCLUSIVE, Holder::unique())
        .ttl(Ttl::DEFAULT)
        .patience(patience)
}

/// Asks until there is an answer, as the engine does: the connection that is given up may take a question with it.
async fn again<T>(ask: impl AsyncFn() -> Result<T>) -> T {
    for _ in 0..10 {
        match ask().await {
            Err(error) if error.outcome_unknown() => {}
            answered => return answered.unwrap(),
        }
    }
    panic!("ten questions in a row went unanswered");
}

/// A lease of this name was granted and ended, and none is held.
fn is_given_back(server: &Postgres, namespace: &str, id: LeaseId) {
    let ended =
        format!("select count(*) from leasehold.ended where namespace = '{namespace}' and id = '{id}' and fence > 0");
    until(|| server.psql(&ended) == "1");
    let held = format!("select count(*) from leasehold.resource where namespace = '{namespace}' and id is not null");
    assert_eq!(server.psql(&held), "0");
}

/// Nothing but the end of its connection would end the lease, and nobody knows of it.
#[tokio::test(flavor = "multi_thread")]
async fn an_ask_that_is_carried_out_after_its_release_is_given_back() {
    let server = installed();
    let (first, _second, backend) = by_two_ways(&server, "late").await;
    // 1. A request is held up. 2. It is given up, and released by another way. 3. It arrives.
    first.refuse();
    first.to_server(Flow::Hold);
    let late = request("late", Patience::Queue);
    let error = backend.acquire(&late).await.unwrap_err();
    assert!(error.outcome_unknown(), "{error}");
    let released = again(async || backend.release(&late.key, &Outcome::Cancelled).await).await;
    assert_eq!(released.value, Released::Gone);
    first.mend();
    is_given_back(&server, "late", late.key.id);
}

/// Who is told that a lock is busy releases nothing.
#[tokio::test(flavor = "multi_thread")]
async fn an_ask_that_is_carried_out_after_it_was_told_busy_is_given_back() {
    let server = installed();
    let (first, _second, backend) = by_two_ways(&server, "late busy").await;
    let limit = Duration::from_secs(10);
    let options = PostgresOptions::from_url(&server.url(), "late busy", Arc::new(SystemClock), limit).unwrap();
    let (other, holder) = (PostgresBackend::open(options).await.unwrap(), request("late", Patience::Try));
    other.acquire(&holder).await.unwrap();
    // 1. A request is held up. 2. Asked again by another way, it is busy. 3. It is free. 4. The request arrives.
    first.refuse();
    first.to_server(Flow::Hold);
    let late = request("late", Patience::Try);
    let error = backend.acquire(&late).await.unwrap_err();
    assert!(error.outcome_unknown(), "{error}");
    assert!(matches!(again(async || backend.acquire(&late).await).await.value, Decision::Busy(_)));
    assert_eq!(other.release(&holder.key, &Outcome::Completed).await.unwrap().value, Released::Freed);
    first.mend();
    is_given_back(&server, "late busy", late.key.id);
}

#[test]
fn a_release_comes_through_when_a_stranger_lets_go_of_the_row() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let server = installed();
    let locks = blocking::wait(Leasehold::builder().namespace("stranger").connect(&server.url())).unwrap();
    let guard = blocking::wait(locks.mutex("x").acquire()).unwrap();
    let stranger = runtime.block_on(client(&server));
    let lock = "begin; select * from leasehold.resource where namespace = 'stranger' for update";
    runtime.block_on(stranger.batch_execute(lock)).unwrap();
    let releasing = std::thread::spawn(move || blocking::wait(guard.release()));
    // Longer than a call waits for a lock.
    std::thread::sleep(Duration::from_millis(900));
    runtime.block_on(stranger.batch_execute("commit")).unwrap();
    assert_eq!(releasing.join().unwrap().unwrap(), Released::Freed);
}
