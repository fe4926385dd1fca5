//! The arguments of `init`.

use clap::ValueHint;

/// Prepare a backend for locks.
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "file: makes the directory that users of this machine share; without the rights, one for this user.\n\
                        postgres: installs or updates the schema; select leasehold.allow('app') lets a role use it.\n\
                        redis: and redlock: need no preparation; init checks the rights.\n\
                        It is safe to run init again, and on several hosts at once.\n\n\
                        Examples:\n  sudo leasehold init file: --group deploy     one directory for the members of a group\n  \
                        sudo leasehold init file: --everybody        one directory for all users\n  \
                        leasehold init postgres://owner@db/shop"
)]
pub(crate) struct InitArgs {
    /// Where: a URL, or a profile of the config file; the same as -b
    #[arg(value_name = "URL|PROFILE", value_hint = ValueHint::Url)]
    pub(crate) backend_url: Option<String>,
    /// file: members of this group share the directory; each can evict and disturb the others' jobs
    #[arg(long, value_name = "NAME", conflicts_with_all = ["print_sql", "expose"])]
    pub(crate) group: Option<String>,
    /// file: all users of this machine share the directory; each can evict and disturb the others' jobs
    #[arg(long, conflicts_with_all = ["group", "print_sql", "expose"])]
    pub(crate) everybody: bool,
    /// Print the SQL instead of running it: one statement, for a migration's own transaction
    #[arg(long)]
    pub(crate) print_sql: bool,
    /// Print the SQL that updates a schema of this version to the newest; 0: there is no schema yet
    #[arg(long, value_name = "VERSION", requires = "print_sql", default_value_t = 0)]
    pub(crate) from: i32,
    /// Print the SQL that removes the schema with all leases and history, and what --expose put into other schemas
    #[arg(long, requires = "print_sql", conflicts_with_all = ["from", "expose"])]
    pub(crate) uninstall: bool,
    /// Also make acquire_lock and the other SQL functions and views in this schema, such as public, for callers that
    /// name no schema and for rpc
    #[arg(long, value_name = "SCHEMA")]
    pub(crate) expose: Option<String>,
}
