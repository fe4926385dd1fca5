//! How a lease ended, as its holder reports or as the backend finds.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What went wrong in the work done under a lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Problem {
    /// The kind of error, such as the name of its type.
    pub kind: String,
    /// The error message.
    pub details: String,
}

impl Problem {
    /// Creates a problem of this kind.
    pub fn new(kind: impl Into<String>, details: impl Into<String>) -> Self {
        Self { kind: kind.into(), details: details.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind, self.details)
    }
}

/// How the work under a lease ended, as the holder reports it on release.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// The work is done.
    Completed,
    /// The work failed.
    Failed(Problem),
    /// The guard reached its `max_hold`.
    MaxHold,
    /// The time to wait ran out before the lease was granted.
    GaveUp,
    /// The caller stopped waiting before the lease was granted.
    Cancelled,
}

impl Outcome {
    /// Creates a failure of this kind with these details.
    ///
    /// The details are formatted with `{:#}`, with which many errors include their causes.
    pub fn failed(kind: impl Into<String>, details: impl fmt::Display) -> Self {
        Self::Failed(Problem { kind: kind.into(), details: format!("{details:#}") })
    }

    /// Returns the ending that history records for this outcome.
    pub fn ending(&self) -> Ending {
        match self {
            Self::Completed => Ending::Released,
            Self::Failed(_) => Ending::Failed,
            Self::MaxHold => Ending::MaxHold,
            Self::GaveUp => Ending::GaveUp,
            Self::Cancelled => Ending::Cancelled,
        }
    }
}

/// How a lease, or the wait for one, ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Ending {
    /// The holder released it after the work was done.
    Released,
    /// The holder released it after the work had failed.
    Failed,
    /// It expired: nobody renewed it.
    Expired,
    /// Its process or connection died.
    Disconnected,
    /// An operator evicted it.
    Evicted,
    /// It reached its `max_hold`.
    MaxHold,
    /// The time to wait ran out.
    GaveUp,
    /// The caller stopped waiting.
    Cancelled,
}

impl Ending {
    /// Returns its name in JSON, SQL and the command.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Released => "released",
            Self::Failed => "failed",
            Self::Expired => "expired",
            Self::Disconnected => "disconnected",
            Self::Evicted => "evicted",
            Self::MaxHold => "max_hold",
            Self::GaveUp => "gave_up",
            Self::Cancelled => "cancelled",
        }
    }

    /// Returns `true` for every ending except `Released` and `Cancelled`.
    pub const fn is_failure(self) -> bool {
        !matches!(self, Self::Released | Self::Cancelled)
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
