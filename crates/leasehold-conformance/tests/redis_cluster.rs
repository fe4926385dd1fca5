//! The suite on a Redis cluster of three masters.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use leasehold::{
    backend::Backend,
    backends::redis::{RedisBackend, RedisOptions},
};
use leasehold_conformance::{Maker, check};
use leasehold_testkit::redis::Cluster;

/// A namespace of its own is a fresh place.
struct Namespace {
    url: String,
    name: String,
}

#[async_trait::async_trait]
impl Maker for Namespace {
    async fn instance(&self) -> Arc<dyn Backend> {
        let options = RedisOptions::from_url(&self.url, &self.name).expect("a good URL");
        RedisBackend::open(options).await.expect("the cluster runs")
    }
}

#[test]
fn redis_cluster() {
    let cluster = Cluster::start();
    let made = AtomicU32::new(0);
    check(async |_| Namespace { url: cluster.url(), name: format!("trial-{}", made.fetch_add(1, Ordering::Relaxed)) });
}
