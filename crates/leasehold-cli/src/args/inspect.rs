//! The arguments of `inspect`.

/// Show one lock: holders, queue, fence, the last day.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  leasehold inspect nightly-report\n  \
                        leasehold inspect --json nightly-report     for scripts")]
pub(crate) struct InspectArgs {
    /// The lock
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
}
