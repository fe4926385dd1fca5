//! The commands, one file each, and what they share: settings, words, a connection.

mod acquire;
mod check;
pub(crate) mod completions;
mod doctor;
mod elect;
mod evict;
mod history;
mod init;
mod inspect;
mod json_schemas;
pub(crate) mod keep;
mod lease_handle;
mod list;
mod lock_summary;
mod man;
mod release;
mod renew;
mod run;
mod time_format;
mod unknown_lock;
mod version;
mod watch;

use std::{
    env,
    ffi::OsString,
    path::{Path, PathBuf},
};

use leasehold::{Holder, Leasehold, backends::file::DefaultDirectory};

use crate::{
    args::{ChildArgs, Cli, Command, Global},
    error::{CommandError, Result},
    exit,
    output::{Line, Output},
    redact,
    run_command::{connect_retry::ConnectRetry, lock_request::WaitLimit},
    settings::{Level, Settings},
    shell,
    variables::{Mistyped, environment, mistyped},
};

/// Does what was typed; tells the exit code.
pub(crate) fn run(cli: &Cli, args: &[OsString], output: &Output) -> u8 {
    dispatch(cli, args, output).unwrap_or_else(|failure| {
        output.fail(&failure);
        failure.code
    })
}

fn dispatch(cli: &Cli, args: &[OsString], output: &Output) -> Result<u8> {
    match &cli.command {
        Command::Completions(completions) => return completions::run(completions),
        Command::Man(man) => return man::run(man),
        Command::Schema(schema) => return json_schemas::run(schema),
        Command::Version(_) => return version::run(output),
        _ => {}
    }
    let global = match &cli.command {
        Command::Init(init) if init.backend_url.is_some() && cli.global.backend.is_some() => {
            return Err(CommandError::usage("init takes one URL, either after -b or as its argument"));
        }
        Command::Init(init) if init.backend_url.is_some() => {
            &Global { backend: init.backend_url.clone(), ..cli.global.clone() }
        }
        _ => &cli.global,
    };
    // Without the place, the locks would silently be on this machine only.
    let (of_place, others): (Vec<_>, Vec<_>) =
        mistyped_variables().into_iter().partition(|variable| variable.meant == "LEASEHOLD_URL");
    warn_of(&others, output);
    let settings = Settings::resolve(global, &environment)?;
    if let Some(Mistyped { name, .. }) = of_place.first().filter(|_| settings.is_place_by_default) {
        let words = format!("{name} has no meaning, and nothing else says where the locks are");
        return Err(CommandError::config(words)
            .hint("did you mean LEASEHOLD_URL? to have the locks on this machine only: -b file:"));
    }
    if global.backend.is_none() {
        warn_of(&of_place, output);
    }
    let context = CommandContext { settings, output, args };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| CommandError::unavailable(format!("cannot start: {error}")))?;
    let result = runtime.block_on(async {
        match &cli.command {
            Command::Run(args) => run::run(&context, args).await,
            Command::Elect(args) => elect::run(&context, args).await,
            Command::Acquire(args) => acquire::run(&context, args).await,
            Command::Renew(args) => renew::run(&context, args).await,
            Command::Release(args) => release::run(&context, args).await,
            Command::Check(args) => check::run(&context, args).await,
            Command::List(args) => list::run(&context, args).await,
            Command::Inspect(args) => inspect::run(&context, args).await,
            Command::Watch(args) => watch::run(&context, args).await,
            Command::History(args) => history::run(&context, args).await,
            Command::Evict(args) => evict::run(&context, args).await,
            Command::Doctor => doctor::run(&context).await,
            Command::Init(args) => init::run(&context, args).await,
            Command::Completions(_) | Command::Man(_) | Command::Schema(_) | Command::Version(_) => {
                unreachable!("answered above")
            }
        }
    });
    runtime.shutdown_background();
    result.map_err(|failure| context.without_secrets(failure))
}

/// The variables that look like mistyped settings; none for the background process of an `acquire` that has told them.
fn mistyped_variables() -> Vec<Mistyped> {
    if environment("LEASEHOLD_KEEPER").is_some() { Vec::new() } else { mistyped(env::vars_os()) }
}

fn warn_of(mistyped: &[Mistyped], output: &Output) {
    for Mistyped { name, meant } in mistyped {
        output.print(Line::warning(format!("{name} has no meaning; did you mean {meant}?")));
    }
}

/// What to do where the user's own directory cannot be used: a program that runs as another user often keeps `$HOME`.
fn own_directory_hint() -> String {
    let absolute = |name| environment(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let (name, value) = match absolute("XDG_STATE_HOME") {
        Some(path) => ("XDG_STATE_HOME", path),
        None => ("HOME", absolute("HOME").unwrap_or_default()),
    };
    let value = value.display();
    format!(
        "file: is in ${name}, which is {value}; set {name} to a directory of this user, or name another place: -b file:///path"
    )
}

/// Whether the database was reached, and `init` has not made its schema or has not updated it.
fn lacks_schema(failure: &CommandError) -> bool {
    failure.code == exit::CONFIG && failure.message.contains("`leasehold init")
}

/// What every command has.
#[derive(Debug)]
pub(crate) struct CommandContext<'a> {
    /// Where locks live.
    pub(crate) settings: Settings,
    /// How to say things.
    pub(crate) output: &'a Output,
    /// What was typed.
    pub(crate) args: &'a [OsString],
}

