//! Looks up who holds a resource, for callers that give up.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::Engine;
use crate::lease::{Busy, HeldBy, LeaseState, ListFilter, Names, Resource};

impl Engine {
    /// Starts to look up who holds the resource.
    pub(crate) fn spawn_find_holders(self: &Arc<Self>, resource: &Resource) -> oneshot::Receiver<Busy> {
        let (found, holders) = oneshot::channel();
        let (engine, resource) = (Arc::clone(self), resource.clone());
        self.threads.io.spawn(async move {
            let _caller_left = found.send(engine.find_holders(resource).await);
        });
        holders
    }

    /// Looks up who holds the resource and how many wait; returns an empty `Busy` if the backend cannot say.
    async fn find_holders(&self, resource: Resource) -> Busy {
        let page = self.backend.list(&ListFilter::new(Names::Exactly(resource))).await.unwrap_or_default();
        let mut busy = Busy::default();
        for record in page.leases {
            match record.state {
                LeaseState::Holding { fence, held_for, .. } => {
                    let mut holder = HeldBy::new(record.holder, record.claim.mode(), fence, held_for);
                    holder.note = record.note;
                    busy.holders.push(holder);
                }
                LeaseState::Waiting { .. } => busy.waiting += 1,
            }
        }
        busy
    }
}
