//! What an instance does by itself: it says that it watches, and tidies up after those who died.

use std::{sync::Weak, time::Duration};

use tokio::time;
use uuid::Uuid;

use super::{RedisBackend, link::Channel};
use crate::Result;

/// Those who watch say so this often; the word of one who died is forgotten after three times as long.
const WATCH_EVERY: Duration = Duration::from_secs(10);
/// How often expired leases that nobody touches are looked for.
const TIDY_EVERY: Duration = Duration::from_secs(60);

impl RedisBackend {
    /// Lets every script know on which channel to tell what happens.
    pub(super) async fn say_watched(&self) -> Result<()> {
        for partition in self.keys.all() {
            let mut command = redis::cmd("SET");
            command.arg(partition.watched()).arg(self.keys.events()).arg("EX").arg(WATCH_EVERY.as_secs() * 3);
            self.connection.ask(partition, &command, &self.options).await?;
        }
        Ok(())
    }
}

/// Says that someone watches for as long as anyone does.
pub(super) async fn keep_watching(backend: Weak<RedisBackend>) {
    loop {
        time::sleep(WATCH_EVERY).await;
        let Some(backend) = backend.upgrade() else { return };
        let _not_while_one_begins = backend.watching.lock().await;
        if backend.told.watchers.is_idle() {
            backend.connection.unsubscribe(&Channel::Plain(backend.keys.events())).await;
            return;
        }
        if let Err(error) = backend.say_watched().await {
            tracing::warn!(%error, "events may be missed");
        }
    }
}

/// Looks now and then for leases that expired and that nobody touches, in a partition at random.
pub(super) async fn keep_tidy(backend: Weak<RedisBackend>) {
    loop {
        let random = Uuid::new_v4();
        let bytes = random.as_bytes();
        time::sleep(TIDY_EVERY + TIDY_EVERY * u32::from(bytes[0]) / 255).await;
        let Some(backend) = backend.upgrade() else { return };
        let partitions = backend.keys.all();
        let partition = &partitions[usize::from(bytes[1]) % partitions.len()];
        if let Err(error) = backend.tidy(partition).await {
            tracing::debug!(%error, "cannot look for expired leases");
        }
    }
}
