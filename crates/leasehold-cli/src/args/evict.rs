//! The arguments of `evict`.

/// Take a lock away from its holder.
#[derive(Debug, clap::Args)]
#[command(after_help = "The fence proves which lease you looked at; `leasehold inspect NAME` shows it.\n\
                        The holder is told and stops its work, but may still be at it for a moment.\n\n\
                        Examples:\n  leasehold inspect deploy                                   who holds it, under which fence\n  \
                        leasehold evict deploy --fence N --reason \"host gone\"\n  \
                        leasehold evict deploy --fence N --reason \"host gone\" -y   in a script")]
pub(crate) struct EvictArgs {
    /// The lock
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// The fence of the lease to take away
    #[arg(long, value_name = "N")]
    pub(crate) fence: u64,
    /// Why, for the history
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: String,
    /// Do not ask
    #[arg(short, long)]
    pub(crate) yes: bool,
}
