//! Polls for dead holders ahead of our waiters: a dead connection sends no notification.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{sync::Notify, time::sleep};
use tokio_postgres::types::Type;
use uuid::Uuid;

use crate::{
    backend::HintSender,
    backends::postgres::{
        connection::ConnectionRouter, decode, errors::Failure, ops::InstanceParams, statements::Statement,
    },
    lease::{LeaseId, LeaseKey, Resource},
};

/// How often to check for dead holders; writes nothing while all are alive.
const CHECK_EVERY: Duration = Duration::from_millis(300);

/// Polls for dead holders ahead of the leases of this instance that wait behind a session-bound one.
#[derive(Debug, Default)]
pub(in crate::backends::postgres) struct DeadHolderPoller {
    waiting: Mutex<HashMap<LeaseId, Resource>>,
    wake: Notify,
}

impl DeadHolderPoller {
    /// Looks for dead holders ahead of this lease, which waits behind a session-bound one, until it no longer waits.
    pub(in crate::backends::postgres) fn watch_for(&self, key: &LeaseKey) {
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
        // The call could delay some of these leases for the sake of another: a lease is exempt only if it is alone.
        let exempt: &[LeaseId] = if let [(only, _)] = &*waiting { &[*only] } else { &[] };
        let reply = router
            .call_blocking(
                exempt,
                Statement::SettleDead,
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
