//! The arguments of `leasehold elect`.

use std::time::Duration;

use super::{ChildArgs, NoteArgs};
use crate::duration;

/// Run a command only while leader, or follow who leads.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "leasehold elect [OPTIONS] <NAME> [--] <COMMAND> [ARG]…\n       leasehold elect <NAME> --observe | --leader | --resign",
    after_help = "When the command ends with 0, elect gives up leadership and ends, too. After any other end it \
                  campaigns again, after a pause (see --backoff).\n\n\
                  Examples:\n  leasehold elect scheduler -- ./scheduler     runs on one host; another takes over when it is gone\n  \
                  leasehold elect scheduler --leader           who leads now\n  \
                  leasehold elect scheduler --observe          each change of leader"
)]
#[allow(clippy::struct_excessive_bools, reason = "flags are flags")]
pub(crate) struct ElectArgs {
    /// The election
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) child: ChildArgs,

    /// Do not campaign again after the first leadership ends
    #[arg(long)]
    pub(crate) once: bool,
    /// First and longest pause before campaigning again
    #[arg(long, value_name = "D[..D]", default_value = "1s..30s", value_parser = parse_backoff)]
    pub(crate) backoff: BackoffRange,
    /// Length of the lease; it is renewed every third of it [default: 10s]
    #[arg(long, value_name = "D", value_parser = duration::parse)]
    pub(crate) ttl: Option<Duration>,
    /// Who we are, shown to others [default: user@host:pid:random]
    #[arg(help_heading = "Shown to others", long)]
    pub(crate) id: Option<String>,
    /// What to publish while leading, such as an address
    #[arg(help_heading = "Shown to others", long)]
    pub(crate) value: Option<String>,
    #[command(flatten)]
    pub(crate) notes: NoteArgs,

    /// Print each change of leader
    #[arg(long, group = "look", conflicts_with_all = ["command", "shell"])]
    pub(crate) observe: bool,
    /// Print the current leader; exit 1 if there is none
    #[arg(long, group = "look", conflicts_with_all = ["command", "shell"])]
    pub(crate) leader: bool,
    /// Make the current leader step down; exit 1 if there is none
    #[arg(long, group = "look", conflicts_with_all = ["command", "shell"])]
    pub(crate) resign: bool,
}

/// The first and the longest pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BackoffRange {
    /// After the first failure.
    pub(crate) first: Duration,
    /// After many.
    pub(crate) most: Duration,
}

fn parse_backoff(text: &str) -> Result<BackoffRange, String> {
    let (first, most) = match text.split_once("..") {
        Some((first, most)) => (duration::parse(first)?, duration::parse(most)?),
        None => (duration::parse(text)?, Duration::from_secs(30).max(duration::parse(text)?)),
    };
    if most < first {
        return Err(String::from("the longest pause is shorter than the first"));
    }
    Ok(BackoffRange { first, most })
}
