//! Installing, updating and removing the schema, whoever was there before and whatever surrounds it.
#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod postgres_schema;

use std::process::{Command, Stdio};

use leasehold::{
    ErrorKind, Leasehold,
    backends::postgres::{sql, uninstall_sql},
    blocking,
};
use leasehold_testkit::postgres::{Postgres, program};
use postgres_schema::{install_schema, options};

#[test]
fn a_schema_that_others_can_change_is_refused() {
    let server = Postgres::start();
    server.psql("create role mallory login; grant create on database postgres to mallory");
    server
        .try_psql(
            "mallory",
            "create schema leasehold; create schema others authorization mallory; \
             create function leasehold.version(out version int, out usable_since int, out unlogged boolean) \
             language plpgsql as $$ begin raise exception 'ran as %', current_user; end $$",
        )
        .unwrap();
    let error = install_schema(&server.url(), None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    assert!(error.to_string().contains("belongs to another role"), "{error}");
    let hint = "(Run init as that role, mallory, or choose another schema with ?schema=.)";
    assert!(error.to_string().contains(hint), "{error}");
    server.psql("create schema mine; grant create on schema mine to mallory");
    let error = install_schema(&format!("{}?schema=mine", server.url()), None).unwrap_err();
    assert!(error.to_string().contains("may create in"), "{error}");
    server.psql("revoke create on schema mine from mallory");
    install_schema(&format!("{}?schema=mine", server.url()), None).unwrap();
    install_schema(&format!("{}?schema=others", server.url_of("mallory", "postgres")), None).unwrap();
}

#[test]
fn the_statements_for_missing_rights_work_as_printed() {
    let server = Postgres::start();
    server.psql("create role \"order\" login; create database \"my shop\"");
    server.psql("revoke connect on database \"my shop\" from public");
    let url = server.url_of("order", "my%20shop");
    for privilege in ["connect", "create"] {
        let refused = install_schema(&url, None).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::PermissionDenied, "{refused}");
        let words = refused.to_string();
        let (_, statement) = words.split_once("the owner of the database lets this role in: ").unwrap();
        assert_eq!(statement, format!("grant {privilege} on database \"my shop\" to \"order\""));
        server.psql(statement);
    }
    install_schema(&url, None).unwrap();
}

#[test]
fn a_role_that_may_not_install_is_told_who_does() {
    let server = Postgres::start();
    server.psql("create role keeper login; create role app login");
    server.psql("create database shop owner keeper");
    let refused = |parameters: &str| {
        let url = server.url_of("app", "shop") + parameters;
        blocking::wait(Leasehold::connect(&url)).unwrap_err()
    };
    let keeper = server.url_of("keeper", "shop");
    for (parameters, url, schema) in
        [("", keeper.clone(), "leasehold"), ("?schema=locks", format!("'{keeper}?schema=locks'"), "locks")]
    {
        let missing = refused(parameters);
        assert_eq!(missing.kind(), ErrorKind::InvalidConfig, "{missing}");
        let words = format!("its owner, keeper, runs once: `leasehold init -b {url}`, and then: ");
        let allow = format!("select {schema}.allow('app')");
        assert!(missing.to_string().ends_with(&(words + &allow)), "{missing}");
        install_schema(url.trim_matches('\''), None).unwrap();
        let denied = refused(parameters);
        assert_eq!(denied.kind(), ErrorKind::PermissionDenied, "{denied}");
        assert!(denied.to_string().ends_with(&allow), "{denied}");
        server.client("keeper").args(["-d", "shop", "-c", &allow]).stdout(Stdio::null()).status().unwrap();
        blocking::wait(Leasehold::connect(&(server.url_of("app", "shop") + parameters))).unwrap();
    }
}

/// A client that meets LH001 may begin a transaction of another isolation and try again.
#[test]
fn the_code_of_a_wrong_isolation_stands_for_nothing_else() {
    let server = Postgres::start();
    server
        .psql("create role mallory login; create schema theirs authorization mallory; create table locks (name text)");
    let others = install_schema(&format!("{}?schema=theirs", server.url()), None).unwrap_err();
    let taken = install_schema(&server.url(), Some("public")).unwrap_err();
    for refused in [others, taken] {
        assert_eq!(refused.kind(), ErrorKind::InvalidConfig, "{refused}");
        assert!(refused.to_string().contains("[LH007]"), "{refused}");
    }
    install_schema(&server.url(), None).unwrap();
    for isolation in ["repeatable read", "serializable"] {
        let call = format!("begin isolation level {isolation}; select leasehold.acquire_lock('x', 'a')");
        let refused = server.try_psql("postgres", &format!("\\set VERBOSITY verbose\n{call}")).unwrap_err();
        assert!(refused.contains("LH001: leasehold works in READ COMMITTED"), "{isolation}: {refused}");
    }
}

