//! `leasehold init`: prepares a backend for locks: a shared directory, or the schema in Postgres.

use std::{
    fs::{self, DirBuilder, Permissions},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown},
    path::Path,
    sync::Arc,
    time::Duration,
};

use leasehold::{
    backend::Severity,
    backends::{
        file::{DefaultDirectory, FileBackend, FileOptions},
        postgres::{self, PostgresOptions},
    },
    clock::SystemClock,
};
use nix::unistd::Group;
use rustix::{
    fs::{AtFlags, CWD, RenameFlags, renameat_with},
    io::Errno,
};
use serde_json::json;

use super::CommandContext;
use crate::{
    args::InitArgs,
    error::{CommandError, Result},
    exit, json,
    run_command::lock_request::WaitLimit,
};

/// Creates what is missing; a backend that is ready stays as it is.
pub(crate) async fn run(context: &CommandContext<'_>, args: &InitArgs) -> Result<u8> {
    let url = context.settings.url.as_str();
    let is_postgres = ["postgres:", "postgresql:"].iter().any(|scheme| url.starts_with(scheme));
    if !is_postgres && (args.print_sql || args.expose.is_some()) {
        return Err(CommandError::usage("--print-sql and --expose are for postgres:"));
    }
    let is_default_file = context.settings.default_directory().is_some();
    if !is_default_file && (args.group.is_some() || args.everybody) {
        return Err(CommandError::usage("--group and --everybody are for file: without a path")
            .hint("for a directory of your own: chgrp and chmod g+rwxs,+t it, and put ?mode=0660 into the URL"));
    }
    if is_postgres {
        return database(context, args).await;
    }
    if is_default_file {
        return default_directory(context, args).await;
    }
    let locks = context.connect_patiently().await?;
    for finding in locks.examine().await? {
        if finding.subject == "rights" && finding.severity == Severity::Failure {
            let message = finding.message;
            return Err(CommandError { code: exit::NO_PERMISSION, kind: "permission_denied", message, hint: None });
        }
    }
    let url = context.settings.shown_url();
    let is_directory = url.starts_with("file:");
    say_ready(context, &if is_directory { format!("ready: {url}") } else { format!("ready: {url} needs nothing made") })
}

fn say_ready(context: &CommandContext<'_>, words: &str) -> Result<u8> {
    if context.output.style().json {
        json::print(json!({"v": 1, "before": null, "now": null}).to_string())?;
    } else {
        json::print(words)?;
    }
    Ok(exit::OK)
}

/// Installs or updates the schema.
async fn database(context: &CommandContext<'_>, args: &InitArgs) -> Result<u8> {
    let settings = &context.settings;
    let options = |limit| PostgresOptions::from_url(&settings.url, &settings.namespace, Arc::new(SystemClock), limit);
    if args.print_sql {
        let options = options(Duration::ZERO)?;
        json::print(if args.uninstall {
            postgres::uninstall_sql(&options)
        } else {
            postgres::sql_since(&options, args.expose.as_deref(), args.from)?
        })?;
        return Ok(exit::OK);
    }
    let connect_retry = context.connect_retry(WaitLimit::Forever);
    let installed = connect_retry.retry(async |limit| postgres::install(options(limit)?, args.expose.as_deref()).await);
    let installed = installed.await.map_err(|error| connect_retry.failure(error))?;
    if context.output.style().json {
        json::print(json!({"v": 1, "before": installed.before, "now": installed.now}).to_string())?;
    } else {
        let exposed = args.expose.as_ref().map(|schema| format!(", exposed in {schema}")).unwrap_or_default();
        json::print(match installed.before {
            0 => format!("installed, version {}{exposed}", installed.now),
            before if before == installed.now => format!("ready already, version {before}{exposed}"),
            before => format!("updated from version {before} to {}{exposed}", installed.now),
        })?;
    }
    Ok(exit::OK)
}

/// Makes the directory of the machine; without the right to, and if nobody is named to share it, the one of this user.
async fn default_directory(context: &CommandContext<'_>, args: &InitArgs) -> Result<u8> {
    let machine = DefaultDirectory::of_machine();
    match Access::of(args)? {
        Some(access) => make_or_check(&machine, &access)?,
        None if fs::symlink_metadata(&machine).is_err() && may_make(&machine) => {
            return Err(CommandError::usage(format!(
                "init file: would make {}, which users share; name them with --group NAME or --everybody",
                machine.display()
            ))
            .hint("whoever shares it can evict and disturb the jobs of the others, so a group is the better choice"));
        }
        None => {}
    }
    let settings = &context.settings;
    let options = FileOptions::from_url(&settings.url, &settings.namespace, Arc::new(SystemClock))?;
    FileBackend::open(options).await.map_err(|error| context.advise(error.into()))?;
    match settings.user_only_notice() {
        Some(directory) => say_ready(context, &format!("ready; {}", directory.sentence())),
        None => say_ready(context, &format!("ready: {}, {}", machine.display(), Access::found(&machine))),
    }
}

