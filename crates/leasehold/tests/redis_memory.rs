//! What a Redis server remembers: when its memory is full, when it began, what another version wrote, what is left behind.
#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests, too")]

mod shared;

use std::{sync::Arc, time::Duration};

use leasehold::{
    ErrorKind, Holder, Leasehold, Resource, Ttl,
    backend::{Backend, Decision, Inspect, Patience, Renewal, Request, RunTable, Severity},
    backends::redis::{RedisBackend, RedisOptions},
    lease::{
        Claim, Ending, Evicted, Fence, HistoryFilter, LeaseId, LeaseKey, ListFilter, Names, Outcome, Released,
        RunReport, Standing,
    },
};
use leasehold_testkit::redis::Server;
use shared::{replica_of, soon};
use tokio::{runtime::Handle, time};

const LEASES: &str = "leasehold:{t}:leases";

async fn open(server: &Server) -> Arc<RedisBackend> {
    RedisBackend::open(RedisOptions::from_url(&server.url(), "t").unwrap()).await.unwrap()
}

async fn start() -> (Server, Arc<RedisBackend>) {
    let server = Server::start();
    let backend = open(&server).await;
    (server, backend)
}

fn request(name: &str, claim: Claim, ttl: Duration) -> Request {
    let key = LeaseKey::new(Resource::new(name).unwrap(), LeaseId::random());
    Request::new(key, claim, Holder::new("holder").unwrap()).ttl(Ttl::new(ttl).unwrap())
}

/// Leaves the server with far more than it may have.
fn fill(server: &Server) {
    server.command(&["SET", "ballast", &"x".repeat(4 << 20)]);
    server.command(&["CONFIG", "SET", "maxmemory", "2mb"]);
}

#[tokio::test]
async fn on_a_full_server_renewals_releases_and_evictions_go_through() {
    let server = Server::with(&["--save", "", "--maxmemory-policy", "noeviction"]);
    let backend = open(&server).await;
    let long = Duration::from_secs(60);
    let mut held = Vec::new();
    for name in ["renewed", "released", "evicted", "handed-on"] {
        let request = request(name, Claim::EXCLUSIVE, long);
        let Decision::Granted(grant) = backend.acquire(&request).await.unwrap().value else { panic!("it is free") };
        held.push((request, grant));
    }
    let readers = [request("read", Claim::SHARED, long), request("read", Claim::SHARED, long)];
    for reader in &readers {
        assert!(matches!(backend.acquire(reader).await.unwrap().value, Decision::Granted(_)));
    }
    let waiter = request("handed-on", Claim::EXCLUSIVE, long);
    assert!(matches!(backend.acquire(&waiter).await.unwrap().value, Decision::Queued(_)));
    fill(&server);

    let renewal = |request: &Request| Renewal::new(request.key.clone(), Ttl::new(long * 2).unwrap());
    let renewals = [renewal(&held[0].0), renewal(&readers[0]), renewal(&waiter)];
    let standings = backend.renew(&renewals).await.unwrap().value;
    assert!(
        matches!(standings[..], [Standing::Holding(_), Standing::Holding(_), Standing::Waiting(_)]),
        "{standings:?}"
    );
    let released = |request: &Request| {
        let (backend, key) = (Arc::clone(&backend), request.key.clone());
        async move { backend.release(&key, &Outcome::Completed).await.unwrap().value }
    };
    assert_eq!(released(&held[1].0).await, Released::Freed);
    assert_eq!(released(&readers[1]).await, Released::Freed);
    assert_eq!(released(&held[3].0).await, Released::Freed);
    assert!(matches!(backend.renew(&renewals[2..]).await.unwrap().value[..], [Standing::Holding(_)]), "handed on");
    let (evictable, grant) = &held[2];
    let evicted = backend.evict(&evictable.key.resource, grant.fence, "stuck").await.unwrap();
    assert!(matches!(evicted, Evicted::Evicted { .. }), "{evicted:?}");

    // New ones are refused, with the reason, whether the name is free or has a queue.
    for name in ["new", "read"] {
        let error = backend.acquire(&request(name, Claim::SHARED, long)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("maxmemory"), "{error}");
    }
    let findings = backend.examine().await.unwrap();
    let memory = findings.iter().find(|finding| finding.subject == "memory").unwrap();
    assert_eq!(memory.severity, Severity::Failure, "{}", memory.message);
    server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    assert!(matches!(
        backend.acquire(&request("new", Claim::EXCLUSIVE, long)).await.unwrap().value,
        Decision::Granted(_)
    ));
}

