//! Puts the schema on servers of tests.
#![allow(dead_code, unreachable_pub, reason = "each test uses its part of it")]

use std::{sync::Arc, thread, time::Duration};

use leasehold::{
    Guard, Result,
    backends::postgres::{Installed, PostgresOptions, install},
    clock::{Clock, SystemClock},
    lease::Moment,
};
use leasehold_testkit::postgres::Postgres;
use tokio::runtime::Builder;

/// The options of a URL, for the default namespace.
pub fn options(url: &str) -> PostgresOptions {
    PostgresOptions::from_url(url, "default", Arc::new(SystemClock), Duration::from_secs(10)).unwrap()
}

/// Installs the schema of a URL, on a thread of its own: the caller may be a task.
pub fn install_schema(url: &str, expose: Option<&str>) -> Result<Installed> {
    let install = || {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(install(options(url), expose))
    };
    thread::scope(|scope| scope.spawn(install).join().unwrap())
}

/// What a thread waits for, which it has soon after this moment, and long before it asks again by itself.
pub fn granted_soon(waiter: thread::JoinHandle<Guard>, from: Moment, event: &str) -> Guard {
    let guard = waiter.join().unwrap();
    let took = SystemClock.now().since(from);
    assert!(took < Duration::from_secs(10), "{event}: held after {took:?}");
    guard
}

/// A server of this test's own, with these settings and the schema.
pub fn server_with_schema(settings: &[&str]) -> Postgres {
    let server = Postgres::start_with(settings);
    install_schema(&server.url(), None).unwrap();
    server
}

/// SQL for `by_hand.ask_all` and `by_hand.give_all`, short ways to acquire and release several mutexes of this namespace
/// with an id per label and name.
pub fn many_by_hand(namespace: &str) -> String {
    r#"
create or replace function by_hand.ask_all(p_names text[], p_label text) returns text language sql volatile as $$
  select string_agg(verdict::text, '' order by at) from leasehold.acquire_many('NAMESPACE', null, null, 'a', p_names,
    array(select md5(p_label || n)::uuid from unnest(p_names) n), array(select 'x'::"char" from unnest(p_names)),
    array(select 2147483647 from unnest(p_names)), array(select 2147483647 from unnest(p_names)),
    array(select 600000000::bigint from unnest(p_names)), array(select null::int from unnest(p_names)),
    array(select false from unnest(p_names)), array(select p_label from unnest(p_names)),
    array(select null::text from unnest(p_names)), array(select '{}'::jsonb from unnest(p_names)),
    array(select null::bigint from unnest(p_names)))
$$;
create or replace function by_hand.give_all(p_names text[], p_label text, p_history "char" default 'a', p_ending text default 'released')
returns text language sql volatile as $$
  select string_agg(verdict::text, '' order by at) from leasehold.release_many('NAMESPACE', null, p_history, p_names,
    array(select md5(p_label || n)::uuid from unnest(p_names) n), array(select p_ending from unnest(p_names)),
    array(select null::text from unnest(p_names)), array(select null::text from unnest(p_names)))
$$;
"#
    .replace("NAMESPACE", namespace)
}
