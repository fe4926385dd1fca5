//! Abandoned requests that the server may still execute.
//!
//! A request can wait in a network or a stalled server while its release overtakes it on another
//! connection. A lease with a ttl then delays others by one ttl; a session-bound one would stay as
//! long as this process lives. So it is released again for a while.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::sleep;

use crate::{
    backends::postgres::ops::Ops,
    clock::Clock,
    lease::{LeaseId, LeaseKey, Moment, Outcome, Released},
};

/// The kernel may send leftover data for a minute or two; stop after this.
const GIVE_UP_AFTER: Duration = Duration::from_secs(300);

/// How often an unwanted request is released again.
const RELEASE_EVERY: Duration = Duration::from_secs(5);

/// Abandoned requests that the server may still execute.
#[derive(Debug)]
pub(in crate::backends::postgres) struct LateRequests {
    clock: Arc<dyn Clock>,
    given_up: Mutex<HashMap<LeaseId, GivenUp>>,
}

#[derive(Debug)]
struct GivenUp {
    key: LeaseKey,
    until: Moment,
    /// Nobody wants it any more.
    released: bool,
}

impl LateRequests {
    pub(in crate::backends::postgres) fn new(clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self { clock, given_up: Mutex::default() })
    }

    /// A request begins; it counts as given up unless [`answered`](InFlight::answered) is called.
    pub(in crate::backends::postgres) fn in_flight<'a>(&'a self, key: &'a LeaseKey) -> InFlight<'a> {
        InFlight { late: self, key, answered: false }
    }

    /// Nobody wants this lease any more.
    pub(in crate::backends::postgres) fn released(&self, key: &LeaseKey) {
        if let Some(given_up) = self.given_up.lock().get_mut(&key.id) {
            given_up.released = true;
            given_up.until = self.clock.now().after(GIVE_UP_AFTER);
        }
    }

    /// Releases unwanted requests again and again, in case they were executed late.
    pub(in crate::backends::postgres) async fn release_late(self: Arc<Self>, ops: Arc<Ops>) {
        loop {
            sleep(RELEASE_EVERY).await;
            for key in self.unwanted() {
                match ops.release(&key, &Outcome::Cancelled).await.map(|answer| answer.value) {
                    Ok(Released::Freed | Released::LeftQueue) => {
                        tracing::warn!(resource = %key.resource, "a request that was given up was carried out late; released");
                    }
                    Ok(Released::Gone | Released::Shared) => {}
                    Err(failure) => tracing::debug!(%failure, "could not release what may come late"),
                }
            }
        }
    }

    fn unwanted(&self) -> Vec<LeaseKey> {
        let now = self.clock.now();
        let mut given_up = self.given_up.lock();
        given_up.retain(|_, given_up| given_up.until > now);
        given_up.values().filter(|given_up| given_up.released).map(|given_up| given_up.key.clone()).collect()
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
    pub(in crate::backends::postgres) fn answered(mut self) {
        self.answered = true;
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        if !self.answered {
            let until = self.late.clock.now().after(GIVE_UP_AFTER);
            let given_up = GivenUp { key: self.key.clone(), until, released: false };
            self.late.given_up.lock().insert(self.key.id, given_up);
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
    fn what_was_given_up_is_released_once_nobody_wants_it_and_forgotten_when_it_cannot_come_any_more() {
        let clock = Arc::new(ManualClock::new());
        let late = LateRequests::new(Arc::<ManualClock>::clone(&clock));
        let (answered, wanted, unwanted) = (key(), key(), key());
        late.in_flight(&answered).answered();
        drop((late.in_flight(&wanted), late.in_flight(&unwanted)));
        for key in [&answered, &unwanted] {
            late.released(key);
        }
        assert_eq!(late.unwanted(), [unwanted]);
        clock.advance(GIVE_UP_AFTER);
        assert_eq!(late.unwanted(), []);
        assert!(late.given_up.lock().is_empty(), "a process that lives long does not gather them");
    }
}
