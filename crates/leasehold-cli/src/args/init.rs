//! What `init` takes.

/// Make a database ready for locks.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Safe to repeat, and for two at once. Then let the application's role lock:\n  \
                        select leasehold.allow('app');")]
pub(crate) struct InitArgs {
    /// Print the SQL for an empty database instead of running it
    #[arg(long)]
    pub(crate) print_sql: bool,
    /// Also put acquire_lock and its kin, and their views, where unqualified and rpc callers look, such as public
    #[arg(long, value_name = "SCHEMA")]
    pub(crate) expose: Option<String>,
}
