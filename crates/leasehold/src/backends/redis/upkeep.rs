//! What an instance does by itself while it watches.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::{sync::Mutex, time};

use super::ops::Shared;

/// Those who watch say so this often.
const WATCH_EVERY: Duration = Duration::from_secs(10);
/// A watcher that died is forgotten after this.
pub(super) const WATCH_LASTS: Duration = Duration::from_secs(30);

/// Says that someone watches for as long as anyone does.
pub(super) async fn keep_watching(shared: Weak<Shared>, one_at_a_time: Arc<Mutex<()>>) {
    loop {
        time::sleep(WATCH_EVERY).await;
        let Some(shared) = shared.upgrade() else { return };
        let _not_while_one_begins = one_at_a_time.lock().await;
        if shared.notifications.watchers.is_idle() {
            for partition in shared.keys.all() {
                shared.router.unsubscribe(&partition.events).await;
            }
            return;
        }
        if let Err(error) = shared.announce_watcher().await {
            tracing::warn!(%error, "events may be missed");
        }
    }
}
