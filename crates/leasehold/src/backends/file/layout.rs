//! Creates a directory atomically, checks the version of an existing one, and repairs one that a power loss damaged.

use std::{
    fs::{self, DirBuilder, File, OpenOptions, Permissions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    path::Path,
    time::Duration,
};

use rustix::{fs::OFlags, io::Errno};
use uuid::Uuid;

use super::{
    DefaultDirectory, FileOptions,
    directory::{Directory, list_files},
    errors::cannot,
    latch, safe_open,
};
use crate::{Error, Result};

/// What the format file begins with; the version and the oldest version that may use the directory follow.
const FORMAT: &str = "leasehold-file";
const VERSION: u32 = 3;
const OLDEST_COMPATIBLE: u32 = 3;
/// Where every user of the directory creates, renames and removes files.
const SHARED_DIRECTORIES: [&str; 3] = ["records", "presence", "logs"];
const LATCHES: &str = "latches";
const FILES: [&str; 3] = ["format", "boot", "watchers"];
/// The prefix of the temporary names of unfinished files and directories.
pub(super) const UNFINISHED: &str = ".new-";
const OTHERS_WRITE: u32 = 0o022;
/// In a directory with this bit, only the owner of a file, or of the directory, can remove or rename the file.
const STICKY: u32 = 0o1000;
/// A directory that is still being created after this long was left by a process that died.
const DIRECTORY_ABANDONED_AFTER: Duration = Duration::from_secs(3600);

/// What the format file says.
#[derive(Debug, PartialEq, Eq)]
enum Format {
    /// There is no format file.
    Absent,
    /// A power loss left it empty.
    Empty,
    /// This program may use the directory.
    Usable,
    Other(String),
}

/// Creates the directory if it does not exist, and fails unless this program may use it.
pub(super) fn prepare(directory: &mut Directory, options: &FileOptions) -> Result<()> {
    let root = &options.root;
    if format_of(directory)? == Format::Absent {
        create_root(directory, root, options.default_directory.as_ref())?;
        create(directory)?;
    }
    tidy_unfinished(directory, root);
    if format_of(directory)? == Format::Empty && list_files(directory.path())?.iter().all(|(name, _)| is_ours(name)) {
        repair(directory)?;
    }
    let path = directory.path().display();
    match format_of(directory)? {
        Format::Usable => Ok(()),
        Format::Absent => Err(Error::invalid_config(format!(
            "{path} contains other files and no leases; choose an empty or a new directory"
        ))),
        Format::Empty => {
            Err(Error::unsupported(format!("{path} has an empty format file, and files that leasehold did not create")))
        }
        Format::Other(format) => {
            let again = match options.default_directory {
                Some(DefaultDirectory::Machine(_)) => ", then: sudo leasehold init file: --group NAME",
                _ => "",
            };
            Err(Error::unsupported(format!(
                "{path} is of format {format:?}, and this program uses \"{FORMAT} {VERSION}\"; use one version of \
                 leasehold, or another namespace, or remove the directory, with its history, once no program uses \
                 it{again}"
            )))
        }
    }
}

fn format_of(directory: &Directory) -> Result<Format> {
    let path = directory.format();
    let bytes = match safe_open::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Format::Absent),
        Err(error) => return Err(cannot("read", &path, error)),
    };
    let text = String::from_utf8_lossy(&bytes).trim_end().to_owned();
    if text.bytes().all(|byte| byte == 0) {
        return Ok(Format::Empty);
    }
    let mut words = text.split(' ');
    let named = words.next() == Some(FORMAT);
    let mut number = || words.next().and_then(|word| word.parse::<u32>().ok());
    match (number(), number()) {
        (Some(version), Some(oldest)) if named && version >= VERSION && oldest <= VERSION => Ok(Format::Usable),
        _ => Ok(Format::Other(text)),
    }
}

/// Creates the root if it is missing. The user's own directory is created with its parents. A path from a URL needs an
/// existing parent, since a missing one may be a typo or an unmounted disk. Only `init` creates the machine-wide
/// directory.
fn create_root(directory: &Directory, root: &Path, chosen: Option<&DefaultDirectory>) -> Result<()> {
    if root.is_dir() {
        return Ok(());
    }
    let is_missing = |path: &&Path| matches!(path.try_exists(), Ok(false));
    match chosen {
        Some(DefaultDirectory::Machine(_)) => return Err(cannot("use", root, Errno::NOENT.into())),
        Some(DefaultDirectory::User(_)) => {}
        None => {
            if let Some(missing) = root.ancestors().skip(1).take_while(is_missing).last() {
                return Err(Error::invalid_config(format!(
                    "{} does not exist, and the file backend creates only the last directory of {}; create the others, \
                     or correct the URL",
                    missing.display(),
                    root.display()
                )));
            }
        }
    }
    let mode = directory.directory_mode() | if directory.is_shared() { STICKY } else { 0 };
    let created = DirBuilder::new().recursive(chosen.is_some()).mode(mode).create(root);
    match created.and_then(|()| set_mode(root, mode)) {
        // Another process was faster.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && root.is_dir() => Ok(()),
        created => created.map_err(|error| cannot("create", root, error)),
    }
}

