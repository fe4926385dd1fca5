//! SQL clients and the library contend on the same leases; rights, exposure and versions.
#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod postgres_schema;

use std::{
    io::Write,
    process::{Child, Stdio},
    time::Duration,
};

use leasehold::{
    Error, ErrorKind, Leasehold, Resource,
    backends::postgres::{Installed, install, sql},
    blocking,
    clock::{Clock, SystemClock},
    lease::{Ending, HistoryFilter, Names, Released},
};
use leasehold_testkit::{postgres::Postgres, until};
use postgres_schema::{granted_soon, install_schema, options, server_with_schema};

async fn install_at(url: String, expose: Option<&str>) -> leasehold::Result<Installed> {
    install(options(&url), expose).await
}

/// Runs on a runtime with io and time.
fn run<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap().block_on(work)
}

fn connect(url: &str) -> Leasehold {
    blocking::wait(Leasehold::connect(url)).unwrap()
}

/// A server with the schema, and the library on it.
fn server_and_library() -> (Postgres, Leasehold) {
    let server = server_with_schema(&["fsync=off"]);
    let locks = connect(&server.url());
    (server, locks)
}

/// Somebody's transaction, which stays open until [`commit`] once all these statements were run.
fn open_transaction(server: &Postgres, statements: &str) -> Child {
    let mut client = server.client("postgres").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    client.stdin.as_mut().unwrap().write_all(format!("begin; {statements};\n").as_bytes()).unwrap();
    // It is idle in its transaction after each of them.
    let last = statements.rsplit("; ").next().unwrap();
    let open = format!(
        "select count(*) from pg_stat_activity where state = 'idle in transaction' and query = $sql${last};$sql$"
    );
    until(|| server.psql(&open) == "1");
    client
}

fn commit(mut writer: Child) {
    writer.stdin.take().unwrap().write_all(b"commit;\n").unwrap();
    assert!(writer.wait().unwrap().success());
}

#[test]
fn psql_and_the_library_exclude_each_other_both_ways() {
    let server = Postgres::start();
    install_schema(&server.url(), Some("public")).unwrap();
    let locks = connect(&server.url());
    for acquire_lock in ["leasehold.acquire_lock", "acquire_lock"] {
        let release_lock = acquire_lock.replace("acquire", "release");
        let guard = blocking::wait(locks.mutex("job").try_acquire()).unwrap().unwrap();
        assert_eq!(server.psql(&format!("select {acquire_lock}('job', 'psql')")), "f");
        blocking::wait(guard.release()).unwrap();

        assert_eq!(server.psql(&format!("select {acquire_lock}('job', 'psql')")), "t");
        let error = blocking::wait(locks.mutex("job").wait(Duration::from_secs(2)).acquire()).unwrap_err();
        assert!(error.to_string().contains("psql"), "the holder is named: {error}");
        assert_eq!(server.psql(&format!("select {release_lock}('job', 'psql')")), "t");
        blocking::wait(blocking::wait(locks.mutex("job").acquire()).unwrap().release()).unwrap();
    }
}

#[test]
fn a_waiter_of_the_library_is_handed_what_psql_releases() {
    let (server, locks) = server_and_library();
    server.psql("select leasehold.acquire_lock('job', 'psql', 3600)");
    // Asks by itself every 20 s.
    let waits = locks.mutex("job").ttl(Duration::from_secs(60)).wait(Duration::from_secs(60));
    let waiter = std::thread::spawn(move || blocking::wait(waits.acquire()).unwrap());
    until(|| server.psql("select waiting from leasehold.resource where name = 'job'") == "1");
    let released = SystemClock.now();
    assert_eq!(server.psql("select leasehold.release_lock('job', 'psql')"), "t");
    assert_eq!(server.psql("select leasehold.acquire_lock('job', 'other')"), "f", "somebody waited before");
    let guard = granted_soon(waiter, released, "released");
    assert_eq!(server.psql("select leasehold.release_lock('job', 'psql')"), "f", "it is another's now");
    blocking::wait(guard.release()).unwrap();
}

#[test]
fn a_waiter_is_told_when_psql_shortens_what_it_waits_for() {
    let (server, locks) = server_and_library();
    for shorten in ["extend_lock('x', 'a', 0.5)", "acquire_lock('x', 'a', 0.5)"] {
        assert_eq!(server.psql("select leasehold.acquire_lock('x', 'a', 600)"), "t");
        // Asks by itself every 20 s.
        let waits = locks.mutex("x").ttl(Duration::from_secs(60)).wait(Duration::from_secs(60));
        let waiter = std::thread::spawn(move || blocking::wait(waits.acquire()).unwrap());
        until(|| server.psql("select count(*) from leasehold.entry") == "1");
        let shortened = SystemClock.now();
        assert_eq!(server.psql(&format!("select leasehold.{shorten}")), "t");
        let guard = granted_soon(waiter, shortened, shorten);
        blocking::wait(guard.release()).unwrap();
    }
}

