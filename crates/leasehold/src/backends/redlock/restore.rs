//! Giving a lease back to nodes that do not know it: they were away when it was granted, or have forgotten it.
//!
//! A lease that is held by a bare majority is lost with the next node that
//! fails. A node that answers a renewal with "gone" is there again, so it is
//! asked for the lease like any other, without waiting. It numbers that grant
//! higher, which changes nothing: the fence is what a majority stored first,
//! and whoever is granted the resource there later is above both.

use std::sync::Arc;

use super::{
    Shared,
    fan::Fan,
    leases::{Phase, Tracked},
};
use crate::lease::Patience;

/// A lease that a majority holds, and the nodes that do not know it.
pub(super) struct Missing {
    pub(super) tracked: Arc<Tracked>,
    pub(super) at: Vec<usize>,
}

/// Asks for them in the background, one lease after the other: a node that comes back has enough to do.
pub(super) fn later(shared: &Arc<Shared>, missing: Vec<Missing>) {
    if missing.is_empty() {
        return;
    }
    let runtime = shared.runtime.clone();
    let shared = Arc::clone(shared);
    runtime.spawn(async move {
        for Missing { tracked, at } in missing {
            restore(&shared, &tracked, &at).await;
        }
    });
}

async fn restore(shared: &Shared, tracked: &Tracked, at: &[usize]) {
    // A release waits for its turn too, so that nothing is put back behind it.
    let _turn = tracked.turn().await;
    let Phase::Holding { grant, .. } = tracked.phase() else { return };
    let request = tracked.request(Patience::Try, grant.fence);
    let limit = shared.nodes.limit();
    let mut fan = Fan::new();
    for at in at {
        let (node, request) = (Arc::clone(shared.nodes.get(*at)), request.clone());
        fan.add(*at, async move { node.ask(limit, node.backend.acquire(&request)).await });
    }
    // Where it is refused, the next renewal asks again.
    fan.all().await;
}
