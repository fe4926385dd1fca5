//! `Lease`: a view of a held lease, which can check and renew it but not release it.

use std::{fmt, sync::Arc, time::Duration};

use tokio::sync::oneshot;

use super::{
    Engine,
    local_lease::{Hold, LocalLease},
    renew_every,
    telemetry::CallKind,
    validity::{LeaseHealth, Loss},
};
use crate::{
    Error, Result,
    lease::{
        Fence, Holder, LeaseHandle, LeaseKey, Metadata, Mode, Moment, Outcome, Released, Renewal, Resource, Standing,
        Timestamp, Ttl,
    },
};

/// How long an explicit renewal waits for its answer: long enough for a slow server; a long ttl does not prolong it.
const RENEW_LIMIT: Duration = Duration::from_secs(3);

/// A view of a held lease, which can check and renew it but not release it.
///
/// Pass it to the work that the lease protects.
///
/// # When you lose it
/// The lease is renewed automatically, unless it is [detached](crate::DetachedLease). If no renewal succeeds before the
/// deadline, or the backend reports that the lease is gone, [`check`](Self::check) fails and [`lost`](Self::lost)
/// completes, both *before* a backend with a ttl can grant it to another holder. A process can still be stopped between
/// a check and a write: send the [`fence`](Self::fence) with each write, so that the store can refuse one that comes
/// too late.
#[derive(Clone)]
pub struct Lease {
    pub(super) engine: Arc<Engine>,
    pub(super) local: Arc<LocalLease>,
    /// A copy, so that it can be read in a forked child, where another thread may have locked the state for ever.
    hold: Hold,
}

impl Lease {
    /// A view of a lease that has been granted.
    pub(super) fn new(engine: Arc<Engine>, local: Arc<LocalLease>) -> Self {
        let hold = local.hold().expect("a Lease is created only after its grant");
        Self { engine, local, hold }
    }

    /// Returns the resource that is locked.
    pub fn resource(&self) -> &Resource {
        &self.local.key().resource
    }

    /// Returns the holder's name, which defaults to the holder name of the instance.
    pub fn holder(&self) -> &Holder {
        &self.local.request.holder
    }

    /// Returns the holder's note.
    pub fn note(&self) -> Option<&str> {
        self.local.request.note.as_deref()
    }

    /// Returns the fence of the grant. It is higher than that of every earlier grant of the resource.
    pub fn fence(&self) -> Fence {
        self.hold.grant.fence
    }

    /// Returns the mode: exclusive, shared, permit or leader.
    pub fn mode(&self) -> Mode {
        if self.engine.is_inherited() { self.local.request.claim } else { self.local.claim() }.mode()
    }

    /// Returns when the lease was granted, by a wall clock; for display only.
    pub fn acquired_at(&self) -> Timestamp {
        self.hold.grant.acquired_at
    }

    /// Returns how long the caller waited for the lease.
    pub fn waited(&self) -> Duration {
        self.hold.waited
    }

    /// Returns how long the lease lives without a renewal.
    pub fn ttl(&self) -> Duration {
        self.local.ttl().get()
    }

    /// Returns the metadata that others see.
    pub fn metadata(&self) -> Metadata {
        if self.engine.is_inherited() { self.local.request.metadata.clone() } else { self.local.metadata() }
    }

    /// Returns how long the lease stays valid without another renewal.
    ///
    /// The safety margin is already subtracted. `None` if the lease lasts as long as its process, as on `file:`.
    pub fn remaining(&self) -> Option<Duration> {
        let deadline = self.local.validity.deadline();
        let left = (deadline != Moment::NEVER).then(|| deadline.since(self.engine.clock.now()));
        // Check for a loss after reading the deadline: `end` records the reason before it moves the deadline into
        // the past.
        if self.local.validity.loss().is_some() { Some(Duration::ZERO) } else { left }
    }

    /// Fails if the lease is no longer held. This is cheap, so call it before each write.
    ///
    /// # Errors
    /// `Lost`, with the reason; `Closed` in a forked child, which does not hold its parent's leases.
    pub fn check(&self) -> Result<()> {
        self.engine.check_not_inherited()?;
        match self.local.check(self.engine.clock.now()) {
            Ok(()) => Ok(()),
            Err(follow_up) => {
                self.engine.renewer.follow_up(&self.local, follow_up);
                Err(self.lost_error())
            }
        }
    }

    /// Returns the state of the lease: held, in doubt, lost or released.
    pub fn health(&self) -> LeaseHealth {
        if self.engine.is_inherited() {
            return LeaseHealth::Lost;
        }
        let _records_loss = self.check();
        self.local.validity.health(self.engine.clock.now())
    }

    /// Completes when the lease is lost or released; at once if it already is.
    ///
    /// # Cancel safety
    /// May be dropped and called again: a loss is never missed.
    pub async fn lost(&self) -> Loss {
        if self.engine.is_inherited() {
            return Loss::Gone;
        }
        if self.local.is_detached() {
            return self.lost_or_run_out().await;
        }
        self.local.validity.lost().await
    }

