//! The arguments of `acquire`, `renew`, `release` and `check`, and those by which `acquire` and `run` request a lease.

use std::{path::PathBuf, time::Duration};

use clap::ValueHint;
use leasehold_supervise::OnLost;

use crate::duration;

/// Which lease to request, and how long to wait for it.
#[derive(Debug, clap::Args)]
pub(crate) struct AskArgs {
    /// Mutex or write lock (the default)
    #[arg(short = 'x', long, short_alias = 'e')]
    pub(crate) exclusive: bool,
    /// Read lock: shared among readers
    #[arg(short, long, conflicts_with = "exclusive")]
    pub(crate) shared: bool,
    /// Semaphore: at most N at a time
    #[arg(short = 'j', long, value_name = "N", conflicts_with_all = ["shared", "exclusive"])]
    pub(crate) limit: Option<u32>,
    /// Take K permits of the semaphore at once
    #[arg(long, value_name = "K", requires = "limit", default_value_t = 1)]
    pub(crate) permits: u32,
    /// Do not wait: fail at once if it is busy
    #[arg(short, long, aliases = ["nb", "nowait", "no-wait"])]
    pub(crate) nonblock: bool,
    /// Give up after this long; 0 is the same as -n [default: wait for ever]
    #[arg(short, long, alias = "timeout", value_name = "D", value_parser = duration::parse, conflicts_with = "nonblock")]
    pub(crate) wait: Option<Duration>,
    /// Exit code when the lock is not acquired. With 0, `run` prints nothing unless on a terminal or with -v; `acquire`
    /// refuses 0, since a script would go on without the lock
    #[arg(short = 'E', long, value_name = "N", default_value_t = crate::exit::NOT_ACQUIRED)]
    pub(crate) conflict_exit_code: u8,
}

/// What others see of a lease.
#[derive(Debug, clap::Args)]
pub(crate) struct ShownArgs {
    /// Who holds it [default: user@host:pid:random]
    #[arg(help_heading = "Shown to others", long, value_name = "ID")]
    pub(crate) holder: Option<String>,
    #[command(flatten)]
    pub(crate) notes: NoteArgs,
}

/// What others see of the work under a lease.
#[derive(Debug, clap::Args)]
pub(crate) struct NoteArgs {
    /// One line for people [default: the name of the command, or of the process of --while-pid]
    #[arg(help_heading = "Shown to others", long, value_name = "TEXT")]
    pub(crate) note: Option<String>,
    /// More for programs: KEY=VALUE, or a JSON object; may be repeated
    #[arg(help_heading = "Shown to others", long, value_name = "K=V")]
    pub(crate) meta: Vec<String>,
}

/// Take a lock that outlives this command, and print the handle of its lease.
#[derive(Debug, clap::Args)]
#[command(after_help = "Nobody renews the lease: it ends after --ttl unless `renew` or `release` comes first.\n\
                        With --while-pid a background process renews it until that process ends, even by kill -9.\n\
                        TERM does not end the background process: release the lease with its handle, or evict it.\n\n\
                        Examples:\n  lease=$(leasehold acquire nightly --while-pid $$) || exit   # until this script ends, or until:\n  \
                        leasehold release --lease \"$lease\"\n\n  lease=$(leasehold acquire deploy:prod -w 10m --ttl 15m --note \"release 4.2\") || exit\n  \
                        leasehold check --lease \"$lease\" && ./deploy\n  leasehold release --lease \"$lease\"")]
pub(crate) struct AcquireArgs {
    /// The lock
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// How long the lease lives (required: nobody renews it) [default with --while-pid: 30s]
    #[arg(long, value_name = "D", value_parser = duration::parse)]
    pub(crate) ttl: Option<Duration>,
    /// Keep the lease until this process ends: a background process renews it, and releases it then
    #[arg(long, value_name = "PID", group = "process", value_parser = clap::value_parser!(i32).range(1..))]
    pub(crate) while_pid: Option<i32>,
    /// The same for the process that this open pidfd refers to
    #[arg(long, value_name = "N", group = "process")]
    pub(crate) while_fd: Option<u32>,
    /// With --while-pid, when the lock is lost: terminate, kill, signal:NAME or continue; the process gets one signal. One
    /// that this user may not signal is refused, unless with continue
    #[arg(long, value_name = "WHAT", default_value = "terminate", requires = "process")]
    pub(crate) on_lost: OnLost,
    #[command(flatten)]
    pub(crate) ask: AskArgs,
    /// Write the handle to this file (mode 0600) instead of printing it
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    pub(crate) lease_file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) shown: ShownArgs,
}

/// Which lease.
#[derive(Debug, clap::Args)]
pub(crate) struct LeaseArgs {
    /// The handle printed by `acquire`, or - to read it from standard input [env: LEASEHOLD_LEASE]
    #[arg(long, value_name = "HANDLE", conflicts_with = "lease_file", allow_hyphen_values = true)]
    pub(crate) lease: Option<String>,
    /// The file that holds the handle (mode 0600), or - for standard input
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath, allow_hyphen_values = true)]
    pub(crate) lease_file: Option<PathBuf>,
}

/// Check that a lease is still held, or that a job succeeded lately.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "leasehold check [--lease HANDLE | --lease-file PATH]\n       leasehold check <NAME> --succeeded-within <D>",
    after_help = "Exit 0 if so, 1 if not.\n\n\
                  Examples:\n  leasehold check --lease \"$lease\" && ./deploy\n  \
                  leasehold check nightly-report --succeeded-within 26h     for monitoring"
)]
pub(crate) struct CheckArgs {
    /// The lock under which the job runs
    #[arg(value_name = "NAME", requires = "succeeded_within", conflicts_with_all = ["lease", "lease_file"])]
    pub(crate) name: Option<String>,
    /// Whether a `run` of the job ended with exit code 0 within this time
    #[arg(long, value_name = "D", requires = "name", value_parser = duration::parse)]
    pub(crate) succeeded_within: Option<Duration>,
    #[command(flatten)]
    pub(crate) lease: LeaseArgs,
}

/// Give a lease taken by `acquire` more time.
#[derive(Debug, clap::Args)]
#[command(after_help = "Exit 1 if the lease is no longer held.\n\n\
                        Examples:\n  leasehold renew --lease \"$lease\"\n  \
                        leasehold renew --lease-file deploy.lease --ttl 15m")]
pub(crate) struct RenewArgs {
    #[command(flatten)]
    pub(crate) lease: LeaseArgs,
    /// How long the lease lives from now on; never shortens it [default: as long as it was given last]
    #[arg(long, value_name = "D", value_parser = duration::parse)]
    pub(crate) ttl: Option<Duration>,
}
