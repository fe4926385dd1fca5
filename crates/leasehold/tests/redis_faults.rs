//! A Redis server that crashes, forgets, pauses and drops its clients while several programs take turns.
#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests, too")]

mod shared;

use std::{
    future::{Future, poll_fn},
    pin::pin,
    task::Poll,
    time::Duration,
};

use leasehold::{
    Holder, Leasehold, Loss, Resource,
    backend::{Backend, Inspect, Operation, Performed, Request},
    backends::redis::{RedisBackend, RedisOptions},
    lease::{Claim, LeaseId, LeaseKey, ListFilter, Names, Outcome, Released},
};
use leasehold_testkit::{Flow, Proxy, redis::Server};
use shared::{Turns, hold_for_a_minute, soon};
use tokio::{runtime::Handle, time};

/// Runs turns, a fault in their middle, and turns after it.
async fn during(url: &str, fault: impl AsyncFnOnce()) -> Turns {
    let turns = Turns::begin(url, &["a", "b", "c"]).await;
    turns.go_on(20).await;
    fault().await;
    turns.go_on(20).await;
    turns
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_that_keeps_its_data_lets_nobody_in_twice() {
    let mut server = Server::durable();
    let url = server.url();
    let turns = during(&url, async || {
        for _ in 0..2 {
            server.kill();
            time::sleep(Duration::from_millis(300)).await;
            server.launch();
            time::sleep(Duration::from_millis(300)).await;
        }
    })
    .await;
    turns.end().await.assert_exclusive();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_that_forgets_is_told_at_once_and_fences_rise_on() {
    let mut server = Server::start();
    let (locks, guard) = hold_for_a_minute(&server.url()).await;
    let fence = guard.fence();
    let turns = during(&server.url(), async || {
        server.kill();
        server.launch();
    })
    .await;
    let loss = time::timeout(Duration::from_secs(5), guard.lost()).await;
    assert_eq!(loss.expect("the renewal after the reconnect tells"), Loss::Gone);
    let next = locks.mutex("long").acquire().await.unwrap();
    assert!(next.fence() > fence, "{} after {fence}", next.fence());
    turns.end().await.assert_fences_rise();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forgetting_everything_is_told_by_the_next_renewal_and_fences_rise_on() {
    let server = Server::start();
    let locks = Leasehold::connect(&server.url()).await.unwrap();
    let guard = locks.mutex("long").ttl(Duration::from_secs(3)).acquire().await.unwrap();
    let turns = during(&server.url(), async || {
        server.ask(&["FLUSHALL"]);
    })
    .await;
    assert_eq!(time::timeout(Duration::from_secs(3), guard.lost()).await.expect("it was told"), Loss::Gone);
    turns.end().await.assert_fences_rise();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_clients_come_back_and_lose_nothing() {
    let server = Server::start();
    let locks = Leasehold::connect(&server.url()).await.unwrap();
    let guard = locks.mutex("long").acquire().await.unwrap();
    let turns = during(&server.url(), async || {
        for _ in 0..5 {
            server.ask(&["CLIENT", "KILL", "TYPE", "normal"]);
            server.ask(&["CLIENT", "KILL", "TYPE", "pubsub"]);
            time::sleep(Duration::from_millis(100)).await;
        }
    })
    .await;
    turns.end().await.assert_exclusive();
    guard.check().expect("it was renewed after each reconnect");
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_or_a_forgotten_script_lets_nobody_in_twice() {
    let server = Server::start();
    let turns = during(&server.url(), async || {
        server.ask(&["SCRIPT", "FLUSH"]);
        server.ask(&["CLIENT", "PAUSE", "800", "ALL"]);
        time::sleep(Duration::from_millis(1200)).await;
        server.ask(&["SCRIPT", "FLUSH"]);
        // Longer than the leases live.
        server.signal("STOP");
        time::sleep(Duration::from_millis(2500)).await;
        server.signal("CONT");
    })
    .await;
    turns.end().await.assert_exclusive();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_network_that_swallows_holds_up_or_cuts_lets_nobody_in_twice() {
    let server = Server::start();
    let proxy = Proxy::to(server.port());
    let url = format!("redis://127.0.0.1:{}?answer_limit=500ms", proxy.port());
    let direct = Turns::begin(&server.url(), &["a", "b", "c"]).await;
    let through = Turns::join(&direct, &url).await;
    through.go_on(10).await;
    for (up, down) in [
        (Flow::Swallow, Flow::Pass),
        (Flow::Pass, Flow::Swallow),
        (Flow::Hold, Flow::Pass),
        (Flow::Pass, Flow::Hold),
        (Flow::Swallow, Flow::Swallow),
    ] {
        proxy.to_server(up);
        proxy.to_client(down);
        time::sleep(Duration::from_millis(900)).await;
        proxy.mend();
        through.go_on(5).await;
    }
    proxy.cut();
    time::sleep(Duration::from_millis(500)).await;
    proxy.mend();
    through.go_on(5).await;
    through.end().await.assert_exclusive();
    direct.end().await.assert_exclusive();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_cannot_be_reached_is_passed_over_and_keeps_its_place() {
    let server = Server::start();
    let proxy = Proxy::to(server.port());
    let holder = Leasehold::connect(&server.url()).await.unwrap();
    let (first, second) = (
        Leasehold::connect(&format!("redis://127.0.0.1:{}", proxy.port())).await.unwrap(),
        Leasehold::connect(&server.url()).await.unwrap(),
    );
    let guard = holder.mutex("x").acquire().await.unwrap();
    let lock = |locks: &Leasehold| locks.mutex("x").ttl(Duration::from_secs(20)).wait(Duration::from_secs(15));
    let (one, two) = (lock(&first), lock(&second));
    let one = Handle::current().spawn(async move { one.acquire().await });
    soon(async || server.calls("evalsha") + server.calls("eval") >= 2).await;
    time::sleep(Duration::from_millis(100)).await;
    let two = Handle::current().spawn(async move { two.acquire().await });
    soon(async || server.calls("evalsha") + server.calls("eval") >= 3).await;
    time::sleep(Duration::from_millis(100)).await;
    proxy.cut();
    soon(async || server.clients() == 2).await;
    guard.release().await.unwrap();
    let two = time::timeout(Duration::from_secs(2), two).await.expect("the first was passed over").unwrap().unwrap();
    proxy.mend();
    time::sleep(Duration::from_millis(1200)).await;
    let passed_to = two.fence();
    two.release().await.unwrap();
    let one = time::timeout(Duration::from_secs(5), one).await.expect("it kept its place").unwrap().unwrap();
    assert!(one.fence() > passed_to, "under a higher fence");
    one.release().await.unwrap();
}

/// A caller that leaves may miss the answer: that it did not see one does not mean that none came.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_was_dropped_ends_a_connection_only_if_the_server_is_silent() {
    let server = Server::start();
    let proxy = Proxy::to(server.port());
    let locks = Leasehold::connect(&format!("redis://127.0.0.1:{}", proxy.port())).await.unwrap();
    let drop_a_call = async || {
        let filter = ListFilter::new(Names::All);
        let mut list = pin!(locks.backend().list(&filter));
        let first_poll = poll_fn(|context| Poll::Ready(list.as_mut().poll(context).is_pending()));
        assert!(first_poll.await, "it was answered before it could be dropped");
    };
    let connections = || {
        let clients = server.ask(&["CLIENT", "LIST"]).to_string();
        let ours = clients.lines().filter(|line| line.contains("addr=") && !line.contains("cmd=client"));
        ours.filter_map(|line| line.split(' ').next()).map(str::to_owned).collect::<Vec<String>>()
    };
    let first = connections();
    assert!(!first.is_empty());

    server.reset_calls();
    drop_a_call().await;
    soon(async || server.calls("ping") > 0).await;
    time::sleep(Duration::from_millis(500)).await;
    assert_eq!(connections(), first, "a server that answers keeps its clients");

    proxy.forget();
    drop_a_call().await;
    soon(async || connections().iter().any(|one| !first.contains(one))).await;
}

/// Which names need the full script changes while a renewal is on its way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_renewal_gets_its_own_answer_whichever_script_decides() {
    let server = Server::start();
    let proxy = Proxy::to(server.port());
    let locks = Leasehold::connect(&format!("redis://127.0.0.1:{}", proxy.port())).await.unwrap();
    // The first renewals are due after a third of it.
    let ttl = Duration::from_secs(3);
    let held = locks.mutex("held").ttl(ttl).acquire().await.unwrap();
    let forgotten = locks.mutex("forgotten").ttl(ttl).acquire().await.unwrap();
    server.command(&["HDEL", "leasehold:{default}:leases", "forgotten"]);
    let set = async |to_server, to_client| {
        proxy.to_server(to_server);
        proxy.to_client(to_client);
        time::sleep(Duration::from_millis(200)).await;
    };
    // Only the full script decides whether few enough wait: the fast one sends this request there.
    set(Flow::Pass, Flow::Hold).await;
    let request = locks.mutex("held").max_waiters(1).ttl(ttl);
    let request = Handle::current().spawn(async move { request.acquire().await });
    set(Flow::Pass, Flow::Hold).await;
    set(Flow::Hold, Flow::Pass).await;
    set(Flow::Pass, Flow::Hold).await;
    // Both renewals are sent, to one script each, before the full script's answer comes: the fast one can do it again.
    set(Flow::Hold, Flow::Hold).await;
    set(Flow::Hold, Flow::Hold).await;
    set(Flow::Hold, Flow::Pass).await;
    set(Flow::Pass, Flow::Pass).await;
    assert_eq!(forgotten.lost().await, Loss::Gone);
    held.check().expect("nobody took it away");
    held.release().await.unwrap();
    request.await.unwrap().unwrap().release().await.unwrap();
}

/// A holder and this many who wait, in the order of their requests.
async fn queue(backend: &RedisBackend, name: &str, waiters: usize) -> Vec<LeaseKey> {
    let mut keys = Vec::new();
    for _ in 0..=waiters {
        let key = LeaseKey::new(Resource::new(name).unwrap(), LeaseId::random());
        let request = Request::new(key.clone(), Claim::EXCLUSIVE, Holder::new("holder").unwrap());
        backend.acquire(&request).await.unwrap();
        keys.push(key);
    }
    keys
}

async fn entries(backend: &RedisBackend, name: &str) -> usize {
    let only = ListFilter::new(Names::Exactly(Resource::new(name).unwrap()));
    backend.list(&only).await.unwrap().leases.len()
}

#[tokio::test]
async fn a_foreign_key_in_the_place_of_a_queue_costs_only_its_name() {
    let server = Server::start();
    let backend = RedisBackend::open(RedisOptions::from_url(&server.url(), "t").unwrap()).await.unwrap();
    let (sound, spoiled) = (queue(&backend, "sound", 4).await, queue(&backend, "spoiled", 1).await);
    server.command(&["SET", "leasehold:{t}:entries:spoiled", "something else"]);
    // The full script handles those who leave the queue early. Two calls go at once, what is left in one call.
    let ended = [&sound[1], &sound[2], &sound[3], &spoiled[0]];
    let operations = ended.map(|key| Operation::Release(key.clone(), Outcome::Completed)).to_vec();
    let mut answers = backend.perform(operations).await;
    let error = answers.pop().unwrap().unwrap_err().to_string();
    assert!(error.contains("entries:spoiled"), "{error}");
    for answer in answers {
        let released = answer.unwrap().value;
        assert!(matches!(released, Performed::Released(Released::LeftQueue)), "{released:?}");
    }
    assert_eq!(entries(&backend, "sound").await, 2, "the holder and one who waits");
    assert_eq!(server.ask(&["GET", "leasehold:{t}:entries:spoiled"]).to_string(), "something else");
}

#[tokio::test]
async fn a_queue_that_lost_its_tickets_does_not_keep_the_server_busy() {
    let server = Server::start();
    let backend = RedisBackend::open(RedisOptions::from_url(&server.url(), "t").unwrap()).await.unwrap();
    let keys = queue(&backend, "x", 2).await;
    server.command(&["HDEL", "leasehold:{t}:entries:x", "1", "2"]);
    assert_eq!(backend.release(&keys[1], &Outcome::Completed).await.unwrap().value, Released::Gone);
    assert_eq!(entries(&backend, "x").await, 1, "the holder");
}
