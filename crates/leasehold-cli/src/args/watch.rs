//! The arguments of `watch`.

use std::sync::LazyLock;

use clap::{ValueEnum, builder::PossibleValue};
use leasehold::lease::Ending;

use super::history::EndingArg;

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