#[test]
fn a_release_of_what_is_anothers_locks_no_row() {
    let server = server_with_schema(&["fsync=off"]);
    let locked = server.psql(
        "select leasehold.acquire_lock('x', 'a'); begin; select leasehold.release_lock('x', 'b');\n\
         select pg_current_xact_id_if_assigned() is null; commit",
    );
    assert_eq!(locked, "t\nf\nt");
    // One's own that is not committed yet is waited for.
    assert_eq!(
        server.psql("select leasehold.acquire_lock('slow', 'a'); select leasehold.release_lock('slow', 'a')"),
        "t\nt"
    );
    let writer = open_transaction(&server, "select leasehold.acquire_lock('slow', 'a')");
    let release = "select leasehold.release_lock('slow', 'a')";
    std::thread::scope(|scope| {
        let released = scope.spawn(|| server.psql(release));
        let blocked = format!(
            "select count(*) from pg_stat_activity where query = $sql${release}$sql$ and wait_event_type = 'Lock'"
        );
        until(|| server.psql(&blocked) == "1" || released.is_finished());
        commit(writer);
        assert_eq!(released.join().unwrap(), "t");
    });
}

#[test]
fn holders_have_one_id_and_nothing_else_in_common() {
    let server = server_with_schema(&["fsync=off"]);
    // What acquire_lock() calls once it has found the name free, while another holder was quicker.
    let too_late = "select verdict from leasehold._acquire('default', 'sql', null, 'a', false, 'x', leasehold._sql_id(), 'x', \
                    2147483647, 2147483647, 60000000, -1, false, 'b', null, '{}', null)";
    let others = "select leasehold.acquire_lock('x', 'b'), leasehold.release_lock('x', 'b'), \
                  leasehold.extend_lock('x', 'b', 5), leasehold.fence_of('x', 'b') is null";
    assert_eq!(server.psql("select leasehold.acquire_lock('x', 'a')"), "t");
    assert_eq!(server.psql(&format!("{others}; {too_late}")), "f|f|f|t\nb");
    let locks = connect(&server.url());
    let waiter = std::thread::spawn(move || blocking::wait(locks.mutex("x").acquire()).unwrap());
    until(|| server.psql("select waiting from leasehold.resource where name = 'x'") == "1");
    assert_eq!(server.psql(&format!("{others}; {too_late}")), "f|f|f|t\nb");
    assert_eq!(server.psql("select leasehold.release_lock('x', 'a')"), "t");
    blocking::wait(waiter.join().unwrap().release()).unwrap();
    assert_eq!(server.psql("select leasehold.acquire_lock('x', 'b'), leasehold.release_lock('x', 'a')"), "t|f");
}

#[test]
fn the_three_functions_keep_their_words() {
    let server = Postgres::start();
    install_schema(&server.url(), Some("public")).unwrap();
    let ask = |query: &str| server.psql(&format!("select {query}"));
    // Named arguments, as rpc clients send them.
    assert_eq!(
        ask("acquire_lock(p_holder_id => 'a', p_lock_name => 'x', p_ttl_seconds => 60, p_metadata => '{\"k\": 1}')"),
        "t"
    );
    assert_eq!(ask("acquire_lock('x', 'b')"), "f");
    let fence = ask("fence from leasehold.resource where name = 'x'");
    assert_eq!(ask("acquire_lock('x', 'a', 5)"), "t", "the same holder again");
    assert_eq!(ask("fence from leasehold.resource where name = 'x'"), fence, "keeps its fence");
    assert_eq!(ask("metadata from distributed_locks"), "{}", "and gets new metadata");
    assert_eq!(ask("expires_at - acquired_at <= '5 s' and expires_at > acquired_at from distributed_locks"), "t");
    assert_eq!(ask("extend_lock('x', 'b', 60)"), "f");
    assert_eq!(ask("extend_lock('x', 'a', 600)"), "t");
    assert_eq!(ask("expires_at > now() + '590 s' from distributed_locks"), "t", "end = now + seconds");
    assert_eq!(ask("release_lock('x', 'b')"), "f");
    assert_eq!(ask("release_lock(p_lock_name => 'x', p_holder_id => 'a')"), "t");
    assert_eq!(ask("release_lock('x', 'a')"), "f");

    assert_eq!(ask("acquire_lock('short', 'a', 0.1)"), "t");
    std::thread::sleep(Duration::from_millis(150));
    assert_eq!(ask("extend_lock('short', 'a', 60)"), "f", "it had expired");
    assert_eq!(ask("release_lock('short', 'a')"), "f");
    for (query, word) in [
        ("acquire_lock('x', 'a', 0)", "ttl"),
        ("acquire_lock('x', 'a', -1)", "ttl"),
        ("acquire_lock('', 'a')", "name"),
        ("acquire_lock('x', '')", "holder"),
        ("acquire_lock('x', 'a', 5, '[]')", "object"),
        ("extend_lock('x', 'a', 0)", "extended"),
    ] {
        let error = server.try_psql("postgres", &format!("select {query}")).unwrap_err();
        assert!(error.contains(word), "{query}: {error}");
    }
    let locks = connect(&server.url());
    let _permit = blocking::wait(locks.semaphore("sem", 3).acquire()).unwrap();
    let error = server.try_psql("postgres", "select acquire_lock('sem', 'a')").unwrap_err();
    assert!(error.contains("a semaphore of 3"), "{error}");
}

