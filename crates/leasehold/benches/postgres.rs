//! Locks on one Postgres server beside SQL written by hand, in interleaved rounds; medians of the ratios are told.
//!
//! `cargo bench -p leasehold --features postgres --bench postgres [pairs] [tries] [handoff] [renewals] [size]`, all
//! but `size` by default. `size` takes as many minutes as `LEASEHOLD_MINUTES` says, 10 if it says nothing. Starts a
//! private server. Numbers of one machine mean little: look at the ratios of the same run.

#![allow(clippy::unwrap_used, clippy::cast_precision_loss, reason = "a measurement fails by panicking")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use leasehold::{
    Holder, Leasehold, Resource, Ttl,
    backend::{Backend, Decision, Patience, Renewal, Request},
    backends::postgres::{PostgresBackend, PostgresOptions, install},
    clock::{Clock, SystemClock},
    lease::{Claim, LeaseId, LeaseKey, Standing},
};
use leasehold_testkit::postgres::Postgres;
use tokio::{runtime::Handle, task::JoinSet};
use tokio_postgres::{Client, NoTls};

const ROUND: Duration = Duration::from_secs(2);
const ROUNDS: usize = 9;

/// What one would write by hand: an upsert that takes the row when it is free or expired.
const BY_HAND: &str = "
create schema hand;
create table hand.lock (name text primary key, fence bigint not null, holder text, expires_at timestamptz not null,
  waiters int not null default 0, meta jsonb) with (fillfactor = 50);
create function hand.take(n text, h text, ttl interval, m jsonb default null,
  out granted boolean, out f bigint, out until timestamptz, out who text)
language plpgsql as $$
declare
  now timestamptz := clock_timestamp();
begin
  insert into hand.lock as l (name, fence, holder, expires_at, meta) values (n, 1, h, now + ttl, m)
  on conflict (name) do update set fence = l.fence + 1, holder = excluded.holder, expires_at = clock_timestamp() + ttl,
    meta = excluded.meta
    where l.expires_at <= clock_timestamp() and l.waiters = 0
  returning true, l.fence, l.expires_at, l.holder into granted, f, until, who;
  if not found then
    select false, l.fence, l.expires_at, l.holder into granted, f, until, who from hand.lock l where l.name = n;
  end if;
end $$;
create function hand.give(n text, h text) returns boolean language plpgsql as $$
begin
  update hand.lock l set holder = null, expires_at = '-infinity' where l.name = n and l.holder = h;
  return found;
end $$;
create function hand.give_loud(n text, h text) returns boolean language plpgsql as $$
begin
  update hand.lock l set holder = null, expires_at = '-infinity' where l.name = n and l.holder = h;
  if found then
    perform pg_notify('hand', n);
    return true;
  end if;
  return false;
end $$;
";

#[tokio::main(worker_threads = 2)]
async fn main() {
    let chosen: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let wanted = |name: &str| chosen.iter().any(|word| word == name) || (chosen.is_empty() && name != "size");
    if wanted("pairs") {
        pairs_on_distinct_names().await;
    }
    if wanted("tries") {
        failed_tries_on_a_hot_name().await;
    }
    if wanted("handoff") {
        hand_off_among_32().await;
    }
    if wanted("renewals") {
        a_hundred_thousand_leases_are_renewed().await;
    }
    if wanted("size") {
        tables_stay_small_under_hot_use().await;
    }
}

fn options(url: &str) -> PostgresOptions {
    PostgresOptions::from_url(url, "default", Arc::new(SystemClock), Duration::from_secs(10)).unwrap()
}

async fn server() -> Postgres {
    let server = Postgres::start_with(&["fsync=on", "shared_buffers=256MB"]);
    install(options(&server.url()), None).await.unwrap();
    server.psql(BY_HAND);
    server
}

