//! The arguments of the commands that show or evict leases.

use std::{str::FromStr, sync::LazyLock, time::Duration};

use clap::{ValueEnum, builder::PossibleValue};
use leasehold::lease::{Ending, Mode, Timestamp};

use crate::duration;

/// Show held locks and who waits for them.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:\n  leasehold list --waiting                     locks that somebody waits for\n  \
                        leasehold list --older-than 1h --sort age    held longest first\n  \
                        leasehold list -w deploy:                    again whenever it changes, until Ctrl-C")]
#[allow(clippy::struct_excessive_bools, reason = "flags are flags")]
pub(crate) struct ListArgs {
    /// Only locks whose names begin with this prefix; a trailing * may follow it
    #[arg(value_name = "PREFIX")]
    pub(crate) prefix: Option<String>,
    /// Only locks that are held
    #[arg(long)]
    pub(crate) held: bool,
    /// Only locks that somebody waits for
    #[arg(long)]
    pub(crate) waiting: bool,
    /// Only locks held or waited for by holders that match this pattern; * and ? are wildcards
    #[arg(long, value_name = "GLOB")]
    pub(crate) holder: Option<String>,
    /// Only this kind: exclusive, shared, permit or leader
    #[arg(long, value_enum, hide_possible_values = true)]
    pub(crate) mode: Option<ModeArg>,
    /// Only locks held for longer than this
    #[arg(long, value_name = "D", value_parser = duration::parse)]
    pub(crate) older_than: Option<Duration>,
    /// The order: age, waiters, name or expiry
    #[arg(long, value_enum, hide_possible_values = true, default_value = "name")]
    pub(crate) sort: SortBy,
    /// At most this many locks
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub(crate) limit: usize,
    /// No line of column names, no line of totals
    #[arg(long)]
    pub(crate) no_headers: bool,
    /// Show the list again whenever it changes, until Ctrl-C
    #[arg(short, long)]
    pub(crate) watch: bool,
}

/// The modes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ModeArg {
    /// Mutexes and write locks
    Exclusive,
    /// Read locks
    Shared,
    /// Semaphores
    Permit,
    /// Elections
    Leader,
}

impl From<ModeArg> for Mode {
    fn from(mode: ModeArg) -> Self {
        match mode {
            ModeArg::Exclusive => Self::Exclusive,
            ModeArg::Shared => Self::Shared,
            ModeArg::Permit => Self::Permit,
            ModeArg::Leader => Self::Leader,
        }
    }
}

/// The orders of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SortBy {
    /// Held longest first
    Age,
    /// Most waited for first
    Waiters,
    /// By name
    Name,
    /// Ending soonest first
    Expiry,
}

/// Show one lock: holders, queue, fence, the last day.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  leasehold inspect nightly-report\n  \
                        leasehold inspect --json nightly-report     for scripts")]
pub(crate) struct InspectArgs {
    /// The lock
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
}

/// Follow what happens to locks.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  leasehold watch                           everything\n  \
                        leasehold watch --json deploy:            names that begin so, an object in each line\n  \
                        leasehold watch --event evicted,expired   locks that were taken away or ran out")]
pub(crate) struct WatchArgs {
    /// Only locks whose names begin with this prefix; a trailing * may follow it
    #[arg(value_name = "PREFIX")]
    pub(crate) prefix: Option<String>,
    /// Only these events: waiting, acquired, ended, or how it ended (as in `history`); may be repeated
    #[arg(long, value_enum, hide_possible_values = true, value_delimiter = ',')]
    pub(crate) event: Vec<EventArg>,
}

/// What happens to locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventArg {
    /// Someone queued.
    Waiting,
    /// Someone holds.
    Acquired,
    /// A lease or a wait ended.
    Ended,
    /// A lease or a wait ended in this way.
    EndedBy(EndingArg),
}

impl EventArg {
    /// The word used everywhere.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Acquired => "acquired",
            Self::Ended => "ended",
            Self::EndedBy(ending) => Ending::from(ending).as_str(),
        }
    }
}

impl ValueEnum for EventArg {
    fn value_variants<'a>() -> &'a [Self] {
        static ALL: LazyLock<Vec<EventArg>> = LazyLock::new(|| {
            let endings = EndingArg::value_variants().iter().copied().map(EventArg::EndedBy);
            [EventArg::Waiting, EventArg::Acquired, EventArg::Ended].into_iter().chain(endings).collect()
        });
        &ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let help = match self {
            Self::Waiting => "Someone queued",
            Self::Acquired => "Someone holds",
            Self::Ended => "A lease or a wait ended",
            Self::EndedBy(ending) => return ending.to_possible_value(),
        };
        Some(PossibleValue::new(self.as_str()).help(help))
    }
}

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

/// Take a lock away from its holder.
#[derive(Debug, clap::Args)]
#[command(after_help = "The fence proves which lease you looked at; `leasehold inspect NAME` shows it.\n\
                        The holder is told and stops its work, but may still be at it for a moment.\n\n\
                        Examples:\n  leasehold inspect deploy                                   who holds it, under which fence\n  \
                        leasehold evict deploy --fence N --reason \"host gone\"\n  \
                        leasehold evict deploy --fence N --reason \"host gone\" -y   in a script")]
pub(crate) struct EvictArgs {
    /// The lock
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// The fence of the lease to take away
    #[arg(long, value_name = "N")]
    pub(crate) fence: u64,
    /// Why, for the history
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: String,
    /// Do not ask
    #[arg(short, long)]
    pub(crate) yes: bool,
}
