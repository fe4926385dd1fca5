//! Abandoned requests that the server may still execute.
//!
//! A request can wait in a network or a stalled server while its release overtakes it on another
//! connection. A lease with a ttl then delays others by one ttl; a session-bound one would stay as
//! long as this process lives. So it is released again for a while.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::sleep;

use crate::{
    backends::postgres::ops::WorkerPool,
    clock::Clock,
    lease::{LeaseId, LeaseKey, Moment, Outcome, Released},
};

/// When to stop: TCP may deliver data of a broken connection for minutes.
const GIVE_UP_AFTER: Duration = Duration::from_secs(300);

/// How often an unwanted request is released again.
const RELEASE_EVERY: Duration = Duration::from_secs(5);

/// Abandoned requests that the server may still execute.
#[derive(Debug)]
pub(in crate::backends::postgres) struct LateRequests {
    clock: Arc<dyn Clock>,
    abandoned: Mutex<HashMap<LeaseId, AbandonedRequest>>,
}

#[derive(Debug)]
struct AbandonedRequest {
    key: LeaseKey,
    until: Moment,
    /// Whether its lease was released, so that nobody wants it any more.
    released: bool,
}

impl LateRequests {
    pub(in crate::backends::postgres) fn new(clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self { clock, abandoned: Mutex::default() })
    }

    /// A request begins; it counts as abandoned unless [`mark_answered`](InFlight::mark_answered) is called.
    pub(in crate::backends::postgres) fn in_flight<'a>(&'a self, key: &'a LeaseKey) -> InFlight<'a> {
        InFlight { late: self, key, answered: false }
    }

    /// Nobody wants this lease any more: if its request was abandoned, releases it again and again for a while.
    pub(in crate::backends::postgres) fn release_repeatedly(&self, key: &LeaseKey) {
        if let Some(request) = self.abandoned.lock().get_mut(&key.id) {
            request.released = true;
            request.until = self.clock.now().after(GIVE_UP_AFTER);
        }
    }

    /// Releases the leases of unwanted requests again and again, in case the requests were executed late.
    pub(in crate::backends::postgres) async fn release_late(self: Arc<Self>, workers: Arc<WorkerPool>) {
        loop {
            sleep(RELEASE_EVERY).await;
            for key in self.unwanted() {
                match workers.release(&key, &Outcome::Cancelled).await.map(|answer| answer.value) {
                    Ok(Released::Freed | Released::LeftQueue) => {
                        tracing::warn!(resource = %key.resource, "an abandoned request was carried out late; released");
                    }
                    Ok(Released::Gone | Released::Shared) => {}
                    Err(failure) => tracing::debug!(%failure, "could not release what may come late"),
                }
            }
        }
    }

    fn unwanted(&self) -> Vec<LeaseKey> {
        let now = self.clock.now();
        let mut abandoned = self.abandoned.lock();
        abandoned.retain(|_, request| request.until > now);
        abandoned.values().filter(|request| request.released).map(|request| request.key.clone()).collect()
    }
}

/// A request in flight; if it is dropped unanswered, the server may execute it at any time.
#[derive(Debug)]
pub(in crate::backends::postgres) struct InFlight<'a> {
    late: &'a LateRequests,
    key: &'a LeaseKey,
    answered: bool,
}

impl InFlight<'_> {
    /// It was carried out, or certainly never will be.
    pub(in crate::backends::postgres) fn mark_answered(mut self) {
        self.answered = true;
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        if !self.answered {
            let until = self.late.clock.now().after(GIVE_UP_AFTER);
            let request = AbandonedRequest { key: self.key.clone(), until, released: false };
            self.late.abandoned.lock().insert(self.key.id, request);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{clock::ManualClock, lease::Resource};

    fn key() -> LeaseKey {
        LeaseKey::new(Resource::new("x").unwrap(), LeaseId::random())
    }

    #[test]
    fn what_was_abandoned_is_released_once_nobody_wants_it_and_forgotten_when_it_cannot_come_any_more() {
        let clock = Arc::new(ManualClock::new());
        let late = LateRequests::new(Arc::<ManualClock>::clone(&clock));
        let (answered, wanted, unwanted) = (key(), key(), key());
        late.in_flight(&answered).mark_answered();
        drop((late.in_flight(&wanted), late.in_flight(&unwanted)));
        for key in [&answered, &unwanted] {
            late.release_repeatedly(key);
        }
        assert_eq!(late.unwanted(), [unwanted]);
        clock.advance(GIVE_UP_AFTER);
        assert_eq!(late.unwanted(), []);
        assert!(late.abandoned.lock().is_empty(), "a process that lives long does not gather them");
    }
}
