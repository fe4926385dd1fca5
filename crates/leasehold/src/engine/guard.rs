//! What `acquire` returns: `Guard`, which releases the lease, and `Lease`, a view that cannot release it.

use std::{
    fmt, mem,
    ops::Deref,
    sync::{Arc, Weak, atomic::Ordering},
    thread,
    time::Duration,
};

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
        Claim, Family, Fence, Holder, LeaseHandle, LeaseKey, Metadata, Mode, Moment, Outcome, Released, Renewal,
        Resource, Standing, Timestamp, Ttl,
    },
};

/// How long an explicit renewal waits for its answer: long enough for a slow server; a long ttl does not prolong it.
const RENEW_LIMIT: Duration = Duration::from_secs(3);

/// A view of a held lease, which can check and renew it but not release it.
///
/// Pass it to the work that the lease protects.
///
/// # When you lose it
/// The lease is renewed automatically, unless it is [detached](crate::Detached). If no renewal succeeds before the
/// deadline, or the backend reports that the lease is gone, [`check`](Self::check) fails and [`lost`](Self::lost)
/// completes, both *before* a backend with a ttl can grant it to another holder. A process can still be stopped between
/// a check and a write: send the [`fence`](Self::fence) with each write, so that the store can refuse one that comes
/// too late.
#[derive(Clone)]
pub struct Lease {
    engine: Arc<Engine>,
    local: Arc<LocalLease>,
}

