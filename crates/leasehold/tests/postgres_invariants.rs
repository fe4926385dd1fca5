//! Many callers do everything at once to a few names, by every function; what is stored stays consistent at every instant.
#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod postgres_schema;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use leasehold::clock::{Clock, SystemClock};
use leasehold_testkit::postgres::Postgres;
use postgres_schema::server_with_schema;
use tokio::{runtime::Handle, task::JoinSet};
use tokio_postgres::{Client, NoTls};

/// `step` does one thing, chosen by its numbers; `faults` says in one snapshot what cannot be.
const BY_HAND: &str = r#"
create schema by_hand;
create function by_hand.ask(p_name text, p_label text, p_mode "char", p_ttl float, p_try boolean, p_session int)
returns "char" language sql volatile as $$
  select verdict from leasehold.acquire_many('default', null, p_session, 'a', array[p_name], array[md5(p_label)::uuid], array[p_mode],
    array[case p_mode when 'x' then 2147483647 else 1 end], array[2147483647], array[(p_ttl * 1000000)::bigint], array[case when p_try then -1 end],
    array[p_session is not null], array[p_label], array[null]::text[], array['{}'::jsonb], array[null]::bigint[])
$$;
create function by_hand.step(o int, p_name text, l int) returns void language plpgsql volatile as $$
declare
  id uuid := md5('l' || l)::uuid;
  f bigint;
begin
  -- Names that SQL callers have mostly to themselves. Some exclusive requests of the library wait there.
  if o < 29 or o in (31, 35, 37) or o in (50, 51, 80, 90, 94, 98) then
    p_name := 's' || l % 2;
  end if;
  if o < 12 then
    perform leasehold.acquire_lock(p_name, 'h' || l % 4, case when o % 4 = 0 then 0.02 else 5 end);
  elsif o < 24 then
    perform leasehold.release_lock(p_name, 'h' || l % 4);
  elsif o < 26 then
    perform leasehold.extend_lock(p_name, 'h' || l % 4, 4);
  elsif o < 50 then
    perform by_hand.ask(p_name, 'l' || l, (case when l % 3 = 0 then 'x' else 's' end)::"char", case when o % 4 = 0 then 0.02 else 5 end, o % 2 = 0,
      case when o % 3 = 0 then (select s.id from leasehold.session s order by random() limit 1) end);
  elsif o < 75 then
    perform leasehold.release_many('default', null, 'a', array[p_name], array[id], array['released'], array[null]::text[], array[null]::text[]);
  elsif o < 88 then
    perform leasehold.renew_each('default', null, null, '{}', 'a', array[p_name], array[id], array[3000000]::bigint[], array[null]::bigint[],
      array[case when o = 80 then 's' end]::"char"[], array[case when o = 80 then 1 end], array[case when o = 80 then 2147483647 end],
      array[case when o % 5 = 0 then '{"k": 1}' end]::jsonb[]);
  elsif o < 92 then
    select e.fence into f from leasehold.entry e where e.name = p_name and e.fence is not null limit 1;
    perform leasehold.evict_fence('default', null, 'a', p_name, coalesce(f, 7), 'x');
  elsif o < 97 then
    select h.fence into f from (select r.fence from leasehold.resource r where r.name = p_name and r.id is not null and o < 95
      union all select e.fence from leasehold.entry e where e.name = p_name and e.fence is not null limit 1) h;
    begin
      perform leasehold.guard(p_name, coalesce(f, 7), 'default');
    exception when sqlstate 'LH004' then null;
    end;
  elsif o = 97 then
    perform leasehold.maintain();
  else
    perform leasehold.renew_many('default', null, '{}', array[p_name], array[id], array[2000000]::bigint[]);
  end if;
