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
mod settings;
mod shell;
mod table;
mod usage;
mod variables;
mod work;

use std::{env, ffi::OsString, process::ExitCode};

use clap::{
    Parser,
    error::{ContextKind, ContextValue, ErrorKind},
};

use self::{
    args::{Cli, LogFormat},
    command_line::CommandLine,
    error::CommandError,
    output::Output,
    settings::OutputStyle,
    variables::environment,
};

/// What Rust says of something that is no number.
const NO_DIGIT: &str = "invalid digit found in string";
const NO_TEXT: &str = "cannot parse integer from empty string";

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    let args: Vec<OsString> = env::args_os().collect();
    if let Some(code) = work::supervisor_entry::run(&args) {
        return code;
    }
    commands::keep::detach();
    commands::completions::answer_shell();
    report_bugs();
    let cli = match Cli::try_parse_from(&args) {
        Ok(cli) if is_without_name(&cli, &args) => {
            Output::new(OutputStyle::resolve(&cli.global, &environment)).fail(&usage::name_first(&args));
            return ExitCode::from(exit::USAGE);
        }
        Ok(cli) => cli,
        Err(error) => return ExitCode::from(refuse(&error, &args)),
    };
    let output = Output::new(OutputStyle::resolve(&cli.global, &environment));
    let code = commands::run(&cli, &args, &output);
    output.finish();
    ExitCode::from(code)
}

/// Whether a `run` was given its command in the place of the name.
fn is_without_name(cli: &Cli, args: &[OsString]) -> bool {
    let args::Command::Run(run) = &cli.command else { return false };
    run.child.shell.is_none() && usage::lacks_name(args, &run.name)
}

/// Help and version are answers; everything else is a usage error, in one line.
fn refuse(error: &clap::Error, args: &[OsString]) -> u8 {
    match error.kind() {
        ErrorKind::DisplayHelp => {
            let _reader_left = usage::of_command(args).as_ref().unwrap_or(error).print();
            return exit::OK;
        }
        ErrorKind::DisplayVersion => {
            let _reader_left = error.print();
            return exit::OK;
        }
        ErrorKind::MissingSubcommand | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand if args.len() <= 1 => {
            // Nobody asked for it: a script that forgot its arguments must not read it as an answer.
            let _reader_left = error.print();
            return exit::USAGE;
        }
        _ => {}
    }
    let text = error.render().to_string();
    let mut paragraphs = text.split("\n\n").map(|paragraph| {
        let lines: Vec<&str> = paragraph.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        lines.join(" ")
    });
    let message = paragraphs.next().unwrap_or_default();
    let message = message.strip_prefix("error: ").unwrap_or(&message);
    let message = match message.strip_suffix(NO_DIGIT).or_else(|| message.strip_suffix(NO_TEXT)) {
        Some(message) => format!("{message}write a number"),
        None => message.to_owned(),
    };
    let line = CommandLine::read(args);
    let tip = usage::called_here(error, &line).or_else(|| paragraphs.find_map(|paragraph| tip(&paragraph)));
    let tip = tip.or_else(|| usage::similar_command(error));
    let invalid = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(word)) if error.kind() == ErrorKind::UnknownArgument => word.as_str(),
        _ => "",
    };
    // As for a flag that is found where the command to run should be.
    let is_flag = invalid.strip_prefix('-').is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_digit()));
    let message = match line.command.as_deref() {
        Some(command) if is_flag => format!("{command} has no option {invalid}"),
        _ => message,
    };
    let is_number = invalid.strip_prefix('-').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    let tip =
        if is_number { Some(String::from("numbers and lengths of time have no sign: write 5s, not -5s")) } else { tip };
    let help = match line.command.as_deref() {
        Some("release" | "renew") if !invalid.is_empty() && !invalid.starts_with('-') => format!(
            "a lease goes by its handle: --lease HANDLE, as `leasehold acquire` printed it; `{}` takes a lock away from \
             whoever holds it",
            line.to_paste(&environment, "evict NAME")
        ),
        Some("evict") if error.kind() == ErrorKind::MissingRequiredArgument && message.contains("--fence") => {
            usage::fence_hint(&line)
        }
        Some("check")
            if error.kind() == ErrorKind::MissingRequiredArgument && message.contains("--succeeded-within") =>
        {
            usage::check_hint(&line)
        }
        Some(command) => format!("see: leasehold {command} --help"),
        None => String::from("see: leasehold --help"),
    };
    let failure = CommandError::usage(message).hint(tip.unwrap_or(help));
    let json = args.iter().any(|word| word == "--json") || settings::wants_json(&environment);
    let log = usage::log_format(args).unwrap_or(if json { LogFormat::Json } else { LogFormat::Text });
    let style = OutputStyle { json, log, ..OutputStyle::plain() };
    Output::new(style).fail(&failure);
    failure.code
}

/// Extracts the tip from a paragraph of clap's message. "use '-- --flag'" does not count, since what follows `--` is
/// the command.
fn tip(paragraph: &str) -> Option<String> {
    let mut tips = paragraph.split("tip: ").map(str::trim).filter(|tip| !tip.is_empty());
    tips.find(|tip| !tip.starts_with("to pass '")).filter(|_| paragraph.starts_with("tip: ")).map(str::to_owned)
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
