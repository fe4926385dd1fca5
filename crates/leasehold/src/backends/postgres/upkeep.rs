//! What an instance does for the tables now and then. A short-lived process never gets to it.

use std::{sync::Arc, time::Duration};

use super::{
    connection::{Call, Slot},
    failure::Failure,
    row,
};
use crate::Result;

/// How often an instance offers to tidy up; one of all instances does it.
const PAUSE: Duration = Duration::from_secs(20);

/// The same while queues are busy: an autovacuum comes once a minute, and until then every wait takes new room.
const BUSY_PAUSE: Duration = Duration::from_secs(5);

/// So much or more is done by one call where there is more to do, as `maintain` says.
const MORE: i32 = 250;

/// Between two such calls, for others.
const BREATH: Duration = Duration::from_millis(10);

pub(super) async fn keep_up(looks: Arc<Slot>) {
    let mut pause = PAUSE;
    loop {
        tokio::time::sleep(pause).await;
        pause = match tidy_up(&looks).await {
            Ok(true) => BUSY_PAUSE,
            Ok(false) => PAUSE,
            Err(failure) => {
                tracing::debug!(%failure, "could not tidy up");
                PAUSE
            }
        };
    }
}

/// Whether the queues were worn.
async fn tidy_up(looks: &Slot) -> Result<bool, Failure> {
    while row::only::<i32>(&looks.ask(Call::Maintain, &[]).await?.rows)? >= MORE {
        tokio::time::sleep(BREATH).await;
    }
    let worn = row::only(&looks.ask(Call::Worn, &[]).await?.rows)?;
    if worn {
        looks.ask(Call::Vacuum, &[]).await?;
    }
    Ok(worn)
}