#[tokio::test]
async fn a_question_that_changes_nothing_writes_nothing() {
    let server = Server::with(&["--save", "", "--maxmemory-policy", "noeviction"]);
    let backend = open(&server).await;
    let long = Duration::from_secs(60);
    assert!(matches!(
        backend.acquire(&request("x", Claim::EXCLUSIVE, long)).await.unwrap().value,
        Decision::Granted(_)
    ));
    let waiter = request("x", Claim::EXCLUSIVE, long);
    assert!(matches!(backend.acquire(&waiter).await.unwrap().value, Decision::Queued(_)));
    let attempt = request("x", Claim::EXCLUSIVE, long).patience(Patience::Try);
    let changes = || {
        let info = server.ask(&["INFO", "persistence"]).to_string();
        info.lines().find(|line| line.starts_with("rdb_changes_since_last_save:")).map(str::to_owned).unwrap()
    };
    let before = changes();
    assert!(matches!(backend.acquire(&attempt).await.unwrap().value, Decision::Busy(_)));
    assert_eq!(backend.release(&attempt.key, &Outcome::Completed).await.unwrap().value, Released::Gone);
    assert_eq!(changes(), before);

    fill(&server);
    let busy = backend.acquire(&attempt).await;
    assert!(matches!(busy.as_ref().map(|answer| &answer.value), Ok(Decision::Busy(_))), "{busy:?}");
    assert_eq!(backend.release(&attempt.key, &Outcome::Completed).await.unwrap().value, Released::Gone);
}

