//! Give everything back on Ctrl-C, so that the next instance need not wait for a ttl.
//!
//! A process that just exits keeps its leases for one ttl on most backends. `release_all` gives back what is
//! held: the workers learn it from `check` before their next step. `close` also ends the waits, takes no new
//! ones, and returns when nothing is left to do. Work that must not stop half-way is joined before.

use std::{env, time::Duration};

use leasehold::{ErrorKind, Guard, Leasehold, Result};
use tokio::task::JoinSet;

/// Stands for `tokio::signal::ctrl_c()`.
async fn ctrl_c() {
    tokio::time::sleep(Duration::from_millis(100)).await;
}

/// Works until the lease is given back; tells how far it came.
async fn import(guard: Guard) -> u32 {
    let mut rows = 0;
    while guard.check().is_ok() {
        tokio::time::sleep(Duration::from_millis(5)).await; // … import one row …
        rows += 1;
    }
    rows
}

#[tokio::main]
pub(crate) async fn main() -> Result<()> {
    let url = env::var("LEASEHOLD_URL").unwrap_or_else(|_| String::from("memory:"));
    let (service, successor) = (Leasehold::connect(&url).await?, Leasehold::connect(&url).await?);

    let mut workers = JoinSet::new();
    for id in 1..=3 {
        workers.spawn(import(service.mutex(format!("job:import:{id}")).acquire().await?));
    }
    let elsewhere = successor.mutex("singleton:reindex").acquire().await?;
    let reindex = service.mutex("singleton:reindex").wait_forever();
    let mut waiting = JoinSet::new();
    waiting.spawn(async move { reindex.acquire().await });

    ctrl_c().await;
    let released = service.release_all().await?;
    service.close().await?;

    let rows = workers.join_all().await;
    println!("gave back {released} leases after {} rows", rows.iter().sum::<u32>());
    assert_eq!((released, rows.len()), (3, 3));

    let refused = waiting.join_all().await.remove(0).expect_err("nobody waits any more");
    println!("who was waiting is told: {refused}");
    assert_eq!(refused.kind(), ErrorKind::Closed);

    for id in 1..=3 {
        let next = successor.mutex(format!("job:import:{id}")).try_acquire().await?;
        next.expect("free at once").release().await?;
    }
    elsewhere.release().await?;
    Ok(())
}
