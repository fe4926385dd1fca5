//! Whether a lease is still valid: an atomic deadline, compared with the clock.
//!
//! The answer is computed when it is asked for, so it is right even if no task
//! has run since: after a stopped process, a blocked runtime, a suspended machine.

use std::fmt;

use tokio::sync::Notify;

use super::sync::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use crate::lease::Moment;

/// The state of a lease, as its process sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LeaseHealth {
    /// Held, and renewed in time.
    Held,
    /// Renewals are failing, but the lease is still valid.
    InDoubt,
    /// No longer held, though nobody here released it.
    Lost,
    /// Released by this instance.
    Released,
}

/// Why a lease is no longer held: it was lost, or this instance released it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Loss {
    /// No renewal was answered before the deadline.
    RenewTimeout,
    /// An operator evicted it.
    Evicted,
    /// It reached its `max_hold`.
    MaxHold,
    /// The backend no longer has it: it expired there, or the backend lost its data.
    Gone,
    /// This instance released it: through its guard, by its handle, or by `release_all` or `close`.
    Released,
}

impl Loss {
    const fn number(self) -> u8 {
        match self {
            Self::RenewTimeout => 1,
            Self::Evicted => 2,
            Self::MaxHold => 3,
            Self::Gone => 4,
            Self::Released => 5,
        }
    }

    const fn from_number(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::RenewTimeout),
            2 => Some(Self::Evicted),
            3 => Some(Self::MaxHold),
            4 => Some(Self::Gone),
            5 => Some(Self::Released),
            _ => None,
        }
    }

    /// Returns its name in logs and metrics, such as `renew_timeout`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::RenewTimeout => "renew_timeout",
            Self::Evicted => "evicted",
            Self::MaxHold => "max_hold",
            Self::Gone => "gone",
            Self::Released => "released",
        }
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::RenewTimeout => "it could not be renewed in time",
            Self::Evicted => "an operator evicted it",
            Self::MaxHold => "it reached its max_hold",
            Self::Gone => "the backend no longer knows it",
            Self::Released => "it was released",
        })
    }
}

/// How long one lease is valid. Once it has ended, it is never valid again.
#[derive(Debug)]
pub(crate) struct Validity {
    deadline: AtomicU64,
    /// When its `max_hold` is reached: no renewal moves the deadline beyond it.
    max_hold_at: AtomicU64,
    in_doubt: AtomicBool,
    /// The number of its `Loss`; 0 while it has not ended.
    loss_number: AtomicU8,
    /// Whether anyone has called `lost`.
    awaited: AtomicBool,
    ended: Notify,
}

/// A deadline that every clock has passed.
const ENDED: u64 = 0;

impl Validity {
    /// The validity of a lease that is not held yet: no deadline is set.
    pub(crate) fn new() -> Self {
        Self {
            deadline: AtomicU64::new(Moment::NEVER.as_micros()),
            max_hold_at: AtomicU64::new(Moment::NEVER.as_micros()),
            in_doubt: AtomicBool::new(false),
            loss_number: AtomicU8::new(0),
            awaited: AtomicBool::new(false),
            ended: Notify::new(),
        }
    }

    /// The lease is held from now on: until `deadline`, which renewals extend, and never beyond `max_hold_at`.
    pub(crate) fn begin(&self, deadline: Moment, max_hold_at: Moment) {
        self.max_hold_at.store(max_hold_at.as_micros(), Ordering::Release);
        self.in_doubt.store(false, Ordering::Release);
        self.deadline.store(deadline.min(max_hold_at).as_micros(), Ordering::SeqCst);
    }

    pub(crate) fn deadline(&self) -> Moment {
        Moment::from_micros(self.deadline.load(Ordering::SeqCst))
    }

    /// Why a lease whose deadline has passed at `now` is lost.
    pub(crate) fn reason_at(&self, now: Moment) -> Loss {
        if now.as_micros() >= self.max_hold_at.load(Ordering::SeqCst) { Loss::MaxHold } else { Loss::RenewTimeout }
    }

    /// The health at `now`. Whether a session has ended is not checked here.
    pub(crate) fn health(&self, now: Moment) -> LeaseHealth {
        match self.loss() {
            Some(Loss::Released) => LeaseHealth::Released,
            Some(_) => LeaseHealth::Lost,
            None if now >= self.deadline() => LeaseHealth::Lost,
            None if self.in_doubt.load(Ordering::SeqCst) => LeaseHealth::InDoubt,
            None => LeaseHealth::Held,
        }
    }

