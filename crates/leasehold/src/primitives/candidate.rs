//! A candidate that takes part in an election in the background.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::election::{Election, Leader};
use crate::{
    Error, Result,
    engine::{Backoff, Guard, Lease},
};

/// A candidate that takes part in the background.
///
/// Dropping it withdraws: it resigns and no longer campaigns.
#[derive(Debug)]
#[must_use = "the candidate withdraws as soon as it is dropped"]
pub struct Candidate {
    election: Election,
    seat: Arc<Seat>,
}

/// What a candidate and its background task share.
#[derive(Debug, Default)]
struct Seat {
    lease: Mutex<Option<Lease>>,
    changed: Notify,
    resign: Notify,
    stopping: AtomicBool,
    stopped: AtomicBool,
    /// Why it takes part no longer, if it did not want to stop.
    failure: Mutex<Option<Error>>,
}

impl Seat {
    fn take(&self, lease: Option<Lease>) {
        *self.lease.lock() = lease;
        self.changed.notify_waiters();
    }

    fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.resign.notify_one();
    }
}

impl Candidate {
    pub(super) fn start(election: Election) -> Self {
        let seat = Arc::new(Seat::default());
        let task = run_candidate(election.clone(), Arc::clone(&seat));
        election.terms.locks.engine().hand_over(Box::pin(task));
        Self { election, seat }
    }

    /// Whether this candidate leads; false from the deadline on, whatever the network does.
    pub fn is_leader(&self) -> bool {
        self.seat.lease.lock().as_ref().is_some_and(|lease| lease.check().is_ok())
    }

    /// The lease of its term, while it leads.
    pub fn lease(&self) -> Option<Lease> {
        self.seat.lease.lock().clone().filter(|lease| lease.check().is_ok())
    }

    /// Waits until this candidate leads, and gives the lease of its term.
    ///
    /// # Errors
    /// `Closed` when the instance was closed meanwhile; what makes it
    /// impossible to take part, such as a name that is in use as something else.
    ///
    /// # Cancel safety
    /// May be dropped and called again: who leads is told at once.
    pub async fn elected(&self) -> Result<Lease> {
        loop {
            let changed = self.seat.changed.notified();
            if let Some(lease) = self.lease() {
                return Ok(lease);
            }
            if self.seat.stopped.load(Ordering::SeqCst) {
                return Err(self.seat.failure.lock().take().unwrap_or_else(Error::closed));
            }
            changed.await;
        }
    }

    /// Who leads now, this candidate or another.
    ///
    /// # Errors
    /// When the backend cannot tell.
    pub async fn leader(&self) -> Result<Option<Leader>> {
        self.election.leader().await
    }

    /// Steps down and goes on campaigning, behind those who wait.
    pub fn resign(&self) {
        if self.is_leader() {
            self.seat.resign.notify_one();
        }
    }

    /// Steps down and takes part no longer. One who only waits gives up its place in the background.
    ///
    /// # Errors
    /// None today; a release that could not be made lapses after the ttl.
    pub async fn stop(self) -> Result<()> {
        self.seat.stop();
        loop {
            let changed = self.seat.changed.notified();
            if self.seat.stopped.load(Ordering::SeqCst) {
                return Ok(());
            }
            changed.await;
        }
    }
}

impl Drop for Candidate {
    fn drop(&mut self) {
        self.seat.stop();
    }
}

/// Campaigns and leads in turn until told to stop.
async fn run_candidate(election: Election, seat: Arc<Seat>) {
    let engine = Arc::clone(election.terms.locks.engine());
    let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(5));
    while !seat.stopping.load(Ordering::SeqCst) {
        let won = tokio::select! {
            biased;
            () = seat.resign.notified() => continue,
            won = election.campaign() => won,
        };
        match won {
            Ok(guard) => {
                backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(5));
                lead(&election, &seat, guard).await;
            }
            Err(error) if !error.is_retryable() => {
                *seat.failure.lock() = Some(error);
                break;
            }
            Err(error) => {
                tracing::warn!(election = election.terms.name, %error, "cannot campaign; trying again");
                tokio::select! {
                    () = seat.resign.notified() => {}
                    () = engine.sleep_until(engine.clock.now().after(backoff.pause())) => {}
                }
            }
        }
    }
    seat.stopped.store(true, Ordering::SeqCst);
    seat.take(None);
}

/// One term, from winning to losing or resigning.
async fn lead(election: &Election, seat: &Seat, guard: Guard) {
    seat.take(Some(guard.lease().clone()));
    if let Some(call) = &election.on_elected {
        guarded(|| call(guard.lease()));
    }
    let resigned = tokio::select! {
        biased;
        _loss = guard.lost() => false,
        () = seat.resign.notified() => true,
        () = election.terms.locks.engine().closed() => true,
    };
    seat.take(None);
    if let Some(call) = &election.on_lost {
        guarded(|| call());
    }
    if resigned && let Err(error) = guard.release().await {
        tracing::warn!(election = election.terms.name, %error, "could not resign; leadership will lapse");
    }
}

/// A callback that panics is the caller's loss alone: the candidate goes on.
fn guarded(call: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(call)).is_err() {
        tracing::error!("a callback of an election panicked");
    }
}
