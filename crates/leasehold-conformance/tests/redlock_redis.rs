//! The suite on a quorum of five Redis servers.

mod redis_fixture;

use std::{sync::Arc, time::Duration};

use leasehold::{
    backend::Backend,
    backends::redlock::{RedlockBackend, RedlockNode, RedlockOptions},
};
use leasehold_conformance::{Fixture, check};
use leasehold_testkit::redis::Server;
use redis_fixture::Namespace;

/// One namespace on every server.
struct OnAll {
    urls: Vec<String>,
    namespace: Namespace,
}

#[async_trait::async_trait]
impl Fixture for OnAll {
    async fn instance(&self) -> Arc<dyn Backend> {
        let mut nodes = Vec::new();
        for url in &self.urls {
            nodes.push(RedlockNode::new(url, self.namespace.open_at(url).await));
        }
        // These servers live as long as the trial does: there is nothing to wait for before they vote.
        let options = RedlockOptions::new()
            .longest_ttl(Duration::ZERO)
            .node_limit(Duration::from_secs(5))
            .clock(Arc::clone(&self.namespace.clock));
        Arc::new(RedlockBackend::new(nodes, options).expect("five nodes make a quorum"))
    }

    fn keeps_to_clock(&self) -> bool {
        true
    }
}

#[test]
fn redlock_of_redis() {
    let servers: Vec<Server> = (0..5).map(|_| Server::start()).collect();
    let urls: Vec<String> = servers.iter().map(Server::url).collect();
    check(async |clock| OnAll { urls: urls.clone(), namespace: Namespace::new(urls[0].clone(), clock) });
}
