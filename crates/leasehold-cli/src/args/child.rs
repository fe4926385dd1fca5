//! The command to run, and what becomes of it when the lock goes.

use std::{ffi::OsString, time::Duration};

use clap::ValueHint;

use crate::{
    child::{KillMode, OnLost},
    duration,
};

/// The command to run, and what becomes of it when the lock goes.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Command")]
pub(crate) struct ChildArgs {
    /// The command and its arguments
    #[arg(value_name = "COMMAND", trailing_var_arg = true, allow_hyphen_values = true, value_hint = ValueHint::CommandWithArguments, hide = true)]
    pub(crate) command: Vec<OsString>,
    /// Run this through `$SHELL -c` (else /bin/sh)
    #[arg(short = 'c', long = "command", value_name = "STRING", conflicts_with = "command", value_hint = ValueHint::CommandString)]
    pub(crate) shell: Option<OsString>,
    /// When the lock is lost: terminate, kill, signal:NAME or continue
    #[arg(long, value_name = "WHAT", default_value = "terminate")]
    pub(crate) on_lost: OnLost,
    /// Time between TERM and KILL [default: 5s, or a quarter of a shorter ttl]
    #[arg(long, value_name = "D", value_parser = duration::parse)]
    pub(crate) kill_after: Option<Duration>,
    /// Whom to signal
    #[arg(long, value_enum, value_name = "WHOM", default_value = "group")]
    pub(crate) kill_mode: KillMode,
    /// Files only: the lock may pass on while descendants of a killed run still live
    #[arg(long)]
    pub(crate) no_inherit: bool,
}
