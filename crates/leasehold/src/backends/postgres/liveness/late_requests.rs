//! Requests that were given up and may still be carried out.
//!
//! A request can wait in a network or a stalled server while its release overtakes it on another
//! connection. Where a ttl ends leases, that costs others one ttl; where only the connection does, the
//! lease would stay as long as this process lives. So it is released again for a while.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::sleep;

use crate::{
    backends::postgres::ops::Ops,
    clock::Clock,
    lease::{LeaseId, LeaseKey, Moment, Outcome, Released},
};

/// The kernel sends what a closed socket left behind for a minute or two.
const LATEST: Duration = Duration::from_secs(300);

/// How often it is released again.
const AGAIN: Duration = Duration::from_secs(5);

/// What was asked for, given up, and may yet come.
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

    /// A request begins; it counts as given up unless [`answered`](Asking::answered) is called.
    pub(in crate::backends::postgres) fn asking<'a>(&'a self, key: &'a LeaseKey) -> Asking<'a> {
        Asking { late: self, key, answered: false }
    }

    /// Nobody wants this lease any more.
    pub(in crate::backends::postgres) fn released(&self, key: &LeaseKey) {
        if let Some(given_up) = self.given_up.lock().get_mut(&key.id) {
            given_up.released = true;
            given_up.until = self.clock.now().after(LATEST);
        }
    }

    /// Releases what comes late.
    pub(in crate::backends::postgres) async fn give_back(self: Arc<Self>, ops: Arc<Ops>) {
        loop {
            sleep(AGAIN).await;
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

/// A request under way; dropped before it is answered, it may be carried out at any time.
#[derive(Debug)]
pub(in crate::backends::postgres) struct Asking<'a> {
    late: &'a LateRequests,
    key: &'a LeaseKey,
    answered: bool,
}

impl Asking<'_> {
    /// It was carried out, or certainly never will be.
    pub(in crate::backends::postgres) fn answered(mut self) {
        self.answered = true;
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        if !self.answered {
            let until = self.late.clock.now().after(LATEST);
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
        late.asking(&answered).answered();
        drop((late.asking(&wanted), late.asking(&unwanted)));
        for key in [&answered, &unwanted] {
            late.released(key);
        }
        assert_eq!(late.unwanted(), [unwanted]);
        clock.advance(LATEST);
        assert_eq!(late.unwanted(), []);
        assert!(late.given_up.lock().is_empty(), "a process that lives long does not gather them");
    }
}
