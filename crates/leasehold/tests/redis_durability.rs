//! Grants that need a copy: believed with it, given back without it.
#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests, too")]

mod shared;

use std::{sync::Arc, time::Duration};

use leasehold::{
    ErrorKind, Holder, Leasehold, Resource,
    backend::{Backend, Operation, Request},
    backends::redis::{RedisBackend, RedisOptions},
    lease::{Claim, LeaseId, LeaseKey, ListFilter, Names},
};
use leasehold_testkit::{Proxy, redis::Server};
use shared::soon;
use tokio::{runtime::Handle, task::JoinSet};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
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
    assert_eq!(master.clients(), 4, "the replica, commands and pushes, requests and renewals that wait for copies");

    drop(replica);
    let error = locks.mutex("y").acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("0 of 1 replicas"), "{error}");
    let left = locks.list(&ListFilter::new(Names::All)).await.unwrap();
    assert!(left.leases.is_empty(), "it was given back: {left:?}");
}

/// The script has granted when the command that waits for copies is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_whose_wait_is_refused_is_given_back() {
    let server = Server::start();
    server.command(&["ACL", "SETUSER", "locker", "on", ">secret", "~*", "&*", "+@all", "-wait"]);
    let url = format!("redis://locker:secret@127.0.0.1:{}?durability=replicas:1", server.port());
    let locks = Leasehold::connect(&url).await.unwrap();
    let error = locks.mutex("x").acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
    let left = locks.list(&ListFilter::new(Names::All)).await.unwrap();
    assert!(left.leases.is_empty(), "it was given back: {left:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_that_cannot_be_given_back_may_be_there() {
    let server = Server::start();
    let proxy = Proxy::to(server.port());
    let url = format!("redis://127.0.0.1:{}?durability=replicas:1&answer_limit=2s", proxy.port());
    let backend = RedisBackend::open(RedisOptions::from_url(&url, "t").unwrap()).await.unwrap();
    let key = LeaseKey::new(Resource::new("x").unwrap(), LeaseId::random());
    let request = Request::new(key, Claim::EXCLUSIVE, Holder::new("holder").unwrap());
    let asking = Handle::current().spawn(async move { backend.acquire(&request).await });
    soon(async || server.ask(&["INFO", "clients"]).to_string().contains("blocked_clients:1")).await;
    // Only the connection on which it would be given back ends.
    proxy.refuse();
    server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    let error = asking.await.unwrap().unwrap_err();
    assert!(error.outcome_unknown(), "{error:?}");
}

/// Each waits for half of the limit, one after the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_wait_for_a_missing_replica_do_not_end_the_connection() {
    let server = Server::start();
    let url = format!("{}?durability=replicas:1&answer_limit=600ms", server.url());
    let backend = RedisBackend::open(RedisOptions::from_url(&url, "t").unwrap()).await.unwrap();
    let mut calls = JoinSet::new();
    for at in 0..8 {
        let backend = Arc::clone(&backend);
        let key = LeaseKey::new(Resource::new(format!("x{at}")).unwrap(), LeaseId::random());
        let request = Request::new(key, Claim::EXCLUSIVE, Holder::new("holder").unwrap());
        calls.spawn(async move { backend.perform(vec![Operation::Acquire(Arc::new(request))]).await });
    }
    for mut answers in calls.join_all().await {
        let error = answers.pop().unwrap().unwrap_err();
        assert!(error.to_string().contains("0 of 1 replicas"), "{error:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
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

/// With 40 ms to the replica each wait for copies takes as long: requests share one, and renewals do not stand behind them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_grants_wait_for_their_copies_together() {
    const TASKS: usize = 64;
    let master = Server::start();
    let proxy = Proxy::to(master.port());
    let plain = ["--save", "", "--repl-diskless-sync-delay", "0"];
    let replica = Server::with(&[&plain[..], &["--replicaof", "127.0.0.1", &proxy.port().to_string()]].concat());
    soon(async || replica.ask(&["INFO", "replication"]).to_string().contains("master_link_status:up")).await;
    proxy.slow_down(20);
    let locks = Leasehold::builder()
        .wait(Duration::from_secs(60))
        .connect(&format!("{}?durability=replicas:1&answer_limit=5s", master.url()))
        .await
        .unwrap();
    let held = locks.mutex("held").ttl(Duration::from_secs(3)).acquire().await.unwrap();
    master.reset_calls();
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let locks = locks.clone();
        tasks.spawn(async move {
            for at in 0..5 {
                locks.mutex(format!("x{task}:{at}")).acquire().await.unwrap().release().await.unwrap();
            }
        });
    }
    tasks.join_all().await;
    let waits = master.calls("wait");
    println!("{waits} waits for {} grants", 5 * TASKS);
    assert!(waits <= 60, "{waits} waits for {} grants: they do not go together", 5 * TASKS);
    held.check().expect("it was renewed all the time");
}
