//! What happens when connections, backends, servers and primaries go away.
#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod postgres_schema;
mod shared;

use std::{
    env,
    io::{BufRead, BufReader, Write},
    net::TcpListener,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use leasehold::{
    ErrorKind, Guard, Leasehold, Resource,
    backends::postgres::advisory::Advisory,
    blocking,
    clock::{Clock, SystemClock},
    lease::{Ending, HistoryFilter, Names},
};
use leasehold_testkit::{
    Flow, Proxy,
    postgres::{Postgres, Stop},
    until,
};
use postgres_schema::{granted_soon, install_schema, server_with_schema};
use shared::hold_at_last;

const TTL: Duration = Duration::from_secs(6);

fn connect(url: &str) -> Leasehold {
    blocking::wait(Leasehold::connect(url)).unwrap()
}

fn hold(locks: &Leasehold, name: &str) -> Guard {
    blocking::wait(locks.mutex(name).ttl(TTL).acquire()).unwrap()
}

/// As a Redis server does, which waits for the rest of a line.
#[test]
fn a_server_that_says_nothing_is_suspected_to_be_another() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let _accepted = thread::spawn(move || silent.incoming().collect::<Vec<_>>());
    for parameters in ["", "?liveness=connection"] {
        let builder = Leasehold::builder().connect_limit(Duration::from_micros(1_499_989));
        let url = format!("postgres://me@127.0.0.1:{port}/db{parameters}");
        let error = blocking::wait(builder.connect(&url)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        let words = "/db did not answer within 1.5s; does a Postgres server listen on that port?";
        assert!(error.to_string().ends_with(words), "{error}");
    }
}

/// A lease held through a fault is held on, the waiter is granted after its release, and fences rise.
fn nothing_is_lost(server: &mut Postgres, fault: impl FnOnce(&mut Postgres)) {
    let (one, two) = (connect(&server.url()), connect(&server.url()));
    let guard = hold(&one, "x");
    let fence = guard.fence();
    let waiter =
        thread::spawn(move || blocking::wait(two.mutex("x").ttl(TTL).wait(Duration::from_secs(30)).acquire()).unwrap());
    until(|| server.psql("select waiting from leasehold.resource where name = 'x'") == "1");
    fault(server);
    // Held by what was said after the fault, not by what was said before.
    let promised = SystemClock.now().after(guard.remaining().unwrap());
    until(|| guard.remaining().is_some_and(|left| SystemClock.now().after(left) > promised.after(TTL / 10)));
    guard.check().unwrap();
    assert!(!waiter.is_finished(), "two believe to hold");
    blocking::wait(guard.release()).unwrap();
    let next = waiter.join().unwrap();
    assert!(next.fence() > fence);
    blocking::wait(next.release()).unwrap();
    assert!(hold_at_last(&one, "x", TTL).fence() > fence);
}

#[test]
fn backends_that_are_terminated_are_replaced() {
    nothing_is_lost(&mut server_with_schema(&["fsync=off"]), |server| {
        server
            .psql("select count(pg_terminate_backend(pid)) from pg_stat_activity where application_name = 'leasehold'");
    });
}

#[test]
fn a_fast_restart_loses_nothing() {
    nothing_is_lost(&mut server_with_schema(&["fsync=off"]), |server| server.restart(Stop::Fast));
}

#[test]
fn an_immediate_restart_loses_nothing() {
    nothing_is_lost(&mut server_with_schema(&["fsync=off"]), |server| server.restart(Stop::Immediate));
}

#[test]
fn a_killed_backend_takes_all_connections_along_and_no_lease() {
    nothing_is_lost(&mut server_with_schema(&["fsync=off"]), |server| {
        let pid = server.psql("select pid from pg_stat_activity where application_name = 'leasehold' limit 1");
        server.kill_backend(pid.parse().unwrap());
    });
}

#[test]
fn unlogged_leases_are_gone_after_a_crash_and_the_next_renewal_says_so() {
    let mut server = Postgres::start();
    let url = format!("{}?durability=unlogged", server.url());
    install_schema(&url, None).unwrap();
    let locks = connect(&url);
    // The second restarts without a new start of the server: the tables are emptied all the same.
    let faults: [fn(&mut Postgres); 2] = [
        |server| server.restart(Stop::Immediate),
        |server| {
            let pid = server.psql("select pid from pg_stat_activity where application_name = 'leasehold' limit 1");
            server.kill_backend(pid.parse().unwrap());
        },
    ];
    for fault in faults {
        let guard = hold_at_last(&locks, "x", TTL);
        let fence = guard.fence();
        fault(&mut server);
        until(|| guard.check().is_err());
        let next = hold_at_last(&locks, "x", TTL);
        assert!(next.fence() > fence);
        blocking::wait(next.release()).unwrap();
    }
}

#[test]
fn an_asynchronous_failover_reports_what_it_lost_and_fences_rise_on() {
    let mut primary = server_with_schema(&["fsync=off"]);
    let standby = primary.standby();
    let error = blocking::wait(Leasehold::connect(&standby.url())).unwrap_err();
    assert!(error.kind() == ErrorKind::Unavailable && error.to_string().contains("standby"), "{error}");

    let url = format!("postgres://postgres@127.0.0.1:{},127.0.0.1:{}/postgres", primary.port(), standby.port());
    let locks = connect(&url);
    let kept = hold(&locks, "kept");
    until(|| standby.psql("select count(*) from leasehold.resource where name = 'kept'") == "1");
    standby.psql("alter system set primary_conninfo = ''");
    standby.psql("select pg_reload_conf()");
    until(|| primary.psql("select count(*) from pg_stat_replication") == "0");
    let lost = hold(&locks, "lost");
    let (kept_fence, lost_fence) = (kept.fence(), lost.fence());
    primary.stop(Stop::Immediate);
    standby.promote();

    until(|| lost.check().is_err());
    assert!(hold_at_last(&locks, "lost", TTL).fence() > lost_fence);
    kept.check().unwrap();
    blocking::wait(kept.release()).unwrap();
    assert!(hold_at_last(&locks, "kept", TTL).fence() > kept_fence);
}

/// What ends with connections ends with all of them: its holder knows before the next one holds, whom it cannot ask.
fn ends_with_the_connections(ways: [String; 2], server: &mut Postgres, fault: impl FnOnce(&mut Postgres)) {
    let [one, two] = ways.map(|way| connect(&format!("{way}?liveness=connection")));
    let guard = hold(&one, "x");
    let waits = two.mutex("x").wait(Duration::from_secs(60));
    let waiter = thread::spawn(move || blocking::wait(waits.acquire()).unwrap());
    until(|| server.psql("select waiting from leasehold.resource where name = 'x'") == "1");
    fault(server);
    let next = waiter.join().unwrap();
    assert!(guard.check().is_err(), "two believe to hold");
    next.check().unwrap();
    assert!(next.fence() > guard.fence());
    blocking::wait(next.release()).unwrap();
    let ended = blocking::wait(two.history(&HistoryFilter::new(Names::All))).unwrap();
    // The waiter's place ends with its connection, too, unless it asks again before anybody notices.
    let held = ended.iter().filter(|ended| ended.fence.is_some());
    assert_eq!(held.map(|ended| ended.ending).collect::<Vec<_>>(), [Ending::Released, Ending::Disconnected]);
}

#[test]
fn a_restart_ends_what_lives_by_connections() {
    for how in [Stop::Fast, Stop::Immediate] {
        let mut server = server_with_schema(&["fsync=off"]);
        let proxy = Proxy::to(server.port());
        let ways = [format!("postgres://postgres@127.0.0.1:{}/postgres", proxy.port()), server.url()];
        ends_with_the_connections(ways, &mut server, |server| {
            proxy.refuse();
            server.restart(how);
        });
    }
}

#[test]
fn a_failover_ends_what_lives_by_connections() {
    let mut primary = server_with_schema(&["fsync=off"]);
    let standby = primary.standby();
    let proxy = Proxy::to(primary.port());
    let both = format!("postgres://postgres@127.0.0.1:{},127.0.0.1:{}/postgres", primary.port(), standby.port());
    let ways = [format!("postgres://postgres@127.0.0.1:{}/postgres", proxy.port()), both];
    ends_with_the_connections(ways, &mut primary, |primary| {
        until(|| standby.psql("select count(*) from leasehold.entry") == "1");
        primary.stop(Stop::Immediate);
        standby.promote();
    });
}

#[test]
fn through_a_transaction_pooler_ttl_works_and_the_rest_is_refused() {
    let server = server_with_schema(&["fsync=off"]);
    let pooler = server.pgbouncer();
    let (one, two) = (connect(&pooler.url()), connect(&pooler.url()));
    assert!(!one.guarantees().pushes, "nothing pushes through a pooler");
    let guard = hold(&one, "x");
    assert!(blocking::wait(two.mutex("x").try_acquire()).unwrap().is_none());
    let waiter = thread::spawn(move || blocking::wait(two.mutex("x").acquire()).unwrap());
    thread::sleep(Duration::from_millis(300));
    blocking::wait(guard.release()).unwrap();
    blocking::wait(waiter.join().unwrap().release()).unwrap();
    let findings = blocking::wait(one.examine()).unwrap();
    assert!(findings.iter().any(|finding| finding.subject == "pooler" && finding.message.contains("cannot be pushed")));

    let error = blocking::wait(Leasehold::connect(&format!("{}?liveness=connection", pooler.url()))).unwrap_err();
    assert!(error.kind() == ErrorKind::Unsupported && error.to_string().contains("pooler"), "{error}");
    let error = blocking::wait(Advisory::connect(&pooler.url())).unwrap_err();
    assert!(error.kind() == ErrorKind::Unsupported && error.to_string().contains("pooler"), "{error}");
}

#[test]
fn defaults_of_role_and_database_do_not_matter() {
    let server = server_with_schema(&["fsync=off"]);
    server.psql(
        "alter role postgres set statement_timeout = '2s'; \
         alter database postgres set default_transaction_isolation = 'repeatable read'; \
         do $$ begin if current_setting('server_version_num')::int >= 140000 then \
         alter role postgres set idle_session_timeout = '2s'; end if; end $$",
    );
    let locks = connect(&server.url());
    let guard = hold(&locks, "x");
    // The session ends a second before the next call, and a second after the last one.
    thread::sleep(Duration::from_secs(3));
    guard.check().unwrap();
    blocking::wait(guard.release()).unwrap();
    let error =
        server.try_psql("postgres", "set statement_timeout = 0; select leasehold.acquire_lock('x', 'a')").unwrap_err();
    assert!(error.contains("READ COMMITTED"), "{error}");
}

/// One call takes long, and the connection that others would get is refused: they go by the one there is.
#[test]
fn calls_for_which_there_is_no_further_connection_go_by_the_one_there_is() {
    let server = server_with_schema(&["fsync=off"]);
    // One works, one listens and renews.
    server.psql("create role app login connection limit 2; select leasehold.allow('app')");
    let locks = connect(&server.url_of("app", "postgres"));
    blocking::wait(hold(&locks, "slow").release()).unwrap();
    let mut stranger = server.client("postgres").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let lock = b"begin; select name from leasehold.resource where name = 'slow' for update;\n";
    stranger.stdin.as_mut().unwrap().write_all(lock).unwrap();
    let mut lines = BufReader::new(stranger.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "slow");

    let ask = |name: String| {
        // The library gives a request up after its ttl. A long ttl leaves it time to ask the server for another connection.
        let asked = locks.mutex(name).ttl(10 * TTL);
        thread::spawn(move || blocking::wait(asked.acquire()))
    };
    let slow = ask(String::from("slow"));
    let blocked = "select count(*) from pg_stat_activity where usename = 'app' and wait_event_type = 'Lock'";
    until(|| server.psql(blocked) == "1");
    let (began, mut others) = (SystemClock.now(), Vec::new());
    let refusals = || server.log().matches("too many connections for role \"app\"").count();
    until(|| {
        others.push(ask(format!("other:{}", others.len())));
        refusals() > 0 && others.len() >= 30
    });
    // Not for each call that waits: every try costs a server that is full a process.
    let (refused, most) = (refusals(), 2 + SystemClock.now().since(began).as_secs());
    assert!(u64::try_from(refused).unwrap() <= most, "{refused} tries for a connection, {most} at most");
    stranger.stdin.as_mut().unwrap().write_all(b"commit;\n").unwrap();
    drop(stranger.stdin.take());
    assert!(stranger.wait().unwrap().success());
    for asked in others.into_iter().chain([slow]) {
        blocking::wait(asked.join().unwrap().unwrap().release()).unwrap();
    }
}

#[test]
fn a_grant_that_was_told_while_nobody_listened_is_found_on_listening_again() {
    let server = server_with_schema(&["fsync=off"]);
    server.psql("create role app login; select leasehold.allow('app')");
    server.psql("select leasehold.acquire_lock('x', 'a', 600)");
    let locks = connect(&format!("{}?connections=1", server.url_of("app", "postgres")));
    // It asks by itself every 20 s.
    let waiting = locks.mutex("x").ttl(Duration::from_secs(60)).wait(Duration::from_secs(60));
    let seldom = thread::spawn(move || blocking::wait(waiting.acquire()).unwrap());
    let of_app = "select count(*) from pg_stat_activity where usename = 'app'";
    until(|| server.psql("select count(*) from leasehold.entry") == "1");
    assert_eq!(server.psql(of_app), "1", "one connection is enough to wait");
    let refusals = || server.log().matches("too many connections for role \"app\"").count();
    server.psql(
        "alter role app connection limit 0; \
         select pg_terminate_backend(pid) from pg_stat_activity where usename = 'app'",
    );
    until(|| refusals() > 2);
    server.psql("select leasehold.release_lock('x', 'a')");
    thread::sleep(Duration::from_secs(2));
    assert!(!seldom.is_finished(), "it heard of it although nobody listens");
    let up = SystemClock.now();
    server.psql("alter role app connection limit -1");
    let held = granted_soon(seldom, up, "the connection limit was lifted");
    blocking::wait(held.release()).unwrap();
}

/// The answer to a release names who of the same instance it granted to.
#[test]
fn a_grant_whose_telling_was_lost_with_a_connection_is_asked_for() {
    let server = server_with_schema(&["fsync=off"]);
    let (first, second) = (Proxy::to(server.port()), Proxy::to(server.port()));
    let ways = format!("127.0.0.1:{},127.0.0.1:{}", first.port(), second.port());
    let locks = connect(&format!("postgres://postgres@{ways}/postgres?connections=1"));
    blocking::wait(hold(&locks, "before").release()).unwrap();
    let ttl = Duration::from_secs(60);
    let held = blocking::wait(locks.mutex("x").ttl(ttl).acquire()).unwrap();
    // Asks by itself every 20 s.
    let waits = locks.mutex("x").ttl(ttl).wait(Duration::from_secs(60));
    let waiter = thread::spawn(move || blocking::wait(waits.acquire()).unwrap());
    until(|| server.psql("select count(*) from leasehold.entry") == "1");
    // What is connected anew goes the second way.
    first.refuse();
    first.to_client(Flow::Hold);
    let releasing = thread::spawn(move || blocking::wait(held.release()));
    until(|| server.psql("select count(*) from leasehold.entry") == "0");
    let lost = SystemClock.now();
    first.cut();
    let guard = granted_soon(waiter, lost, "the connection was lost");
    blocking::wait(guard.release()).unwrap();
    let error = releasing.join().unwrap().unwrap_err();
    assert!(error.outcome_unknown(), "{error}");
}

#[test]
fn a_server_that_is_not_there_is_named_without_its_password() {
    let error = blocking::wait(Leasehold::connect("postgres://u:s3cret@127.0.0.1:1/db")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("127.0.0.1:1/db") && !format!("{error:?}").contains("s3cret"), "{error:?}");
}

#[test]
fn a_killed_holder_in_connection_mode_is_succeeded_within_a_second() {
    let server = server_with_schema(&["fsync=off"]);
    let url = format!("{}?liveness=connection", server.url());
    let mut holder = Command::new(env::current_exe().unwrap())
        .args(["--exact", "holder_process", "--nocapture"])
        .env("LEASEHOLD_TEST_URL", &url)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(holder.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("holding")));
    let locks = connect(&url);
    let waiting = locks.clone();
    let waiter = thread::spawn(move || {
        let guard = blocking::wait(waiting.mutex("job").acquire()).unwrap();
        (SystemClock.now(), guard)
    });
    until(|| server.psql("select waiting from leasehold.resource where name = 'job'") == "1");
    let killed = SystemClock.now();
    holder.kill().unwrap();
    let (held, guard) = waiter.join().unwrap();
    holder.wait().unwrap();
    let took = held.since(killed);
    assert!(took < Duration::from_secs(1), "{took:?}");
    let filter = HistoryFilter::new(Names::Exactly(Resource::new("job").unwrap()));
    assert_eq!(blocking::wait(locks.history(&filter)).unwrap()[0].ending, Ending::Disconnected);

    // The same when the server ends the connection that leases end with.
    server.psql("select count(pg_terminate_backend(pid)) from leasehold.session");
    until(|| guard.check().is_err());
    blocking::wait(hold_at_last(&locks, "job", TTL).release()).unwrap();
}