/// Creates the layout under a temporary name and renames it, so that it appears atomically.
fn create(directory: &Directory) -> Result<()> {
    let parent = directory.path().parent().unwrap_or(Path::new("/"));
    let temporary = parent.join(format!("{UNFINISHED}{}", Uuid::new_v4().simple()));
    let created = fill(directory, &temporary).and_then(|()| fs::rename(&temporary, directory.path()));
    // A parent that this user cannot read cannot be synced.
    let _best_effort = sync(parent);
    if created.is_err() {
        let _best_effort = fs::remove_dir_all(&temporary);
    }
    match created {
        // Another process was faster, or the directory has other files; its format tells which.
        Err(error) if matches!(error.kind(), io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::AlreadyExists) => Ok(()),
        created => created.map_err(|error| cannot("create", directory.path(), error)),
    }
}

fn fill(directory: &Directory, temporary: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(temporary)?;
    create_missing(directory, temporary)?;
    write_format(directory, &temporary.join("format"))?;
    set_mode(temporary, directory.directory_mode() & !OTHERS_WRITE)?;
    sync(temporary)
}

/// Creates the missing directories, latches and fixed files, and syncs them to disk.
///
/// Outside the shared directories, only the owner may create or rename files. Otherwise another user could replace a
/// directory by a link, or remove a latch, whose lock would then exclude nobody.
fn create_missing(directory: &Directory, path: &Path) -> io::Result<()> {
    let shared_mode = directory.directory_mode();
    let shared = SHARED_DIRECTORIES.map(|name| (name, shared_mode));
    for (name, mode) in shared.into_iter().chain([(LATCHES, shared_mode & !OTHERS_WRITE)]) {
        let path = path.join(name);
        match DirBuilder::new().mode(mode).create(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            created => created.and_then(|()| set_mode(&path, mode))?,
        }
    }
    let latches = latch::file_names().map(|latch| (path.join(LATCHES).join(latch), latch::NO_FENCE));
    for (path, content) in latches.chain([(path.join("watchers"), ""), (path.join("boot"), "")]) {
        match directory.create_new(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            // The file must be there after a power loss; what is in it may be lost.
            created => created?.write_all(content.as_bytes())?,
        }
    }
    SHARED_DIRECTORIES.iter().chain([&LATCHES]).try_for_each(|name| sync(&path.join(name)))
}

/// Sets the mode whatever the umask says; keeps an inherited setgid bit.
fn set_mode(directory: &Path, mode: u32) -> io::Result<()> {
    let flags = safe_open::flags(OFlags::NOFOLLOW | OFlags::DIRECTORY);
    let directory = OpenOptions::new().read(true).custom_flags(flags).open(directory)?;
    let setgid = directory.metadata()?.mode() & 0o2000;
    directory.set_permissions(Permissions::from_mode(mode | setgid))
}

fn write_format(directory: &Directory, path: &Path) -> io::Result<()> {
    let mut file = directory.create(path)?;
    writeln!(file, "{FORMAT} {VERSION} {OLDEST_COMPATIBLE}")?;
    file.sync_all()
}

/// Completes a damaged directory; two processes may do so at once, with the same result.
fn repair(directory: &mut Directory) -> Result<()> {
    tracing::warn!(directory = %directory.path().display(), "a power loss damaged the directory; repairing it");
    directory.adopt_mode_and_owner(None)?;
    let temporary = directory.path().join(format!("{UNFINISHED}{}", Uuid::new_v4().simple()));
    let repaired = create_missing(directory, directory.path())
        .and_then(|()| write_format(directory, &temporary))
        .and_then(|()| fs::rename(&temporary, directory.format()))
        .and_then(|()| sync(directory.path()));
    repaired.map_err(|error| cannot("repair", directory.path(), error))
}

/// Removes directories whose creator died before it had renamed them.
fn tidy_unfinished(directory: &Directory, root: &Path) {
    let changed = |path: &Path| fs::symlink_metadata(path).and_then(|found| found.modified());
    // By the clock of the file system, and never later than now.
    let Ok(now) = changed(&directory.presences()) else { return };
    for (name, path) in list_files(root).unwrap_or_default() {
        let unfinished = name.strip_prefix(UNFINISHED).is_some_and(|id| Uuid::try_parse(id).is_ok());
        let abandoned = || {
            changed(&path)
                .is_ok_and(|created| now.duration_since(created).is_ok_and(|age| age > DIRECTORY_ABANDONED_AFTER))
        };
        if unfinished && abandoned() {
            let _best_effort = fs::remove_dir_all(&path);
        }
    }
}

fn is_ours(name: &str) -> bool {
    SHARED_DIRECTORIES.contains(&name) || name == LATCHES || FILES.contains(&name) || name.starts_with(UNFINISHED)
}

/// Syncs the entries of a directory to disk.
fn sync(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}