/// Whoever owns a function can change it after it was replaced.
#[test]
fn what_another_role_put_where_locks_are_exposed_is_refused() {
    let server = Postgres::start();
    server.psql("create role mallory login; create schema api; grant usage, create on schema api to mallory");
    server
        .try_psql(
            "mallory",
            "create function api.release_lock(p_lock_name text, p_holder_id text) returns boolean \
             language sql as 'select true'; \
             comment on function api.release_lock is 'The same as leasehold.release_lock.'",
        )
        .unwrap();
    let error = install_schema(&server.url(), Some("api")).unwrap_err();
    assert!(error.to_string().contains("release_lock"), "{error}");
    server.psql("drop function api.release_lock");
    install_schema(&server.url(), Some("api")).unwrap();
    install_schema(&server.url(), Some("api")).unwrap();
}

/// Names that managed services give: not folded, and no identifiers.
#[test]
fn a_role_with_capitals_and_signs_installs_into_its_schema() {
    let server = Postgres::start();
    server.psql("create role \"Ada@example.com\" login; create schema leasehold authorization \"Ada@example.com\"");
    install_schema(&server.url_of("Ada%40example.com", "postgres"), None).unwrap();
}

#[test]
fn what_is_printed_is_part_of_the_migration_around_it() {
    let server = Postgres::start();
    let printed = sql(&options(&server.url()), Some("public")).unwrap();
    server.psql(&format!("begin; create table mine (id int); {printed} insert into mine values (1); rollback"));
    let there = "select to_regclass('mine') is not null, to_regnamespace('leasehold') is not null";
    assert_eq!(server.psql(there), "f|f", "it was rolled back with what surrounds it");
    // Settings of the session stay, and one file of statements without a transaction will do.
    let said =
        server.psql(&format!("set search_path = public; {printed} show search_path; create table mine (id int)"));
    assert_eq!((said.as_str(), server.psql(there).as_str()), ("public", "t|t"));
    blocking::wait(Leasehold::connect(&server.url())).unwrap();
    server.psql(&uninstall_sql(&options(&server.url())));
    let left = "select to_regnamespace('leasehold') is null, count(*) from pg_proc where pronamespace = 'public'::regnamespace";
    assert_eq!(server.psql(left), "t|0");
    assert_eq!(server.psql("select count(*) from mine"), "0", "what is not ours stays");
}

/// Anybody can write the comment that marks what was exposed.
#[test]
fn uninstalling_removes_what_was_exposed_anywhere_and_nothing_of_others() {
    let server = Postgres::start();
    server.psql("create role mallory login; create schema api; create schema theirs authorization mallory");
    for expose in ["public", "api"] {
        install_schema(&server.url(), Some(expose)).unwrap();
    }
    server.psql("create schema beside");
    install_schema(&format!("{}?schema=another", server.url()), Some("beside")).unwrap();
    let marked = "create function theirs.guard() returns int language sql as 'select 1'; \
                  comment on function theirs.guard is 'The same as leasehold.guard.'";
    server.try_psql("mallory", marked).unwrap();
    server.psql("create function public.guard_dog() returns int language sql as 'select 1'");
    server.psql(&uninstall_sql(&options(&server.url())));
    let left = "select n.nspname, count(*) from pg_proc p join pg_namespace n on n.oid = p.pronamespace \
                where n.nspname in ('leasehold', 'public', 'api', 'theirs', 'beside') group by 1 order by 1";
    assert_eq!(server.psql(left), "beside|9\npublic|1\ntheirs|1");
    let views = "select n.nspname, count(*) from pg_class c join pg_namespace n on n.oid = c.relnamespace \
                 where c.relkind = 'v' and n.nspname in ('public', 'api', 'beside') group by 1";
    assert_eq!(server.psql(views), "beside|3");
}

#[test]
fn a_short_statement_timeout_does_not_stop_an_installation() {
    let server = Postgres::start();
    server.psql("alter role postgres set statement_timeout = '20ms'");
    install_schema(&server.url(), Some("public")).unwrap();
}

