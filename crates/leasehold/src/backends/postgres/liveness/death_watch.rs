//! Looks for dead connections ahead of those who wait here: no notification comes from the dead.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{sync::Notify, time::sleep};
use tokio_postgres::types::Type;
use uuid::Uuid;

use crate::{
    backend::HintSender,
    backends::postgres::{calls::Call, connection::Links, decode, errors::Failure, ops::Caller},
    lease::{LeaseId, LeaseKey, Resource},
};

/// A dead holder is found within this; the question reads and writes nothing while all live.
const LOOK_EVERY: Duration = Duration::from_millis(300);

/// The leases of this instance that wait behind a connection.
#[derive(Debug, Default)]
pub(in crate::backends::postgres) struct DeathWatch {
    waiting: Mutex<HashMap<LeaseId, Resource>>,
    wake: Notify,
}

impl DeathWatch {
    /// This lease waits behind someone who ends with a connection.
    pub(in crate::backends::postgres) fn add(&self, key: &LeaseKey) {
        self.waiting.lock().insert(key.id, key.resource.clone());
        self.wake.notify_one();
    }

    /// Looks for the dead as long as somebody waits for them.
    pub(in crate::backends::postgres) async fn look(
        self: Arc<Self>,
        links: Arc<Links>,
        caller: Caller,
        hints: HintSender,
    ) {
        loop {
            if self.waiting.lock().is_empty() {
                self.wake.notified().await;
            }
            sleep(LOOK_EVERY).await;
            if let Err(failure) = self.look_once(&links, &caller, &hints).await {
                tracing::debug!(%failure, "could not look for dead connections");
            }
        }
    }

    async fn look_once(&self, links: &Links, caller: &Caller, hints: &HintSender) -> Result<(), Failure> {
        let waiting: Vec<(LeaseId, Resource)> =
            self.waiting.lock().iter().map(|(id, resource)| (*id, resource.clone())).collect();
        let names: Vec<&str> = waiting.iter().map(|(_, resource)| resource.as_str()).collect();
        let ids: Vec<Uuid> = waiting.iter().map(|(id, _)| Uuid::from_u128(id.as_u128())).collect();
        let reply = links
            .ask_aside(
                Call::SettleDead,
                &[
                    (&caller.namespace, Type::TEXT),
                    (&caller.channel, Type::TEXT),
                    (&caller.history, Type::CHAR),
                    (&names, Type::TEXT_ARRAY),
                    (&ids, Type::UUID_ARRAY),
                ],
            )
            .await
            .inspect_err(|failure| failure.hurry(waiting.iter().map(|(_, resource)| resource), hints))?;
        for seen in reply.rows.iter().map(decode::looked) {
            let decode::Looked { at, waits, hints: found } = seen?;
            for hint in found {
                hints.send(hint);
            }
            if let (false, Some((id, _))) = (waits, waiting.get(at)) {
                self.waiting.lock().remove(id);
            }
        }
        Ok(())
    }
}