async fn client(server: &Postgres) -> (Client, tokio::sync::mpsc::UnboundedReceiver<()>) {
    let (client, mut connection) = tokio_postgres::connect(&server.url(), NoTls).await.unwrap();
    let (sender, receiver) = tokio::sync::mpsc::unbounded_channel();
    Handle::current().spawn(async move {
        while let Some(Ok(message)) = std::future::poll_fn(|cx| connection.poll_message(cx)).await {
            if let tokio_postgres::AsyncMessage::Notification(_) = message {
                let _gone = sender.send(());
            }
        }
    });
    (client, receiver)
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// What one round gave.
#[derive(Clone, Copy)]
struct Round {
    per_second: f64,
    /// Time of the processors for each, in microseconds: the server's and this process's.
    server: f64,
    client: f64,
}

/// These, done by many tasks for one round.
async fn rate<F: Future<Output = usize> + Send + 'static>(
    server: &Postgres,
    tasks: usize,
    task: impl Fn(usize, Arc<AtomicBool>) -> F,
) -> Round {
    let over = Arc::new(AtomicBool::new(false));
    let mut set = JoinSet::new();
    let (server_before, client_before) = (cpu_of_server(server), cpu_of("self"));
    let started = SystemClock.now();
    for number in 0..tasks {
        set.spawn(task(number, Arc::clone(&over)));
    }
    tokio::time::sleep(ROUND).await;
    over.store(true, Ordering::SeqCst);
    let done = set.join_all().await.into_iter().sum::<usize>() as f64;
    let took = SystemClock.now().since(started).as_secs_f64();
    Round {
        per_second: done / took,
        server: (cpu_of_server(server) - server_before) / done,
        client: (cpu_of("self") - client_before) / done,
    }
}

/// Microseconds that a process has worked.
fn cpu_of(pid: &str) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    // Hundredths of a second: user and system.
    fields.iter().skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() * 1e4
}

/// The same of all processes that work for the server now.
fn cpu_of_server(server: &Postgres) -> f64 {
    server.psql("select string_agg(pid::text, ' ') from pg_stat_activity").split_whitespace().map(cpu_of).sum()
}

/// Medians of two things that were measured in turn, and of their ratio.
fn compare(title: &str, theirs: &[Round], ours: &[Round]) {
    let of = |rounds: &[Round], figure: fn(&Round) -> f64| median(rounds.iter().map(figure).collect());
    let ratios: Vec<f64> = ours.iter().zip(theirs).map(|(ours, theirs)| ours.per_second / theirs.per_second).collect();
    println!("{title}: ratio {:.2} ({ratios:.2?})", median(ratios.clone()));
    for (whose, rounds) in [("by hand", theirs), ("ours", ours)] {
        println!(
            "  {whose:>8} {:>6.0}/s, {:>4.0} us of the server and {:>4.0} us of the client each",
            of(rounds, |round| round.per_second),
            of(rounds, |round| round.server),
            of(rounds, |round| round.client)
        );
    }
}

async fn hand_pairs(server: &Postgres, clients: &[Arc<Client>]) -> Round {
    let clients = clients.to_vec();
    rate(server, clients.len(), move |number, over| {
        let client = Arc::clone(&clients[number]);
        async move {
            let take = client.prepare("select * from hand.take($1, $2, '30 s')").await.unwrap();
            let give = client.prepare("select hand.give($1, $2)").await.unwrap();
            let mut done = 0;
            while !over.load(Ordering::Relaxed) {
                let (name, holder) = (format!("job:{number}:{}", done % 50), "me");
                client.query_one(&take, &[&name, &holder]).await.unwrap();
                client.query_one(&give, &[&name, &holder]).await.unwrap();
                done += 1;
            }
            done
        }
    })
    .await
}

async fn our_pairs(server: &Postgres, locks: &Leasehold, tasks: usize) -> Round {
    let locks = locks.clone();
    rate(server, tasks, move |number, over| {
        let locks = locks.clone();
        async move {
            let mut done = 0;
            while !over.load(Ordering::Relaxed) {
                let guard = locks.mutex(format!("job:{number}:{}", done % 50)).acquire().await.unwrap();
                guard.release().await.unwrap();
                done += 1;
            }
            done
        }
    })
    .await
}

async fn pairs_on_distinct_names() {
    let server = server().await;
    for (connections, tasks) in [(1, 1), (8, 8), (8, 64)] {
        let mut clients = Vec::new();
        for _ in 0..connections {
            clients.push(Arc::new(client(&server).await.0));
        }
        let locks = Leasehold::connect(&format!("{}?connections={connections}", server.url())).await.unwrap();
        let (mut hand, mut ours) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            hand.push(hand_pairs(&server, &clients).await);
            ours.push(our_pairs(&server, &locks, tasks).await);
        }
        compare(&format!("pairs, {connections} connections, {tasks} tasks"), &hand, &ours);
        locks.close().await.unwrap();
    }
}