end $$;
create view by_hand.faults as
  with held as (
    select r.name, r.units, r.capacity, r.fence, r.id from leasehold.resource r where r.id is not null
    union all select e.name, e.units, e.capacity, e.fence, e.id from leasehold.entry e where e.fence is not null
  ), sums as (
    select h.name, sum(h.units::bigint) as units, max(h.capacity) as capacity, count(*) as n, count(distinct h.fence) as fences,
      count(distinct h.id) as ids from held h group by h.name
  )
  select 'held beyond capacity, or twice: ' || s as fault from sums s where s.units > s.capacity or s.fences <> s.n or s.ids <> s.n
  union all
  select 'a fence above the newest: ' || r from leasehold.resource r where r.reader_base is null
    and greatest(r.last_fence, r.fence) < (select max(x.fence) from (
      select e.fence from leasehold.entry e where e.namespace = r.namespace and e.name = r.name
      union all select h.fence from leasehold.ended h where h.namespace = r.namespace and h.name = r.name) x)
  union all
  select 'not plain: ' || r from leasehold.resource r where r.last_fence is null and r.namespace <> ''
    and (r.has_entries or r.waiting > 0 or r.reader_base is not null or r.session is not null or r.mode <> 'x'
      or num_nonnulls(r.ttl_us, r.asked_at, r.renewed_at, r.note) > 0)
  union all
  select 'miscounted: ' || r || ' entries ' || x from leasehold.resource r, lateral (
    select count(*) filter (where e.fence is null) as waiting, coalesce(sum(e.units::bigint) filter (where e.fence is not null), 0) as used,
      count(*) as n, min(e.expires_at) as first from leasehold.entry e where e.namespace = r.namespace and e.name = r.name) x
  where r.waiting <> x.waiting or (x.n > 0 and not r.has_entries)
    or (r.reader_base is null and (r.used <> x.used or (x.n > 0 and x.first < r.next_end)));
"#;

const CALLERS: u32 = 6;

async fn client(server: &Postgres) -> Client {
    let (client, connection) = tokio_postgres::connect(&server.url(), NoTls).await.unwrap();
    Handle::current().spawn(connection);
    client
}

/// What a caller of the library would ask again after: overtaken, or a row that is locked.
fn is_passing(error: &tokio_postgres::Error) -> bool {
    error.code().is_some_and(|code| ["LH002", "55P03"].contains(&code.code()))
}

/// `LEASEHOLD_SECONDS=60` for a longer look.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_stored_is_consistent_whatever_many_callers_do_at_once() {
    let server = Arc::new(server_with_schema(&["fsync=off"]));
    server.psql(BY_HAND);
    let seconds = std::env::var("LEASEHOLD_SECONDS").map_or(4, |seconds| seconds.parse().unwrap());
    let end = SystemClock.now().after(Duration::from_secs(seconds));
    let over = Arc::new(AtomicBool::new(false));
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS {
        let (client, over) = (client(&server).await, Arc::clone(&over));
        callers.spawn(async move {
            let mut steps = 0_u32;
            while !over.load(Ordering::SeqCst) {
                let random =
                    "select by_hand.step((1 + random() * 99)::int, 'n' || (random() * 2)::int, (random() * 13)::int)";
                match client.execute(random, &[]).await {
                    Err(error) if !is_passing(&error) => panic!("{:?}", error.as_db_error()),
                    _ => steps += 1,
                }
            }
            steps
        });
    }
    // Connections that leases end with come and go.
    let (dying, gone) = (Arc::clone(&server), Arc::clone(&over));
    let deaths = Handle::current().spawn(async move {
        while !gone.load(Ordering::SeqCst) {
            let one = client(&dying).await;
            one.execute("select leasehold.open_session('x')", &[]).await.unwrap();
            one.execute("select pg_sleep(random() / 2)", &[]).await.unwrap();
        }
    });
    let looker = client(&server).await;
    let faults = async || looker.query("select fault from by_hand.faults", &[]).await.unwrap();
    let mut looks = 0;
    while SystemClock.now() < end {
        let found: Vec<String> = faults().await.iter().map(|row| row.get(0)).collect();
        assert!(found.is_empty(), "{found:?}");
        looks += 1;
    }
    over.store(true, Ordering::SeqCst);
    let steps: u32 = callers.join_all().await.iter().sum();
    deaths.await.unwrap();
    println!("{steps} steps, {looks} looks");
    let endings = server.psql("select count(distinct ending) from leasehold.ended");
    assert!(steps > 200 && endings.parse::<u32>().unwrap() >= 4, "{steps} steps, {endings} kinds of endings");
    // The look does see what is wrong.
    server.psql("update leasehold.resource set waiting = waiting + 1 where name = 'n1'");
    assert_eq!(faults().await.len(), 1);
}
