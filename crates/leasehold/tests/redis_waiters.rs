//! Who waits on a Redis server: a place that lapsed is over, whoever has not noticed yet.
#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests, too")]

mod shared;

use std::{sync::Arc, time::Duration};

use leasehold::{
    Holder, Leasehold, Resource, Ttl,
    backend::{Answer, Backend, Decision, Hint, Inspect, Operation, Patience, Performed, Request},
    backends::redis::{RedisBackend, RedisOptions},
    lease::{Claim, EndedLease, Ending, HistoryFilter, LeaseId, LeaseKey, Names, Outcome},
};
use leasehold_testkit::{Flow, Proxy, redis::Server};
use shared::{replica_of, soon};
use tokio::{runtime::Handle, task::JoinSet, time};

async fn open(server: &Server) -> Arc<RedisBackend> {
    RedisBackend::open(RedisOptions::from_url(&server.url(), "t").unwrap()).await.unwrap()
}

fn request(name: &str, patience: Patience, ttl: Duration) -> Request {
    Request::new(
        LeaseKey::new(Resource::new(name).unwrap(), LeaseId::random()),
        Claim::EXCLUSIVE,
        Holder::new(if patience == Patience::Try { "holder" } else { "waiter" }).unwrap(),
    )
    .ttl(Ttl::new(ttl).unwrap())
    .patience(patience)
}

/// A hundred locks are released around the instant at which the place of the one who waits ends. That one can be
/// reached all the time, so nothing but its end keeps it from being granted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_to_a_lapsed_waiter_is_impossible() {
    const ROUNDS: u64 = 100;
    const TTL: Duration = Duration::from_millis(400);
    let server = Server::start();
    let (holder, waiter) = (open(&server).await, open(&server).await);
    let mut hints = waiter.hints();
    let mut rounds = JoinSet::new();
    for round in 0..ROUNDS {
        let (holder, waiter) = (Arc::clone(&holder), Arc::clone(&waiter));
        rounds.spawn(async move {
            let name = format!("x{round}");
            let held = request(&name, Patience::Try, Duration::from_secs(30));
            assert!(matches!(holder.acquire(&held).await.unwrap().value, Decision::Granted(_)));
            let place = request(&name, Patience::Queue, TTL);
            assert!(matches!(waiter.acquire(&place).await.unwrap().value, Decision::Queued(_)));
            time::sleep(TTL / 2 + Duration::from_millis(4 * round)).await;
            holder.release(&held.key, &Outcome::Completed).await.unwrap();
        });
    }
    while let Some(round) = rounds.join_next().await {
        round.unwrap();
    }

    let filter = HistoryFilter::new(Names::All).limit(1000);
    let ended = async || -> Vec<EndedLease> {
        let ended = holder.history(&filter).await.unwrap().into_iter();
        ended.filter(|ended| ended.holder.as_str() == "waiter").collect()
    };
    // Those that were granted expire by themselves, and are found by a listing.
    soon(async || {
        holder.list(&leasehold::lease::ListFilter::new(Names::All)).await.unwrap();
        ended().await.len() == usize::try_from(ROUNDS).unwrap()
    })
    .await;
    let (mut granted, mut lapsed) = (0, 0);
    for ended in ended().await {
        let end = ended.asked_at.after(TTL);
        assert_eq!((ended.ending, ended.ended_at), (Ending::Expired, end), "{ended:?}");
        match ended.acquired_at {
            Some(acquired_at) => {
                assert!(acquired_at < end, "granted after its end: {ended:?}");
                granted += 1;
            }
            None => lapsed += 1,
        }
    }
    println!("{granted} were granted in time, {lapsed} had lapsed");
    assert!(granted > 0 && lapsed > 0, "both sides of the instant are seen");
    let mut told = 0;
    while let Ok(Some(Hint::Granted { .. })) = time::timeout(Duration::from_millis(100), hints.next()).await {
        told += 1;
    }
    assert_eq!(told, granted, "nobody else was told to hold");
}

