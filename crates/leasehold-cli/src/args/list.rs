//! The arguments of `list`.

use std::time::Duration;

use clap::ValueEnum;
use leasehold::lease::Mode;

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
