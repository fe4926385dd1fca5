//! The command line: what to run, and what one worker does.

use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};

/// Takes locks from worker processes under faults, and checks what they believed.
#[derive(Debug, Parser)]
#[command(name = "leasehold-torture")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Starts workers, injects faults, checks, and reports.
    Run(RunPlan),
    /// One worker process.
    #[command(hide = true)]
    Worker(Role),
}

/// What to run.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct RunPlan {
    /// Where the locks are kept.
    #[arg(long, value_enum)]
    pub(crate) backend: BackendChoice,
    /// How long workers run before they are told to stop.
    #[arg(long, default_value_t = 60)]
    pub(crate) seconds: u64,
    /// How many processes contend. On memory, one process does the work of all.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) workers: u32,
    /// Decides what workers and faults do.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Which faults to inject; all by default, none if no value follows.
    #[arg(long, value_enum, value_delimiter = ',', num_args = 0.., default_values_t = Fault::value_variants().to_vec())]
    pub(crate) faults: Vec<Fault>,
    /// Injects this many connection cuts and no other fault; the run ends after the last cut.
    #[arg(long)]
    pub(crate) cuts: Option<u64>,
    /// Which client the workers use; the broken ones must be caught.
    #[arg(long, value_enum, default_value_t = ClientKind::Ours)]
    pub(crate) client: ClientKind,
    /// Prints the report as JSON instead of text.
    #[arg(long)]
    pub(crate) json: bool,
}

/// What one worker process does.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Role {
    /// The backend's URL.
    #[arg(long)]
    pub(crate) url: String,
    /// The log to append to.
    #[arg(long)]
    pub(crate) log: PathBuf,
    /// Begins the id of every acquisition.
    #[arg(long)]
    pub(crate) label: String,
    #[arg(long)]
    pub(crate) seed: u64,
    /// How many tasks take locks.
    #[arg(long)]
    pub(crate) lanes: u32,
    #[arg(long, value_enum)]
    pub(crate) client: ClientKind,
}

/// Where the locks are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BackendChoice {
    Memory,
    File,
    /// A private Redis server, with a proxy for each worker.
    Redis,
    /// A quorum of three private Redis servers, with a proxy to each for each worker.
    Redlock,
    /// A private master, its replica and a sentinel, with a proxy to each for each worker.
    Sentinel,
    /// A private cluster of three masters and their replicas, with a proxy to each for each worker.
    Cluster,
}

/// Something that goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Fault {
    /// kill -9, and a new worker in its place.
    Kill,
    /// SIGSTOP, for shorter and for longer than the ttl.
    Stop,
    /// A worker forks: a child idles while its parent is killed, or calls into the inherited instance.
    Fork,
    /// Writing, removing and renaming files takes seconds in one worker (file only, needs strace).
    SlowDisk,
    /// A callback of an election blocks for seconds.
    Callback,
    /// The way to the server is cut, held back, lossy or slow (server backends only).
    Network,
    /// A master is replaced by its replica: by command, or because it is killed or stopped (sentinel and cluster only).
    Failover,
}

/// A client for workers. Each broken one breaks one rule, and names the checker that must catch it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ClientKind {
    Ours,
    /// Takes no lock at all (overlap).
    BrokenNoLock,
    /// Goes on after its lease was lost (overlap).
    BrokenIgnoresLoss,
    /// Counts the lease from the receipt of a late answer (overlap).
    BrokenFromReceipt,
    /// Releases the lease of another task by its handle (overlap).
    BrokenForgesRelease,
    /// Uses the fence of an earlier grant (fences).
    BrokenOldFence,
    /// Keeps a lease that it was granted after it cancelled (leaks).
    BrokenKeepsCancelled,
    /// Stays in the queue after it cancelled (leaks).
    BrokenStaysQueued,
    /// Lets a later ask of its own go first (order).
    BrokenSwapsTurns,
    /// Ends its work and never releases (progress).
    BrokenNeverReleases,
    /// Learns of a loss seconds late (loss).
    BrokenLateLoss,
}

pub(crate) fn parse() -> Command {
    Args::parse().command
}