/// What `PostgREST` makes of `POST /rpc/acquire_lock` with a JSON object.
#[test]
fn a_json_object_of_named_arguments_works_as_postgrest_sends_it() {
    let server = Postgres::start();
    install_schema(&server.url(), Some("public")).unwrap();
    server.psql("create role web nologin; select leasehold.allow('web', 'lock')");
    let call = |name: &str, body: &str, columns: &str, arguments: &str| {
        server.psql(&format!(
            "begin; set local role web; set local search_path = public; \
             with pgrst_payload as (select '{body}'::json as json_data), \
             pgrst_body as (select case when json_typeof(json_data) = 'array' then json_data else json_build_array(json_data) end \
               as val from pgrst_payload), \
             pgrst_args as (select * from json_to_recordset((select val from pgrst_body)) as _({columns}) limit 1) \
             select pgrst_call.pgrst_scalar from pgrst_args, \
             lateral (select \"public\".\"{name}\"({arguments}) pgrst_scalar) pgrst_call; commit"
        ))
    };
    let body = r#"{"p_lock_name": "x", "p_holder_id": "web-1", "p_ttl_seconds": 30, "p_metadata": {"who": "web"}}"#;
    let columns =
        "\"p_lock_name\" text, \"p_holder_id\" text, \"p_ttl_seconds\" double precision, \"p_metadata\" jsonb";
    let arguments = "\"p_lock_name\" := pgrst_args.\"p_lock_name\", \"p_holder_id\" := pgrst_args.\"p_holder_id\", \
                     \"p_ttl_seconds\" := pgrst_args.\"p_ttl_seconds\", \"p_metadata\" := pgrst_args.\"p_metadata\"";
    assert_eq!(call("acquire_lock", body, columns, arguments), "t");
    assert_eq!(server.psql("select holder_id, metadata from distributed_locks"), "web-1|{\"who\": \"web\"}");
    let two = "\"p_lock_name\" := pgrst_args.\"p_lock_name\", \"p_holder_id\" := pgrst_args.\"p_holder_id\"";
    assert_eq!(call("acquire_lock", &body.replace("web-1", "web-2"), columns, two), "f");
    assert_eq!(call("release_lock", body, columns, two), "t");
}

#[test]
fn a_role_that_loses_the_owners_rights_locks_on_with_its_own() {
    let server = server_with_schema(&["fsync=off"]);
    server.psql("create role app login; select leasehold.allow('app'); grant postgres to app");
    let locks = connect(&server.url_of("app", "postgres"));
    blocking::wait(blocking::wait(locks.mutex("x").acquire()).unwrap().release()).unwrap();
    server.psql("revoke postgres from app");
    blocking::wait(blocking::wait(locks.mutex("x").acquire()).unwrap().release()).unwrap();
}

