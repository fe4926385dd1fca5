//! Fixtures on private Redis servers: each trial gets a namespace of its own.
#![allow(dead_code, reason = "shared by suites that each use a part")]

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use leasehold::{
    backend::Backend,
    backends::redis::{RedisBackend, RedisOptions},
    clock::Clock,
};
use leasehold_conformance::Fixture;

/// A namespace that nobody else uses.
pub(crate) struct Namespace {
    url: String,
    name: String,
    pub(crate) clock: Arc<dyn Clock>,
}

impl Namespace {
    /// The next one, on the server or cluster of this URL.
    pub(crate) fn new(url: String, clock: Arc<dyn Clock>) -> Self {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        Self { url, name: format!("trial-{}", MADE.fetch_add(1, Ordering::Relaxed)), clock }
    }

    /// Another instance in it.
    pub(crate) async fn open(&self) -> Arc<RedisBackend> {
        self.open_at(&self.url).await
    }

    /// Another instance in the namespace of this name on another server.
    pub(crate) async fn open_at(&self, url: &str) -> Arc<RedisBackend> {
        let mut options = RedisOptions::from_url(url, &self.name).expect("a good URL");
        // The server's own clock wherever a trial does not move it.
        options.clock = Some(Arc::clone(&self.clock)).filter(|clock| !format!("{clock:?}").contains("SystemClock"));
        RedisBackend::open(options).await.expect("a private server")
    }
}

#[async_trait::async_trait]
impl Fixture for Namespace {
    async fn instance(&self) -> Arc<dyn Backend> {
        self.open().await
    }

    fn keeps_to_clock(&self) -> bool {
        true
    }
}
