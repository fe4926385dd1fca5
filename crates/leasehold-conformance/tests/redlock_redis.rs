//! The suite on a quorum of five Redis servers.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use leasehold::{
    backend::Backend,
    backends::{
        redis::{RedisBackend, RedisOptions},
        redlock::{Member, Quorum, QuorumOptions},
    },
    clock::Clock,
};
use leasehold_conformance::{Maker, check};
use leasehold_testkit::redis::Server;

/// A namespace of its own on every server is a fresh place.
struct Namespace {
    urls: Vec<String>,
    name: String,
    clock: Arc<dyn Clock>,
}

#[async_trait::async_trait]
impl Maker for Namespace {
    async fn instance(&self) -> Arc<dyn Backend> {
        let mut members = Vec::new();
        for url in &self.urls {
            let mut options = RedisOptions::from_url(url, &self.name).expect("a good URL");
            // The server's own clock wherever a trial does not move it.
            options.clock = Some(Arc::clone(&self.clock)).filter(|clock| !format!("{clock:?}").contains("SystemClock"));
            members.push(Member::new(url, RedisBackend::open(options).await.expect("the server runs")));
        }
        // These servers live as long as the trial does: there is nothing to wait for before they vote.
        let options = QuorumOptions::new()
            .longest_ttl(Duration::ZERO)
            .node_limit(Duration::from_secs(5))
            .clock(Arc::clone(&self.clock));
        Arc::new(Quorum::new(members, options).expect("five nodes make a quorum"))
    }

    fn keeps_to_clock(&self) -> bool {
        true
    }
}

#[test]
fn redlock_of_redis() {
    let servers: Vec<Server> = (0..5).map(|_| Server::start()).collect();
    let made = AtomicU32::new(0);
    check(async |clock| Namespace {
        urls: servers.iter().map(Server::url).collect(),
        name: format!("trial-{}", made.fetch_add(1, Ordering::Relaxed)),
        clock,
    });
}
