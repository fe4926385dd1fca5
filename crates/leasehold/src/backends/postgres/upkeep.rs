//! What an instance does for the tables now and then. A short-lived process never gets to it.

use std::{sync::Arc, time::Duration};

use super::{calls::Call, connection::Links, decode, errors::Failure};
use crate::Result;

/// How often an instance asks whether the tables want tidying; the one that finds them so does it.
const PAUSE: Duration = Duration::from_secs(20);

/// The same while queues are busy: an autovacuum comes once a minute, and until then every wait takes new room.
const BUSY_PAUSE: Duration = Duration::from_secs(5);

/// One call does this much or more where there is more to do, as `maintain` says.
const MORE: i32 = 250;

/// Between two such calls, for others.
const BREATH: Duration = Duration::from_millis(10);

pub(super) async fn keep_up(links: Arc<Links>) {
    let mut pause = PAUSE;
    loop {
        tokio::time::sleep(pause).await;
        links.close_unused().await;
        pause = match tidy_up(&links).await {
            Ok(true) => BUSY_PAUSE,
            Ok(false) => PAUSE,
            Err(failure) => {
                tracing::warn!(%failure, "could not tidy up the tables of the locks");
                PAUSE
            }
        };
    }
}

/// Whether the queues were worn.
async fn tidy_up(links: &Links) -> Result<bool, Failure> {
    if decode::only(&links.ask(Call::Due, &[]).await?.rows)? {
        while decode::only::<i32>(&links.look(Call::Maintain, &[]).await?.rows)? >= MORE {
            tokio::time::sleep(BREATH).await;
        }
    }
    let worn = decode::only(&links.ask(Call::Worn, &[]).await?.rows)?;
    if worn {
        links.look(Call::Vacuum, &[]).await?;
    }
    Ok(worn)
}
