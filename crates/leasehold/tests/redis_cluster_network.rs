//! A cluster behind a bad network.
#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests, too")]

mod shared;

use std::time::Duration;

use leasehold::Leasehold;
use leasehold_testkit::{
    Proxy,
    redis::{Cluster, Server},
};
use shared::soon;

/// A network that forgets connections closes none of them: a server that lost its power, a gateway that was replaced.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_the_network_forgot_are_made_again() {
    let cluster = Cluster::start();
    let ways: Vec<Proxy> = cluster.servers.iter().map(|server| Proxy::to(server.port())).collect();
    let ports: Vec<u16> = ways.iter().map(Proxy::port).collect();
    let renumbered: Vec<(u16, u16)> = cluster.servers.iter().map(Server::port).zip(ports.iter().copied()).collect();
    for way in &ways {
        way.renumber(renumbered.clone());
    }
    let hosts: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    // With the default limit for answers: on a busy machine an answer can take a second.
    let url = format!("redis+cluster://{}", hosts.join(","));
    let locks = Leasehold::builder().wait(Duration::from_secs(5)).connect(&url).await.unwrap();
    locks.mutex("x").acquire().await.unwrap().release().await.unwrap();

    for way in &ways {
        way.forget();
    }
    soon(async || locks.mutex("x").acquire().await.is_ok()).await;

    // And whoever waits is told again.
    let held = locks.mutex("y").acquire().await.unwrap();
    let waiter = locks.mutex("y").ttl(Duration::from_secs(600)).wait(Duration::from_secs(600));
    let waiter = tokio::runtime::Handle::current().spawn(async move { waiter.acquire().await });
    let listens = |server: &Server| !server.ask(&["PUBSUB", "SHARDCHANNELS", "*:to:*"]).parts().is_empty();
    soon(async || cluster.servers.iter().any(listens)).await;
    held.release().await.unwrap();
    soon(async || waiter.is_finished()).await;
}
