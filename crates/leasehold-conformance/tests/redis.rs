//! The suite on a Redis server.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use leasehold::{
    backend::Backend,
    backends::redis::{RedisBackend, RedisOptions},
    clock::Clock,
};
use leasehold_conformance::{Maker, check};
use leasehold_testkit::redis::Server;

/// A namespace of its own is a fresh place.
struct Namespace {
    url: String,
    name: String,
    clock: Arc<dyn Clock>,
}

#[async_trait::async_trait]
impl Maker for Namespace {
    async fn instance(&self) -> Arc<dyn Backend> {
        let mut options = RedisOptions::from_url(&self.url, &self.name).expect("a good URL");
        // The server's own clock wherever a trial does not move it.
        options.clock = Some(Arc::clone(&self.clock)).filter(|clock| !format!("{clock:?}").contains("SystemClock"));
        RedisBackend::open(options).await.expect("the server runs")
    }

    fn keeps_to_clock(&self) -> bool {
        true
    }
}

#[test]
fn redis() {
    let server = Server::start();
    let made = AtomicU32::new(0);
    check(async |clock| Namespace {
        url: server.url(),
        name: format!("trial-{}", made.fetch_add(1, Ordering::Relaxed)),
        clock,
    });
}