impl Lease {
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
        self.hold().grant.fence
    }

    /// Returns the mode: exclusive, shared, permit or leader.
    pub fn mode(&self) -> Mode {
        self.local.claim().mode()
    }

    /// Returns when the lease was granted, by a wall clock; for display only.
    pub fn acquired_at(&self) -> Timestamp {
        self.hold().grant.acquired_at
    }

    /// Returns how long the caller waited for the lease.
    pub fn waited(&self) -> Duration {
        self.hold().waited
    }

    /// Returns how long the lease lives without a renewal.
    pub fn ttl(&self) -> Duration {
        self.local.ttl().get()
    }

    /// Returns the metadata that others see.
    pub fn metadata(&self) -> Metadata {
        self.local.metadata()
    }

    /// Returns how long the lease stays valid without another renewal.
    ///
    /// The safety margin is already subtracted. `None` if the lease lasts as long as its process, as on `file:`.
    pub fn remaining(&self) -> Option<Duration> {
        let deadline = self.local.validity.deadline();
        let left = (deadline != Moment::NEVER).then(|| deadline.since(self.engine.clock.now()));
        // `lose` records the reason before it resets the deadline.
        if self.local.validity.loss().is_some() { Some(Duration::ZERO) } else { left }
    }

    /// Fails if the lease is no longer held. Cheap: call it before each write.
    ///
    /// # Errors
    /// `Lost`, with the reason; `Closed` in a forked child, which does not hold its parent's leases.
    pub fn check(&self) -> Result<()> {
        self.engine.check_not_inherited()?;
        match self.local.check(self.engine.clock.now()) {
            Ok(()) => Ok(()),
            Err(next) => {
                self.engine.renewer.follow_up(&self.local, next, Outcome::Cancelled);
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

    /// Returns why the lease was lost, or that it was released; `None` while it is held. `Gone` in a forked child.
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
        let mut renewal = self.local.renewal();
        renewal.metadata = Some(metadata);
        self.send_renewal(renewal).await?;
        self.check()
    }

    /// Returns a handle by which another process can find, renew or release the lease.
    pub fn handle(&self) -> LeaseHandle {
        LeaseHandle::new(self.local.key().clone(), self.fence())
    }

    /// Returns what the backend answered. A task sends the renewal, so that its answer counts even if the caller leaves.
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
        Ok(local.map(|local| Self { engine: Arc::clone(engine), local }))
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
        Error::lost(self.resource(), self.engine.kind, self.fence(), self.end_reason().unwrap_or(Loss::Gone))
    }

    fn hold(&self) -> Hold {
        self.local.hold().expect("a Lease is created only after its grant")
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
    let now = engine.clock.now();
    let sent = local.number_call(now);
    let timeout = RENEW_LIMIT.min(renew_every(renewal.ttl));
    let answer = tokio::select! {
        biased;
        answer = engine.backend.renew(std::slice::from_ref(&renewal)) => answer,
        // `close` does not release a detached lease.
        () = engine.closed(), if !local.is_detached() => Err(Error::closed().maybe_done()),
        () = engine.clock.sleep_until(now.after(timeout)) => Err(renewal_unanswered(engine, local)),
    };
    let answered_at = engine.clock.now();
    engine.telemetry.answered(CallKind::Renew, &answer, now, || answered_at);
    let answer = answer.inspect_err(|error| engine.telemetry.renew_failed(local, error, now, answered_at))?;
    let standing = answer.value.first().copied().unwrap_or(Standing::Unknown);
    engine.telemetry.renewed(local, standing, now, answered_at);
    if standing == Standing::Unknown {
        return Err(renewal_unanswered(engine, local));
    }
    if matches!(standing, Standing::Holding(_)) {
        local.on_explicit_renewal(&renewal, sent);
    }
    let next = local.on_standing(standing, &renewal, sent, &answer.belief, answered_at);
    engine.renewer.follow_up(local, next, Outcome::Cancelled);
    engine.renewer.on_incarnation(answer.incarnation);
    Ok(standing)
}

fn renewal_unanswered(engine: &Engine, local: &LocalLease) -> Error {
    let resource = &local.key().resource;
    Error::unanswered(format!("{resource} on {}: the renewal was not answered", engine.kind)).about(resource)
}

/// A lease that is held until the guard is released or dropped.
///
/// The lease is renewed automatically until then. A guard dereferences to its [`Lease`],
/// which has the methods to check and renew it.
///
/// Dropping the guard releases the lease in the background: *not at once*, and failures
/// are only logged. Prefer [`release`](Self::release). If the guard is dropped by a
/// panic, the work is recorded as failed.
#[must_use = "the lease is released as soon as the guard is dropped"]
pub struct Guard {
    lease: Option<Lease>,
    /// The outcome to record if the guard is dropped.
    if_dropped: fn() -> Outcome,
}

impl Guard {
    /// Creates the first guard of a granted lease.
    pub(crate) fn new(engine: Arc<Engine>, local: Arc<LocalLease>) -> Self {
        Self { lease: Some(Lease { engine, local }), if_dropped: || Outcome::Completed }
    }

    /// Sets the outcome to record if the guard is dropped instead of released.
    pub(crate) fn if_dropped(mut self, outcome: fn() -> Outcome) -> Self {
        self.if_dropped = outcome;
        self
    }

    /// Releases the lease and records that the work is done.
    ///
    /// Returns [`Released::Gone`] if the lease was lost earlier. Part of the work may then have
    /// run unprotected.
    ///
    /// # Errors
    /// Fails if the backend did not confirm the release. The library then retries in the
    /// background, until the release succeeds or the lease expires.
    ///
    /// # Cancel safety
    /// Once the future has been polled, the lease is released even if the future is dropped.
    pub async fn release(self) -> Result<Released> {
        self.release_as(Outcome::Completed).await
    }

    /// Releases the lease and records how the work ended.
    ///
    /// # Errors
    /// As for [`release`](Self::release).
    pub async fn release_as(mut self, outcome: Outcome) -> Result<Released> {
        match self.lease.take() {
            Some(lease) if drop_share(&lease.local) => lease.engine.release(&lease.local, outcome).await,
            Some(_) => Ok(Released::Shared),
            None => Ok(Released::Gone),
        }
    }

    /// Returns a view of the lease, to be passed to the work.
    #[allow(clippy::missing_panics_doc, reason = "only releasing it, which takes the guard, removes the lease")]
    pub fn lease(&self) -> &Lease {
        self.lease.as_ref().expect("a guard has its lease until it is released")
    }

    /// Turns a write lock into a read lock without releasing it in between.
    ///
    /// Waiting readers then get the lock, but no writer does.
    ///
    /// After any error but `Unsupported`, it may still be a write lock at the backend; treat it as a read lock.
    ///
    /// # Errors
    /// `Unsupported` for permits and leaders, and while another guard shares the lease;
    /// otherwise as for [`Lease::renew`].
    pub async fn downgrade(&self) -> Result<()> {
        let lease = self.lease();
        if lease.mode().family() != Family::Lock {
            let words = format!("{} is a {}, only a lock can be downgraded", lease.resource(), lease.mode());
            return Err(Error::unsupported(words));
        }
        let mut renewal = lease.local.renewal();
        renewal.downgrade = Some(Claim::SHARED);
        lease.check()?;
        // A caller that enters again counts itself first, then reads the claim: one of the two sees the other.
        let claim = lease.local.replace_claim(Claim::SHARED);
        if lease.local.guards.load(Ordering::SeqCst) > 1 {
            lease.local.replace_claim(claim);
            let words =
                format!("{} was entered again and may be written to: release that guard first", lease.resource());
            return Err(Error::unsupported(words));
        }
        lease.send_renewal(renewal).await?;
        lease.check()
    }

    /// A weak reference to the lease, for the table of re-entrant locks.
    pub(crate) fn weak_lease(&self) -> Weak<LocalLease> {
        Arc::downgrade(&self.lease().local)
    }

    /// Creates another guard for the lease; `None` if no guard holds it any more.
    pub(crate) fn join(engine: &Arc<Engine>, local: &Weak<LocalLease>) -> Option<Self> {
        let local = local.upgrade()?;
        local
            .guards
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |guards| (guards > 0).then_some(guards + 1))
            .ok()?;
        let lease = Lease { engine: Arc::clone(engine), local };
        Some(Self { lease: Some(lease), if_dropped: || Outcome::Completed })
    }

    /// Returns the engine's state of the lease.
    pub(crate) fn local(&self) -> &LocalLease {
        &self.lease().local
    }

    /// How many units of the resource the lease takes.
    pub(crate) fn claim(&self) -> Claim {
        self.lease().local.claim()
    }

    /// Releases the lease in the background.
    pub(crate) fn abandon(mut self, outcome: Outcome) {
        self.release_in_background(outcome);
    }

    /// Drops the guard without releasing the lease, which then ends with its ttl.
    pub(crate) fn detach(mut self) -> Lease {
        self.lease.take().expect("a guard has its lease until it is released")
    }

    fn release_in_background(&mut self, outcome: Outcome) {
        let Some(lease) = self.lease.take() else { return };
        if lease.engine.is_inherited() {
            // The lease and its engine belong to the parent: leak them.
            mem::forget(lease);
        } else if drop_share(&lease.local) {
            lease.engine.release_in_background(&lease.local, outcome);
        }
    }
}

impl Deref for Guard {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        self.lease()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.lease.is_none() {
            return;
        }
        let outcome = if thread::panicking() {
            Outcome::failed("panic", "the thread that held the lease panicked")
        } else {
            (self.if_dropped)()
        };
        self.release_in_background(outcome);
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Guard").field(&self.lease).finish()
    }
}

/// Counts off one guard of the lease; returns whether it was the last.
fn drop_share(local: &LocalLease) -> bool {
    local.guards.fetch_sub(1, Ordering::SeqCst) == 1
}
