//! How long a child may go on: the times between TERM, KILL and the end of the lease.

use std::{fmt, time::Duration};

use crate::{KillMode, OnLost, Stragglers};

/// The longest time between TERM and KILL unless it is chosen.
const USUAL_GRACE: Duration = Duration::from_secs(5);

/// How long a child may go on, and whom to signal.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The length of the lease.
    pub ttl: Duration,
    /// Time between TERM and KILL.
    pub kill_after: Duration,
    /// Whom to signal.
    pub kill_mode: KillMode,
    /// What to do when the lease is lost.
    pub on_lost: OnLost,
    /// When to stop the child though the lease is fine.
    pub max_hold: Option<Duration>,
    /// Whether the first TERM to us starts the grace, and not only the second.
    pub kill_on_term: bool,
    /// What to do with processes that outlive the child. With [`KillMode::Process`] they are always left.
    pub stragglers: Stragglers,
}

/// How early to kill where there is room, since timers may fire late.
pub(crate) const KILL_MARGIN: Duration = Duration::from_millis(100);
/// How often to check for processes that outlive the child, at first and later.
pub(crate) const POLL_INTERVAL: [Duration; 2] = [Duration::from_millis(2), Duration::from_millis(50)];

impl Limits {
    /// Caps `ttl` at the backend's longest belief; fails if an explicit `asked` grace no longer fits.
    ///
    /// # Errors
    /// When there is no room for the grace.
    pub fn within(self, longest: Option<Duration>, asked: Option<Duration>) -> Result<Self, TtlTooShort> {
        let Some(longest) = longest.filter(|longest| self.ttl > *longest) else { return Ok(self) };
        let kill_after = kill_after(asked, longest)?.min(self.kill_after);
        Ok(Self { ttl: longest, kill_after, ..self })
    }

    /// How long before the lease may no longer be believed in the child must be dead.
    ///
    /// It takes nothing from the grace, and comes out of the room between grace and renewal.
    pub(crate) fn kill_margin(&self) -> Duration {
        let room = (self.ttl / 3).saturating_sub(margin(self.ttl)).saturating_sub(self.kill_after);
        room.min(KILL_MARGIN)
    }
}

/// What the engine takes off each lease's end: 2 % of the ttl, at least 50 ms.
fn margin(ttl: Duration) -> Duration {
    (ttl / 50).max(Duration::from_millis(50))
}

/// A lease that is too short to stop a command before it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TtlTooShort {
    /// The time between TERM and KILL that was asked for, if it was.
    pub grace: Option<Duration>,
    /// The length of the lease.
    pub ttl: Duration,
    /// The shortest that would do.
    pub smallest_ttl: Duration,
}

impl fmt::Display for TtlTooShort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { grace, ttl, smallest_ttl } = self;
        match grace {
            Some(grace) => write!(f, "{grace:?} between TERM and KILL do not fit into a ttl of {ttl:?}")?,
            None => write!(f, "a ttl of {ttl:?} is too short to stop a command before it ends")?,
        }
        write!(f, "; use {smallest_ttl:?} or more")
    }
}

impl std::error::Error for TtlTooShort {}

/// The time between TERM and KILL: as asked for, else 5 s or a quarter of the ttl.
///
/// Together with the margin it must fit into a third of the ttl, so that a
/// healthy renewal always comes before TERM would.
///
/// # Errors
/// When it does not fit.
pub fn kill_after(asked: Option<Duration>, ttl: Duration) -> Result<Duration, TtlTooShort> {
    let room = (ttl / 3).checked_sub(margin(ttl));
    let usual = || room.map(|room| room.min(USUAL_GRACE).min(ttl / 4));
    let grace = match asked {
        Some(grace) => room.filter(|room| grace <= *room).and(Some(grace)),
        None => usual(),
    };
    grace.ok_or_else(|| TtlTooShort { grace: asked, ttl, smallest_ttl: smallest_ttl(asked.unwrap_or_default()) })
}

/// The shortest ttl with room for this grace, rounded up to what reads well.
fn smallest_ttl(grace: Duration) -> Duration {
    let by_least_margin = (grace + Duration::from_millis(50)) * 3;
    // grace <= ttl/3 - ttl/50 = ttl * 47/150
    let by_share = grace * 150 / 47 + Duration::from_nanos(1);
    let exact = by_least_margin.max(by_share);
    let step: u128 = if exact < Duration::from_secs(1) { 1 } else { 1000 };
    let millis = exact.as_nanos().div_ceil(1_000_000).div_ceil(step) * step;
    Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ttl(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn the_usual_grace_always_fits() {
        assert_eq!(kill_after(None, ttl(30_000)).unwrap(), Duration::from_secs(5));
        assert_eq!(kill_after(None, ttl(10_000)).unwrap(), Duration::from_millis(2500));
        for millis in (150..3000).chain([60_000, 2_592_000_000]) {
            let ttl = ttl(millis);
            let grace = kill_after(None, ttl).unwrap();
            assert!(grace + margin(ttl) <= ttl / 3, "{millis}");
        }
        assert_eq!(kill_after(None, ttl(149)).unwrap_err().smallest_ttl, ttl(150));
    }

    #[test]
    fn the_kill_margin_never_reaches_into_the_time_of_a_renewal() {
        for (millis, grace, kill_margin) in [(30_000, 5000, 100), (30_000, 9400, 0), (1200, 300, 50), (150, 0, 0)] {
            let limits = Limits {
                ttl: Duration::from_millis(millis),
                kill_after: Duration::from_millis(grace),
                kill_mode: KillMode::Group,
                on_lost: OnLost::Terminate,
                max_hold: None,
                kill_on_term: false,
                stragglers: Stragglers::Stop,
            };
            assert_eq!(limits.kill_margin(), Duration::from_millis(kill_margin), "{millis} {grace}");
        }
    }

    #[test]
    fn a_grace_that_does_not_fit_is_told_the_smallest_ttl_that_works() {
        for millis in [0, 1, 10, 77, 500, 1000, 5000, 5001, 30_000, 3_600_000] {
            let grace = Duration::from_millis(millis);
            let smallest = smallest_ttl(grace);
            assert_eq!(kill_after(Some(grace), smallest).unwrap(), grace);
            let step = Duration::from_millis(if smallest < Duration::from_secs(1) { 2 } else { 1001 });
            let smaller = smallest.checked_sub(step).unwrap();
            assert!(kill_after(Some(grace), smaller).is_err(), "{millis} fits into {smaller:?} too");
        }
        let refusal = kill_after(Some(Duration::from_secs(10)), ttl(30_000)).unwrap_err();
        assert_eq!(refusal.smallest_ttl, Duration::from_secs(32));
    }
}
