//! Background work: ends expired leases that nobody asks about (`sweep.lua` sets when the next sweep is due), goes on
//! with resources that one call could not settle, and renews the watch registration.

use std::{
    sync::{Arc, Weak, atomic::Ordering},
    time::Duration,
};

use tokio::{sync::Mutex, time};

use super::{
    decode,
    keys::Partition,
    ops::{MAX_CALLS, Shared},
    scripts::{self, ScriptCall},
};
use crate::{Result, lease::Resource};

/// How often the watch registration is renewed.
const WATCH_EVERY: Duration = Duration::from_secs(10);
/// A watcher that died is forgotten after this.
pub(super) const WATCH_LASTS: Duration = Duration::from_secs(30);

/// Whether a task renews the watch registration. Locked while a stream is opened, and while the registration is renewed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) enum WatchUpkeep {
    #[default]
    Idle,
    Running,
}

/// Renews the watch registration until no stream is left.
pub(super) async fn keep_watching(shared: Weak<Shared>, watch_setup_lock: Arc<Mutex<WatchUpkeep>>) {
    loop {
        time::sleep(WATCH_EVERY).await;
        let Some(shared) = shared.upgrade() else { return };
        // Not while the first stream is opened, which relies on the subscriptions that are ended here.
        let mut upkeep = watch_setup_lock.lock().await;
        if shared.notifications.watchers.is_idle() {
            for partition in shared.keys.all() {
                shared.router.unsubscribe(&partition.names.events).await;
            }
            *upkeep = WatchUpkeep::Idle;
            return;
        }
        if let Err(error) = shared.announce_watcher().await {
            tracing::warn!(%error, "events may be missed");
        }
    }
}

impl Shared {
    /// Ends expired leases that nobody asks about, in the background.
    pub(super) fn sweep(self: &Arc<Self>, partition: u16) {
        if self.sweeping.swap(true, Ordering::SeqCst) {
            return;
        }
        let shared = Arc::clone(self);
        self.runtime.spawn(async move {
            if let Err(error) = shared.sweep_once(partition).await {
                tracing::debug!(%error, "cannot look for expired leases");
            }
            shared.sweeping.store(false, Ordering::SeqCst);
        });
    }

    async fn sweep_once(&self, partition: u16) -> Result<()> {
        let partition = &self.keys.all()[usize::from(partition)];
        let call = ScriptCall::new(&scripts::SWEEP, &[&partition.names.leases, &partition.names.history], |command| {
            command.arg(&partition.names.events);
        });
        let reply = self.router.run(partition, &call, None).await?;
        let queues = decode::resources(decode::array(&reply.value)?)?;
        self.settle_once(partition, &queues).await.map(drop)
    }

    /// Settles, in the background, resources that a call could not settle completely.
    pub(super) fn settle(self: &Arc<Self>, partition: u16, resources: Vec<Resource>) {
        let shared = Arc::clone(self);
        self.runtime.spawn(async move {
            let partition = &shared.keys.all()[usize::from(partition)];
            while shared.settle_once(partition, &resources).await.unwrap_or(false) {}
        });
    }

    /// Settles these resources; returns whether work is left.
    async fn settle_once(&self, partition: &Partition, resources: &[Resource]) -> Result<bool> {
        let mut work_is_left = false;
        for some in resources.chunks(MAX_CALLS) {
            let call = ScriptCall::for_resources(&scripts::LIST, partition, some, |command| {
                for _ in some {
                    command.arg(-1);
                }
            });
            let reply = self.router.run(partition, &call, None).await?;
            work_is_left |= decode::array(&reply.value)?.len() > some.len() + 1;
        }
        Ok(work_is_left)
    }
}
