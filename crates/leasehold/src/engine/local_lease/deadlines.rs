//! How long the last answer keeps a lease valid, and when to renew it next.

use std::time::Duration;

use super::{LastAnswer, LocalLease, LocalState, Phase};
use crate::{
    backend::Belief,
    engine::{margin, renew_every},
    lease::{Lifetime, Moment, QueuePosition, Ttl},
};

/// The longest interval between renewals of a held lease that never expires. Limits how long a lost eviction hint goes
/// unnoticed.
const MAX_RENEW_INTERVAL_HOLDER: Duration = Duration::from_secs(10);
/// The longest interval between renewals of a queue position that never expires. Limits how long a lost grant hint goes
/// unnoticed; longer than for a holder, since there may be hundreds of waiters.
pub(super) const MAX_RENEW_INTERVAL_WAITER: Duration = Duration::from_secs(60);
/// The same for the first waiter, on which all behind it depend.
pub(super) const MAX_RENEW_INTERVAL_FIRST_WAITER: Duration = Duration::from_secs(5);

impl LocalLease {
    /// The deadline from the last answer, assuming that its request or renewal asked for `ttl`.
    pub(super) fn deadline_of_last_answer(&self, state: &LocalState, ttl: Ttl) -> Moment {
        // Without an answer nothing proves that the lease is valid: its deadline has passed.
        state.last_answer.as_ref().map_or(Moment::default(), |answer| self.deadline_after(answer, ttl))
    }

    /// The deadline from this answer, assuming that its request or renewal asked for `ttl`.
    pub(super) fn deadline_after(&self, answer: &LastAnswer, ttl: Ttl) -> Moment {
        match self.valid_for(&answer.belief, ttl) {
            Some(length) => answer.sent_at.after(length.saturating_sub(margin(length))),
            None => Moment::NEVER,
        }
    }

    /// Returns whether the lease has ended with the session of the last answer.
    pub(super) fn session_ended(&self, state: &LocalState) -> bool {
        self.request.lifetime == Lifetime::Attached
            && state.last_answer.as_ref().is_some_and(|answer| answer.belief.has_ended())
    }

    /// When to renew next: a third of an answer's validity after `sent_at`, minus up to 10 % jitter derived from the
    /// lease id. Where nothing expires, `MAX_RENEW_INTERVAL_HOLDER` or `MAX_RENEW_INTERVAL_WAITER` applies.
    pub(super) fn renew_time(&self, state: &LocalState, sent_at: Moment) -> Moment {
        let belief = state.last_answer.as_ref().map_or(&Belief::Ttl, |answer| &answer.belief);
        let third = renew_every(self.ttl());
        let every = match self.valid_for(belief, self.ttl()) {
            Some(length) => length / 3,
            // Nothing expires here: renewals only make up for lost hints. A short ttl makes them more frequent.
            None if matches!(state.phase, Phase::Waiting) && third >= MAX_RENEW_INTERVAL_HOLDER => {
                MAX_RENEW_INTERVAL_WAITER
            }
            None => third.min(MAX_RENEW_INTERVAL_HOLDER),
        };
        let jitter = u32::try_from(self.request.key.id.as_u128() & 0xff).unwrap_or(0);
        sent_at.after(every.saturating_sub(every / 10 * jitter / 255))
    }

    /// When the first waiter renews at the latest; `NEVER` for the others, and where queue positions expire.
    pub(super) fn first_waiter_limit(&self, state: &LocalState, position: QueuePosition, now: Moment) -> Moment {
        match state.last_answer {
            Some(LastAnswer { belief: Belief::Process, .. })
                if position.ahead == 0 && self.request.lifetime == Lifetime::Attached =>
            {
                now.after(MAX_RENEW_INTERVAL_FIRST_WAITER)
            }
            _ => Moment::NEVER,
        }
    }

    /// How long an answer keeps the lease valid; `None` if no clock limits it.
    fn valid_for(&self, belief: &Belief, ttl: Ttl) -> Option<Duration> {
        match (self.request.lifetime, belief) {
            (Lifetime::Detached, _) | (_, Belief::Ttl) => Some(ttl.get()),
            (Lifetime::Attached, Belief::Session(session)) => Some(ttl.get().min(session.silence_limit())),
            (Lifetime::Attached, Belief::Process) => None,
        }
    }
}
