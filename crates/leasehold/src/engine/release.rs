//! Giving leases back, again and again until it is done or no longer matters.

use std::{sync::Arc, time::Duration};

use tokio::sync::oneshot;

use super::{Engine, Kept, Task, backoff::Backoff, validity::Loss};
use crate::{
    Error, Result,
    lease::{LeaseKey, Moment, Outcome, Released},
    telemetry,
};

/// How long one try may take, and how long tries go on once the instance is
/// closed: long enough for a slow server, short enough for a process that wants to exit.
const LIMIT: Duration = Duration::from_secs(3);

impl Engine {
    /// Ends the belief, then the lease; waits for the first answer.
    pub(crate) async fn release(self: &Arc<Self>, kept: &Arc<Kept>, outcome: Outcome) -> Result<Released> {
        match self.begin_release(kept, outcome, Self::run) {
            Some(answer) => answer.await.unwrap_or_else(|_| Err(Error::closed())),
            None => Ok(Released::Gone),
        }
    }

    /// Ends every lease of this instance at once; tells how many were held.
    pub(crate) async fn release_all(self: &Arc<Self>) -> Result<usize> {
        let held = self.keeper.holding();
        let begin = |kept| self.begin_release(kept, Outcome::Completed, Self::run);
        let answers: Vec<_> = held.iter().filter_map(begin).collect();
        let (mut released, mut failure) = (0, None);
        for answer in answers {
            match answer.await.unwrap_or_else(|_| Err(Error::closed())) {
                Ok(Released::Freed) => released += 1,
                Ok(_) => {}
                Err(error) => failure = Some(error),
            }
        }
        failure.map_or(Ok(released), Err)
    }

    /// Ends the belief and begins to end the lease in a task that `run` starts.
    ///
    /// `None` when there is nothing to release: it was lost or released before.
    pub(crate) fn begin_release(
        self: &Arc<Self>,
        kept: &Arc<Kept>,
        outcome: Outcome,
        run: fn(&Arc<Self>, Task),
    ) -> Option<oneshot::Receiver<Result<Released>>> {
        self.keeper.forget(kept);
        let hold = kept.hold()?;
        let _lost_unnoticed = hold.validity.check(self.clock.now());
        if !hold.validity.lose(Loss::Released) {
            return None;
        }
        let (done, answer) = oneshot::channel();
        let (engine, kept) = (Arc::clone(self), Arc::clone(kept));
        let task = async move {
            let first = engine.release_once(&kept.key, &outcome).await;
            let failed = first.is_err();
            telemetry::released(&kept, &outcome);
            let _caller_left = done.send(first);
            if failed {
                engine.release_until_done(&kept, &outcome).await;
            }
        };
        run(self, Box::pin(task));
        Some(answer)
    }

    /// Gives back in the background what no guard has: the caller need not wait for it.
    pub(crate) fn give_back(self: &Arc<Self>, kept: &Arc<Kept>, outcome: Outcome) {
        let (engine, kept) = (Arc::clone(self), Arc::clone(kept));
        self.run(Box::pin(async move { engine.release_until_done(&kept, &outcome).await }));
    }

    async fn release_once(&self, key: &LeaseKey, outcome: &Outcome) -> Result<Released> {
        tokio::select! {
            biased;
            answer = self.backend.release(key, outcome) => answer.map(|answer| answer.value),
            () = self.clock.sleep_until(self.clock.now().after(LIMIT)) => {
                let words = format!("the release of {} was not answered within {LIMIT:?}", key.resource);
                Err(Error::unanswered(words).about(&key.resource))
            }
        }
    }

    /// Tries until it is answered, or the lease has ended by itself, or the instance is closed.
    async fn release_until_done(&self, kept: &Kept, outcome: &Outcome) {
        // A lease that no clock ends would stay for as long as this process lives.
        let until = if kept.clocked { self.clock.now().after(kept.ttl().get()) } else { Moment::NEVER };
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));
        loop {
            let Err(error) = self.release_once(&kept.key, outcome).await else { return };
            let now = self.clock.now();
            let refused = kept.clocked && !error.is_retryable();
            if refused || now >= until || self.closed_for(now) >= Some(LIMIT) {
                tracing::warn!(resource = %kept.key.resource, %error, "could not release");
                return;
            }
            self.clock.sleep_until(now.after(backoff.pause())).await;
        }
    }
}