    /// Like `lost`, for a detached lease, whose deadline the renewer does not watch.
    async fn lost_or_run_out(&self) -> Loss {
        loop {
            let deadline = self.engine.sleep_until(self.local.validity.deadline());
            tokio::select! {
                biased;
                loss = self.local.validity.lost() => return loss,
                // A renewal may have moved the deadline in between.
                () = deadline => { let _records_loss = self.check(); }
            }
        }
    }

    /// Returns why the lease is no longer held; `None` while it is held. `Gone` in a forked child.
    pub fn loss(&self) -> Option<Loss> {
        if self.engine.is_inherited() {
            return Some(Loss::Gone);
        }
        let _records_loss = self.check();
        self.local.validity.loss()
    }

    /// Renews the lease for `ttl` from now; later renewals use `ttl` too.
    ///
    /// # Errors
    /// `Lost` if the lease is no longer held; a retryable error if the backend cannot be reached or does not answer.
    pub async fn renew(&self, ttl: Duration) -> Result<()> {
        let ttl = Ttl::new(ttl)?;
        self.send_renewal(Renewal::new(self.local.key().clone(), ttl)).await?;
        self.check()
    }

    /// Replaces the metadata that others see.
    ///
    /// # Errors
    /// As for [`renew`](Self::renew).
    pub async fn set_metadata(&self, metadata: Metadata) -> Result<()> {
        let mut renewal = self.local.plain_renewal();
        renewal.metadata = Some(metadata);
        self.send_renewal(renewal).await?;
        self.check()
    }

    /// Returns a handle by which another process can find, renew or release the lease.
    pub fn handle(&self) -> LeaseHandle {
        LeaseHandle::new(self.local.key().clone(), self.fence())
    }

    /// Returns what the backend answered. A task sends the renewal, so its answer counts even if the caller leaves.
    pub(crate) async fn send_renewal(&self, renewal: Renewal) -> Result<Standing> {
        self.check()?;
        let (done, answer) = oneshot::channel();
        let (engine, local) = (Arc::clone(&self.engine), Arc::clone(&self.local));
        self.engine.spawn(Box::pin(async move {
            let _caller_left = done.send(renew_once(&engine, &local, renewal).await);
        }));
        answer.await.unwrap_or_else(|_panicked| Err(renewal_unanswered(&self.engine, &self.local)))
    }

    /// Returns the lease with this key if this instance holds and renews it.
    pub(crate) fn held(engine: &Arc<Engine>, key: &LeaseKey) -> Result<Option<Self>> {
        engine.check_not_inherited()?;
        let local = engine.renewer.find_held(key);
        Ok(local.map(|local| Self::new(Arc::clone(engine), local)))
    }

    /// Releases a lease that has no guard.
    pub(crate) async fn release_as(&self, outcome: Outcome) -> Result<Released> {
        self.engine.release(&self.local, outcome).await
    }

    /// Like `loss`, but `Gone` if the backend no longer knew the lease when it was released.
    pub(crate) fn end_reason(&self) -> Option<Loss> {
        self.local.end_reason()
    }

    pub(crate) fn lost_error(&self) -> Error {
        // No reason is recorded yet if another thread is ending the lease just now.
        Error::lost(self.resource(), self.engine.backend_kind, self.fence(), self.end_reason().unwrap_or(Loss::Gone))
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("resource", self.resource())
            .field("mode", &self.mode())
            .field("fence", &self.fence())
            .field("health", &self.health())
            .finish_non_exhaustive()
    }
}

/// Sends one renewal and applies its answer as the renewer would; without an answer, the lease stays as it is.
async fn renew_once(engine: &Arc<Engine>, local: &Arc<LocalLease>, renewal: Renewal) -> Result<Standing> {
    let sent_at = engine.clock.now();
    let call = local.number_call(sent_at);
    let timeout = RENEW_LIMIT.min(renew_every(renewal.ttl));
    let answer = tokio::select! {
        biased;
        answer = engine.backend.renew(std::slice::from_ref(&renewal)) => answer,
        // `close` gives up the renewals of attached leases, which it releases; detached leases live on.
        () = engine.closed(), if !local.is_detached() => Err(Error::closed().with_unknown_outcome()),
        () = engine.clock.sleep_until(sent_at.after(timeout)) => Err(renewal_unanswered(engine, local)),
    };
    let answered_at = engine.clock.now();
    engine.telemetry.record_answer(CallKind::Renew, &answer, sent_at, || answered_at);
    let answer =
        answer.inspect_err(|error| engine.telemetry.record_renew_failure(local, error, sent_at, answered_at))?;
    let standing = answer.value.first().copied().unwrap_or(Standing::Unknown);
    engine.telemetry.record_renewal(local, standing, sent_at, answered_at);
    if standing == Standing::Unknown {
        return Err(renewal_unanswered(engine, local));
    }
    if matches!(standing, Standing::Holding(_)) {
        local.on_explicit_renewal(&renewal, call);
    }
    let follow_up = local.on_standing(standing, &renewal, call, &answer.belief, answered_at);
    engine.renewer.follow_up(local, follow_up);
    engine.renewer.on_incarnation(answer.incarnation);
    Ok(standing)
}

fn renewal_unanswered(engine: &Engine, local: &LocalLease) -> Error {
    let resource = &local.key().resource;
    Error::unanswered(format!("{resource} on {}: the renewal was not answered", engine.backend_kind)).about(resource)
}
