//! What can be typed: one struct per command, and the flags all of them share.

#![allow(clippy::doc_markdown, reason = "these comments are the help text")]

mod child;
mod elect;
mod evict;
mod history;
mod init;
mod inspect;
mod lease;
mod list;
mod run;
mod self_commands;
mod watch;

use std::{path::PathBuf, time::Duration};

use clap::{Parser, Subcommand, ValueEnum, ValueHint};

pub(crate) use self::{
    child::ChildArgs,
    elect::ElectArgs,
    evict::EvictArgs,
    history::{HistoryArgs, When},
    init::InitArgs,
    inspect::InspectArgs,
    lease::{AcquireArgs, AskArgs, CheckArgs, LeaseArgs, NoteArgs, RenewArgs, ShownArgs},
    list::{ListArgs, SortBy},
    run::{FlockArgs, HookArgs, RunArgs},
    self_commands::{CompletionsArgs, ManArgs, SchemaArgs, Shell, VersionArgs},
    watch::{EventArg, WatchArgs},
};
use crate::duration;

/// Run something in one place at a time.
#[derive(Debug, Parser)]
#[command(
    name = "leasehold",
    version,
    about = "Run something in one place at a time.",
    subcommand_required = true,
    max_term_width = 110,
    after_help = "Examples:\n  leasehold run nightly-report -- ./report.sh      a second copy waits its turn\n  \
                  leasehold run -n nightly-report -- ./report.sh   …or steps aside (exit 75)\n  \
                  leasehold list                                   who holds what, and who waits\n\n\
                  Exit codes: the command's own; 75 not acquired, 121 lock lost, 124 held too long,\n\
                  64 usage, 69 backend away, 77 not permitted, 78 configuration, 126/127 as in a shell."
)]
pub(crate) struct Cli {
    /// Flags of every command.
    #[command(flatten, next_help_heading = "Global options")]
    pub(crate) global: Global,
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Flags of every command.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Global {
    /// Where locks live: a URL, or a profile of the config file [env: LEASEHOLD_URL] [default: file:]
    #[arg(short, long, value_name = "URL|PROFILE", global = true, value_hint = ValueHint::Url)]
    pub(crate) backend: Option<String>,
    /// The config file [env: LEASEHOLD_CONFIG]
    #[arg(long, value_name = "PATH", global = true, value_hint = ValueHint::FilePath)]
    pub(crate) config: Option<PathBuf>,
    /// Separates applications on one backend [env: LEASEHOLD_NAMESPACE] [default: default]
    #[arg(long, value_name = "NS", global = true)]
    pub(crate) namespace: Option<String>,
    /// Machine output [env: LEASEHOLD_JSON=1]
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// How standard error is written: text, logfmt or json [default: text; json with --json]
    #[arg(long, value_enum, hide_possible_values = true, value_name = "FORMAT", global = true)]
    pub(crate) log_format: Option<LogFormat>,
    /// Errors only [env: LEASEHOLD_LOG=quiet]
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
    /// Say what happens and how long it takes; -vv: everything [env: LEASEHOLD_LOG=info|debug]
    #[arg(short, long, action = clap::ArgAction::Count, global = true)]
    pub(crate) verbose: u8,
    /// Colours: auto, always or never [env: NO_COLOR, CLICOLOR_FORCE]
    #[arg(long, value_enum, hide_possible_values = true, default_value = "auto", value_name = "WHEN", global = true)]
    pub(crate) color: Color,
    /// How long to try to reach the backend, but never longer than -w [default: 10s; 3s with -n and for read-only
    /// commands]
    #[arg(long, value_parser = duration::parse, value_name = "D", global = true)]
    pub(crate) connect_timeout: Option<Duration>,
}

/// How standard error is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// For people.
    Text,
    /// `key=value` pairs.
    Logfmt,
    /// An object in each line.
    Json,
}

