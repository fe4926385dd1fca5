//! Fixtures on a private Postgres: each trial gets a namespace of its own.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use leasehold::{
    backend::Backend,
    backends::postgres::{PostgresBackend, PostgresOptions},
    clock::SystemClock,
};
use leasehold_conformance::Fixture;
use leasehold_testkit::postgres::Postgres;

/// A private server with the schema, and how to connect to it.
pub(crate) struct Server {
    postgres: Postgres,
    parameters: &'static str,
    namespaces: AtomicUsize,
}

impl Server {
    pub(crate) fn start(parameters: &'static str) -> Self {
        Self { postgres: Postgres::start(), parameters, namespaces: AtomicUsize::new(0) }
    }

    pub(crate) fn namespace(&self) -> Namespace {
        let number = self.namespaces.fetch_add(1, Ordering::SeqCst);
        let url = format!("{}?init=1&connections=2&{}", self.postgres.url(), self.parameters);
        Namespace { url, namespace: format!("trial-{number}") }
    }
}

/// A namespace that nobody else uses.
pub(crate) struct Namespace {
    url: String,
    namespace: String,
}

#[async_trait::async_trait]
impl Fixture for Namespace {
    async fn instance(&self) -> Arc<dyn Backend> {
        let limit = Duration::from_secs(10);
        let options = PostgresOptions::from_url(&self.url, &self.namespace, Arc::new(SystemClock), limit);
        Arc::new(PostgresBackend::open(options.expect("a good URL")).await.expect("a private server"))
    }
}