async fn failed_tries_on_a_hot_name() {
    let server = server().await;
    let locks = Leasehold::connect(&format!("{}?connections=8", server.url())).await.unwrap();
    let other = Leasehold::connect(&server.url()).await.unwrap();
    let _guard = other.mutex("hot").acquire().await.unwrap();
    let mut clients = Vec::new();
    for _ in 0..8 {
        clients.push(Arc::new(client(&server).await.0));
    }
    clients[0].execute("select hand.take('hot', 'holder', '1 hour')", &[]).await.unwrap();
    let (mut hand, mut ours, mut sql) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        for (figures, text) in [
            (&mut hand, "select granted from hand.take('hot', 'me', '30 s')"),
            (&mut sql, "select leasehold.acquire_lock('hot', 'me', 30)"),
        ] {
            let clients = clients.clone();
            figures.push(
                rate(&server, 8, move |number, over| {
                    let client = Arc::clone(&clients[number]);
                    async move {
                        let take = client.prepare(text).await.unwrap();
                        let mut done = 0;
                        while !over.load(Ordering::Relaxed) {
                            assert!(!client.query_one(&take, &[]).await.unwrap().get::<_, bool>(0));
                            done += 1;
                        }
                        done
                    }
                })
                .await,
            );
        }
        let locks = locks.clone();
        ours.push(
            rate(&server, 8, move |_, over| {
                let locks = locks.clone();
                async move {
                    let mut done = 0;
                    while !over.load(Ordering::Relaxed) {
                        assert!(locks.mutex("hot").try_acquire().await.unwrap().is_none());
                        done += 1;
                    }
                    done
                }
            })
            .await,
        );
    }
    compare("failed tries by the library, 8 connections", &hand, &ours);
    compare("failed tries by acquire_lock, 8 connections", &hand, &sql);
}

async fn hand_off_among_32() {
    let server = server().await;
    // One for acquires and releases, one to renew, one to listen, one for places in queues.
    let locks = Leasehold::connect(&format!("{}?connections=1", server.url())).await.unwrap();
    let mut clients = Vec::new();
    for _ in 0..32 {
        let (client, notices) = client(&server).await;
        client.batch_execute("listen hand").await.unwrap();
        clients.push((Arc::new(client), Arc::new(tokio::sync::Mutex::new(notices))));
    }
    let (mut loud, mut ours, mut spreads) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..3 {
        let waiting = clients.clone();
        loud.push(
            rate(&server, 32, move |number, over| {
                let (client, notices) = waiting[number].clone();
                async move {
                    let mut notices = notices.lock().await;
                    let take = client.prepare("select granted from hand.take('hot', $1, '30 s')").await.unwrap();
                    let give = client.prepare("select hand.give_loud('hot', $1)").await.unwrap();
                    let me = format!("worker-{number}");
                    let mut done = 0;
                    while !over.load(Ordering::Relaxed) {
                        while notices.try_recv().is_ok() {}
                        if client.query_one(&take, &[&me]).await.unwrap().get(0) {
                            client.query_one(&give, &[&me]).await.unwrap();
                            done += 1;
                        } else {
                            let _either = tokio::time::timeout(Duration::from_millis(200), notices.recv()).await;
                        }
                    }
                    done
                }
            })
            .await,
        );
        let counts: Arc<Vec<AtomicUsize>> = Arc::new((0..32).map(|_| AtomicUsize::new(0)).collect());
        let (locks, counted) = (locks.clone(), Arc::clone(&counts));
        ours.push(
            rate(&server, 32, move |number, over| {
                let (locks, counted) = (locks.clone(), Arc::clone(&counted));
                async move {
                    let mut done = 0;
                    while !over.load(Ordering::Relaxed) {
                        let guard = locks.mutex("hot").wait(Duration::from_secs(60)).acquire().await.unwrap();
                        guard.release().await.unwrap();
                        done += 1;
                        counted[number].store(done, Ordering::Relaxed);
                    }
                    done
                }
            })
            .await,
        );
        let counts: Vec<usize> = counts.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        spreads.push(*counts.iter().max().unwrap() as f64 / *counts.iter().min().unwrap() as f64);
    }
    let others =
        "select count(*) - 32 from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid()";
    compare(&format!("hand-off among 32, over {} connections and 32", server.psql(others)), &loud, &ours);
    println!("  the luckiest waiter had its turn so many times as often as the unluckiest: {spreads:.2?}");
}

