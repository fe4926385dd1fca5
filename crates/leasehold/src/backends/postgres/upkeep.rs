//! Periodic maintenance of the tables. A short-lived process never gets to it.

use std::{sync::Arc, time::Duration};

use super::{calls::Call, connection::ConnectionRouter, decode, errors::Failure};
use crate::Result;

/// How often an instance checks whether maintenance is due.
const PAUSE: Duration = Duration::from_secs(20);

/// The same while queues are busy: autovacuum runs once a minute, and until then every wait makes the table grow.
const BUSY_PAUSE: Duration = Duration::from_secs(5);

/// If `maintain` returns this or more, more work may remain.
const FULL_BATCH: i32 = 250;

/// The pause between two calls of it.
const BATCH_PAUSE: Duration = Duration::from_millis(10);

pub(super) async fn run_maintenance(router: Arc<ConnectionRouter>) {
    let mut pause = PAUSE;
    loop {
        tokio::time::sleep(pause).await;
        router.close_unused().await;
        pause = match maintain_once(&router).await {
            Ok(true) => BUSY_PAUSE,
            Ok(false) => PAUSE,
            Err(failure) => {
                tracing::warn!(%failure, "could not tidy up the tables of the locks");
                PAUSE
            }
        };
    }
}

/// Returns whether the queues needed a vacuum.
async fn maintain_once(router: &ConnectionRouter) -> Result<bool, Failure> {
    if decode::only(&router.call(Call::Due, &[]).await?.rows)? {
        while decode::only::<i32>(&router.call_slow(Call::Maintain, &[]).await?.rows)? >= FULL_BATCH {
            tokio::time::sleep(BATCH_PAUSE).await;
        }
    }
    let needs_vacuum = decode::only(&router.call(Call::NeedsVacuum, &[]).await?.rows)?;
    if needs_vacuum {
        router.call_slow(Call::Vacuum, &[]).await?;
    }
    Ok(needs_vacuum)
}
