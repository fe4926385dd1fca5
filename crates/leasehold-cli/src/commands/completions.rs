//! `leasehold completions`: prints a completion script, and answers the shell's requests, for example with live lock
//! names.

use std::{env, ffi::OsStr, time::Duration};

use clap::{Arg, CommandFactory, Parser};
use clap_complete::{
    CompleteEnv,
    engine::{ArgValueCompleter, CompletionCandidate},
    env::Shells,
};
use leasehold::{
    Leasehold,
    lease::{ListFilter, Names},
};

use crate::{
    args::{Cli, CompletionsArgs, Global, Shell},
    error::{CommandError, Result},
    exit, json,
    settings::Settings,
    variables::environment,
};

/// The environment variable by which a shell requests completions. The name is our own, so that no other program sets
/// it.
const VARIABLE: &str = "LEASEHOLD_COMPLETE";
/// How long to wait for the backend: nobody waits longer after pressing Tab.
const LIMIT: Duration = Duration::from_millis(500);
/// How many lock names to offer at most.
const MAX_NAMES: usize = 200;

/// The script for bash, which splits words at colons. Lock names have colons, so the script splits the line itself.
const BASH: &str = include_str!("completions.bash");

/// Prints the script.
pub(crate) fn run(args: &CompletionsArgs) -> Result<u8> {
    if args.shell == Shell::Bash {
        json::write(BASH)?;
        return Ok(exit::OK);
    }
    let shells = Shells::builtins();
    let shell = shells
        .completer(args.shell.as_str())
        .ok_or_else(|| CommandError::usage(format!("cannot help {}", args.shell.as_str())))?;
    let mut script = Vec::new();
    let written = shell.write_registration(VARIABLE, "leasehold", "leasehold", "leasehold", &mut script);
    written.map_err(|error| CommandError::unavailable(format!("cannot write the script: {error}")))?;
    json::write(&String::from_utf8_lossy(&script))?;
    Ok(exit::OK)
}

/// If a shell asks what could be typed next, answers and exits.
pub(crate) fn answer_shell() {
    if environment(VARIABLE).is_some() {
        CompleteEnv::with_factory(command_with_lock_names).var(VARIABLE).bin("leasehold").complete();
    }
}

/// The command line, in which names of locks can be completed.
fn command_with_lock_names() -> clap::Command {
    let is_lock = |arg: &Arg| {
        let names = arg.get_value_names().unwrap_or_default();
        let is_name = names.iter().any(|name| ["NAME", "PREFIX"].contains(&name.as_str()));
        is_name && (arg.is_positional() || arg.get_id() == "also")
    };
    let completed = |arg: Arg| if is_lock(&arg) { arg.add(ArgValueCompleter::new(lock_names)) } else { arg };
    // The names that `schema` takes are those of outputs.
    Cli::command().mut_subcommands(|command| match command.get_name() {
        "schema" => command,
        _ => command.mut_args(completed),
    })
}

/// The names of live locks that begin with `typed`; none if the backend does not answer in time.
pub(crate) fn lock_names(typed: &OsStr) -> Vec<CompletionCandidate> {
    let Some(prefix) = typed.to_str() else { return Vec::new() };
    let asked = || -> Option<Vec<CompletionCandidate>> {
        let settings = Settings::resolve(&typed_flags(), &environment).ok()?;
        if settings.url.starts_with("memory:") {
            return None;
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
        let names = runtime.block_on(async {
            let listing = async {
                let locks = Leasehold::builder().namespace(&settings.namespace).connect(&settings.url).await.ok()?;
                let filter = ListFilter::new(Names::Prefix(prefix.to_owned())).limit(MAX_NAMES);
                locks.list(&filter).await.ok()
            };
            tokio::time::timeout(LIMIT, listing).await.ok().flatten()
        });
        let mut names: Vec<String> = names?.leases.into_iter().map(|lease| lease.resource.to_string()).collect();
        names.dedup();
        Some(names.into_iter().map(CompletionCandidate::new).collect())
    };
    asked().unwrap_or_default()
}

/// The global flags among what was typed so far: they say where to look.
fn typed_flags() -> Global {
    let mut words = env::args().skip_while(|word| word != "--").skip(1);
    let mut known = vec![String::from("leasehold"), String::from("doctor")];
    while let Some(word) = words.next() {
        let flag = word.split('=').next().unwrap_or_default();
        if matches!(flag, "-b" | "--backend" | "--namespace" | "--config") {
            let value = if word.contains('=') { None } else { words.next() };
            known.push(word);
            known.extend(value);
        }
    }
    let parsed = Cli::try_parse_from(known).or_else(|_| Cli::try_parse_from(["leasehold", "doctor"]));
    parsed.map(|cli| cli.global).expect("a command without flags parses")
}