/// The one who waits hears nothing for longer than its place lives, and the server does not know that it is away.
#[tokio::test]
async fn a_waiter_that_lapsed_unawares_goes_to_the_end_of_the_queue() {
    let server = Server::start();
    let proxy = Proxy::to(server.port());
    let locks = Leasehold::connect(&server.url()).await.unwrap();
    // What is sent meanwhile is answered late, not given up.
    let away = format!("redis://127.0.0.1:{}?answer_limit=10s", proxy.port());
    let away = Leasehold::connect(&away).await.unwrap();
    let entries = || server.ask(&["HLEN", "leasehold:{default}:entries:x"]).to_string();

    let first = locks.mutex("x").acquire().await.unwrap();
    let waiter = away.mutex("x").ttl(Duration::from_secs(1)).wait(Duration::from_secs(20));
    let waiter = Handle::current().spawn(async move { waiter.acquire().await });
    soon(async || entries() == "2").await;
    proxy.to_server(Flow::Hold);
    proxy.to_client(Flow::Hold);
    time::sleep(Duration::from_millis(1100)).await;
    first.release().await.unwrap();
    assert_eq!(entries(), "0", "nobody holds it, and nobody waits any more");
    let second = locks.mutex("x").try_acquire().await.unwrap().expect("it is free");

    proxy.mend();
    soon(async || entries() == "2").await;
    assert!(!waiter.is_finished(), "it asked again and waits behind the one who holds");
    second.check().unwrap();
    let fence = second.fence();
    second.release().await.unwrap();
    let waiter = time::timeout(Duration::from_secs(5), waiter).await.expect("its turn came").unwrap().unwrap();
    assert!(waiter.fence() > fence);
    waiter.release().await.unwrap();
}

/// Ten thousand waiters of a process that is gone: whoever releases, asks or waits is not held up by them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_absent_waiters_hold_nobody_up() {
    const WAITERS: usize = 10_000;
    let server = Server::start();
    let (holder, gone) = (open(&server).await, open(&server).await);
    let held = request("x", Patience::Try, Duration::from_secs(600));
    assert!(matches!(holder.acquire(&held).await.unwrap().value, Decision::Granted(_)));
    let mut waiting = JoinSet::new();
    for task in 0..50 {
        let gone = Arc::clone(&gone);
        waiting.spawn(async move {
            for _ in (task..WAITERS).step_by(50) {
                let queued = gone.acquire(&request("x", Patience::Queue, Duration::from_secs(600))).await.unwrap();
                assert!(matches!(queued.value, Decision::Queued(_)));
            }
        });
    }
    waiting.join_all().await;
    let last = request("x", Patience::Queue, Duration::from_secs(600));
    assert!(matches!(holder.acquire(&last).await.unwrap().value, Decision::Queued(_)));
    drop(gone);
    soon(async || server.clients() == 1).await;

    server.reset_calls();
    let before = server.cpu();
    let mut hints = holder.hints();
    holder.release(&held.key, &Outcome::Completed).await.unwrap();
    let granted = async { while !matches!(hints.next().await, Some(Hint::Granted { id, .. }) if id == last.key.id) {} };
    time::timeout(Duration::from_secs(10), granted).await.expect("those who are gone were passed over");
    holder.release(&last.key, &Outcome::Completed).await.unwrap();
    let again = request("x", Patience::Try, Duration::from_secs(600));
    assert!(matches!(holder.acquire(&again).await.unwrap().value, Decision::Granted(_)), "and are passed over again");
    let (calls, took) = (server.calls("evalsha") + server.calls("eval"), server.cpu().saturating_sub(before));
    println!("{calls} calls took {took:?} of the server");
    assert!(calls >= 10, "{calls} calls: each passes over some of them only");
    assert!(took < Duration::from_millis(100), "{took:?} of the server's time in {calls} calls");
}

/// A replica repeats every push to those who subscribed there: an instance that was left behind on a server that is no
/// master any more must not take a grant for its own that the master passes on to the next.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_pushed_to_a_waiter_that_is_passed_over() {
    let master = Server::start();
    let replica = replica_of(&master).await;
    let proxy = Proxy::to(master.port());
    let holder = open(&master).await;
    let url = format!("redis://127.0.0.1:{}", proxy.port());
    let absent = RedisBackend::open(RedisOptions::from_url(&url, "t").unwrap()).await.unwrap();
    let held = request("x", Patience::Try, Duration::from_secs(30));
    assert!(matches!(holder.acquire(&held).await.unwrap().value, Decision::Granted(_)));
    let place = request("x", Patience::Queue, Duration::from_secs(30));
    assert!(matches!(absent.acquire(&place).await.unwrap().value, Decision::Queued(_)));

    proxy.cut();
    soon(async || master.ask(&["PUBSUB", "CHANNELS", "*:to:*"]).parts().len() == 1).await;
    master.command(&["WAIT", "1", "5000"]);
    let pushed = replica.calls("publish");
    holder.release(&held.key, &Outcome::Completed).await.unwrap();
    let next = request("x", Patience::Try, Duration::from_secs(30));
    assert!(
        matches!(holder.acquire(&next).await.unwrap().value, Decision::Granted(_)),
        "the absent one is passed over"
    );
    master.command(&["WAIT", "1", "5000"]);
    assert_eq!(replica.calls("publish"), pushed);
}