#[test]
fn a_role_with_the_documented_grants_can_lock_and_nothing_else() {
    let server = server_with_schema(&["fsync=off"]);
    server.psql("create role app login; create role stranger login; select leasehold.allow('app')");
    assert_eq!(server.try_psql("app", "select leasehold.acquire_lock('x', 'a')").unwrap(), "t");
    assert_eq!(server.try_psql("app", "select count(*) from leasehold.distributed_locks").unwrap(), "1");
    assert_eq!(
        server
            .try_psql("app", "select leasehold.acquire('y') is not null; select count(*) from leasehold.locks")
            .unwrap(),
        "t\n1"
    );
    for table in ["resource", "entry", "ended", "session", "watcher", "migration"] {
        assert!(server.try_psql("app", &format!("select * from leasehold.{table}")).is_err(), "{table} can be read");
        assert!(server.try_psql("app", &format!("delete from leasehold.{table}")).is_err(), "{table} can be written");
    }
    assert!(server.try_psql("app", "select leasehold._may_grant('default', 'x')").is_err());
    assert!(server.try_psql("app", "select leasehold.allow('stranger')").is_err());
    let locks = connect(&server.url_of("app", "postgres"));
    let guard = blocking::wait(locks.mutex("z").acquire()).unwrap();
    blocking::wait(guard.release()).unwrap();
    let error = blocking::wait(Leasehold::connect(&server.url_of("stranger", "postgres"))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
    assert!(error.to_string().contains("allow"), "{error}");
}

/// In the caller's `search_path`, before what the server has, something that raises stands for each of its functions,
/// operators and common types.
#[test]
fn a_callers_search_path_puts_no_code_into_calls_with_the_owners_rights() {
    let server = server_with_schema(&["fsync=off"]);
    server.psql(
        "create role mallory login; select leasehold.allow('mallory'); create schema trap; grant usage on schema trap to mallory;
         create view leasehold.plain as select p.oid, p.proname, p.proargtypes, p.prorettype from pg_proc p
         where p.pronamespace = 'pg_catalog'::regnamespace and p.prokind = 'f' and not p.proretset and p.proargmodes is null
           and p.provariadic = 0 and not exists (select from pg_type t
             where t.oid = any (p.proargtypes::oid[] || p.prorettype) and t.typtype = 'p');
         do $$ declare made text; begin
           for made in
             select format('create function trap.%I(%s) returns %s language plpgsql as %L', p.proname,
               oidvectortypes(p.proargtypes), p.prorettype::regtype, 'begin raise ''trapped''; end') from leasehold.plain p
             union all
             select format('create operator trap.%s (%s rightarg = %s, function = trap.%I)', o.oprname,
               'leftarg = ' || nullif(o.oprleft, 0)::regtype || ',', o.oprright::regtype, p.proname)
             from pg_operator o join leasehold.plain p on p.oid = o.oprcode
           loop execute made; end loop;
         end $$;
         drop view leasehold.plain",
    );
    for name in ["timestamptz", "uuid", "oid", "regclass", "char", "text"] {
        server.psql(&format!("create type trap.\"{name}\" as enum ('trapped')"));
    }
    let mallory = |sql: &str| server.try_psql("mallory", &format!("set search_path = trap, pg_catalog; {sql}"));
    assert!(mallory("select 'a'::pg_catalog.text = 'b'").unwrap_err().contains("trapped"));
    for history in ["all", "problems"] {
        server.psql(&format!("select leasehold.record('{history}')"));
        let pair = "select leasehold.acquire_lock('x', 'a'); select leasehold.release_lock('x', 'a'); ";
        assert_eq!(mallory(&pair.repeat(2)).unwrap(), "t\nt\nt\nt", "{history}");
    }
    let unpinned = "select string_agg(p.proname, ' ' order by p.proname) from pg_proc p where p.prosecdef
                    and p.pronamespace = 'leasehold'::regnamespace and array_to_string(p.proconfig, ' ') !~ 'search_path='";
    assert_eq!(server.psql(unpinned), "", "every function with the owner's rights pins its own");
}

#[test]
fn what_is_exposed_needs_the_right_to_lock_and_shows_no_dead() {
    let server = Postgres::start();
    install_schema(&server.url(), Some("public")).unwrap();
    server.psql(
        "create role web login; select leasehold.allow('web', 'lock'); \
         grant select on distributed_locks, locks, released to web",
    );
    let web = |sql: &str| server.try_psql("web", sql).unwrap();
    assert_eq!(web("select acquire_lock('a', 'web'); select lock_name from distributed_locks"), "t\na");
    assert_eq!(web("select acquire('b') is not null; select named from locks"), "t\nb");
    // That connection has ended.
    until(|| web("select named, problem from released") == "b|disconnected");
    assert_eq!(web("select lock_name from distributed_locks"), "a");
    assert_eq!(web("select count(*) from locks"), "0");
    assert_eq!(web("select release_lock('a', 'web')"), "t");
    let fenced = web(
        "select f ->> 'acquired', f ->> 'holder', f ->> 'fence' = fence_of('c', 'web')::text, guard('c', (f ->> 'fence')::bigint) from acquire_lock_fenced('c', 'web') f",
    );
    assert_eq!(fenced, "true|web|t|");
    assert!(server.try_psql("web", "select leasehold.maintain()").is_err(), "nor has it any other");
}

#[test]
fn what_is_in_the_way_of_what_is_exposed_is_left_alone() {
    let server = Postgres::start();
    install_schema(&server.url(), Some("public")).unwrap();
    install_schema(&server.url(), Some("public")).unwrap();
    // Another schema's, somebody's function, an overload, a table.
    let refused = |url: String, target| {
        let error = run(install_at(url, Some(target))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
        assert!(error.to_string().contains("Rename or drop it"), "{error}");
    };
    refused(format!("{}?schema=others", server.url()), "public");
    assert_eq!(server.psql("select acquire_lock('x', 'a'); select leasehold.acquire_lock('x', 'b')"), "t\nf");
    for (target, made) in [
        (
            "one",
            "function one.release_lock(p_lock_name text, p_holder_id text) returns boolean language sql as 'select false'",
        ),
        ("two", "function two.acquire_lock(text, text, int default 30) returns boolean language sql as 'select true'"),
        ("three", "table three.locks (name text)"),
    ] {
        server.psql(&format!("create schema {target}; create {made}"));
        refused(server.url(), target);
    }
    assert_eq!(server.psql("select one.release_lock('x', 'a')"), "f", "it is what it was");
}

#[test]
fn default_privileges_of_a_schema_give_nobody_what_is_exposed_there() {
    let server = Postgres::start();
    // As Supabase has it, where `anon` is whoever finds the URL.
    server.psql(
        "create role anon login; alter default privileges in schema public grant all on functions to anon; \
         alter default privileges in schema public grant all on tables to anon",
    );
    install_schema(&server.url(), Some("public")).unwrap();
    for denied in ["select acquire_lock('a', 'web')", "select acquire('a')", "select * from distributed_locks"] {
        let error = server.try_psql("anon", denied).unwrap_err();
        assert!(error.contains("permission denied"), "{denied}: {error}");
    }
    server.psql("select leasehold.allow('anon', 'lock'); grant select on locks to anon; drop view released");
    install_schema(&server.url(), Some("public")).unwrap();
    let error = server.try_psql("anon", "select * from released").unwrap_err();
    assert!(error.contains("permission denied"), "it was made anew: {error}");
    let kept = server.try_psql("anon", "select acquire_lock('a', 'web'), count(*) from locks").unwrap();
    assert_eq!(kept, "t|0", "what was granted is kept");
}

#[test]
fn the_connection_pair_lives_with_its_connection_and_records_failures() {
    let server = server_with_schema(&["fsync=off"]);
    assert_eq!(
        server.psql(
            "select leasehold.acquire('job') as id \\gset\n\
             select named, pid = pg_backend_pid() from leasehold.locks;\n\
             select leasehold.acquit(:'id', 'Timeout', 'no answer'), leasehold.acquit(:'id');\n\
             select named, problem, details, released > locked from leasehold.released"
        ),
        "job|t\nt|f\njob|Timeout|no answer|t"
    );
    // A connection that ends without acquit leaves the lock free and a record behind.
    server.psql("select leasehold.acquire('lost')");
    until(|| server.psql("select problem from leasehold.released where named = 'lost'") == "disconnected");
    assert_eq!(server.psql("select leasehold.acquire('lost') is not null"), "t");
    assert_eq!(server.psql("select distinct problem from leasehold.released where named = 'lost'"), "disconnected");

    let locks = connect(&server.url());
    let guard = blocking::wait(locks.mutex("job").acquire()).unwrap();
    let error = server.try_psql("postgres", "select leasehold.acquire('job')").unwrap_err();
    assert!(error.contains(&format!("job is held by {}", guard.holder())), "{error}");
    blocking::wait(guard.release()).unwrap();
    // It contends with the library, and the library sees it die.
    let mut holder = server.client("postgres").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    holder.stdin.as_mut().unwrap().write_all(b"select leasehold.acquire('job');\n").unwrap();
    until(|| server.psql("select count(*) from leasehold.locks where named = 'job'") == "1");
    let waiter = std::thread::spawn(move || {
        let guard = blocking::wait(locks.mutex("job").acquire()).unwrap();
        blocking::wait(guard.release()).unwrap();
    });
    until(|| server.psql("select waiting from leasehold.resource where name = 'job'") == "1");
    holder.kill().unwrap();
    holder.wait().unwrap();
    waiter.join().unwrap();
}

#[test]
fn whoever_tidies_up_keeps_what_lives_by_its_own_connection() {
    let server = server_with_schema(&["fsync=off"]);
    let said = server.psql(
        "select leasehold.acquire('nightly') as lock_id \\gset \n\
         select leasehold.maintain(); reset all; select leasehold.maintain();\n\
         select leasehold.acquire_lock('nightly', 'the same'), count(*) from leasehold.locks;\n\
         select leasehold.acquit(:'lock_id');\n",
    );
    assert_eq!(said, "0\n0\nf|1\nt");
}

#[test]
fn a_lease_that_guard_kept_past_its_end_is_not_its_holders_to_release() {
    let server = server_with_schema(&["fsync=off"]);
    server.psql("select leasehold.acquire_lock('job', 'a', 3)");
    let writer = open_transaction(&server, "select leasehold.guard('job', leasehold.fence_of('job', 'a'))");
    until(|| server.psql("select expires_at < clock_timestamp() from leasehold.resource where name = 'job'") == "t");
    assert_eq!(server.psql("select leasehold.acquire_lock('job', 'b')"), "f", "the transaction relies on it");
    assert_eq!(server.psql("select leasehold.release_lock('job', 'a')"), "f");
    assert_eq!(server.psql("select string_agg(ending, ' ') from leasehold.ended"), "expired");
    commit(writer);
}

#[test]
fn calls_for_one_name_in_one_statement_see_each_other() {
    let server = server_with_schema(&["fsync=off"]);
    server.psql("select leasehold.acquire_lock('job', 'a', 60)");
    // A try, one that waits, a try that sees it wait, and a try by the one that waits.
    let said = server.psql(
        "select string_agg(verdict || coalesce(waiting, 0), ' ' order by at) from leasehold.acquire_many(
           'default', null, null, 'a', array['job', 'job', 'job', 'job'],
           array[md5('1')::uuid, md5('2')::uuid, md5('3')::uuid, md5('2')::uuid], array['x', 'x', 'x', 'x']::\"char\"[],
           array[2147483647, 2147483647, 2147483647, 2147483647], array[2147483647, 2147483647, 2147483647, 2147483647],
           array[30000000, 30000000, 30000000, 30000000]::bigint[], array[-1, null, -1, -1],
           array[true, true, true, true], array['a', 'b', 'c', 'b'], array[null, null, null, null]::text[],
           array['{}', '{}', '{}', '{}']::jsonb[], array[null, null, null, null]::bigint[])",
    );
    assert_eq!(said, "b0 q0 b1 q0");
}

#[test]
fn guard_pins_a_lease_to_a_transaction_without_blocking_renewals() {
    let server = server_with_schema(&["fsync=off"]);
    server.psql("create table ledger (entry text)");
    let one = connect(&server.url());
    let two = connect(&server.url());
    let ttl = Duration::from_secs(3);
    let guard = blocking::wait(one.mutex("ledger").ttl(ttl).acquire()).unwrap();
    let fence = guard.fence().get();
    let error = server.try_psql("postgres", "select leasehold.guard('ledger', 7)").unwrap_err();
    assert!(error.contains("not held under fence 7"), "{error}");

    // A guarded transaction stays open for more than a ttl; renewals go through all the while.
    let statements = format!("select leasehold.guard('ledger', {fence}); insert into ledger values ('a')");
    let writer = open_transaction(&server, &statements);
    std::thread::sleep(ttl + ttl / 3);
    guard.check().unwrap();
    // Released while the transaction is open: nobody else gets it before it ends.
    blocking::wait(guard.release()).unwrap();
    assert!(blocking::wait(two.mutex("ledger").try_acquire()).unwrap().is_none());
    // As upkeep does with a name that nobody used for a day.
    server.psql("delete from leasehold.resource where name = 'ledger'");
    assert!(blocking::wait(two.mutex("ledger").try_acquire()).unwrap().is_none());
    let waits = two.mutex("ledger").wait(Duration::from_secs(30));
    let waiter = std::thread::spawn(move || blocking::wait(waits.acquire()).unwrap());
    until(|| server.psql("select count(*) from leasehold.entry") == "1");
    commit(writer);
    let next = waiter.join().unwrap();
    assert!(next.fence().get() > fence);
    assert!(server.try_psql("postgres", &format!("select leasehold.guard('ledger', {fence})")).is_err(), "stale");
    blocking::wait(next.release()).unwrap();
}

#[test]
fn a_renewal_goes_through_while_a_sql_caller_sits_in_an_open_transaction_on_another_lock() {
    let server = server_with_schema(&["fsync=off"]);
    let locks = connect(&format!("{}?connections=1", server.url()));
    let ttl = Duration::from_secs(3);
    let guard = blocking::wait(locks.mutex("mine").ttl(ttl).acquire()).unwrap();
    let stranger = open_transaction(&server, "select leasehold.acquire_lock('theirs', 'a')");
    assert!(blocking::wait(locks.mutex("theirs").try_acquire()).unwrap().is_none(), "busy, after a short wait");
    std::thread::sleep(ttl + ttl / 3);
    guard.check().unwrap();
    commit(stranger);
    assert_eq!(server.psql("select leasehold.release_lock('theirs', 'a')"), "t");
    let theirs = blocking::wait(locks.mutex("theirs").acquire()).unwrap();
    blocking::wait(theirs.release()).unwrap();
    blocking::wait(guard.release()).unwrap();
}

#[test]
fn a_renewal_goes_through_while_places_in_queues_wait_for_a_strangers_transaction() {
    let (server, locks) = server_and_library();
    let names = ["one", "two", "three", "four"];
    for name in names {
        server.psql(&format!("select leasehold.acquire_lock('{name}', 'a', 60)"));
    }
    let ttl = Duration::from_secs(3);
    let lone = blocking::wait(locks.mutex("mine").ttl(ttl).acquire()).unwrap();
    server.psql("select leasehold.acquire_lock('handed', 'a', 60)");
    let waits = locks.mutex("handed").ttl(ttl);
    let handed = std::thread::spawn(move || blocking::wait(waits.acquire()).unwrap());
    until(|| server.psql("select count(*) from leasehold.entry") == "1");
    server.psql("select leasehold.release_lock('handed', 'a')");
    let handed = handed.join().unwrap();
    let waiters = names.map(|name| {
        let waits = locks.mutex(name).ttl(ttl).wait(Duration::from_secs(30));
        std::thread::spawn(move || blocking::wait(waits.acquire()).map(drop))
    });
    until(|| server.psql("select count(*) from leasehold.entry") == "4");
    let mut stranger = server.client("postgres");
    stranger.args([
        "-c",
        "begin; select 1 from leasehold.resource where holder = 'a' for update; select pg_sleep(5); commit",
    ]);
    let mut stranger = stranger.stdout(Stdio::null()).spawn().unwrap();
    while stranger.try_wait().unwrap().is_none() {
        lone.check().unwrap();
        handed.check().unwrap();
        std::thread::sleep(Duration::from_millis(20));
    }
    for name in names {
        server.psql(&format!("select leasehold.release_lock('{name}', 'a')"));
    }
    for waiter in waiters {
        waiter.join().unwrap().unwrap();
    }
    blocking::wait(lone.release()).unwrap();
    blocking::wait(handed.release()).unwrap();
}

#[test]
fn guard_pins_a_permit_too() {
    let (server, locks) = server_and_library();
    let permit = || locks.semaphore("api", 2).wait(Duration::from_secs(30));
    let (guarded, other) = (blocking::wait(permit().acquire()).unwrap(), blocking::wait(permit().acquire()).unwrap());
    let waits = permit();
    let waiter = std::thread::spawn(move || blocking::wait(waits.acquire()).unwrap());
    until(|| server.psql("select waiting from leasehold.resource where name = 'api'") == "1");
    let writer = open_transaction(&server, &format!("select leasehold.guard('api', {})", guarded.fence().get()));
    blocking::wait(guarded.release()).unwrap();
    let waiting = server.psql("select waiting from leasehold.resource where name = 'api'");
    assert_eq!(waiting, "1", "the guarded transaction relies on that permit");
    commit(writer);
    let next = waiter.join().unwrap();
    for permit in [other, next] {
        blocking::wait(permit.release()).unwrap();
    }
}

/// Who waits by way of a pooler has no channel, as a SQL caller has none.
#[test]
fn a_guarded_lease_can_be_released_also_when_the_next_in_line_cannot_be_told() {
    let server = server_with_schema(&["fsync=off"]);
    let (locks, pooler) = (connect(&server.url()), server.pgbouncer());
    let far = connect(&pooler.url());
    for holder in ["library", "psql"] {
        let mut held = None;
        if holder == "library" {
            held = Some(blocking::wait(locks.mutex(holder).acquire()).unwrap());
        } else {
            assert_eq!(server.psql("select leasehold.acquire_lock('psql', 'a', 600)"), "t");
        }
        let waits = far.mutex(holder).wait(Duration::from_secs(30));
        let waiter = std::thread::spawn(move || blocking::wait(waits.acquire()).unwrap());
        let entry =
            format!("select count(*), count(channel), count(fence) from leasehold.entry where name = '{holder}'");
        until(|| server.psql(&entry) == "1|0|0");
        let guards = format!("select leasehold.guard(name, fence) from leasehold.resource where name = '{holder}'");
        let writer = open_transaction(&server, &guards);
        match held {
            Some(guard) => assert_eq!(blocking::wait(guard.release()).unwrap(), Released::Freed),
            None => assert_eq!(server.psql("select leasehold.release_lock('psql', 'a')"), "t"),
        }
        assert_eq!(server.psql(&entry), "1|0|0", "{holder}: it waits until the transaction has ended");
        commit(writer);
        blocking::wait(waiter.join().unwrap().release()).unwrap();
    }
}

#[test]
fn init_is_idempotent_safe_for_two_at_once_and_refuses_other_versions() {
    let server = Postgres::start();
    let error = blocking::wait(Leasehold::connect(&server.url())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    assert!(error.to_string().contains("leasehold init"), "{error}");
    let results = run(async {
        let one = install_at(server.url(), Some("public"));
        let two = install_at(server.url(), Some("public"));
        tokio::join!(one, two)
    });
    let (one, two) = (results.0.unwrap(), results.1.unwrap());
    assert_eq!([one.before, two.before].iter().filter(|before| **before == 0).count(), 1);
    let again = run(install_at(server.url(), None)).unwrap();
    assert_eq!(again.before, again.now);

    server.pretend_schema_version(0, 0);
    let older = blocking::wait(Leasehold::connect(&server.url())).unwrap_err();
    assert!(older.kind() == ErrorKind::InvalidConfig && older.to_string().contains("leasehold init"), "{older}");
    server.pretend_schema_version(1000, 1000);
    let newer = blocking::wait(Leasehold::connect(&server.url())).unwrap_err();
    assert!(newer.kind() == ErrorKind::InvalidConfig && newer.to_string().contains("newer"), "{newer}");

    // The printed statements do the same, in a schema of another name, unlogged.
    let url = format!("{}?schema=fast_locks&durability=unlogged", server.url());
    server.psql(&sql(&options(&url), None).unwrap());
    let locks = connect(&url);
    blocking::wait(blocking::wait(locks.mutex("x").acquire()).unwrap().release()).unwrap();
    let wrong = format!("{}?schema=fast_locks", server.url());
    assert_eq!(blocking::wait(Leasehold::connect(&wrong)).unwrap_err().kind(), ErrorKind::InvalidConfig);
    assert!(sql(&options(&url), Some("fast_locks")).is_err());
}

#[test]
fn whoever_waits_is_granted_although_the_holder_asked_again() {
    let (server, locks) = server_and_library();
    assert_eq!(server.psql("select leasehold.acquire_lock('job', 'a', 600)"), "t");
    let waiter = std::thread::spawn(move || blocking::wait(locks.mutex("job").acquire()).unwrap());
    until(|| server.psql("select count(*) from leasehold.entry where name = 'job'") == "1");
    assert_eq!(server.psql("select leasehold.acquire_lock('job', 'a', 600)"), "t");
    assert_eq!(server.psql("select leasehold.release_lock('job', 'a')"), "t");
    blocking::wait(waiter.join().unwrap().release()).unwrap();
}

#[test]
fn what_is_recorded_can_be_chosen_and_maintenance_is_bounded() {
    let server = server_with_schema(&["fsync=off"]);
    for (history, recorded) in [("all", 2), ("problems", 1), ("off", 0)] {
        let locks = connect(&format!("{}?history={history}", server.url()));
        let (mutex, name) = (locks.mutex(history), Resource::new(history).unwrap());
        let work = mutex.with(async |_| Ok::<_, Error>(()));
        blocking::wait(work).unwrap();
        let work = mutex.with(async |_| Err::<(), _>(Error::unavailable("disk full")));
        blocking::wait(work).unwrap_err();
        blocking::wait(locks.close()).unwrap();
        let ended = blocking::wait(locks.history(&HistoryFilter::new(Names::Exactly(name)))).unwrap();
        assert_eq!(ended.len(), recorded, "{history}");
        if let Some(newest) = ended.first() {
            assert_eq!(newest.ending, Ending::Failed);
            assert!(newest.problem.as_ref().unwrap().details.contains("disk full"));
        }
    }
    server.psql("select leasehold.acquire_lock('gone:' || n, 'a', 0.01) from generate_series(1, 50) n");
    std::thread::sleep(Duration::from_millis(50));
    server.psql("update leasehold.resource set freed_at = now() - interval '2 days' where namespace <> '' and name not like 'gone:%'");
    assert_eq!(server.psql("select leasehold.maintain('7 days', 20)"), "20");
    assert_eq!(server.psql("select leasehold.maintain()"), "33", "three idle names and fifty whose holders are gone");
    assert_eq!(
        server.psql("select count(*) from leasehold.ended where ending = 'expired' and name like 'gone:%'"),
        "50"
    );
    // So many as are settled at once leave locks for others.
    server.psql("select leasehold.acquire_lock('late:' || n, 'a', 0.01) from generate_series(1, 600) n");
    std::thread::sleep(Duration::from_millis(50));
    let told = server.psql(
        "begin; select leasehold.maintain();\n\
         select count(*) < 600 from pg_locks where locktype = 'advisory' and pid = pg_backend_pid(); commit;\n\
         select leasehold.maintain(); select leasehold.maintain(); select leasehold.maintain();\n\
         delete from leasehold.ended where name like 'late:%'",
    );
    assert_eq!(told, "250\nt\n250\n100\n0");
    // A name that many read at once leaves no more behind than any other.
    let locks = connect(&server.url());
    let readers: Vec<_> = (0..3).map(|_| blocking::wait(locks.read("read").acquire()).unwrap()).collect();
    for reader in readers {
        blocking::wait(reader.release()).unwrap();
    }
    server.psql("update leasehold.resource set freed_at = now() - interval '2 days' where name = 'read'");
    server.psql("select leasehold.maintain(); select leasehold.maintain()");
    assert_eq!(server.psql("select count(*) from leasehold.resource where name = 'read'"), "0");
    server.psql("delete from leasehold.ended where name = 'read'");
    assert_eq!(server.psql("select leasehold.maintain('-1 s')").parse::<u32>().unwrap(), 53);
    assert_eq!(server.psql("select count(*) from leasehold.ended"), "0");
}

#[test]
fn nobody_is_notified_while_nobody_waits() {
    let server = server_with_schema(&["fsync=off"]);
    // A listener on every channel there could be does not exist; the queue's position tells.
    let locks = connect(&server.url());
    let position = || server.psql("select pg_notification_queue_usage()");
    let before = position();
    let mut listener = open_transaction(&server, "listen nothing; commit; begin; select 1");
    for at in 0..300 {
        let guard = blocking::wait(locks.mutex(format!("free:{at}")).acquire()).unwrap();
        blocking::wait(guard.release()).unwrap();
    }
    // A notification would be kept while that listener sits in its transaction.
    assert_eq!((before.as_str(), position().as_str()), ("0", "0"));
    server.psql("select pg_notify('nothing', repeat('x', 60) || n) from generate_series(1, 300) n");
    assert_ne!(position(), "0", "as many notifications would be seen");
    listener.kill().unwrap();
    listener.wait().unwrap();
}

#[test]
fn a_sql_caller_can_wait_for_a_while() {
    let server = server_with_schema(&["fsync=off"]);
    server.psql("select leasehold.acquire_lock('x', 'a', 600)");
    assert_eq!(server.psql("select leasehold.acquire_lock_wait('x', 'b', 30, 0.2)"), "f");
    let waits = std::thread::scope(|scope| {
        let waits = scope.spawn(|| server.psql("select leasehold.acquire_lock_wait('x', 'b', 30, 30)"));
        until(|| server.psql("select count(*) from pg_stat_activity where wait_event = 'PgSleep'") == "1");
        assert_eq!(server.psql("select leasehold.release_lock('x', 'a')"), "t");
        waits.join().unwrap()
    });
    assert_eq!(waits, "t");
    let error = server.try_psql("postgres", "select leasehold.acquire_lock_wait('x', 'b', 30, 31)").unwrap_err();
    assert!(error.contains("0 to 30 seconds"), "{error}");
}

#[test]
fn only_a_renewal_without_leases_that_end_by_ttl_leaves_the_disk_alone() {
    let server = server_with_schema(&["fsync=off"]);
    let setting_after = |names: &str, ids: &str| {
        server.psql(&format!(
            "select leasehold.open_session('a') as session \\gset
             select leasehold.acquire_one('default', null, null, 'a', 'ttl', md5('ttl')::uuid, 'x', 2147483647, 2147483647,
               60000000, -1, false, 'a', null, '{{}}', null) as taken \\gset
             begin;
             insert into leasehold.entry (id, namespace, name, mode, units, capacity, holder, metadata, ttl_us, expires_at, asked_at,
               renewed_at, acquired_at, fence, session, channel, provisional)
             select md5('bound')::uuid, 'default', 'bound', 'x', 1, 1, 'a', '{{}}', 60000000, now() + interval '5 s', now(), now(),
               now(), 7, :session, 'lh_a', true;
             select count(*) from leasehold.renew_many('default', 'lh_a', '{{}}', '{names}', array{ids}::uuid[], '{{60000000, 60000000}}');
             show synchronous_commit; rollback"
        ))
    };
    assert_eq!(setting_after("{bound}", "[md5('bound')]"), "1\noff");
    assert_eq!(setting_after("{bound, ttl}", "[md5('bound'), md5('ttl')]"), "2\non");
}
