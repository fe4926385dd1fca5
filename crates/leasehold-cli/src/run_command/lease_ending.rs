//! How a lease ended, by the history of its resource.

use std::time::Duration;

use leasehold::{
    Lease, Leasehold, Loss,
    clock::{Clock, SystemClock},
    lease::{EndedLease, Ending, HistoryFilter, Moment, Names},
};

use crate::error::{CommandError, Result};

/// How long the history may take to say who evicted us, and how often to look.
pub(super) const HISTORY_LIMIT: Duration = Duration::from_secs(1);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// How this lease ended by the history, `None` if the history does not have it. Fails if the history cannot be read
/// within the limit.
pub(crate) async fn recorded_ending(locks: &Leasehold, lease: &Lease, limit: Duration) -> Result<Option<Ending>> {
    let filter = HistoryFilter::new(Names::Exactly(lease.resource().clone())).limit(1000);
    let read = tokio::time::timeout(limit, locks.history(&filter)).await;
    let history = read.map_err(|_| CommandError::unavailable("the history was not read in time"))??;
    Ok(history.iter().find(|ended| ended.fence == Some(lease.fence())).map(|ended| ended.ending))
}

/// Who took this lease away and why, if somebody did and the history has it.
pub(crate) async fn who_evicted(locks: &Leasehold, lease: &Lease) -> Option<String> {
    // A holder that missed the notification knows only that its lease is gone, or was when it released it.
    let is_certain = match lease.loss()? {
        Loss::Evicted => true,
        Loss::Gone | Loss::Released => false,
        _ => return None,
    };
    eviction(locks, lease, is_certain.then(|| SystemClock.now().after(HISTORY_LIMIT))).await
}

/// What the history has of the eviction of this lease. `file:` notifies the holder before it writes the history, so it
/// is read again until then.
async fn eviction(locks: &Leasehold, lease: &Lease, until: Option<Moment>) -> Option<String> {
    let filter = HistoryFilter::new(Names::Exactly(lease.resource().clone())).failures(true).limit(1000);
    loop {
        let read = tokio::time::timeout(HISTORY_LIMIT, locks.history(&filter)).await.ok()?.ok()?;
        let is_it = |ended: &EndedLease| ended.fence == Some(lease.fence()) && ended.ending == Ending::Evicted;
        if let Some(ended) = read.into_iter().find(is_it) {
            return ended.problem.map(|problem| problem.details);
        }
        if until.is_none_or(|until| SystemClock.now() >= until) {
            return None;
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}