async fn a_hundred_thousand_leases_are_renewed() {
    let server = server().await;
    let backend = Arc::new(PostgresBackend::open(options(&server.url())).await.unwrap());
    let keys: Vec<LeaseKey> = (0..100_000)
        .map(|at| LeaseKey::new(Resource::new(format!("lease:{at}")).unwrap(), LeaseId::random()))
        .collect();
    let mut asking = JoinSet::new();
    for some in keys.chunks(100_000 / 64) {
        let (backend, some) = (Arc::clone(&backend), some.to_vec());
        asking.spawn(async move {
            for key in some {
                let request = Request::new(key, Claim::EXCLUSIVE, Holder::new("bench").unwrap())
                    .ttl(Ttl::new(Duration::from_secs(3600)).unwrap())
                    .patience(Patience::Try);
                assert!(matches!(backend.acquire(&request).await.unwrap().value, Decision::Granted(_)));
            }
        });
    }
    asking.join_all().await;
    let batch = backend.guarantees().renew_batch;
    let mut took = Vec::new();
    for _ in 0..ROUNDS {
        let started = SystemClock.now();
        let mut renewing = JoinSet::new();
        for chunk in keys.chunks(batch) {
            let (backend, chunk) = (Arc::clone(&backend), chunk.to_vec());
            renewing.spawn(async move {
                let ttl = Ttl::new(Duration::from_secs(3600)).unwrap();
                let renewals: Vec<Renewal> = chunk.into_iter().map(|key| Renewal::new(key, ttl)).collect();
                let standings = backend.renew(&renewals).await.unwrap().value;
                assert!(standings.iter().all(|standing| matches!(standing, Standing::Holding(_))));
            });
        }
        renewing.join_all().await;
        took.push(SystemClock.now().since(started).as_secs_f64());
    }
    println!("100,000 renewals: median {:.2} s ({took:.2?})", median(took.clone()));
    println!("hot updates: {}", server.psql("select round(100.0 * n_tup_hot_upd / n_tup_upd, 1) || ' %' from pg_stat_user_tables where relname = 'resource' and schemaname = 'leasehold'"));
}

async fn tables_stay_small_under_hot_use() {
    let minutes: u64 = std::env::var("LEASEHOLD_MINUTES").ok().and_then(|text| text.parse().ok()).unwrap_or(10);
    let server = Postgres::start_with(&["fsync=off"]);
    install(options(&server.url()), None).await.unwrap();
    let locks = Leasehold::connect(&format!("{}?history=problems&connections=2", server.url())).await.unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let mut tasks = JoinSet::new();
    for task in 0..16 {
        let (locks, over) = (locks.clone(), Arc::clone(&over));
        tasks.spawn(async move {
            while !over.load(Ordering::Relaxed) {
                match task % 4 {
                    0 => locks
                        .mutex("hot")
                        .wait(Duration::from_secs(60))
                        .acquire()
                        .await
                        .unwrap()
                        .release()
                        .await
                        .map(drop)
                        .unwrap(),
                    1 => locks.read("config").acquire().await.unwrap().release().await.map(drop).unwrap(),
                    2 => locks.semaphore("api", 3).acquire().await.unwrap().release().await.map(drop).unwrap(),
                    _ => locks.mutex(format!("job:{task}")).acquire().await.unwrap().release().await.map(drop).unwrap(),
                }
            }
        });
    }
    let sizes = "select string_agg(format('%s %s+%s (%s dead, %s vacuums)', relname, pg_relation_size(relid) / 1024, \
                 pg_indexes_size(relid) / 1024, n_dead_tup, autovacuum_count), ', ' order by relname) \
                 from pg_stat_user_tables where schemaname = 'leasehold' and relname in ('resource', 'entry', 'ended')";
    for step in 0..minutes * 4 {
        tokio::time::sleep(Duration::from_secs(15)).await;
        println!("after {:>3} s, kB of table and indexes: {}", (step + 1) * 15, server.psql(sizes));
    }
    over.store(true, Ordering::SeqCst);
    tasks.join_all().await;
}
