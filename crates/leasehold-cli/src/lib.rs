//! The command `leasehold`, as a library so that its parts can be tested.

mod args;
mod command_ended;
mod command_line;
mod commands;
mod config;
mod duration;
mod edit_distance;
mod error;
mod exit;
mod json;
mod output;
mod paste;
mod redact;
mod run_command;
mod settings;
mod shell;
mod table;
mod usage;
mod variables;

use std::{env, ffi::OsString, process::ExitCode};

use clap::Parser;

use self::{args::Cli, error::CommandError, output::Output, settings::OutputStyle, variables::environment};

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    let args: Vec<OsString> = env::args_os().collect();
    if let Some(code) = run_command::supervisor_entry::run(&args) {
        return code;
    }
    commands::keep::detach();
    commands::completions::answer_shell();
    report_bugs();
    let cli = match Cli::try_parse_from(&args) {
        Ok(cli) => cli,
        Err(error) => return ExitCode::from(usage::refuse(&error, &args)),
    };
    let output = Output::new(OutputStyle::resolve(&cli.global, &environment));
    if let Some(verb) = verb_without_name(&cli, &args) {
        output.fail(&usage::name_first(verb, &args));
        return ExitCode::from(exit::USAGE);
    }
    let code = commands::run(&cli, &args, &output);
    output.finish();
    ExitCode::from(code)
}

/// The verb, if a `run` or `elect` was given its command in the place of the name.
fn verb_without_name(cli: &Cli, args: &[OsString]) -> Option<&'static str> {
    let (verb, child, name) = match &cli.command {
        args::Command::Run(run) => ("run", &run.child, &run.name),
        args::Command::Elect(elect) => ("elect", &elect.child, &elect.name),
        _ => return None,
    };
    (child.shell.is_none() && usage::lacks_name(args, name)).then_some(verb)
}

/// Reports a panic in one line and exits with its own code.
///
/// Ending at once is the safe side: the supervisor kills the command then.
fn report_bugs() {
    std::panic::set_hook(Box::new(|panic| {
        let output = Output::new(OutputStyle::plain());
        let failure = CommandError {
            code: exit::SOFTWARE,
            kind: "bug",
            message: format!("this is a bug: {panic}"),
            hint: Some(String::from("please report it, with what you typed")),
        };
        output.fail(&failure);
        std::process::exit(exit::SOFTWARE.into());
    }));
}
