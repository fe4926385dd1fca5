//! Mistakes on the command line, and the layout of `--help`; its texts are in `args/`.

use std::ffi::OsString;

use clap::{
    CommandFactory, ValueEnum,
    error::{ContextKind, ContextValue, ErrorKind},
};

use crate::{
    args::{Cli, LogFormat},
    command_line::CommandLine,
    edit_distance::edit_distance,
    error::CommandError,
    exit,
    output::Output,
    settings::{self, OutputStyle},
    variables::environment,
};

/// What Rust says of something that is no number.
const NO_DIGIT: &str = "invalid digit found in string";
const NO_TEXT: &str = "cannot parse integer from empty string";

/// Help and version are answers; everything else is a usage error, in one line.
pub(crate) fn refuse(error: &clap::Error, args: &[OsString]) -> u8 {
    match error.kind() {
        ErrorKind::DisplayHelp => {
            let _reader_left = of_command(args).as_ref().unwrap_or(error).print();
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
    let tip = called_here(error, &line).or_else(|| paragraphs.find_map(|paragraph| tip(&paragraph)));
    let tip = tip.or_else(|| similar_command(error));
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
            fence_hint(&line)
        }
        Some("check")
            if error.kind() == ErrorKind::MissingRequiredArgument && message.contains("--succeeded-within") =>
        {
            check_hint(&line)
        }
        Some(command) => format!("see: leasehold {command} --help"),
        None => String::from("see: leasehold --help"),
    };
    let failure = CommandError::usage(message).hint(tip.unwrap_or(help));
    let json = args.iter().any(|word| word == "--json") || settings::wants_json(&environment);
    let log = log_format(args).unwrap_or(if json { LogFormat::Json } else { LogFormat::Text });
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

/// All that is said about global options below the help of one command.
const GLOBAL_OPTIONS: &str = "Global options: -b URL|PROFILE, --namespace NS, --config PATH, --json, --log-format FORMAT, \
                              -q, -v, --color WHEN, --connect-timeout D (see: leasehold --help)";

/// The help that was asked for, with the global options in one line; `None` if it is that of the whole program.
fn of_command(args: &[OsString]) -> Option<clap::Error> {
    let folded = Cli::command().mut_args(|arg| if arg.is_global_set() { arg.hide(true) } else { arg }).mut_subcommands(
        |command| {
            let below = command.get_after_help().map(|text| format!("\n\n{text}")).unwrap_or_default();
            command.after_help(format!("{GLOBAL_OPTIONS}{below}"))
        },
    );
    let help = folded.try_get_matches_from(args).err()?;
    (!help.render().to_string().contains("\nCommands:\n")).then_some(help)
}

/// Commands as other programs call them, and as they are called here.
const ELSEWHERE: [(&str, &str); 7] = [
    ("status", "list"),
    ("ps", "list"),
    ("unlock", "release"),
    ("lock", "run"),
    ("kill", "evict"),
    ("log", "history"),
    ("show", "inspect"),
];

/// What a word of other programs is called here: a command, or the end of a holder that crashed.
fn called_here(error: &clap::Error, line: &CommandLine) -> Option<String> {
    if let Some(ContextValue::String(typed)) = error.get(ContextKind::InvalidSubcommand) {
        let (_, ours) = ELSEWHERE.iter().find(|(theirs, _)| theirs == typed)?;
        return Some(format!("here this is: {}", line.to_paste(&environment, ours)));
    }
    let Some(ContextValue::String(typed)) = error.get(ContextKind::InvalidValue) else { return None };
    let Some(ContextValue::String(flag)) = error.get(ContextKind::InvalidArg) else { return None };
    let is_death = flag.starts_with("--event") && ["crashed", "died", "killed"].contains(&typed.as_str());
    is_death
        .then(|| String::from("a holder that crashed is 'disconnected', or 'expired' where its lease had to run out"))
}

/// What else `check NAME` may have meant.
fn check_hint(line: &CommandLine) -> String {
    let name = line.name();
    let look = line.to_paste(&environment, &format!("inspect {name}"));
    let check = line.to_paste(&environment, &format!("check --succeeded-within 26h {name}"));
    format!("is it held? {look}; did it succeed lately? {check}")
}

/// The command that was meant, if one is a slip of the fingers away: clap misses letters that were swapped.
fn similar_command(error: &clap::Error) -> Option<String> {
    let Some(ContextValue::String(typed)) = error.get(ContextKind::InvalidSubcommand) else { return None };
    let command = Cli::command();
    let names = command.get_subcommands().map(clap::Command::get_name);
    let nearest = names.min_by_key(|name| edit_distance(typed, name)).filter(|name| edit_distance(typed, name) <= 1)?;
    (error.kind() == ErrorKind::InvalidSubcommand).then(|| format!("a similar command exists: '{nearest}'"))
}

/// Whether a `run` or `elect` was given its command in the place of the name: `leasehold run -w 5 -- echo hi`, where clap finds the
/// name `echo`.
pub(crate) fn lacks_name(args: &[OsString], name: &str) -> bool {
    let behind_hyphens = args.windows(2).find(|words| words[0] == "--").map(|words| &words[1]);
    behind_hyphens.is_some_and(|word| word == name) && CommandLine::read(args).begins_behind_hyphens()
}

/// The error for a missing name.
pub(crate) fn name_first(verb: &str, args: &[OsString]) -> CommandError {
    CommandError::usage(format!("{verb} needs the name of a lock before `--`"))
        .hint(CommandLine::read(args).to_paste(&environment, &format!("{verb} NAME -- COMMAND…")))
}

/// The command that shows the fence, where `evict` was not given one.
fn fence_hint(line: &CommandLine) -> String {
    format!("see the fence: {}", line.to_paste(&environment, &format!("inspect {}", line.name())))
}

/// The `--log-format` of a rejected command line.
fn log_format(args: &[OsString]) -> Option<LogFormat> {
    let mut words = args.iter().filter_map(|word| word.to_str()).take_while(|word| *word != "--");
    let value = words.find_map(|word| word.strip_prefix("--log-format"))?;
    LogFormat::from_str(value.strip_prefix('=').or_else(|| words.next())?, false).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn a_run_without_a_name_is_told_from_one_with_it() {
        for (line, name, lacks) in [
            ("leasehold run -- echo hi", "echo", true),
            ("leasehold -q run -n -- echo hi", "echo", true),
            ("leasehold run -w 5 -- echo hi", "echo", true),
            ("leasehold -b run run -nE 3 --ttl 5s -- echo hi", "echo", true),
            ("leasehold run x -- echo hi", "x", false),
            ("leasehold run x -- x", "x", false),
            ("leasehold run -w 5 x -- echo hi", "x", false),
            ("leasehold run -- -odd-name echo", "-odd-name", false),
        ] {
            assert_eq!(lacks_name(&words(line), name), lacks, "{line}");
        }
    }

    #[test]
    fn the_log_format_is_found_in_a_line_with_mistakes() {
        let found = |line: &str| log_format(&words(line));
        assert_eq!(found("leasehold --log-format json run --bogus"), Some(LogFormat::Json));
        assert_eq!(found("leasehold run --log-format=text --bogus"), Some(LogFormat::Text));
        assert_eq!(found("leasehold run x -- --log-format json"), None);
    }
}
