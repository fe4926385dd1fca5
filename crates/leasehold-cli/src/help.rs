//! Help as people read it: what a command is about, not what all share; and the word they meant to type.

use std::ffi::OsString;

use clap::{
    CommandFactory,
    error::{ContextKind, ContextValue, ErrorKind},
};

use crate::args::Cli;

/// All that is said about global options below the help of one command.
const GLOBAL_OPTIONS: &str = "Global options: -b URL|PROFILE, --namespace NS, --config PATH, --json, --log-format FORMAT, \
                              -q, -v, --color WHEN, --connect-timeout D (see: leasehold --help)";

/// The help that was asked for, with the global options in one line; `None` if it is that of the whole program.
pub(crate) fn of_command(args: &[OsString]) -> Option<clap::Error> {
    let folded = Cli::command().mut_args(|arg| if arg.is_global_set() { arg.hide(true) } else { arg }).mut_subcommands(
        |command| {
            let below = command.get_after_help().map(|text| format!("\n\n{text}")).unwrap_or_default();
            command.after_help(format!("{GLOBAL_OPTIONS}{below}"))
        },
    );
    let help = folded.try_get_matches_from(args).err()?;
    (!help.render().to_string().contains("\nCommands:\n")).then_some(help)
}

/// The command that was meant, if one is a slip of the fingers away: clap misses letters that were swapped.
pub(crate) fn similar_command(error: &clap::Error) -> Option<String> {
    let Some(ContextValue::String(typed)) = error.get(ContextKind::InvalidSubcommand) else { return None };
    let command = Cli::command();
    let names = command.get_subcommands().map(clap::Command::get_name);
    let nearest = names.min_by_key(|name| slips(typed, name)).filter(|name| slips(typed, name) <= 1)?;
    (error.kind() == ErrorKind::InvalidSubcommand).then(|| format!("a similar command exists: '{nearest}'"))
}

/// How many letters must be added, dropped, replaced, or swapped with their neighbour.
fn slips(typed: &str, meant: &str) -> usize {
    let (typed, meant): (Vec<char>, Vec<char>) = (typed.chars().collect(), meant.chars().collect());
    let mut rows = vec![(0..=meant.len()).collect::<Vec<usize>>()];
    for (t, letter) in typed.iter().enumerate() {
        let mut row = vec![t + 1];
        for (m, wanted) in meant.iter().enumerate() {
            let replaced = rows[t][m] + usize::from(letter != wanted);
            let mut least = replaced.min(rows[t][m + 1] + 1).min(row[m] + 1);
            if t > 0 && m > 0 && *letter == meant[m - 1] && typed[t - 1] == *wanted {
                least = least.min(rows[t - 1][m - 1] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[typed.len()][meant.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_counted() {
        for (typed, meant, count) in
            [("run", "run", 0), ("rnu", "run", 1), ("lits", "list", 1), ("rn", "run", 1), ("x", "run", 3)]
        {
            assert_eq!(slips(typed, meant), count, "{typed}");
        }
    }
}
