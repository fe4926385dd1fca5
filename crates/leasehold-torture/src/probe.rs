//! What runs beside the lanes of a worker: a lease whose loss is due, a look at the queues, a callback that blocks.

use std::{collections::BTreeSet, sync::Arc, thread, time::Duration};

use leasehold::{
    Error, Leasehold, Resource,
    lease::{LeaseRecord, LeaseState, ListFilter, Names},
};
use tokio::time::{sleep, timeout};

use crate::{
    event::LogEvent,
    instant::{Micros, millis, now},
    lane::WorkerState,
    target::{TARGETS, TTL},
};

/// How long a callback blocks: longer than a loss may take to be reported.
const CALLBACK: Duration = Duration::from_secs(4);
/// How long releases may take that a slow disk delays several times in a row.
const RELEASE_LIMIT: Micros = millis(15_000);
/// How long a probe's lease may be held.
const MAX_HOLD: Micros = millis(300);

/// Loses a lease of an instance of its own again and again, and records how late `lost` was.
///
/// Whatever blocks the rest of the worker, a slow disk or a callback, must not delay it.
pub(crate) async fn lose_again_and_again(shared: &WorkerState) -> Result<(), Error> {
    let locks = Leasehold::builder().ttl(TTL).connect("memory:probe").await?;
    while !shared.is_settling() {
        let guard = locks.mutex("probe").max_hold(Duration::from_micros(MAX_HOLD)).acquire().await?;
        let due = now() + MAX_HOLD;
        guard.lost().await;
        shared.log.write(LogEvent::Probe { due });
    }
    locks.close().await
}

/// Records the order of the waiters that `list` shows.
pub(crate) async fn watch_queues(shared: &WorkerState) {
    while !shared.is_settling() {
        sleep(Duration::from_millis(150)).await;
        let at = now();
        let Ok(page) = shared.locks.list(&ListFilter::new(Names::All)).await else { continue };
        for entries in page.leases.chunk_by(|one, next| one.resource == next.resource) {
            let waits = |entry: &&LeaseRecord| matches!(entry.state, LeaseState::Waiting { .. });
            let (waiting, holding): (Vec<_>, Vec<_>) = entries.iter().partition(waits);
            let labels = |entries: Vec<&LeaseRecord>| {
                entries.iter().map(|entry| entry.holder.as_str().to_owned()).collect::<Vec<_>>()
            };
            let (holding, waiting) = (labels(holding), labels(waiting));
            if waiting.len() > 1 {
                let name = entries[0].resource.as_str().to_owned();
                shared.log.write_at(at, LogEvent::Queue { name, holding, waiting });
            }
        }
    }
}

/// Wins an election whose callback blocks, then withdraws. Other faults may keep it from taking part.
pub(crate) async fn block_in_callback(shared: &Arc<WorkerState>, name: &str) -> Result<(), Error> {
    let recorder = Arc::clone(shared);
    let block = move |_lease: &leasehold::Lease| {
        recorder.log.write(LogEvent::Callback);
        thread::sleep(CALLBACK);
    };
    let candidate = shared.locks.election(name).ttl(TTL).on_elected(block).start().await?;
    let _blocked_for_longer = timeout(CALLBACK * 2, candidate.elected()).await;
    candidate.stop().await
}

/// What `list` shows, once nothing is left or the limit has passed.
pub(crate) async fn list_leftovers(locks: &Leasehold) -> Vec<String> {
    let until = now() + RELEASE_LIMIT;
    loop {
        let left = list_once(locks).await.unwrap_or_else(|error| vec![format!("list failed: {error}")]);
        if left.is_empty() || now() > until {
            return left;
        }
        sleep(Duration::from_millis(50)).await;
    }
}

/// Lists everything, and each name by itself: a list of all may leave out a resource that cannot be read just now.
async fn list_once(locks: &Leasehold) -> Result<Vec<String>, Error> {
    let mut filters = vec![Names::All];
    for target in TARGETS {
        filters.push(Names::Exactly(Resource::new(target.name)?));
    }
    let mut left = BTreeSet::new();
    for names in filters {
        for lease in locks.list(&ListFilter::new(names)).await?.leases {
            let state = if matches!(lease.state, LeaseState::Waiting { .. }) { "waits" } else { "holds" };
            left.insert(format!("{} {state} {}", lease.holder, lease.resource));
        }
    }
    Ok(left.into_iter().collect())
}