impl CommandContext<'_> {
    /// Retries for a command that waits this long for its lock.
    pub(crate) fn connect_retry(&self, wait: WaitLimit) -> ConnectRetry<'_> {
        ConnectRetry::new(&self.settings, wait, self.output)
    }

    /// Opens the backend for a command that takes no lock.
    pub(crate) async fn connect(&self) -> Result<Leasehold> {
        self.open(None, &self.connect_retry(WaitLimit::Try)).await
    }

    /// The same for what should not fail because a server starts again just now.
    pub(crate) async fn connect_patiently(&self) -> Result<Leasehold> {
        self.open(None, &self.connect_retry(WaitLimit::Forever)).await
    }

    /// Opens the backend; a server that is not there yet is tried again for a while.
    pub(crate) async fn open(&self, holder: Option<Holder>, connect_retry: &ConnectRetry<'_>) -> Result<Leasehold> {
        let settings = &self.settings;
        if settings.url.starts_with("memory:") {
            return Err(CommandError::config(
                "memory: lives in one process, so that no second command could see its locks",
            )
            .hint("use file:, which needs nothing installed, or the library"));
        }
        let connected = connect_retry.retry(async |limit| {
            let builder = Leasehold::builder().namespace(&settings.namespace).connect_limit(limit);
            let builder = match &holder {
                Some(holder) => builder.holder(holder.clone()),
                None => builder,
            };
            builder.connect(&settings.url).await
        });
        let locks = connected.await.map_err(|error| self.advise(connect_retry.failure(error)))?;
        // JSON has every step of the work, which this is not.
        if let Some(directory) = settings.user_only_notice()
            && self.output.style().level >= Level::Verbose
        {
            self.output.print(Line::detail("place", directory.sentence()));
        }
        self.output.print(Line::debug(format!(
            "connected to {} in namespace {} as {}",
            settings.shown_url(),
            settings.namespace,
            locks.holder()
        )));
        Ok(locks)
    }

    /// Adds what to do to a backend that cannot be opened; for a database that is not ready, the command that makes
    /// it so.
    fn advise(&self, mut failure: CommandError) -> CommandError {
        // The library names all that it knows; `memory:` is refused here.
        if failure.code == exit::CONFIG {
            failure.message = failure.message.replace("known here: memory:, ", "known here: ");
        }
        // A message that names the owner's URL has the whole command already.
        if lacks_schema(&failure) && failure.message.contains("`leasehold init`") {
            return failure.hint(self.settings.command("init"));
        }
        match self.settings.default_directory() {
            Some(Ok(DefaultDirectory::Machine(path))) if failure.code == exit::NO_PERMISSION => failure.hint(format!(
                "let this user use {0}, which is for the whole machine (ls -ld {0}), or name another place: -b file:///path",
                path.display()
            )),
            Some(Ok(DefaultDirectory::User(_))) if failure.code == exit::NO_PERMISSION => failure.hint(own_directory_hint()),
            _ => failure,
        }
    }

    /// What to do if there is no such program: it was a line for a shell, or is looked for in another place than meant.
    pub(crate) fn not_found_hint(&self, verb: &str, name: &str, command: &[OsString]) -> Option<String> {
        let (program, rest) = command.split_first()?;
        let text = program.to_str()?;
        let is_path = text.contains('/');
        if Path::new(program).exists() {
            let is_here = !is_path && Path::new(program).is_file();
            return is_here.then(|| format!("not found in PATH; there is ./{text}"));
        }
        if text.contains(|c: char| c.is_whitespace() || ";|&><$".contains(c)) {
            // The arguments may hold secrets.
            let line = if rest.is_empty() { text.to_owned() } else { format!("{text} …") };
            let words = format!("{verb} {} -c {}", shell::word(name), shell::word(&line));
            return Some(format!("for a shell command: {}", self.settings.command(&words)));
        }
        let is_relative = is_path && !text.starts_with('/');
        let directory = is_relative.then(env::current_dir)?.ok()?;
        Some(format!("the working directory is {}", directory.display()))
    }

    fn without_secrets(&self, failure: CommandError) -> CommandError {
        CommandError {
            message: redact::scrub(&failure.message, &self.settings.url),
            hint: failure.hint.map(|hint| redact::scrub(&hint, &self.settings.url)),
            ..failure
        }
    }

    /// The command to run, as words.
    pub(crate) fn command(&self, child: &ChildArgs, verb: &str) -> Result<Vec<OsString>> {
        if let Some(string) = &child.shell {
            return Ok(shell::shell_command(string.clone()));
        }
        // `run -- "$name" -- command`: the first `--` guards a name that begins with a hyphen.
        let command = match child.command.split_first() {
            Some((first, rest)) if first == "--" => rest,
            _ => &child.command,
        };
        let Some(first) = command.first() else {
            return Err(CommandError::usage(format!("{verb} needs a command to run")).hint(format!(
                "{}   or   {}",
                self.settings.command(&format!("{verb} NAME -- COMMAND…")),
                self.settings.command(&format!("{verb} NAME -c 'SHELL STRING'"))
            )));
        };
        let before = self.args.len().checked_sub(command.len() + 1).and_then(|at| self.args.get(at));
        if first.as_encoded_bytes().starts_with(b"-") && before.is_none_or(|word| word != "--") {
            let first = first.to_string_lossy();
            return Err(CommandError::usage(format!("{verb} has no option {first}"))
                .hint(format!("see: leasehold {verb} --help; if {first} is the command, write -- before it")));
        }
        Ok(command.to_vec())
    }
}
