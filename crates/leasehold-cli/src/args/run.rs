//! The arguments of `leasehold run`, with its hooks and flags of flock(1).

use std::{ffi::OsString, path::PathBuf, time::Duration};

use clap::ValueHint;

use super::{AskArgs, ChildArgs, ShownArgs};
use crate::duration;

/// Run a command while holding a lock.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "leasehold run [OPTIONS] <NAME> [--] <COMMAND> [ARG]…\n       leasehold run [OPTIONS] <NAME> -c <SHELL STRING>",
    after_help = "The lock is given back only when the command and what it started are gone. What outlives the command \
                  is stopped and named (see --stragglers), but for daemons, which have left the session.\n\
                  If the lock is lost, the command is stopped and the exit code is 121: before the lease ends if it \
                  cannot be renewed, at once if it was taken away.\n\n\
                  Examples:\n  leasehold run backup -- ./backup.sh             wait for the lock, for as long as it takes\n  \
                  leasehold run -n -E 0 --min-hold 45s mail -- ./mail.sh   cron on many hosts: one of them runs it\n  \
                  leasehold run -w 10m --ttl 15s deploy -- make   wait ten minutes at most\n  \
                  leasehold run -j 4 gpu -- ./train               at most four at a time\n  \
                  leasehold run -s catalog -c 'wc -l < catalog'   readers share, writers do not"
)]
#[allow(clippy::struct_excessive_bools, reason = "flags are flags")]
pub(crate) struct RunArgs {
    /// The lock
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) child: ChildArgs,

    #[command(flatten)]
    pub(crate) ask: AskArgs,
    /// Length of the lease; it is renewed every third of it [default: 30s]
    #[arg(long, value_name = "D", value_parser = duration::parse)]
    pub(crate) ttl: Option<Duration>,
    /// Take this lock, too: all of them or none; may be repeated
    #[arg(long, value_name = "NAME", conflicts_with_all = ["shared", "limit"])]
    pub(crate) also: Vec<String>,
    /// Keep the lock at least this long, though the command ends earlier, and `run` too if a signal ends it in that time
    #[arg(long, value_name = "D", value_parser = duration::parse)]
    pub(crate) min_hold: Option<Duration>,
    /// Stop the command after this long (TERM, then KILL), and exit 124
    #[arg(long, value_name = "D", value_parser = duration::parse)]
    pub(crate) max_hold: Option<Duration>,
    #[command(flatten)]
    pub(crate) shown: ShownArgs,
    /// Allow running under a lock that this process tree already holds
    #[arg(long)]
    pub(crate) reentrant: bool,
    /// Exit 69 if the release fails
    #[arg(long)]
    pub(crate) strict_release: bool,
    /// Write the outcome to this file as JSON, or to standard output for -
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath, allow_hyphen_values = true)]
    pub(crate) report: Option<PathBuf>,
    /// Add to the metrics in DIR/leasehold.prom, for the textfile collector of node_exporter
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) metrics_textfile: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) hooks: HookArgs,
    /// Show what would happen, and do nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) flock: FlockArgs,
}

/// What to run when something else than success came of it.
#[derive(Debug, clap::Args)]
pub(crate) struct HookArgs {
    /// If the exit code is not 0, run this shell command, for 30s at most, with the report on its standard input: the
    /// command failed, was ended by a signal or could not be run, the lock was lost, or the backend failed. Neither hook
    /// runs for what is refused before the backend is opened: wrong flags, a bad config file or profile
    #[arg(help_heading = "Hooks", long, value_name = "STRING", value_hint = ValueHint::CommandString)]
    pub(crate) on_failure: Option<OsString>,
    /// Run this one instead if the lock was not acquired; the report says who holds it
    #[arg(help_heading = "Hooks", long, value_name = "STRING", value_hint = ValueHint::CommandString)]
    pub(crate) on_skip: Option<OsString>,
}

/// Flags of flock(1) that have no meaning here; known so that they can be explained.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct FlockArgs {
    #[arg(short = 'u', long, hide = true)]
    pub(crate) unlock: bool,
    #[arg(short = 'o', long, hide = true)]
    pub(crate) close: bool,
    #[arg(short = 'F', long, hide = true)]
    pub(crate) no_fork: bool,
}
