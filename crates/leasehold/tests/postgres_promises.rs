//! What the tables and functions promise to do, and not to do, looked at in a real server.
#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod postgres_schema;
mod shared;

use std::{fmt::Write, time::Duration};

use leasehold::{
    Leasehold, blocking,
    clock::{Clock, SystemClock},
};
use leasehold_testkit::{
    postgres::{Postgres, Stop},
    until,
};
use postgres_schema::{many_by_hand, server_with_schema};
use shared::hold_at_last;

const TTL: Duration = Duration::from_secs(6);

/// Short ways to call what the library calls, with an id per label.
const BY_HAND: &str = r#"
create schema by_hand;
create function by_hand.ask(p_name text, p_label text, p_mode "char" default 'x', p_ttl float default 600) returns "char"
language sql volatile as $$
  select verdict from leasehold.acquire_one('default', null, null, 'a', p_name, md5(p_label)::uuid, p_mode,
    case p_mode when 'x' then 2147483647 else 1 end, 2147483647, (p_ttl * 1000000)::bigint, null, false, p_label, null, '{}', null)
$$;
create function by_hand.give(p_name text, p_label text) returns "char" language sql volatile as $$
  select verdict from leasehold.release_one('default', null, 'a', p_name, md5(p_label)::uuid, 'released', null, null)
$$;
create function by_hand.renew(p_name text, p_label text) returns bigint language sql volatile as $$
  select count(*) from leasehold.renew_many('default', null, '{}', array[p_name], array[md5(p_label)::uuid], array[600000000]::bigint[])
$$;
create function by_hand.lapse(p_name text) returns boolean language sql volatile as $$
  update leasehold.resource set expires_at = acquired_at + interval '1 us' where name = p_name returning true
$$;
"#;

fn prepared(settings: &[&str]) -> Postgres {
    let server = server_with_schema(settings);
    server.psql(BY_HAND);
    server.psql(&many_by_hand("default"));
    server
}

/// What a call says, and how the transaction that made it commits.
fn commits(server: &Postgres, call: &str) -> String {
    let said = server.psql(&format!("begin; select {call}; select current_setting('synchronous_commit'); commit"));
    said.replace('\n', " ")
}

#[test]
fn a_grant_commits_durably_and_what_promises_nothing_need_not() {
    let server = prepared(&["fsync=off"]);
    let steps = [
        ("ask('x', 'a')", "g on", "a name that was not there"),
        ("ask('x', 'b')", "q off", "a place"),
        ("give('x', 'a')", "f on", "a hand-off"),
        ("give('x', 'b')", "f off", "a release to nobody"),
        ("ask('x', 'a')", "g on", "a free name"),
        ("ask('x', 'b')", "q off", "a place"),
        ("give('x', 'b')", "l off", "a place given up"),
        ("give('x', 'b')", "n off", "what is gone"),
        // Whoever leaves the queue may make room for the one behind.
        ("ask('r', 'a', 's')", "g on", "a reader"),
        ("ask('r', 'b', 's')", "g on", "a reader beside it"),
        ("ask('r', 'c', 's')", "g on", "a reader among readers"),
        ("ask('r', 'w')", "q off", "a writer behind readers"),
        ("ask('r', 'd', 's')", "q off", "a reader behind a writer"),
        ("give('r', 'a')", "f off", "a reader that leaves others behind"),
        ("give('r', 'w')", "l on", "a place given up before one that is then granted"),
        ("give('r', 'd')", "f off", "a reader"),
        // Whoever comes may find that another's lease is over, and grant to the one before.
        ("ask('e', 'a')", "g on", "a lease"),
        ("ask('e', 'b')", "q off", "a place behind it"),
        ("lapse('e')", "t on", "it ends"),
        ("ask('e', 'c')", "q on", "a place behind one that is granted by this"),
        ("ask_all(array['m1', 'm2'], 'a')", "gg on", "grants"),
        ("ask_all(array['m1', 'm2'], 'b')", "qq off", "places"),
        ("ask_all(array['m1', 'm3'], 'c')", "qg on", "a place and a grant"),
        ("give_all(array['m1', 'm3'], 'c')", "lf off", "to nobody"),
        ("ask_all(array['m0'], 'a')", "g on", "a grant"),
        ("give_all(array['m0', 'm1'], 'a')", "ff on", "to nobody and a hand-off"),
        ("give_all(array['m1'], 'b')", "f off", "to nobody"),
    ];
    for (call, expected, what) in steps {
        assert_eq!(commits(&server, &format!("by_hand.{call}")), expected, "{what}: {call}");
    }
    let fence = server.psql("select fence from leasehold.resource where name = 'x' and id is not null");
    assert_eq!(commits(&server, "by_hand.ask('x', 'b')"), "q off");
    let evict = format!("(leasehold.evict_fence('default', null, 'a', 'x', {fence}, 'test')).verdict");
    assert_eq!(commits(&server, &evict), "e on", "an eviction that hands on");
}

