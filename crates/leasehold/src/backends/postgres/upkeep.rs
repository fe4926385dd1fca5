//! What an instance does for the tables now and then. A short-lived process never gets to it.

use std::{sync::Arc, time::Duration};

use super::{
    connection::{Call, Connector, Slot},
    failure::Failure,
    row,
};
use crate::Result;

/// How often an instance offers to tidy up; one of all instances does it.
const PAUSE: Duration = Duration::from_secs(20);

/// The same while queues are busy: an autovacuum comes once a minute, and until then every wait takes new room.
const BUSY_PAUSE: Duration = Duration::from_secs(5);

pub(super) async fn keep_up(connector: Arc<Connector>, aside: Arc<Slot>) {
    let mut pause = PAUSE;
    loop {
        tokio::time::sleep(pause).await;
        pause = match tidy_up(&connector, &aside).await {
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
async fn tidy_up(connector: &Arc<Connector>, aside: &Slot) -> Result<bool, Failure> {
    aside.ask(Call::Maintain, &[]).await?;
    let told = aside.ask(Call::Worn, &[]).await?;
    let worn = told.rows.first().map_or(Ok(false), |row| row::get(row, "worn"))?;
    if worn {
        // By a connection of its own: renewals do not wait for it.
        connector.connect(None).await?.ask(Call::Vacuum, &[]).await?;
    }
    Ok(worn)
}
