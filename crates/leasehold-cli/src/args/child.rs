//! The command to run, and what becomes of it when the lock goes.

use std::{ffi::OsString, time::Duration};

use clap::{
    ValueHint,
    builder::{PossibleValuesParser, TypedValueParser},
};
use leasehold::Ttl;
use leasehold_supervise::{KillMode, Limits, OnLost, Stragglers, kill_after};

use crate::{
    duration,
    error::{CommandError, Result},
};

/// The command to run, and what becomes of it when the lock goes.
#[derive(Debug, clap::Args)]
pub(crate) struct ChildArgs {
    /// The command and its arguments
    #[arg(value_name = "COMMAND", trailing_var_arg = true, allow_hyphen_values = true, value_hint = ValueHint::CommandWithArguments, hide = true)]
    pub(crate) command: Vec<OsString>,
    /// Run this through `$SHELL -c` (else /bin/sh)
    #[arg(help_heading = "Command", short = 'c', long = "command", value_name = "STRING", conflicts_with = "command", value_hint = ValueHint::CommandString)]
    pub(crate) shell: Option<OsString>,
    /// When the lock is lost: terminate, kill, signal:NAME or continue
    #[arg(help_heading = "Command", long, value_name = "WHAT", default_value = "terminate")]
    pub(crate) on_lost: OnLost,
    /// Time between TERM and KILL; if given, KILL also follows a TERM that was sent to leasehold [default: 5s, or a quarter of
    /// a shorter ttl]
    #[arg(help_heading = "Command", long, value_name = "D", value_parser = duration::parse)]
    pub(crate) kill_after: Option<Duration>,
    /// Whom to signal: group or process
    #[arg(
        help_heading = "Command",
        long,
        value_parser = PossibleValuesParser::new(["group", "process"]).try_map(|mode| mode.parse::<KillMode>()),
        hide_possible_values = true,
        value_name = "WHOM",
        default_value = "group"
    )]
    pub(crate) kill_mode: KillMode,
    /// Processes that outlive the command: stop (TERM, then KILL), wait (keep the lock until they end) or leave
    /// (they run on without the lock) [default: stop]
    #[arg(
        help_heading = "Command",
        long,
        value_parser = PossibleValuesParser::new(["stop", "wait", "leave"]).try_map(|what| what.parse::<Stragglers>()),
        hide_possible_values = true,
        value_name = "WHAT"
    )]
    pub(crate) stragglers: Option<Stragglers>,
    /// file: only: if leasehold is killed, free the lock at once, without waiting until the command is dead, too
    #[arg(help_heading = "Command", long)]
    pub(crate) no_inherit: bool,
    /// Show the command's arguments, not only its name; they may hold secrets
    #[arg(help_heading = "Shown to others", long)]
    pub(crate) show_args: bool,
}

impl ChildArgs {
    /// How long the command may go on under a lease of this length, and whom to signal.
    pub(crate) fn limits(&self, ttl: Ttl, usual_grace: Option<Duration>) -> Result<Limits> {
        let stragglers = match (self.kill_mode, self.stragglers) {
            (KillMode::Group, choice) => choice.unwrap_or(Stragglers::Stop),
            (KillMode::Process, None | Some(Stragglers::Leave)) => Stragglers::Leave,
            (KillMode::Process, Some(_)) => {
                return Err(CommandError::usage("--kill-mode process leaves what outlives the command alone")
                    .hint("leave out --stragglers, or --kill-mode"));
            }
        };
        Ok(Limits {
            ttl: ttl.get(),
            kill_after: kill_after(self.kill_after.or(usual_grace), ttl.get())?,
            kill_mode: self.kill_mode,
            on_lost: self.on_lost,
            max_hold: None,
            kill_on_term: self.kill_after.is_some(),
            stragglers,
        })
    }

    /// Caps the limits at the backend's longest belief.
    pub(crate) fn within(&self, limits: Limits, longest: Option<Duration>) -> Result<Limits> {
        limits.within(longest, self.kill_after).map_err(|error| {
            CommandError::from(error)
                .hint("with liveness=connection no answer is believed for longer, whatever --ttl says")
        })
    }
}
