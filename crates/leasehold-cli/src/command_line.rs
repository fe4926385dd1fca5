//! A command line read word by word, as far as that is possible: one that was rejected, too.

use std::{
    ffi::{OsStr, OsString},
    path::Path,
};

use clap::{Arg, Command, CommandFactory};

use crate::{
    args::Cli,
    paste::{PastedBy, TypedPlace},
    shell,
    variables::Environment,
};

/// The words of a command line that could be read.
#[derive(Debug, Default)]
pub(crate) struct CommandLine {
    /// The command, which may stand behind global options and their values.
    pub(crate) command: Option<String>,
    /// The flags by the names of their arguments, with their values.
    flags: Vec<(String, Option<OsString>)>,
    operands: Vec<Operand>,
}

/// A word that is no flag and no value of one.
#[derive(Debug)]
struct Operand {
    word: OsString,
    is_behind_hyphens: bool,
}

impl CommandLine {
    /// Reads the words up to the command that `run` and `elect` start, whose flags are its own.
    pub(crate) fn read(args: &[OsString]) -> Self {
        let root = Cli::command();
        let (mut command, mut is_named): (Option<&Command>, bool) = (None, false);
        let mut line = Self::default();
        let mut words = args.iter().skip(1);
        while let Some(word) = words.next() {
            if word == "--" {
                let rest = words.by_ref().cloned();
                line.operands.extend(rest.map(|word| Operand { word, is_behind_hyphens: true }));
            } else if let Some(flag) = word.to_str().filter(|word| word.len() > 1 && word.starts_with('-')) {
                let known = command.into_iter().chain([&root]).flat_map(Command::get_arguments).collect::<Vec<_>>();
                line.read_flag(flag, &known, || words.next().cloned());
            } else if is_named {
                line.operands.push(Operand { word: word.clone(), is_behind_hyphens: false });
                let starts_another =
                    command.is_some_and(|command| command.get_positionals().any(Arg::is_trailing_var_arg_set));
                if starts_another && line.operands.len() > 1 {
                    break;
                }
            } else {
                (command, is_named) = (root.find_subcommand(word), true);
                line.command = command.and_then(|_| word.to_str()).map(str::to_owned);
            }
        }
        line
    }

    /// Adds `--wait=5`, or each of the flags in `-nw5`; a value may be the next word.
    fn read_flag(&mut self, flag: &str, known: &[&Arg], mut next: impl FnMut() -> Option<OsString>) {
        let mut add = |arg: &Arg, value: Option<&str>| {
            let takes_value = arg.get_action().takes_values();
            let value = takes_value.then(|| value.map(OsString::from).or_else(&mut next)).flatten();
            self.flags.push((arg.get_id().to_string(), value));
            takes_value
        };
        if let Some(long) = flag.strip_prefix("--") {
            let (name, value) = long.split_once('=').map_or((long, None), |(name, value)| (name, Some(value)));
            let is_it = |arg: &&&Arg| {
                arg.get_long() == Some(name) || arg.get_all_aliases().is_some_and(|aliases| aliases.contains(&name))
            };
            if let Some(arg) = known.iter().find(is_it) {
                add(arg, value);
            }
            return;
        }
        for (at, short) in flag.char_indices().skip(1) {
            let is_it = |arg: &&&Arg| {
                let aliases = arg.get_all_short_aliases();
                arg.get_short() == Some(short) || aliases.is_some_and(|aliases| aliases.contains(&short))
            };
            let rest = flag[at..].strip_prefix(short).filter(|rest| !rest.is_empty());
            let value = rest.map(|rest| rest.strip_prefix('=').unwrap_or(rest));
            if known.iter().find(is_it).is_some_and(|arg| add(arg, value)) {
                return;
            }
        }
    }

    /// A command for people to paste that means the same place as this line.
    pub(crate) fn to_paste(&self, env: Environment<'_>, words: &str) -> String {
        let last = |name: &str| self.flags.iter().rfind(|(flag, _)| flag == name)?.1.as_deref();
        let text = |name: &str| last(name).and_then(OsStr::to_str);
        let place = TypedPlace {
            config: last("config").map(Path::new),
            backend: text("backend"),
            namespace: text("namespace"),
            url: None,
        };
        format!("{}{words}", place.command(env, PastedBy::of_this_process()))
    }

    /// The first operand as it can be pasted behind a command, or `NAME`.
    pub(crate) fn name(&self) -> String {
        let first = self.operands.first().map(|operand| operand.word.to_string_lossy());
        first.map_or_else(|| String::from("NAME"), |name| shell::operand(&name))
    }

    /// Whether the first operand comes behind `--` and does not begin with a hyphen, which would be why.
    pub(crate) fn begins_behind_hyphens(&self) -> bool {
        let first = self.operands.first();
        first.is_some_and(|first| first.is_behind_hyphens && !first.word.as_encoded_bytes().starts_with(b"-"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> CommandLine {
        CommandLine::read(&line.split(' ').map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn the_command_is_found_behind_global_options() {
        for (line, found) in [
            ("leasehold release x", Some("release")),
            ("leasehold ls --bogus", Some("ls")),
            ("leasehold -q -b run --namespace list release x", Some("release")),
            ("leasehold -qb run release x", Some("release")),
            ("leasehold --backend=run -v release x", Some("release")),
            ("leasehold --bogus run x", Some("run")),
            ("leasehold rnu release", None),
            ("leasehold -b run", None),
            ("leasehold -q -- run", None),
            ("leasehold", None),
        ] {
            assert_eq!(read(line).command.as_deref(), found, "{line}");
        }
    }

    #[test]
    fn the_place_and_the_name_are_found_wherever_they_stand() {
        for (line, place, name) in [
            ("leasehold evict x -b redis://h:1 --namespace n --reason r", " -b redis://h:1 --namespace n", "x"),
            ("leasehold evict -b redis://h:1 x --reason r", " -b redis://h:1", "x"),
            ("leasehold evict --reason r -qb=prod x", " -b prod", "x"),
            ("leasehold -b a evict --namespace=n -bprod", " -b prod --namespace n", "NAME"),
            ("leasehold --config /c evict --reason -r -- -x", " --config /c", "-- -x"),
            ("leasehold -b redis://u@h release x", " -b redis://u@h", "x"),
            ("leasehold run x ls -b y", "", "x"),
            ("leasehold run -w 5 x -b y -- ls -b z", " -b y", "x"),
            ("leasehold -b y status x", " -b y", "x"),
            ("leasehold status x --namespace n", " --namespace n", "x"),
        ] {
            let read = read(line);
            let pasted = read.to_paste(&|_| None, "list");
            assert_eq!((pasted, read.name()), (format!("leasehold{place} list"), name.to_owned()), "{line}");
        }
    }
}
