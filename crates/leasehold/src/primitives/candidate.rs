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
use tracing::Instrument;

use super::election::{Election, Leader};
use crate::{
    Error, ErrorKind, Result,
    backend::Backoff,
    engine::{Engine, Guard, Lease, catch_panic, telemetry},
};

/// A candidate that campaigns in the background until it is stopped or dropped.
///
/// When it loses the leadership, it campaigns again. After an error it retries with growing pauses.
/// [`last_error`](Self::last_error) and the log say why a campaign failed.
#[derive(Debug)]
#[must_use = "the candidate withdraws as soon as it is dropped"]
pub struct Candidate {
    election: Election,
    state: Arc<CandidateState>,
}

/// What a candidate and its background task share.
#[derive(Debug, Default)]
struct CandidateState {
    /// The lease of the current term.
    lease: Mutex<Option<Lease>>,
    changed: Notify,
    resign: Notify,
    stopping: AtomicBool,
    stopped: AtomicBool,
    /// Why the last campaign failed, until one succeeds.
    error: Mutex<Option<Arc<Error>>>,
}

impl CandidateState {
    fn set_lease(&self, lease: Option<Lease>) {
        *self.lease.lock() = lease;
        self.changed.notify_waiters();
    }

    fn set_error(&self, error: Option<Error>) {
        *self.error.lock() = error.map(Arc::new);
        self.changed.notify_waiters();
    }

    fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.resign.notify_one();
    }
}

impl Candidate {
    pub(super) fn start(election: Election) -> Self {
        let state = Arc::new(CandidateState::default());
        let task = run_candidate(election.clone(), Arc::clone(&state));
        election.options.locks.engine().spawn(Box::pin(task));
        Self { election, state }
    }

    /// Returns whether this candidate leads.
    ///
    /// Returns `false` as soon as the lease of the term has run out, even if the backend cannot be reached.
    pub fn is_leader(&self) -> bool {
        self.lease().is_some()
    }

    /// Returns the lease of the current term, if this candidate leads.
    pub fn lease(&self) -> Option<Lease> {
        if self.election.options.locks.engine().is_inherited() {
            return None;
        }
        self.state.lease.lock().clone().filter(|lease| lease.check().is_ok())
    }

    /// Returns why the last campaign failed.
    ///
    /// `None` if none has failed since this candidate started or last won.
    pub fn last_error(&self) -> Option<Arc<Error>> {
        if self.election.options.locks.engine().is_inherited() {
            return Some(Arc::new(Error::inherited()));
        }
        self.state.error.lock().clone()
    }

    /// Waits until this candidate leads, and returns the lease of its term.
    ///
    /// It keeps waiting after an error, because the candidate retries; see [`last_error`](Self::last_error).
    ///
    /// # Errors
    /// `Closed` if the instance is closed before or during the wait, or if this process is a forked child.
    ///
    /// # Cancel safety
    /// May be dropped and called again: it completes at once if this candidate leads.
    pub async fn elected(&self) -> Result<Lease> {
        self.election.options.locks.engine().check_not_inherited()?;
        loop {
            let changed = self.state.changed.notified();
            if let Some(lease) = self.lease() {
                return Ok(lease);
            }
            if self.state.stopped.load(Ordering::SeqCst) {
                return Err(Error::closed());
            }
            changed.await;
        }
    }

    /// Returns the current leader, this candidate or another; `None` if nobody leads.
    ///
    /// # Errors
    /// As for [`Election::leader`].
    pub async fn leader(&self) -> Result<Option<Leader>> {
        self.election.leader().await
    }

    /// Steps down and campaigns again from the end of the queue.
    ///
    /// Does nothing if this candidate does not lead.
    pub fn resign(&self) {
        if self.is_leader() {
            self.state.resign.notify_one();
        }
    }

    /// Steps down and stops campaigning. If this candidate is still waiting, it leaves the queue in the background.
    ///
    /// # Errors
    /// `Closed` in a forked child.
    pub async fn stop(self) -> Result<()> {
        self.election.options.locks.engine().check_not_inherited()?;
        self.state.stop();
        loop {
            let changed = self.state.changed.notified();
            if self.state.stopped.load(Ordering::SeqCst) {
                return Ok(());
            }
            changed.await;
        }
    }
}

impl Drop for Candidate {
    fn drop(&mut self) {
        if !self.election.options.locks.engine().is_inherited() {
            self.state.stop();
        }
    }
}

/// Campaigns and leads in turn until it is stopped or the instance is closed.
async fn run_candidate(election: Election, state: Arc<CandidateState>) {
    let engine = Arc::clone(election.options.locks.engine());
    let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(5));
    while !state.stopping.load(Ordering::SeqCst) {
        let won = tokio::select! {
            biased;
            () = state.resign.notified() => continue,
            won = catch_panic(election.campaign()) => won,
        };
        match won {
            Ok(guard) => {
                backoff.reset();
                state.set_error(None);
                let span = telemetry::term_span(&election.options.resource, guard.fence().get());
                lead(&engine, &election, &state, guard).instrument(span).await;
            }
            Err(error) if error.kind() == ErrorKind::Closed => break,
            Err(error) => {
                tracing::warn!(
                    target: "leasehold::election",
                    election = %election.options.resource,
                    error = format_args!("{error:#}"),
                    "cannot campaign; trying again"
                );
                state.set_error(Some(error));
                tokio::select! {
                    () = state.resign.notified() => {}
                    () = engine.closed() => break,
                    () = engine.sleep_until(engine.clock.now().after(backoff.pause())) => {}
                }
            }
        }
    }
    state.stopped.store(true, Ordering::SeqCst);
    state.set_lease(None);
}

/// One term, from winning to losing or resigning.
///
/// Callbacks run on a thread where they may block: one that sleeps delays the next campaign of this candidate,
/// never a renewal or a deadline.
async fn lead(engine: &Arc<Engine>, election: &Election, state: &CandidateState, guard: Guard) {
    state.set_lease(Some(guard.lease().clone()));
    let lease = guard.lease().clone();
    let elected = election.on_elected.clone().map(|call| run_callback(engine, move || call(&lease)));
    let resigned = tokio::select! {
        biased;
        _loss = guard.lost() => false,
        () = state.resign.notified() => true,
        () = engine.closed() => true,
    };
    state.set_lease(None);
    if let Some(elected) = elected {
        elected.await;
    }
    if let Some(call) = election.on_lost.clone() {
        run_callback(engine, move || call()).await;
    }
    if resigned && let Err(error) = catch_panic(guard.release()).await {
        tracing::warn!(
            target: "leasehold::election",
            election = %election.options.resource,
            error = format_args!("{error:#}"),
            "could not resign; leadership will lapse"
        );
    }
}

/// Starts a callback at once; the future completes when it has returned. One that panics is logged.
fn run_callback<F: FnOnce() + Send + 'static>(engine: &Engine, call: F) -> impl Future<Output = ()> + use<F> {
    let running = engine.threads.io.spawn_blocking(move || catch_unwind(AssertUnwindSafe(call)).is_err());
    async move {
        if running.await.unwrap_or(true) {
            tracing::error!(target: "leasehold::election", "a callback of an election panicked");
        }
    }
}
