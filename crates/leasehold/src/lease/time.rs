//! Points in time and lengths of leases, as plain numbers. Only `clock.rs` reads them from a clock.

use std::{
    fmt,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde::{Deserialize, Serialize};

use super::grant::Brief;
use crate::{Error, Result};

/// Writes the arithmetic of a point in time in microseconds, with the first lines of its docs.
macro_rules! micros_methods {
    (after: $after:literal, before: $before:literal, since: $since:literal,) => {
        #[doc = $after]
        #[must_use]
        pub fn after(self, length: Duration) -> Self {
            Self(self.0.saturating_add(micros(length)))
        }

        #[doc = $before]
        #[must_use]
        pub fn before(self, length: Duration) -> Self {
            Self(self.0.saturating_sub(micros(length)))
        }

        #[doc = $since]
        pub fn since(self, earlier: Self) -> Duration {
            Duration::from_micros(self.0.saturating_sub(earlier.0))
        }
    };
}

/// A point in time on the steady clock of one machine, in microseconds. This clock decides when a lease expires.
///
/// Compare a moment only with moments of the same machine and the same boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Moment(u64);

impl Moment {
    /// Later than every other moment. It is the deadline of a lease that does not expire by a clock.
    pub const NEVER: Self = Self(u64::MAX);

    /// Creates the moment this many microseconds after the clock's start.
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// Returns the microseconds since the clock's start.
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    micros_methods! {
        after: "Returns the moment `length` later; `NEVER` on overflow.",
        before: "Returns the moment `length` earlier, but not before the clock's start.",
        since: "Returns the time since `earlier`; zero if `earlier` is later.",
    }
}

/// A point in time on a wall clock, in microseconds since 1970. It is used to date records, and as a lower bound for
/// new fences.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The earliest time, the beginning of 1970.
    pub const MIN: Self = Self(0);
    /// Later than every other time.
    pub const MAX: Self = Self(u64::MAX);

    /// Creates the time this many microseconds after 1970.
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// Returns the microseconds since 1970.
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// Converts the timestamp to a `SystemTime`.
    pub fn to_system_time(self) -> SystemTime {
        UNIX_EPOCH + Duration::from_micros(self.0)
    }

    micros_methods! {
        after: "Returns the time `length` later.",
        before: "Returns the time `length` earlier.",
        since: "Returns the time since `earlier`, by the wall clock; zero if `earlier` is later.",
    }
}

/// How long a lease lives without a renewal: 100 ms to 30 days.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "Duration", into = "Duration")]
pub struct Ttl(Duration);

impl Ttl {
    /// The default ttl of locks, 30 s.
    pub const DEFAULT: Self = Self(Duration::from_secs(30));
    /// The default ttl of elections, 10 s.
    pub const ELECTION: Self = Self(Duration::from_secs(10));
    /// The shortest ttl, 100 ms. The safety margin is at least 50 ms, which would leave too little of a shorter ttl.
    pub const MIN: Self = Self(Duration::from_millis(100));
    /// The longest ttl, 30 days.
    pub const MAX: Self = Self(Duration::from_secs(30 * 24 * 3600));

    /// Creates a ttl of this length.
    ///
    /// # Errors
    /// `InvalidConfig` if it is under 100 ms or over 30 days.
    pub fn new(length: Duration) -> Result<Self> {
        if length < Self::MIN.0 || length > Self::MAX.0 {
            return Err(Error::invalid_config(format!(
                "ttl {} is out of range: 100ms to 30 days (renewal is automatic, so 10s to 60s suits most work)",
                Brief(length)
            )));
        }
        Ok(Self(length))
    }

    /// Returns the ttl as a duration.
    pub const fn get(self) -> Duration {
        self.0
    }
}

impl TryFrom<Duration> for Ttl {
    type Error = Error;

    fn try_from(length: Duration) -> Result<Self> {
        Self::new(length)
    }
}

impl From<Ttl> for Duration {
    fn from(ttl: Ttl) -> Self {
        ttl.0
    }
}

impl fmt::Debug for Ttl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// Rounds a limit for messages: what is left of 3 s after a microsecond is still shown as 3 s.
pub(crate) fn rounded(limit: Duration) -> Duration {
    let step = if limit < Duration::from_secs(1) { 1 } else { 100 };
    let steps = (limit.as_micros() + step * 500) / (step * 1000);
    Duration::from_millis(u64::try_from(steps * step).unwrap_or(u64::MAX))
}

/// The whole microseconds of a duration, at most `u64::MAX`.
pub(crate) fn micros(length: Duration) -> u64 {
    u64::try_from(length.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_shown_as_it_was_given() {
        for (micros, shown) in
            [(2_999_989, "3s"), (3_000_000, "3s"), (2_700_000, "2.7s"), (89_996, "90ms"), (999_900, "1s"), (0, "0ns")]
        {
            assert_eq!(format!("{:?}", rounded(Duration::from_micros(micros))), shown);
        }
    }
}
