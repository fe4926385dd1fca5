//! What operators see on Redis: all partitions are asked at once, and events are those of one database.
#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests, too")]

mod shared;

use std::{future::poll_fn, time::Duration};

use leasehold::{
    Leasehold,
    backend::{Inspect, Severity},
    backends::redis::{RedisBackend, RedisOptions},
    lease::{HistoryFilter, ListFilter, Names},
};
use leasehold_testkit::{
    Flow, Proxy,
    redis::{Cluster, Server},
};
use shared::soon;
use tokio::{runtime::Handle, time};

/// Partitions of a namespace in a cluster.
const PARTITIONS: u64 = 64;

/// A cluster behind proxies, which hold all answers back while a question is on its way.
struct HeldBack {
    cluster: Cluster,
    ways: Vec<Proxy>,
}

impl HeldBack {
    fn new() -> Self {
        let cluster = Cluster::start();
        let ways: Vec<Proxy> = cluster.servers.iter().map(|server| Proxy::to(server.port())).collect();
        let ports = cluster.servers.iter().map(Server::port).zip(ways.iter().map(Proxy::port));
        let ports: Vec<(u16, u16)> = ports.collect();
        for way in &ways {
            way.renumber(ports.clone());
        }
        Self { cluster, ways }
    }

    fn url(&self) -> String {
        let hosts: Vec<String> = self.ways.iter().map(|way| format!("127.0.0.1:{}", way.port())).collect();
        format!("redis+cluster://{}?answer_limit=60s", hosts.join(","))
    }

    /// Waits until every partition was asked by this command, though none has answered.
    async fn all_are_asked_at_once(&self, command: &str, question: impl Future<Output = ()> + Send + 'static) {
        for (server, way) in self.cluster.servers.iter().zip(&self.ways) {
            server.reset_calls();
            way.to_client(Flow::Hold);
        }
        let asking = Handle::current().spawn(question);
        soon(async || self.cluster.servers.iter().map(|server| server.calls(command)).sum::<u64>() >= PARTITIONS).await;
        assert!(!asking.is_finished(), "nobody has answered");
        for way in &self.ways {
            way.mend();
        }
        time::timeout(Duration::from_secs(20), asking).await.expect("everybody answers").unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_is_asked_about_all_partitions_at_once() {
    let place = HeldBack::new();
    let locks = Leasehold::connect(&place.url()).await.unwrap();
    locks.list(&ListFilter::new(Names::All)).await.expect("every server knows the script now");

    let asking = locks.clone();
    let list = async move { asking.list(&ListFilter::new(Names::All)).await.map(drop).unwrap() };
    place.all_are_asked_at_once("evalsha", list).await;
    let asking = locks.clone();
    let history = async move { asking.history(&HistoryFilter::new(Names::All)).await.map(drop).unwrap() };
    place.all_are_asked_at_once("xrevrange", history).await;
    // A subscription begins with a question to the master of its slot.
    let watch = async move { locks.watch(Names::All).await.map(drop).unwrap() };
    place.all_are_asked_at_once("exists", watch).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doctor_measures_each_server_of_a_cluster_alone() {
    let place = HeldBack::new();
    let locks = Leasehold::connect(&place.url()).await.unwrap();
    place.ways[0].slow_down(35);
    let findings = locks.examine().await.unwrap();
    let reached: Vec<_> = findings.iter().filter(|finding| finding.subject == "reachable").collect();
    let slow = format!(":{}:", place.ways[0].port());
    assert_eq!(reached.len(), 3, "{reached:?}");
    for finding in reached {
        let expected = if finding.message.contains(&slow) { Severity::Warning } else { Severity::Ok };
        assert_eq!(finding.severity, expected, "{}", finding.message);
    }
}

#[tokio::test]
async fn streams_that_are_opened_again_share_one_task() {
    let server = Server::start();
    let backend = RedisBackend::open(RedisOptions::from_url(&server.url(), "t").unwrap()).await.unwrap();
    drop(backend.watch(Names::All).await.unwrap());
    let tasks = || Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    for _ in 0..5 {
        drop(backend.watch(Names::All).await.unwrap());
    }
    // While it is open, no task ends.
    let _open = backend.watch(Names::All).await.unwrap();
    soon(async || tasks() <= before).await;
}

#[tokio::test]
async fn a_stream_that_could_not_be_opened_leaves_no_subscription() {
    let mut server = Server::start();
    let url = format!("{}?answer_limit=200ms", server.url());
    let backend = RedisBackend::open(RedisOptions::from_url(&url, "t").unwrap()).await.unwrap();
    server.kill();
    let list = async || backend.list(&ListFilter::new(Names::All)).await;
    assert!(list().await.is_err(), "the connection has ended");
    assert!(backend.watch(Names::All).await.is_err(), "nobody answers");
    server.launch();
    soon(async || list().await.is_ok()).await;
    let subscribed = server.command(&["PUBSUB", "CHANNELS", "*:events:*"]);
    assert!(subscribed.parts().is_empty(), "{subscribed}");
    drop(backend.watch(Names::All).await.expect("the server is back"));
}

#[tokio::test]
async fn a_watcher_sees_events_of_its_own_database_only() {
    let server = Server::start();
    let connect = async |database: u8| Leasehold::connect(&format!("{}/{database}", server.url())).await.unwrap();
    let (zero, one) = (connect(0).await, connect(1).await);
    let mut events = zero.watch(Names::All).await.unwrap();
    let _watched_too = one.watch(Names::All).await.unwrap();
    one.mutex("elsewhere").acquire().await.unwrap().release().await.unwrap();
    zero.mutex("here").acquire().await.unwrap().release().await.unwrap();
    let next = poll_fn(|context| events.as_mut().poll_next(context));
    let event = time::timeout(Duration::from_secs(10), next).await.expect("an event comes").unwrap().unwrap();
    assert_eq!(event.resource.as_str(), "here");
}