/// Requests that differ in more than name and id are sent together too, and none gets past another.
#[tokio::test]
async fn a_batch_queues_in_the_order_of_its_requests() {
    let server = Server::start();
    let backend = open(&server).await;
    let (short, long) = (Duration::from_secs(30), Duration::from_secs(60));
    assert!(matches!(backend.acquire(&request("x", Patience::Try, long)).await.unwrap().value, Decision::Granted(_)));
    let batch = [("y", short), ("x", long), ("x", short)];
    let operations =
        batch.map(|(name, ttl)| Operation::Acquire(Arc::new(request(name, Patience::Queue, ttl)))).to_vec();
    let ahead = |answer: leasehold::Result<Answer<Performed>>| match answer.unwrap().value {
        Performed::Acquired(Decision::Queued(position)) => Some(position.ahead),
        _ => None,
    };
    let ahead: Vec<Option<u32>> = backend.perform(operations).await.into_iter().map(ahead).collect();
    assert_eq!(ahead, [None, Some(0), Some(1)]);
}

/// A search for expired entries takes several calls in a long queue. Whoever is granted between them moves from a field
/// that is still to be searched to one that was searched already, in about one queue of four.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_search_misses_no_end_of_an_entry_that_moves_meanwhile() {
    const QUEUES: usize = 16;
    const WAITERS: usize = 1650;
    let server = Server::start();
    let url = format!("{}?answer_limit=20s", server.url());
    let backend = RedisBackend::open(RedisOptions::from_url(&url, "t").unwrap()).await.unwrap();
    let claim = Claim::permits(1, 2).unwrap();
    let place = |queue: usize, ttl: u64| {
        let key = LeaseKey::new(Resource::new(format!("x{queue}")).unwrap(), LeaseId::random());
        Request::new(key, claim, Holder::new("waiter").unwrap()).ttl(Ttl::new(Duration::from_secs(ttl)).unwrap())
    };
    let (mut ending, mut next) = (Vec::new(), Vec::new());
    for queue in 0..QUEUES {
        let (lasting, ended, first) = (place(queue, 600), place(queue, 600), place(queue, 300));
        for request in [&lasting, &ended] {
            backend.acquire(request).await.unwrap();
        }
        // Those who leave at once give the first one another ticket in each queue.
        for _ in 0..queue {
            let leaving = place(queue, 600);
            backend.acquire(&leaving).await.unwrap();
            backend.release(&leaving.key, &Outcome::Cancelled).await.unwrap();
        }
        backend.acquire(&first).await.unwrap();
        ending.push(ended.key);
        next.push(first.key);
        let others = (0..WAITERS).map(|_| Operation::Acquire(Arc::new(place(queue, 600)))).collect::<Vec<_>>();
        for some in others.chunks(500) {
            backend.perform(some.to_vec()).await.into_iter().for_each(|answer| drop(answer.unwrap()));
        }
    }
    for queue in 0..QUEUES {
        backend.acquire(&place(queue, 1)).await.unwrap();
    }
    time::sleep(Duration::from_millis(1100)).await;
    let releases = ending.into_iter().map(|key| Operation::Release(key, Outcome::Completed)).collect();
    backend.perform(releases).await.into_iter().for_each(|answer| drop(answer.unwrap()));
    for (queue, key) in next.iter().enumerate() {
        let state = || server.ask(&["HGET", "leasehold:{t}:leases", &format!("x{queue}")]).to_string();
        soon(async || state().starts_with("q2 ")).await;
        let record =
            server.ask(&["HGET", &format!("leasehold:{{t}}:entries:x{queue}"), &key.id.to_string()]).to_string();
        assert!(record.len() > 100, "it holds: {record}");
        let (first_end, end) = (state()[59..75].to_owned(), record[34..50].to_owned());
        assert!(
            first_end <= end,
            "x{queue} is looked at again after {first_end}, and one of its holders ends at {end}"
        );
    }
}
