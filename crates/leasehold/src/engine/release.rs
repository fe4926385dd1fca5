//! Giving leases back, again and again until it is done or no longer matters.

use std::{sync::Arc, time::Duration};

use super::backoff::Backoff;
use crate::{
    Error, Result,
    backend::Backend,
    clock::Clock,
    lease::{LeaseKey, Moment, Outcome, Released},
};

/// One ask to release, bounded in time.
pub(crate) async fn try_once(
    backend: &Arc<dyn Backend>,
    clock: &Arc<dyn Clock>,
    key: &LeaseKey,
    outcome: &Outcome,
) -> Result<Released> {
    /// Long enough for a slow server, short enough for a process that wants to exit.
    const LIMIT: Duration = Duration::from_secs(3);
    tokio::select! {
        biased;
        answer = backend.release(key, outcome) => answer.map(|answer| answer.value),
        () = clock.sleep_until(clock.now().after(LIMIT)) => {
            Err(Error::unanswered(format!("the release of {} was not answered within 3s", key.resource))
                .about(&key.resource))
        }
    }
}

/// Tries until it is answered, refused for good, or the lease has ended by itself.
pub(crate) async fn until_done(
    backend: &Arc<dyn Backend>,
    clock: &Arc<dyn Clock>,
    key: &LeaseKey,
    outcome: &Outcome,
    until: Moment,
) {
    let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));
    loop {
        match try_once(backend, clock, key, outcome).await {
            Ok(_) => return,
            Err(error) if !error.is_retryable() || clock.now() >= until => {
                tracing::warn!(resource = %key.resource, %error, "could not release; the lease will lapse");
                return;
            }
            Err(_) => clock.sleep_until(clock.now().after(backoff.pause())).await,
        }
    }
}
