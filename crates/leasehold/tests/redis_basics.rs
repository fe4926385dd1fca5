//! A first look at the redis backend: locks, waits, records.
#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, reason = "a test")]

use std::time::Duration;

use leasehold::Leasehold;
use leasehold_testkit::redis::Server;

#[tokio::test]
async fn a_lock_is_held_waited_for_and_handed_on() {
    let server = Server::start();
    let one = Leasehold::connect(&server.url()).await.unwrap();
    let two = Leasehold::connect(&server.url()).await.unwrap();
    let guard = one.mutex("x").acquire().await.unwrap();
    let busy = two.mutex("x").try_acquire().await.unwrap();
    assert!(busy.is_none());
    let waiting = {
        let two = two.clone();
        tokio::task::spawn(async move { two.mutex("x").wait(Duration::from_secs(5)).acquire().await })
    };
    tokio::time::sleep(Duration::from_millis(100)).await;
    let fence = guard.fence();
    guard.release().await.unwrap();
    let guard = waiting.await.unwrap().unwrap();
    assert!(guard.fence() > fence);
    assert!(guard.waited() < Duration::from_secs(1), "it was pushed: {:?}", guard.waited());
    guard.release().await.unwrap();
}
