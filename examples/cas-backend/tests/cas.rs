//! The suite on a backend from outside, and its URL.

use std::sync::Arc;

use leasehold::{
    ErrorKind, Leasehold,
    backend::{Backend, OpenOptions},
    backends,
    clock::Clock,
    lease::{HistoryFilter, LeaseId, Names},
};
use leasehold_conformance::{Fixture, check};

/// A bucket that lives as long as this instance on it.
struct BucketFixture {
    url: String,
    options: OpenOptions,
    _open: Arc<dyn Backend>,
}

async fn new_bucket(clock: Arc<dyn Clock>) -> BucketFixture {
    let url = format!("cas:{}", LeaseId::random());
    let mut options = OpenOptions::new();
    options.clock = clock;
    let open = cas_backend::open(&url, &options).await.expect("a bucket can always be made");
    BucketFixture { url, options, _open: open }
}

#[async_trait::async_trait]
impl Fixture for BucketFixture {
    async fn instance(&self) -> Arc<dyn Backend> {
        cas_backend::open(&self.url, &self.options).await.expect("the bucket is there")
    }

    fn keeps_to_clock(&self) -> bool {
        true
    }
}

#[test]
fn it_passes_the_suite() {
    check(new_bucket);
}

#[tokio::test]
async fn it_joins_by_url() -> leasehold::Result<()> {
    backends::register("cas", cas_backend::open)?;
    let first = Leasehold::connect("cas:bucket").await?;
    let second = Leasehold::connect("cas:bucket?history=3").await?;

    let guard = first.mutex("order:42").acquire().await?;
    assert!(second.mutex("order:42").try_acquire().await?.is_none());
    guard.release().await?;
    let guard = second.mutex("order:42").try_acquire().await?.expect("it is free");
    assert_eq!(second.guarantees().kind, "cas");
    guard.release().await?;

    let apart = Leasehold::builder().namespace("other").connect("cas:bucket").await?;
    assert!(apart.history(&HistoryFilter::new(Names::All)).await?.is_empty());
    let error = Leasehold::connect("cas:bucket?colour=red").await.expect_err("it has no such parameter");
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert!(error.to_string().contains("history"), "{error}");
    Ok(())
}