/// The schema is updated first; what was built before goes on with it, as long as it may.
#[test]
fn versions_have_a_window_in_which_both_work() {
    let server = Postgres::start();
    install_schema(&server.url(), None).unwrap();
    let connect = || blocking::wait(Leasehold::connect(&server.url()));
    server.pretend_schema_version(1000, 1);
    let locks = connect().unwrap();
    blocking::wait(blocking::wait(locks.mutex("x").acquire()).unwrap().release()).unwrap();
    server.pretend_schema_version(1000, 1000);
    let newer = connect().unwrap_err();
    assert!(newer.kind() == ErrorKind::InvalidConfig && newer.to_string().contains("update the library"), "{newer}");
}

/// Rights are left out, as a restore into another cluster often does; functions are everybody's then.
#[test]
fn a_restore_without_rights_opens_nothing_to_strangers() {
    let server = Postgres::start();
    install_schema(&server.url(), Some("public")).unwrap();
    server.psql("create database restored; create role stranger login; create role app login");
    let address = ["-h", "127.0.0.1", "-U", "postgres", "-p", &server.port().to_string()].map(String::from);
    let mut dump = Command::new(program("pg_dump"));
    let mut dump = dump.args(&address).args(["--no-acl", "postgres"]).stdout(Stdio::piped()).spawn().unwrap();
    let restored = Command::new(program("psql"))
        .args(&address)
        .args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "restored"])
        .stdin(dump.stdout.take().unwrap())
        .stdout(Stdio::null())
        .status()
        .unwrap();
    assert!(dump.wait().unwrap().success() && restored.success());
    let ask = |role: &str, call: &str| {
        let mut psql = Command::new(program("psql"));
        psql.args(&address[..2]).args(["-U", role, "-p", &address[5], "-X", "-A", "-t", "-d", "restored", "-c", call]);
        let output = psql.output().unwrap();
        String::from_utf8_lossy(if output.status.success() { &output.stdout } else { &output.stderr }).trim().to_owned()
    };
    for call in
        ["select acquire_lock('x', 'a')", "select leasehold.acquire_lock('x', 'a')", "select * from distributed_locks"]
    {
        assert!(ask("stranger", call).contains("permission denied"), "{call}: {}", ask("stranger", call));
    }
    ask("postgres", "select leasehold.allow('app', 'lock')");
    assert_eq!(ask("app", "select acquire_lock('x', 'a')"), "t");
    let evicted = ask("app", "select leasehold.evict_fence('default', 'c', 'a', 'x', 1, 'mine now')");
    assert!(evicted.contains("permission denied"), "{evicted}");
}

#[test]
fn nobody_guesses_where_events_are_sent() {
    let server = Postgres::start();
    install_schema(&server.url(), None).unwrap();
    install_schema(&format!("{}?schema=others", server.url()), None).unwrap();
    let channel = |schema: &str| server.psql(&format!("select {schema}.watch('default', 'somebody')"));
    assert_ne!(channel("leasehold"), channel("others"));
    let guessed = server.psql("select 'lh_events_' || left(md5('leasehold.default'), 24)");
    assert_ne!(channel("leasehold"), guessed);
}

#[test]
fn a_role_is_allowed_to_read_to_lock_or_all() {
    let server = Postgres::start();
    install_schema(&server.url(), None).unwrap();
    server.psql(
        "create role reads login; create role locks login; select leasehold.allow('reads', 'read');
         select leasehold.allow('locks', 'lock'); select leasehold.acquire_lock('x', 'a')",
    );
    let may = |role: &str, call: &str| server.try_psql(role, &format!("select count(*) from {call}")).is_ok();
    for (call, reads, locks) in [
        ("leasehold.distributed_locks", true, true),
        ("leasehold.list_leases('default', null, null, null, 10)", true, false),
        ("leasehold.list_ended('default', null, null, false, null, null, 10)", true, false),
        ("leasehold.release_lock('x', 'nobody')", false, true),
        ("leasehold.acquire_lock_fenced('x', 'b')", false, true),
        ("leasehold.evict_fence('default', null, 'a', 'x', 1, '')", false, false),
        ("leasehold.record('off')", false, false),
    ] {
        assert_eq!([may("reads", call), may("locks", call)], [reads, locks], "{call}");
    }
}