/// Who may use the machine's directory.
enum Access {
    Everybody,
    Group(Group),
}

impl Access {
    fn of(args: &InitArgs) -> Result<Option<Self>> {
        let Some(name) = &args.group else { return Ok(args.everybody.then_some(Self::Everybody)) };
        let found =
            Group::from_name(name).map_err(|error| CommandError::unavailable(format!("--group {name}: {error}")))?;
        let group = found.ok_or_else(|| {
            CommandError::usage(format!("--group: there is no group {name}")).hint(format!(
                "make it: sudo groupadd {name}; add users: sudo usermod -aG {name} USER, who log in again"
            ))
        })?;
        Ok(Some(Self::Group(group)))
    }

    /// Whoever may write to it may make namespaces; nobody removes or replaces those of others.
    fn mode(&self) -> u32 {
        match self {
            Self::Everybody => 0o1777,
            Self::Group(_) => 0o3770,
        }
    }

    /// Fails if the directory is there for others than these.
    fn check(&self, directory: &Path) -> Result<()> {
        let cannot_look = |error| CommandError::unavailable(format!("cannot look at {}: {error}", directory.display()));
        let there = fs::metadata(directory).map_err(cannot_look)?;
        let is_theirs = match self {
            Self::Everybody => there.mode() & 0o007 == 0o007,
            Self::Group(group) => there.gid() == group.gid.as_raw() && there.mode() & 0o077 == 0o070,
        };
        if is_theirs && there.mode() & 0o1000 == 0 {
            let path = directory.display();
            return Err(CommandError::config(format!("{path} lets those who share it replace what others made there"))
                .hint(format!("sudo chmod +t {path}")));
        }
        if is_theirs {
            return Ok(());
        }
        let path = directory.display();
        Err(CommandError::config(format!("{path} is there already, {}; not changed", Self::found(directory)))
            .hint(format!("when no lock is held: remove {path} and repeat")))
    }

    /// Who may use a directory that is there, in words.
    fn found(directory: &Path) -> String {
        let Ok(there) = fs::metadata(directory) else { return String::from("which cannot be looked at") };
        match there.mode() & 0o077 {
            others if others & 0o006 == 0o006 => String::from("for every user of this machine"),
            others if others & 0o060 == 0o060 => {
                let name = Group::from_gid(there.gid().into()).ok().flatten().map(|group| group.name);
                format!("for the group {}", name.unwrap_or_else(|| there.gid().to_string()))
            }
            _ => format!("for its owner {} only", there.uid()),
        }
    }
}

fn make_or_check(machine: &Path, access: &Access) -> Result<()> {
    let Err(error) = make_shared(machine, access) else { return Ok(()) };
    let (code, kind, hint) = match error.kind() {
        io::ErrorKind::AlreadyExists => return access.check(machine),
        io::ErrorKind::PermissionDenied => {
            (exit::NO_PERMISSION, "permission_denied", Some(String::from("repeat it with sudo")))
        }
        _ => (exit::UNAVAILABLE, "unavailable", None),
    };
    Err(CommandError { code, kind, message: format!("cannot make {}: {error}", machine.display()), hint })
}

/// Whether this user has the right to make the directory.
fn may_make(directory: &Path) -> bool {
    let parent = directory.parent().unwrap_or(directory);
    let right = rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK;
    rustix::fs::accessat(CWD, parent, right, AtFlags::EACCESS).is_ok()
}

/// Makes the directory aside and renames it: whoever found it before it has its mode would make a private namespace.
fn make_shared(directory: &Path, access: &Access) -> io::Result<()> {
    if fs::symlink_metadata(directory).is_ok() {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    let name = directory.file_name().unwrap_or_default().to_string_lossy();
    let aside = directory.with_file_name(format!(".{name}-{}", std::process::id()));
    let _left_by_a_killed_one = fs::remove_dir(&aside);
    DirBuilder::new().mode(0o700).create(&aside)?;
    let made = || {
        if let Access::Group(group) = access {
            chown(&aside, None, Some(group.gid.as_raw()))?;
        }
        fs::set_permissions(&aside, Permissions::from_mode(access.mode()))?;
        match renameat_with(CWD, &aside, CWD, directory, RenameFlags::NOREPLACE) {
            // A file system without this flag; a directory that is in use is not empty, and is not replaced.
            Err(Errno::INVAL) => fs::rename(&aside, directory),
            renamed => Ok(renamed?),
        }
    };
    made().inspect_err(|_| {
        let _best_effort = fs::remove_dir(&aside);
    })
}