/// When to use colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Color {
    /// On a terminal.
    Auto,
    /// Anywhere.
    Always,
    /// Nowhere.
    Never,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a command while holding a lock
    Run(Box<RunArgs>),
    /// Run a command only while leader, or follow who leads
    Elect(Box<ElectArgs>),
    /// Take a lock that outlives this command, and print the handle of its lease
    Acquire(Box<AcquireArgs>),
    /// Give a lease taken by `acquire` more time
    Renew(RenewArgs),
    /// Give back a lease taken by `acquire`
    #[command(after_help = "Examples:\n  leasehold release --lease \"$lease\"\n  \
                            leasehold release --lease-file deploy.lease")]
    Release(LeaseArgs),
    /// Check that a lease is still held, or that a job succeeded lately: exit 0 if so, 1 if not
    Check(CheckArgs),
    /// Show held locks and who waits for them
    #[command(visible_alias = "ls")]
    List(ListArgs),
    /// Show one lock: holders, queue, fence, the last day
    Inspect(InspectArgs),
    /// Follow what happens to locks
    Watch(WatchArgs),
    /// Show how past leases and waits ended
    History(HistoryArgs),
    /// Take a lock away from its holder
    Evict(EvictArgs),
    /// Look for settings and circumstances that endanger locks
    #[command(after_help = "Exit 1 if it finds a failure; warnings alone are 0.\n\n\
                            Examples:\n  leasehold doctor                       where locks are by default\n  \
                            leasehold doctor -b redis://cache\n  \
                            leasehold doctor -b prod --json        a profile of the config file; for monitoring")]
    Doctor,
    /// Prepare a backend for locks
    Init(InitArgs),
    /// Print the script that makes a shell complete commands, flags and live lock names
    Completions(CompletionsArgs),
    /// Print the manual page
    Man(ManArgs),
    /// Print the JSON Schema of a machine output
    Schema(SchemaArgs),
    /// Print the version
    Version(VersionArgs),
}

#[cfg(test)]
pub(crate) mod tests {
    use clap::CommandFactory;

    use super::*;

    pub(crate) fn parse(args: &[&str]) -> Cli {
        Cli::try_parse_from([&["leasehold"], args].concat()).unwrap()
    }

    fn command_of(args: &[&str]) -> Vec<String> {
        match parse(args).command {
            Command::Run(run) => run.child.command.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn parsing_stops_at_the_command() {
        assert_eq!(command_of(&["run", "x", "ls", "-n", "-v"]), ["ls", "-n", "-v"]);
        assert_eq!(command_of(&["run", "-n", "x", "--", "ls", "--json", "-b", "x"]), ["ls", "--json", "-b", "x"]);
        assert_eq!(command_of(&["run", "x", "ls", "--", "-n"]), ["ls", "--", "-n"]);
        assert_eq!(command_of(&["run", "x", "--", "ls", "--", "-n"]), ["ls", "--", "-n"]);
        assert_eq!(command_of(&["run", "x", "-n", "ls", "-n"]), ["ls", "-n"]);
        assert_eq!(command_of(&["run", "x", "ls", "--help"]), ["ls", "--help"]);
        assert_eq!(command_of(&["run", "x", "ls", "-c", "y"]), ["ls", "-c", "y"]);
    }

    #[test]
    fn every_spelling_of_a_flock_flag_is_known() {
        for (args, exclusive, nonblock, wait) in [
            (&["run", "-en", "x", "true"][..], true, true, None),
            (&["run", "-e", "--timeout", "3", "x", "true"], true, false, Some(3)),
            (&["run", "--nb", "x", "true"], false, true, None),
            (&["run", "-xw", "3", "x", "true"], true, false, Some(3)),
        ] {
            let Command::Run(run) = parse(args).command else { panic!("not run") };
            assert_eq!((run.ask.exclusive, run.ask.nonblock), (exclusive, nonblock), "{args:?}");
            assert_eq!(run.ask.wait, wait.map(Duration::from_secs), "{args:?}");
        }
    }

    #[test]
    fn flags_of_flock_keep_their_meanings() {
        let Command::Run(run) = parse(&["run", "-s", "-w", ".2", "-E", "0", "x", "-c", "echo hi"]).command else {
            panic!("not run");
        };
        assert!(run.ask.shared && !run.ask.nonblock);
        assert_eq!(run.ask.wait, Some(Duration::from_millis(200)));
        assert_eq!(run.ask.conflict_exit_code, 0);
        assert_eq!(run.child.shell.as_deref(), Some(std::ffi::OsStr::new("echo hi")));
    }
}
