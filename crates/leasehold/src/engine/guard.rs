//! `Guard`: holds a lease until it is released or dropped.

use std::{
    fmt, mem,
    ops::Deref,
    sync::{Arc, Weak, atomic::Ordering},
    thread,
};

use super::{Engine, lease::Lease, local_lease::LocalLease};
use crate::{
    Error, Result,
    lease::{Claim, Family, Outcome, Released},
};

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
        Self { lease: Some(Lease::new(engine, local)), if_dropped: || Outcome::Completed }
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
            Some(lease) if remove_guard(&lease.local) => lease.engine.release(&lease.local, outcome).await,
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
        let mut renewal = lease.local.plain_renewal();
        renewal.downgrade = Some(Claim::SHARED);
        lease.check()?;
        // Races with `Reentries::join_or_acquire`, which adds a guard by `join`, then reads the claim. This sets the
        // claim, then reads `guards`: one of the two notices the other.
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

    /// A weak reference to the lease, for the table of shared leases.
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
        let lease = Lease::new(Arc::clone(engine), local);
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
        } else if remove_guard(&lease.local) {
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

/// Removes one guard of the lease; returns whether it was the last.
fn remove_guard(local: &LocalLease) -> bool {
    local.guards.fetch_sub(1, Ordering::SeqCst) == 1
}
