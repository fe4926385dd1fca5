//! One of the nodes: what it is asked within its limit, and whether its yes counts.

use std::{future::Future, sync::Arc, time::Duration};

use parking_lot::Mutex;

use crate::{
    Error, Result,
    backend::Backend,
    clock::Clock,
    lease::{Answer, Grant, Incarnation, Moment, Timestamp},
};

/// A node that did not answer in time is left alone for so many limits, while enough others are there.
const REST: u32 = 20;

/// One of the nodes.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) name: String,
    pub(super) backend: Arc<dyn Backend>,
    clock: Arc<dyn Clock>,
    life: Mutex<Life>,
}

/// What is known of a node.
#[derive(Debug, Default)]
struct Life {
    incarnation: Option<Incarnation>,
    heard_at: Moment,
    restart: Option<Restart>,
    /// By how many microseconds its wall clock is ahead of ours.
    ahead: Option<i64>,
    failed: bool,
    rests_until: Moment,
}

/// A change of incarnation that was noticed.
#[derive(Clone, Copy, Debug)]
struct Restart {
    noticed_at: Moment,
    /// When the life before was heard last: the restart was not before.
    not_before: Moment,
}

impl Node {
    pub(super) fn new(name: String, backend: Arc<dyn Backend>, clock: Arc<dyn Clock>) -> Self {
        Self { name, backend, clock, life: Mutex::default() }
    }

    /// Waits for an answer that tells the node's incarnation, within the limit.
    pub(super) async fn ask<T>(
        &self,
        limit: Duration,
        call: impl Future<Output = Result<Answer<T>>> + Send,
    ) -> Result<T> {
        let answer = self.within(limit, call).await?;
        self.heard_from(answer.incarnation);
        Ok(answer.value)
    }

    /// Waits for any other answer, within the limit.
    pub(super) async fn within<T>(&self, limit: Duration, call: impl Future<Output = Result<T>> + Send) -> Result<T> {
        let asked_at = self.clock.now();
        let answer = tokio::select! {
            biased;
            answer = call => answer,
            () = self.clock.sleep_until(asked_at.after(limit)) => {
                let mut life = self.life.lock();
                life.failed = true;
                life.rests_until = self.clock.now().after(limit * REST);
                return Err(Error::unanswered(format!("no answer within {limit:?}")));
            }
        };
        let mut life = self.life.lock();
        life.failed = answer.is_err();
        life.rests_until = Moment::default();
        drop(life);
        answer
    }

    fn heard_from(&self, incarnation: Incarnation) {
        let now = self.clock.now();
        let mut life = self.life.lock();
        if life.incarnation.is_some_and(|known| known != incarnation) {
            tracing::warn!(node = self.name, "was restarted or replaced; it does not vote for a while");
            life.restart = Some(Restart { noticed_at: now, not_before: life.heard_at });
        }
        life.incarnation = Some(incarnation);
        life.heard_at = now;
    }

    /// Compares clocks by a grant that the node made on being asked at `asked_at`.
    pub(super) fn compare_clocks(&self, grant: &Grant, asked_at: Timestamp) {
        let micros = |time: Timestamp| i64::try_from(time.as_micros()).unwrap_or(i64::MAX);
        self.life.lock().ahead = Some(micros(grant.acquired_at).saturating_sub(micros(asked_at)));
    }

    /// By how many microseconds its wall clock is ahead of ours, as far as was seen.
    pub(super) fn ahead(&self) -> Option<i64> {
        self.life.lock().ahead
    }

    pub(super) fn incarnation(&self) -> Option<Incarnation> {
        self.life.lock().incarnation
    }

    /// Whether the last call failed.
    pub(super) fn failed(&self) -> bool {
        self.life.lock().failed
    }

    /// Whether it hung a moment ago.
    pub(super) fn rests(&self) -> bool {
        self.life.lock().rests_until > self.clock.now()
    }

    /// How long its yes does not count yet: a node that may have forgotten a lease or a fence
    /// has no vote until everything it may have forgotten is over.
    pub(super) fn quarantined_for(&self, quarantine: Duration) -> Duration {
        let now = self.clock.now();
        let age = self.backend.age();
        let by_age = age.map_or(Duration::ZERO, |age| quarantine.saturating_sub(age));
        let Some(restart) = self.life.lock().restart else { return by_age };
        // An age that reaches back beyond the last answer of the life before is that of the life before.
        let age_is_of_this_life = age.is_some_and(|age| age <= now.since(restart.not_before));
        if age_is_of_this_life { by_age } else { quarantine.saturating_sub(now.since(restart.noticed_at)).max(by_age) }
    }
}

#[cfg(all(test, feature = "memory"))]
mod tests {
    use super::*;
    use crate::{backends::memory::MemoryBackend, clock::ManualClock};

    const QUARANTINE: Duration = Duration::from_secs(60);

    fn node() -> (Node, ManualClock) {
        let clock = ManualClock::new();
        let backend = Arc::new(MemoryBackend::private(Arc::new(clock.clone())));
        (Node::new(String::from("a"), backend, Arc::new(clock.clone())), clock)
    }

    #[test]
    fn a_young_node_does_not_vote() {
        let (node, clock) = node();
        assert_eq!(node.quarantined_for(QUARANTINE), QUARANTINE);
        clock.advance(QUARANTINE);
        assert_eq!(node.quarantined_for(QUARANTINE), Duration::ZERO);
    }

    #[test]
    fn a_change_of_incarnation_counts_more_than_an_age_that_is_out_of_date() {
        let (node, clock) = node();
        clock.advance(QUARANTINE * 2);
        node.heard_from(Incarnation(1));
        node.heard_from(Incarnation(2));
        assert_eq!(node.quarantined_for(QUARANTINE), QUARANTINE);
        clock.advance(QUARANTINE);
        assert_eq!(node.quarantined_for(QUARANTINE), Duration::ZERO);
    }

    #[test]
    fn a_restart_long_ago_that_is_noticed_late_costs_nothing() {
        let (node, clock) = node();
        node.heard_from(Incarnation(1));
        clock.advance(QUARANTINE * 2);
        node.heard_from(Incarnation(2));
        assert_eq!(node.quarantined_for(QUARANTINE), Duration::ZERO, "its age is that of the new life");
    }
}