#[test]
fn readers_leave_the_row_that_they_share_as_it_is() {
    let server = prepared(&["fsync=off"]);
    server.psql("select by_hand.ask('x', 'one', 's'); select by_hand.ask('x', 'two', 's')");
    let mut script = String::new();
    for at in 0..200 {
        // Not even a lock is written to it.
        let look = "select ctid, xmin, xmax from leasehold.resource where name = 'x';";
        writeln!(script, "select by_hand.ask('x', 'r{at}', 's'); {look} select by_hand.give('x', 'r{at}'); {look}")
            .unwrap();
    }
    let started = SystemClock.now();
    let seen = server.psql(&script);
    let took = SystemClock.now().since(started);
    let lines: Vec<&str> = seen.lines().collect();
    assert!(
        lines.iter().step_by(4).all(|said| *said == "g") && lines.iter().skip(2).step_by(4).all(|said| *said == "f")
    );
    let rows: Vec<&&str> = lines.iter().skip(1).step_by(2).collect();
    assert_eq!(rows.len(), 400);
    let changes = rows.windows(2).filter(|two| two[0] != two[1]).count();
    // Fences keep up with the clock: a reader that comes 100 ms after that was done does it again.
    let allowed = 2 + 2 * usize::try_from(took.as_millis() / 100).unwrap();
    assert!(changes <= allowed && allowed < 200, "{changes} changes in {took:?}");
}

/// A server has locks for some thousands, whoever takes them.
#[test]
fn many_holders_who_ran_out_are_dropped_by_a_few_locks() {
    let server = prepared(&["fsync=off"]);
    server.psql("select count(by_hand.ask('many', 'r' || n, 's', 1)) from generate_series(1, 200) n");
    until(|| server.psql("select bool_and(expires_at < clock_timestamp()) from leasehold.entry") == "t");
    let told = server.psql(
        "begin; select by_hand.ask('many', 'writer');\n\
         select count(*) < 20 from pg_locks where locktype = 'advisory' and pid = pg_backend_pid(); commit;\n\
         select count(*) from leasehold.ended where ending = 'expired'",
    );
    assert_eq!(told, "g\nt\n200");
}

#[test]
fn updates_stay_on_their_page() {
    // A vacuum that looks at what was keeps the room of old versions.
    let server = prepared(&["fsync=off", "autovacuum=off"]);
    let mut script = String::from("select by_hand.ask('r', 'a', 's'); select by_hand.ask('r', 'b', 's');\n");
    for _ in 0..100 {
        for name in ["x", "y", "z"] {
            writeln!(
                script,
                "select by_hand.ask('{name}', 'a'); select by_hand.renew('{name}', 'a'); select by_hand.give('{name}', 'a');"
            )
            .unwrap();
        }
        writeln!(script, "select by_hand.renew('r', 'b');").unwrap();
    }
    let said = server.psql(&script);
    assert_eq!(said.lines().filter(|line| ["g", "f", "1"].contains(line)).count(), 2 + 100 * (3 * 3 + 1), "{said}");
    let updates = |table: &str| -> [u32; 2] {
        let counted = server.psql(&format!(
            "select n_tup_upd || ' ' || n_tup_hot_upd from pg_stat_user_tables where schemaname = 'leasehold' and relname = '{table}'"
        ));
        let (all, hot) = counted.split_once(' ').unwrap();
        [all, hot].map(|number| number.parse().unwrap())
    };
    for (table, least) in [("resource", 890), ("entry", 100)] {
        until(|| updates(table)[0] >= least);
        let [all, hot] = updates(table);
        assert!(hot * 100 >= all * 98, "{table}: {hot} of {all} updates stayed on their page");
    }
}

#[test]
fn a_crash_with_asynchronous_commits_is_told_by_the_next_renewal_and_fences_rise() {
    // Written to disk as late as can be, so that a crash loses what was just said.
    let mut server = prepared(&["fsync=off", "wal_writer_delay=10s"]);
    let url = format!("{}?durability=async", server.url());
    let locks = blocking::wait(Leasehold::connect(&url)).unwrap();
    let (mut lost, mut kept) = (0, 0);
    for round in 0..12 {
        if lost > 0 && kept > 0 {
            break;
        }
        // A release may be lost as well: the next who asks for that name waits until the lease runs out.
        let name = format!("x{round}");
        let guard = hold_at_last(&locks, &name, TTL);
        let fence = guard.fence();
        if round % 2 == 1 {
            // Any commit that must be durable makes those before it so.
            server.psql("create table durable (); drop table durable");
        }
        server.stop(Stop::Immediate);
        server.run();
        let up = SystemClock.now();
        let stored = format!(
            "select count(*) from leasehold.resource where name = '{name}' and id is not null and fence = {fence}"
        );
        if server.psql(&stored) == "1" {
            kept += 1;
            // Held by what was said after the crash.
            let promised = SystemClock.now().after(guard.remaining().unwrap());
            until(|| guard.remaining().is_some_and(|left| SystemClock.now().after(left) > promised.after(TTL / 10)));
            guard.check().unwrap();
            blocking::wait(guard.release()).unwrap();
        } else {
            lost += 1;
            until(|| guard.check().is_err());
            let took = SystemClock.now().since(up);
            assert!(took < TTL / 3 + Duration::from_secs(1), "the loss was told after {took:?}");
        }
        let next = hold_at_last(&locks, &name, TTL);
        assert!(next.fence() > fence, "{} after {fence}", next.fence());
        blocking::wait(next.release()).unwrap();
    }
    assert!(lost > 0 && kept > 0, "{lost} lost, {kept} kept: only one of both was seen");
}
