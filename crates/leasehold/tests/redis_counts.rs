//! What a Redis server is asked: counted in commands that clients send.
#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests, too")]

use std::time::Duration;

use leasehold::Leasehold;
use leasehold_testkit::redis::Server;
use tokio::{
    sync::{Mutex, MutexGuard},
    task::JoinSet,
    time,
};

/// One at a time: all leases of a process are kept on one thread, and these tests measure it.
static ALONE: Mutex<()> = Mutex::const_new(());

async fn connect(server: &Server) -> Leasehold {
    Leasehold::builder().wait(Duration::from_secs(60)).connect(&server.url()).await.unwrap()
}

/// The scripts are known to the server from here on.
async fn warm_up(locks: &Leasehold) {
    locks.mutex("warm").acquire().await.unwrap().release().await.unwrap();
}

/// A server that no other test disturbs, and two instances on it.
async fn alone_with_two() -> (MutexGuard<'static, ()>, Server, Leasehold, Leasehold) {
    let alone = ALONE.lock().await;
    let server = Server::start();
    let (one, two) = (connect(&server).await, connect(&server).await);
    (alone, server, one, two)
}

#[tokio::test]
async fn an_uncontended_lock_is_two_commands() {
    let _alone = ALONE.lock().await;
    let server = Server::start();
    let locks = connect(&server).await;
    warm_up(&locks).await;
    server.reset_calls();
    for at in 0..100 {
        locks.mutex(format!("order:{at}")).acquire().await.unwrap().release().await.unwrap();
    }
    // A machine that is slow enough sees a sweep in between.
    let sweeps = server.calls("hscan");
    assert!(sweeps <= 2, "{sweeps} sweeps");
    assert_eq!((server.calls("evalsha") - sweeps, server.sent() - sweeps), (200, 200));
    // What a pair costs inside: as few calls as it takes.
    let inside: u64 = ["time", "hmget", "hset", "hdel", "xadd"].iter().map(|c| server.calls(c)).sum();
    assert_eq!(inside - 4 * sweeps, 800, "3 to acquire and 5 to release");
    assert_eq!(server.clients(), 1, "one connection carries commands and pushes");
}

#[tokio::test]
async fn a_try_that_finds_it_busy_is_one_command() {
    let (_alone, server, one, two) = alone_with_two().await;
    warm_up(&one).await;
    let guard = one.mutex("x").acquire().await.unwrap();
    server.reset_calls();
    for _ in 0..50 {
        assert!(two.mutex("x").try_acquire().await.unwrap().is_none(), "it is held");
    }
    assert_eq!(server.sent() - server.calls("hscan"), 50);
    guard.release().await.unwrap();
    assert_eq!(server.sent() - server.calls("hscan"), 51);
}

#[tokio::test]
async fn a_thousand_waiters_ask_at_most_once_a_second() {
    const WAITERS: usize = 1000;
    let (_alone, server, holder, locks) = alone_with_two().await;
    let guard = holder.mutex("x").ttl(Duration::from_secs(3600)).acquire().await.unwrap();
    let mut waiters = JoinSet::new();
    for _ in 0..WAITERS {
        let lock = locks.mutex("x").ttl(Duration::from_secs(30));
        waiters.spawn(async move { lock.acquire().await });
    }
    while server.ask(&["HLEN", "leasehold:{default}:entries:x"]).to_string() != (2 * WAITERS).to_string() {
        time::sleep(Duration::from_millis(20)).await;
    }
    time::sleep(Duration::from_millis(200)).await;
    server.reset_calls();
    time::sleep(Duration::from_secs(12)).await;
    let asked = server.sent();
    println!("{WAITERS} waiters sent {asked} commands in 12 s");
    assert!(asked <= 12, "{asked} commands in 12 s");
    assert_eq!(server.clients(), 2, "one connection for each instance");
    waiters.abort_all();
    drop(guard);
}

#[tokio::test]
async fn a_hand_off_among_64_waiters_is_two_commands_in_exact_order() {
    const WAITERS: u64 = 64;
    let (_alone, server, holder, locks) = alone_with_two().await;
    warm_up(&holder).await;
    let guard = holder.mutex("x").acquire().await.unwrap();
    server.reset_calls();
    let order = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut waiters = JoinSet::new();
    for at in 0..WAITERS {
        let (lock, order) = (locks.mutex("x"), std::sync::Arc::clone(&order));
        waiters.spawn(async move {
            let guard = lock.acquire().await.unwrap();
            order.lock().unwrap().push((at, guard.fence()));
            guard.release().await.unwrap();
        });
        while server.ask(&["HLEN", "leasehold:{default}:entries:x"]).to_string() != (2 * at + 2).to_string() {
            time::sleep(Duration::from_millis(1)).await;
        }
    }
    server.reset_calls();
    guard.release().await.unwrap();
    waiters.join_all().await;
    let order = order.lock().unwrap().clone();
    assert!(order.is_sorted(), "first come, first served, under rising fences: {order:?}");
    let each = server.sent() / WAITERS;
    println!("{} commands for {WAITERS} hand-offs", server.sent());
    assert!(each <= 1, "{each} commands for each hand-off, besides the one that joined the queue");
}
