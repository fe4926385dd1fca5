//! A job that only one instance works on, under a session-level advisory lock of Postgres.
//!
//! `LEASEHOLD_URL=postgres://… cargo run --features postgres --example advisory_job`. The lock lives as long as
//! the connection: no ttl and nothing to renew, but no fence either. Any client contends by the key.

use std::env;

use leasehold::{
    Error, Result,
    backends::postgres::advisory::{self, Advisory},
};
use tokio::task::JoinSet;

const JOB: &str = "job:123";

/// Whether this instance did it.
async fn work(locks: &Advisory) -> Result<bool> {
    let Some(guard) = locks.try_acquire(JOB).await? else { return Ok(false) };
    tokio::time::sleep(std::time::Duration::from_millis(300)).await; // … the work …
    guard.check()?;
    guard.release().await
}

pub(crate) async fn run(url: &str) -> Result<()> {
    let mut connected = Vec::new();
    for _instance in 0..5 {
        connected.push(Advisory::connect(url).await?);
    }
    let mut instances = JoinSet::new();
    for locks in connected {
        instances.spawn(async move { work(&locks).await });
    }
    let did = instances.join_all().await.into_iter().collect::<Result<Vec<_>>>()?;

    println!("five instances wanted {JOB} (key {}): {did:?}", advisory::key(JOB));
    assert_eq!(did.iter().filter(|did| **did).count(), 1);
    Ok(())
}

#[tokio::main]
pub(crate) async fn main() -> Result<()> {
    let url = env::var("LEASEHOLD_URL").map_err(|_| Error::invalid_config("set LEASEHOLD_URL to postgres://…"))?;
    run(&url).await
}
