//! Grants that need a copy: believed with it, given back without it.
#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests, too")]

use std::time::Duration;

use leasehold::{
    ErrorKind, Leasehold,
    lease::{ListFilter, Names},
};
use leasehold_testkit::redis::Server;
use tokio::runtime::Handle;

#[tokio::test]
async fn a_grant_without_its_copies_is_given_back() {
    let master = Server::start();
    let plain = ["--save", "", "--repl-diskless-sync-delay", "0"];
    let replica = Server::with(&[&plain[..], &["--replicaof", "127.0.0.1", &master.port().to_string()]].concat());
    while !replica.ask(&["INFO", "replication"]).to_string().contains("master_link_status:up") {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let url = format!("{}?durability=replicas:1&answer_limit=600ms", master.url());
    let locks = Leasehold::connect(&url).await.unwrap();
    let guard = locks.mutex("x").acquire().await.unwrap();

    // Handed on and believed only after a renewal that has its copies.
    let next = locks.mutex("x");
    let next = Handle::current().spawn(async move { next.acquire().await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    guard.release().await.unwrap();
    let next = next.await.unwrap().unwrap();
    assert!(next.waited() < Duration::from_secs(2), "the push tells it to ask: {:?}", next.waited());
    next.release().await.unwrap();
    assert_eq!(master.clients(), 3, "the replica, commands and pushes, and what waits for copies");

    drop(replica);
    let error = locks.mutex("y").acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("0 of 1 replicas"), "{error}");
    let left = locks.list(&ListFilter::new(Names::All)).await.unwrap();
    assert!(left.leases.is_empty(), "it was given back: {left:?}");
}

#[tokio::test]
async fn what_a_server_cannot_do_is_refused_when_connecting() {
    let server = Server::durable();
    let version = server.ask(&["INFO", "server"]).to_string();
    let connected = Leasehold::connect(&format!("{}?durability=aof", server.url())).await;
    let old = version.lines().any(|line| line.starts_with("redis_version:7.0") || line.starts_with("redis_version:6"));
    match connected {
        Err(error) if old => assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}"),
        Err(error) => panic!("{error}"),
        Ok(_) if old => panic!("it cannot wait for its file"),
        Ok(locks) => locks.mutex("x").acquire().await.unwrap().release().await.map(drop).unwrap(),
    }
    let error = Leasehold::connect("redis+cluster://127.0.0.1:1?durability=aof").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
}
