//! The arguments of `history`.

use std::{str::FromStr, time::Duration};

use clap::ValueEnum;
use leasehold::lease::{Ending, Timestamp};

use crate::duration;

/// Show how past leases and waits ended.
#[derive(Debug, clap::Args)]
#[command(after_help = "Exit 1 if nothing is known of the lock that is named: the name may be mistyped.\n\n\
                        Examples:\n  leasehold history nightly-report\n  \
                        leasehold history --failures --since 1d   what went wrong since yesterday\n  \
                        leasehold history --skipped               how often each job was skipped, and when it last succeeded")]
pub(crate) struct HistoryArgs {
    /// Only this lock; with a trailing * those whose names begin with this prefix
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Only what ended since: 2h (ago), 2026-11-15, 2026-11-15T02:00:00Z
    #[arg(long, value_name = "WHEN")]
    pub(crate) since: Option<When>,
    /// Only what ended before this time, written in the same way
    #[arg(long, value_name = "WHEN")]
    pub(crate) until: Option<When>,
    /// Only these: released, failed, expired, disconnected, evicted, max_hold, gave_up, cancelled; may be repeated
    #[arg(long, value_enum, hide_possible_values = true, value_delimiter = ',')]
    pub(crate) event: Vec<EndingArg>,
    /// Only what went wrong: everything but released and cancelled
    #[arg(long)]
    pub(crate) failures: bool,
    /// Instead: how often each job was skipped because its lock was busy, and when it last succeeded; those never
    /// skipped, too
    #[arg(long, conflicts_with_all = ["since", "until", "event", "failures"])]
    pub(crate) skipped: bool,
    /// At most this many, the newest
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub(crate) limit: usize,
    /// No line of column names
    #[arg(long)]
    pub(crate) no_headers: bool,
}

/// How leases and waits end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum EndingArg {
    /// Released by its holder, the work done
    Released,
    /// Released by its holder, the work failed
    Failed,
    /// Ran out
    Expired,
    /// The process or connection died
    Disconnected,
    /// Taken away by an operator
    Evicted,
    /// Reached its max_hold
    #[value(name = "max_hold")]
    MaxHold,
    /// The wait ran out
    #[value(name = "gave_up")]
    GaveUp,
    /// The wait was abandoned
    Cancelled,
}

impl From<EndingArg> for Ending {
    fn from(ending: EndingArg) -> Self {
        match ending {
            EndingArg::Released => Self::Released,
            EndingArg::Failed => Self::Failed,
            EndingArg::Expired => Self::Expired,
            EndingArg::Disconnected => Self::Disconnected,
            EndingArg::Evicted => Self::Evicted,
            EndingArg::MaxHold => Self::MaxHold,
            EndingArg::GaveUp => Self::GaveUp,
            EndingArg::Cancelled => Self::Cancelled,
        }
    }
}

/// A point in time: so long ago, or by the calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    /// Before now.
    Ago(Duration),
    /// On this date.
    At(Timestamp),
}

impl FromStr for When {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(ago) = duration::parse(text) {
            return Ok(Self::Ago(ago));
        }
        let instant = text
            .parse::<jiff::Timestamp>()
            .or_else(|_| {
                let civil = text.parse::<jiff::civil::DateTime>()?;
                civil.to_zoned(jiff::tz::TimeZone::system()).map(|zoned| zoned.timestamp())
            })
            .map_err(|_| String::from("write 2h (ago), 2026-11-15 or 2026-11-15T02:00:00Z"))?;
        Ok(Self::At(Timestamp::from_micros(u64::try_from(instant.as_microsecond()).unwrap_or(0))))
    }
}