#[tokio::test]
async fn a_store_of_another_format_is_refused_with_what_to_do() {
    let server = Server::start();
    let refused = async || {
        let error = RedisBackend::open(RedisOptions::from_url(&server.url(), "t").unwrap()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        error.to_string()
    };
    server.command(&["SET", "leasehold:{t}:fence", "1763270000000000"]);
    server.command(&["ZADD", "leasehold:{t}:index", "0", "x"]);
    let error = refused().await;
    assert!(error.contains("format 1,") && error.contains("namespace"), "{error}");

    server.command(&["FLUSHALL"]);
    server.command(&["HSET", LEASES, "\tmemory", &format!("2 {} 1763270000000000", "a".repeat(40))]);
    let error = refused().await;
    assert!(error.contains("format 2,") && error.contains("namespace"), "{error}");

    server.command(&["HSET", "app:{t}:leases", "\tmemory", &format!("2 {} 1763270000000000", "a".repeat(40))]);
    let url = format!("{}?prefix=app:", server.url());
    let error = RedisBackend::open(RedisOptions::from_url(&url, "t").unwrap()).await.unwrap_err().to_string();
    assert!(error.contains("--pattern 'app:{t}:*'"), "only what nobody else uses is deleted: {error}");

    server.command(&["HSET", LEASES, "\tmemory", "4 something that only version 4 can read"]);
    let error = refused().await;
    assert!(error.contains("upgrade"), "{error}");
}

#[tokio::test]
async fn a_record_of_a_newer_format_costs_only_itself() {
    let (server, backend) = start().await;
    let mut renewals = Vec::new();
    for at in 0..10 {
        let request = request(&format!("x{at}"), Claim::EXCLUSIVE, Duration::from_secs(60));
        backend.acquire(&request).await.unwrap();
        renewals.push(Renewal::new(request.key, request.ttl));
    }
    server.command(&["HSET", LEASES, "x3", "2 as a later version writes it"]);
    server.command(&["HSET", LEASES, "x5", "q7 as a later version writes it"]);
    let standings = backend.renew(&renewals).await.unwrap().value;
    for (at, standing) in standings.iter().enumerate() {
        match at {
            3 | 5 => assert_eq!(*standing, Standing::Unknown, "x{at}"),
            _ => assert!(matches!(standing, Standing::Holding(_)), "x{at}: {standing:?}"),
        }
    }
    let error = backend.acquire(&request("x3", Claim::EXCLUSIVE, Duration::from_secs(60))).await.unwrap_err();
    assert!(error.to_string().contains("upgrade"), "{error}");
    assert_eq!(backend.list(&ListFilter::new(Names::All)).await.unwrap().leases.len(), 8);
}

/// The age of the memory that a call finds.
async fn age_seen(backend: &RedisBackend) -> Duration {
    // The connection may be on its way back.
    for _ in 0..200 {
        let asked = backend.acquire(&request("seen", Claim::SHARED, Duration::from_secs(60))).await;
        match (asked, backend.age()) {
            (Ok(_), Some(age)) => return age,
            _ => time::sleep(Duration::from_millis(50)).await,
        }
    }
    panic!("it has no age");
}

#[tokio::test]
async fn a_memory_begins_with_a_flush_a_restart_or_a_promotion() {
    let mut server = Server::with(&["--save", "", "--appendonly", "yes", "--appendfsync", "always"]);
    let (backend, other) = (open(&server).await, open(&server).await);
    let lasted = Duration::from_millis(1500);
    time::sleep(lasted).await;
    assert!(age_seen(&backend).await >= lasted);
    let first = backend.acquire(&request("seen", Claim::SHARED, Duration::from_secs(60))).await.unwrap().incarnation;

    server.ask(&["FLUSHALL"]);
    let flushed = backend.acquire(&request("seen", Claim::SHARED, Duration::from_secs(60))).await.unwrap();
    assert!(backend.age().unwrap() < lasted, "{:?}", backend.age());
    assert_ne!(flushed.incarnation, first);
    // Those who come later learn it, too.
    assert!(age_seen(&other).await < lasted && open(&server).await.age().unwrap() < lasted);

    // Everything is there after the restart, and yet it may be old.
    time::sleep(lasted).await;
    server.kill();
    server.launch();
    assert!(age_seen(&backend).await < lasted, "{:?}", backend.age());
    assert!(age_seen(&other).await < lasted);

    time::sleep(lasted).await;
    let replica = replica_of(&server).await;
    soon(async || replica.ask(&["EXISTS", LEASES]).to_string() == "1").await;
    replica.command(&["REPLICAOF", "NO", "ONE"]);
    assert!(open(&replica).await.age().unwrap() < lasted, "another server has taken the place");
}

#[tokio::test]
async fn a_memory_begins_when_a_queue_was_evicted() {
    let (server, backend) = start().await;
    let long = Duration::from_secs(60);
    for _ in 0..2 {
        assert!(matches!(
            backend.acquire(&request("q", Claim::SHARED, long)).await.unwrap().value,
            Decision::Granted(_)
        ));
    }
    let lasted = Duration::from_millis(1200);
    time::sleep(lasted).await;
    server.command(&["DEL", "leasehold:{t}:entries:q"]);
    let next = backend.acquire(&request("q", Claim::EXCLUSIVE, long)).await.unwrap().value;
    assert!(matches!(next, Decision::Granted(_)), "{next:?}");
    assert!(age_seen(&backend).await < lasted, "{:?}", backend.age());
}

#[tokio::test]
async fn a_holder_outlives_the_eviction_of_its_queue() {
    let (server, backend) = start().await;
    let long = Duration::from_secs(60);
    let held = request("q", Claim::EXCLUSIVE, long);
    let before = backend.acquire(&held).await.unwrap();
    assert!(matches!(before.value, Decision::Granted(_)), "{before:?}");
    let waiter = request("q", Claim::EXCLUSIVE, long);
    assert!(matches!(backend.acquire(&waiter).await.unwrap().value, Decision::Queued(_)));
    server.command(&["DEL", "leasehold:{t}:entries:q"]);
    let asked = backend.acquire(&request("q", Claim::EXCLUSIVE, long).patience(Patience::Try)).await.unwrap();
    assert!(matches!(asked.value, Decision::Busy(_)), "the holder is still known: {asked:?}");
    assert_ne!(asked.incarnation, before.incarnation, "what was lost is told by the call that finds out");
    let renewals = [&held, &waiter].map(|request| Renewal::new(request.key.clone(), request.ttl));
    let standings = backend.renew(&renewals).await.unwrap().value;
    assert!(matches!(standings[..], [Standing::Holding(_), Standing::Gone]), "{standings:?}");

    // Those who held together are lost, and whoever is granted next learns of it at once.
    let mut before = None;
    for _ in 0..2 {
        before = Some(backend.acquire(&request("s", Claim::SHARED, long)).await.unwrap().incarnation);
    }
    server.command(&["DEL", "leasehold:{t}:entries:s"]);
    let next = backend.acquire(&request("s", Claim::EXCLUSIVE, long)).await.unwrap();
    assert!(matches!(next.value, Decision::Granted(_)), "{next:?}");
    assert_ne!(Some(next.incarnation), before);
}

#[tokio::test]
async fn without_info_the_age_is_unknown() {
    let server = Server::start();
    let user = ["ACL", "SETUSER", "locks", "on", ">hunter2", "~leasehold:*", "&leasehold:*", "+@all", "-info"];
    server.command(&user);
    let url = format!("redis://locks:hunter2@127.0.0.1:{}", server.port());
    let backend = RedisBackend::open(RedisOptions::from_url(&url, "t").unwrap()).await.unwrap();
    backend.acquire(&request("x", Claim::EXCLUSIVE, Duration::from_secs(60))).await.unwrap();
    assert_eq!(backend.age(), None);
    let findings = backend.examine().await.unwrap();
    let settings = findings.iter().find(|finding| finding.subject == "settings").unwrap();
    assert!(settings.message.contains("+info"), "{}", settings.message);
}

#[tokio::test]
async fn names_that_nobody_asks_about_again_leave_nothing_behind() {
    let (server, backend) = start().await;
    let short = Duration::from_millis(100);
    for at in 0..500 {
        backend.acquire(&request(&format!("job:{at}"), Claim::EXCLUSIVE, short)).await.unwrap();
    }
    // Two readers and a waiter: a queue that nobody asks about either.
    for claim in [Claim::SHARED, Claim::SHARED, Claim::EXCLUSIVE] {
        backend.acquire(&request("queue", claim, short)).await.unwrap();
    }
    time::sleep(short).await;
    let mut at = 0;
    let left =
        || server.ask(&["HKEYS", LEASES]).parts().iter().filter(|name| !name.to_string().starts_with('\t')).count();
    for _ in 0..600 {
        at += 1;
        let next = request(&format!("other:{at}"), Claim::EXCLUSIVE, short);
        backend.acquire(&next).await.unwrap();
        backend.release(&next.key, &Outcome::Completed).await.unwrap();
        if left() == 0 {
            break;
        }
        time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(left(), 0);
    assert_eq!(server.ask(&["KEYS", "*:entries:*"]).parts().len(), 0);
    let ended = backend.history(&HistoryFilter::new(Names::All).limit(2000)).await.unwrap();
    assert_eq!(ended.iter().filter(|ended| ended.ending == Ending::Expired).count(), 503, "each is recorded once");
}

#[tokio::test]
async fn fences_rise_above_that_of_a_lease_that_a_sweep_ended() {
    let (server, backend) = start().await;
    let short = Duration::from_millis(100);
    let granted = async |request: &Request| match backend.acquire(request).await.unwrap().value {
        Decision::Granted(grant) => grant.fence,
        other => panic!("it is free: {other:?}"),
    };
    let before = granted(&request("before", Claim::EXCLUSIVE, short)).await;
    // Seconds ahead of the clock, which alone would make fences rise.
    let ahead = Fence::new(before.get() + 8_000_000);
    let swept = granted(&request("x", Claim::EXCLUSIVE, short).fence_floor(ahead)).await;
    assert_eq!(swept, ahead);
    time::sleep(short).await;
    server.command(&["HDEL", LEASES, "\tsweep"]);
    granted(&request("to sweep", Claim::EXCLUSIVE, short)).await;
    soon(async || server.ask(&["HEXISTS", LEASES, "x"]).to_string() == "0").await;
    assert!(granted(&request("x", Claim::EXCLUSIVE, short)).await > swept);
}

#[tokio::test]
async fn history_counts_leases_and_costs_nothing_when_it_is_off() {
    let server = Server::start();
    let locks = Leasehold::connect(&format!("{}?history=off", server.url())).await.unwrap();
    locks.mutex("warm").acquire().await.unwrap().release().await.unwrap();
    server.reset_calls();
    for at in 0..20 {
        locks.mutex(format!("x{at}")).acquire().await.unwrap().release().await.unwrap();
    }
    assert_eq!(server.calls("xadd"), 0);
    let inside: u64 = ["time", "hmget", "hset", "hdel"].iter().map(|call| server.calls(call)).sum();
    assert_eq!(inside - 4 * server.calls("hscan"), 140, "3 to acquire and 4 to release");
}

#[tokio::test]
async fn a_watcher_adds_one_call_to_an_acquire_and_one_to_a_release() {
    let server = Server::start();
    let (locks, watcher) =
        (Leasehold::connect(&server.url()).await.unwrap(), Leasehold::connect(&server.url()).await.unwrap());
    let _events = watcher.watch(Names::All).await.unwrap();
    locks.mutex("warm").acquire().await.unwrap().release().await.unwrap();
    server.reset_calls();
    for at in 0..20 {
        locks.mutex(format!("x{at}")).acquire().await.unwrap().release().await.unwrap();
    }
    assert_eq!(server.calls("publish"), 40);
    let inside: u64 = ["time", "hmget", "hset", "hdel", "xadd"].iter().map(|call| server.calls(call)).sum();
    assert!(inside < 8 * 20 + 20, "{inside} calls for 20 pairs");
}

#[tokio::test]
async fn a_reader_among_readers_costs_few_calls() {
    let (server, backend) = start().await;
    let reader = || request("x", Claim::SHARED, Duration::from_secs(60));
    for _ in 0..2 {
        backend.acquire(&reader()).await.unwrap();
    }
    server.reset_calls();
    for _ in 0..10 {
        let next = reader();
        assert!(matches!(backend.acquire(&next).await.unwrap().value, Decision::Granted(_)));
        assert_eq!(backend.release(&next.key, &Outcome::Completed).await.unwrap().value, Released::Freed);
    }
    let calls = ["time", "hmget", "hget", "hset", "hdel", "xadd", "exists", "zadd", "zrem", "zrange"];
    let calls: u64 = calls.iter().chain(&["zrangebyscore", "zscore", "zcount"]).map(|call| server.calls(call)).sum();
    println!("{} calls for each pair", calls / 10);
    assert!(calls / 10 <= 26, "{} calls for each pair", calls / 10);
}

#[tokio::test]
async fn events_stay_in_their_database() {
    let server = Server::start();
    let (zero, one) = (
        Leasehold::connect(&format!("{}/0", server.url())).await.unwrap(),
        Leasehold::connect(&format!("{}/1", server.url())).await.unwrap(),
    );
    let mut events = zero.watch(Names::All).await.unwrap();
    let other = one.watch(Names::All).await.unwrap();
    one.mutex("elsewhere").acquire().await.unwrap().release().await.unwrap();
    zero.mutex("here").acquire().await.unwrap().release().await.unwrap();
    let first = std::future::poll_fn(|context| events.as_mut().poll_next(context));
    let first = time::timeout(Duration::from_secs(5), first).await.unwrap().unwrap().unwrap();
    assert_eq!(first.resource.as_str(), "here");
    drop(other);
}

#[tokio::test]
async fn keys_begin_with_the_prefix_and_a_client_may_be_handed_in() {
    let server = Server::start();
    let locks = Leasehold::connect(&format!("{}?prefix=app:locks:", server.url())).await.unwrap();
    let guard = locks.mutex("x").acquire().await.unwrap();
    let waiting = locks.mutex("x");
    let waiting = Handle::current().spawn(async move { waiting.acquire().await });
    soon(async || server.ask(&["KEYS", "*:entries:x"]).parts().len() == 1).await;
    for key in server.ask(&["KEYS", "*"]).parts() {
        assert!(key.to_string().starts_with("app:locks:{default}:"), "{key}");
    }
    guard.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();

    let client = redis::Client::open(format!("{}/3", server.url())).unwrap();
    let options = RedisOptions::from_connection_info(client.get_connection_info().clone(), "t").unwrap();
    let backend = RedisBackend::open(options).await.unwrap();
    let asked = request("x", Claim::EXCLUSIVE, Duration::from_secs(60)).patience(Patience::Try);
    assert!(matches!(backend.acquire(&asked).await.unwrap().value, Decision::Granted(_)));
    let mut command = redis::cmd("HEXISTS");
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let there: bool = command.arg(LEASES).arg("x").query_async(&mut connection).await.unwrap();
    assert!(there, "in the database of that client");
}

#[tokio::test]
async fn a_unix_socket_is_a_server_too() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("redis.sock");
    let _server = Server::with(&["--save", "", "--unixsocket", &socket.display().to_string()]);
    for scheme in ["redis+unix", "unix", "valkey+unix"] {
        let locks = Leasehold::connect(&format!("{scheme}://{}", socket.display())).await.unwrap();
        locks.mutex("x").acquire().await.unwrap().release().await.unwrap();
    }
}

#[tokio::test]
async fn old_records_of_runs_make_room_for_new_ones() {
    let (server, backend) = start().await;
    let report = async |names: std::ops::Range<usize>| {
        let name = |at| Resource::new(format!("job:{at}")).unwrap();
        let reports: Vec<RunReport> = names.map(|at| RunReport::succeeded(name(at))).collect();
        backend.record_runs(&reports).await.unwrap();
    };
    report(0..RunTable::MAX_NAMES).await;
    let age =
        "for _, name in ipairs(redis.call('ZRANGE', KEYS[1], 0, 149)) do redis.call('ZADD', KEYS[1], 1, name) end";
    server.command(&["EVAL", age, "1", "leasehold:{t}:reported"]);
    report(RunTable::MAX_NAMES..RunTable::MAX_NAMES + 150).await;
    let kept = backend.runs(&Names::All).await.unwrap().len();
    assert_eq!(kept, RunTable::MAX_NAMES, "150 were too old, and no other had to go");
}