    /// Moves the deadline later; returns false if it has already passed. A late answer does not revive the lease.
    pub(crate) fn extend(&self, now: Moment, deadline: Moment) -> bool {
        let max_hold_at = self.max_hold_at.load(Ordering::SeqCst);
        let moved = self.deadline.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |current| {
            (current > now.as_micros()).then_some(current.max(deadline.as_micros().min(max_hold_at)))
        });
        if moved.is_ok() {
            self.in_doubt.store(false, Ordering::SeqCst);
        }
        moved.is_ok()
    }

    pub(crate) fn mark_in_doubt(&self) {
        self.in_doubt.store(true, Ordering::SeqCst);
    }

    /// Ends the lease in this process. Only the first call has an effect; returns whether this call was the first.
    pub(crate) fn end(&self, loss: Loss) -> bool {
        let first = self.loss_number.compare_exchange(0, loss.number(), Ordering::SeqCst, Ordering::SeqCst).is_ok();
        if first {
            self.deadline.store(ENDED, Ordering::SeqCst);
            // Either this sees `awaited`, or a caller of `lost` that sets it later sees the end.
            if self.awaited.load(Ordering::SeqCst) {
                self.ended.notify_waiters();
            }
        }
        first
    }

    /// Why the lease is no longer held; `None` while it is.
    pub(crate) fn loss(&self) -> Option<Loss> {
        Loss::from_number(self.loss_number.load(Ordering::SeqCst))
    }

    /// Completes when the lease is no longer held, at once if it was lost before.
    pub(crate) async fn lost(&self) -> Loss {
        self.awaited.store(true, Ordering::SeqCst);
        loop {
            let ended = self.ended.notified();
            if let Some(loss) = self.loss() {
                return loss;
            }
            ended.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Moment {
        Moment::from_micros(micros)
    }

    fn held(deadline: u64, max_hold_at: Moment) -> Validity {
        let validity = Validity::new();
        validity.begin(at(deadline), max_hold_at);
        validity
    }

    fn assert_lost_at(validity: &Validity, micros: u64, reason: Loss) {
        assert_eq!(validity.health(at(micros - 1)), LeaseHealth::Held);
        assert_eq!(validity.health(at(micros)), LeaseHealth::Lost);
        assert_eq!(validity.reason_at(at(micros)), reason);
    }

    #[test]
    fn a_lease_ends_at_the_deadline_without_any_task_running() {
        assert_lost_at(&held(100, Moment::NEVER), 100, Loss::RenewTimeout);
    }

    #[test]
    fn a_late_answer_revives_nothing() {
        let validity = held(100, Moment::NEVER);
        assert!(!validity.extend(at(100), at(500)), "the reply came at the deadline");
        validity.end(Loss::RenewTimeout);
        assert!(!validity.extend(at(50), at(900)), "nor does one that claims to be early");
        assert_eq!(validity.health(at(50)), LeaseHealth::Lost);
    }

    #[test]
    fn a_renewal_never_shortens() {
        let validity = held(100, Moment::NEVER);
        assert!(validity.extend(at(10), at(60)));
        assert_eq!(validity.deadline(), at(100));
        assert!(validity.extend(at(10), at(160)));
        assert_eq!(validity.deadline(), at(160));
    }

    #[test]
    fn no_renewal_moves_the_deadline_past_max_hold() {
        let validity = held(100, at(150));
        assert!(validity.extend(at(90), at(500)));
        assert_lost_at(&validity, 150, Loss::MaxHold);
    }

    #[test]
    fn doubt_is_cleared_by_the_next_answer() {
        let validity = held(100, Moment::NEVER);
        validity.mark_in_doubt();
        assert_eq!(validity.health(at(10)), LeaseHealth::InDoubt);
        validity.extend(at(20), at(200));
        assert_eq!(validity.health(at(30)), LeaseHealth::Held);
    }

    #[test]
    fn the_first_end_counts() {
        let validity = held(100, Moment::NEVER);
        assert!(validity.end(Loss::Released));
        assert!(!validity.end(Loss::Evicted));
        assert_eq!(validity.health(at(10)), LeaseHealth::Released);
    }
}