/// The process that another test starts, with a URL, and kills; nothing without one.
#[test]
fn holder_process() {
    let Ok(url) = env::var("LEASEHOLD_TEST_URL") else { return };
    let locks = connect(&url);
    let _guard = blocking::wait(locks.mutex("job").acquire()).unwrap();
    println!("holding");
    thread::sleep(Duration::from_secs(60));
}

fn by_connection(proxy: &Proxy) -> Leasehold {
    connect(&format!("postgres://postgres@127.0.0.1:{}/postgres?liveness=connection", proxy.port()))
}

#[test]
fn belief_ends_with_the_socket_even_while_the_server_does_not_know() {
    let server = server_with_schema(&["fsync=off"]);
    let proxy = Proxy::to(server.port());
    let locks = by_connection(&proxy);
    let guards = [blocking::wait(locks.mutex("lone").acquire()).unwrap(), {
        server.psql("select leasehold.acquire_lock('queued', 'psql', 3600)");
        let waits = locks.mutex("queued");
        let waiter = thread::spawn(move || blocking::wait(waits.acquire()).unwrap());
        until(|| server.psql("select waiting from leasehold.resource where name = 'queued'") == "1");
        server.psql("select leasehold.release_lock('queued', 'psql')");
        waiter.join().unwrap()
    }];
    proxy.cut_clients();
    until(|| guards.iter().all(|guard| guard.check().is_err()));
    for name in ["lone", "queued"] {
        let others = server.psql(&format!("select leasehold.acquire_lock('{name}', 'psql')"));
        assert_eq!(others, "f", "{name} is not free before the server gives the connection up");
    }
    // A new connection is none that the old leases end with.
    thread::sleep(Duration::from_millis(500));
    assert!(guards.iter().all(|guard| guard.check().is_err()));
    drop(proxy);
    until(|| server.psql("select leasehold.acquire_lock('lone', 'psql')") == "t");
}

#[test]
fn belief_ends_before_the_server_gives_a_silent_connection_up() {
    let server = server_with_schema(&["fsync=off"]);
    let proxy = Proxy::to(server.port());
    let locks = by_connection(&proxy);
    let guard = blocking::wait(locks.mutex("job").ttl(Duration::from_secs(3600)).acquire()).unwrap();
    proxy.to_server(Flow::Swallow);
    proxy.to_client(Flow::Swallow);
    let silent = SystemClock.now();
    until(|| guard.check().is_err());
    let believed = SystemClock.now().since(silent);
    assert!(believed < Duration::from_secs(11), "it was believed for {believed:?}, as long as keepalives take");
}
