//! Periodic upkeep of the tables. A short-lived process never gets to it.

use std::{sync::Arc, time::Duration};

use super::{connection::ConnectionRouter, decode, errors::Failure, statements::Statement};
use crate::Result;

/// How often an instance checks whether upkeep is due.
const PAUSE: Duration = Duration::from_secs(20);

/// The same while queues are busy: autovacuum runs once a minute, and until then every wait makes the table grow.
const BUSY_PAUSE: Duration = Duration::from_secs(5);

/// If `maintain` returns this or more, more work may remain.
const FULL_BATCH: i32 = 250;

/// The pause between two calls of `maintain`.
const BATCH_PAUSE: Duration = Duration::from_millis(10);

pub(super) async fn run(router: Arc<ConnectionRouter>) {
    let mut pause = PAUSE;
    loop {
        tokio::time::sleep(pause).await;
        router.close_unused().await;
        pause = match run_once(&router).await {
            Ok(true) => BUSY_PAUSE,
            Ok(false) => PAUSE,
            Err(failure) => {
                tracing::warn!(%failure, "upkeep of the tables of the locks failed");
                PAUSE
            }
        };
    }
}

/// Returns whether the queues needed a vacuum.
async fn run_once(router: &ConnectionRouter) -> Result<bool, Failure> {
    if decode::only(&router.call(Statement::MaintainDue, &[]).await?.rows)? {
        while decode::only::<i32>(&router.call_slow(Statement::Maintain, &[]).await?.rows)? >= FULL_BATCH {
            tokio::time::sleep(BATCH_PAUSE).await;
        }
    }
    let needs_vacuum = decode::only(&router.call(Statement::NeedsVacuum, &[]).await?.rows)?;
    if needs_vacuum {
        router.call_slow(Statement::Vacuum, &[]).await?;
    }
    Ok(needs_vacuum)
}
