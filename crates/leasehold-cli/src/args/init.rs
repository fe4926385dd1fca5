//! What `init` takes.

/// Make a database ready for locks.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Safe to repeat, and for two at once. Then let the application's role lock:\n  \
                        select leasehold.allow('app');")]
pub(crate) struct InitArgs {
    /// Print the SQL instead of running it: one statement, for a migration's own transaction
    #[arg(long)]
    pub(crate) print_sql: bool,
    /// Print what brings this version to the newest; an empty database has 0
    #[arg(long, value_name = "VERSION", requires = "print_sql", default_value_t = 0)]
    pub(crate) from: i32,
    /// Print what removes everything, leases and history included
    #[arg(long, requires = "print_sql", conflicts_with = "from")]
    pub(crate) uninstall: bool,
    /// Also put acquire_lock and its kin, and their views, where unqualified and rpc callers look, such as public
    #[arg(long, value_name = "SCHEMA")]
    pub(crate) expose: Option<String>,
}
