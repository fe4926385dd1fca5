//! Polls for dead holders ahead of our waiters: a dead connection sends no notification.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{sync::Notify, time::sleep};
use tokio_postgres::types::Type;
use uuid::Uuid;

use crate::{
    backend::HintSender,
    backends::postgres::{calls::Call, connection::ConnectionRouter, decode, errors::Failure, ops::InstanceParams},
    lease::{LeaseId, LeaseKey, Resource},
};

/// How often to check for dead holders; writes nothing while all are alive.
const CHECK_EVERY: Duration = Duration::from_millis(300);

/// The leases of this instance that wait behind a session-bound one.
#[derive(Debug, Default)]
pub(in crate::backends::postgres) struct DeathWatch {
    waiting: Mutex<HashMap<LeaseId, Resource>>,
    wake: Notify,
}

impl DeathWatch {
    /// Watches a lease that waits behind a session-bound one.
    pub(in crate::backends::postgres) fn add(&self, key: &LeaseKey) {
        self.waiting.lock().insert(key.id, key.resource.clone());
        self.wake.notify_one();
    }

    /// Checks for dead holders while leases wait behind them.
    pub(in crate::backends::postgres) async fn run(
        self: Arc<Self>,
        router: Arc<ConnectionRouter>,
        instance: InstanceParams,
        hints: HintSender,
    ) {
        loop {
            if self.waiting.lock().is_empty() {
                self.wake.notified().await;
            }
            sleep(CHECK_EVERY).await;
            if let Err(failure) = self.check_once(&router, &instance, &hints).await {
                tracing::debug!(%failure, "could not look for dead connections");
            }
        }
    }

    async fn check_once(
        &self,
        router: &ConnectionRouter,
        instance: &InstanceParams,
        hints: &HintSender,
    ) -> Result<(), Failure> {
        let waiting: Vec<(LeaseId, Resource)> =
            self.waiting.lock().iter().map(|(id, resource)| (*id, resource.clone())).collect();
        let names: Vec<&str> = waiting.iter().map(|(_, resource)| resource.as_str()).collect();
        let ids: Vec<Uuid> = waiting.iter().map(|(id, _)| Uuid::from_u128(id.as_u128())).collect();
        // One of several may delay the others.
        let about: &[LeaseId] = if let [(only, _)] = &*waiting { &[*only] } else { &[] };
        let reply = router
            .call_blocking(
                about,
                Call::SettleDead,
                &[
                    (&instance.namespace, Type::TEXT),
                    (&instance.channel, Type::TEXT),
                    (&instance.history, Type::CHAR),
                    (&names, Type::TEXT_ARRAY),
                    (&ids, Type::UUID_ARRAY),
                ],
            )
            .await
            .inspect_err(|failure| failure.wake_waiters(waiting.iter().map(|(_, resource)| resource), hints))?;
        for seen in reply.rows.iter().map(decode::dead_check) {
            let decode::DeadCheck { index, waits, hints: found } = seen?;
            for hint in found {
                hints.send(hint);
            }
            if let (false, Some((id, _))) = (waits, waiting.get(index)) {
                self.waiting.lock().remove(id);
            }
        }
        Ok(())
    }
}
