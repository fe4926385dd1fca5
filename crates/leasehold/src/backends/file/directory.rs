//! The directory: its layout, its modes, and the version of what is in it.

use std::{
    fs::{self, DirBuilder, File, OpenOptions, Permissions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown},
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::{
    fs::OFlags,
    process::{getegid, geteuid},
};
use uuid::Uuid;

use super::{FileOptions, failure::failure, filesystem, latch, names, opening};
use crate::{Error, Result, lease::Resource};

const FORMAT: &str = "leasehold-file 1";
/// Of the files in a new directory.
const MODE: u32 = 0o600;
const DIRECTORIES: [&str; 4] = ["latches", "records", "presence", "watchers"];
const FILES: [&str; 4] = ["format", "boot", "history.ndjson", "history.1.ndjson"];
const UNFINISHED: &str = ".new-";
/// Nobody takes this long to make a directory.
const ABANDONED: Duration = Duration::from_secs(3600);

/// The directory of one namespace.
#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    mode: u32,
    owner: Option<Owner>,
    pub(super) fsync: bool,
}

/// Whom new files are given to, where the kernel would not do so by itself.
#[derive(Clone, Copy, Debug)]
struct Owner {
    user: Option<u32>,
    group: u32,
}

impl Directory {
    /// Opens the namespace's directory; makes it when it is not there.
    pub(super) fn open(options: &FileOptions) -> Result<Self> {
        let path = options.root.join(&options.namespace);
        let mut directory = Self { path, mode: options.mode.unwrap_or(MODE), owner: None, fsync: options.fsync };
        // Asked before anything is made, so that a refused file system stays untouched.
        let there = directory.path.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
        filesystem::refuse_shared(there, filesystem::magic(there)?)?;
        if directory.version()?.is_none() {
            directory.make_root(&options.root)?;
            directory.make()?;
        }
        directory.tidy_unfinished(&options.root);
        if directory.is_torn()? {
            directory.repair()?;
        }
        match directory.version()? {
            Some(version) if version == FORMAT => {
                directory.agree(options.mode)?;
                Ok(directory)
            }
            Some(version) => Err(Error::unsupported(format!(
                "{} is of format {version:?}, this program knows {FORMAT:?}; use one version of leasehold, or another \
                 namespace",
                directory.path.display()
            ))),
            None => Err(Error::invalid_config(format!(
                "{} holds other files and no leases; choose an empty or a new directory",
                directory.path.display()
            ))),
        }
    }

    /// Takes the mode and the owner from what is there, so that all users of the directory agree on them.
    fn agree(&mut self, asked: Option<u32>) -> Result<()> {
        let (path, format) = (&self.path, self.path.join("format"));
        let there = fs::metadata(path).map_err(|error| failure("read", path, error))?;
        let mode = fs::symlink_metadata(&format).map_err(|error| failure("read", &format, error))?.mode();
        self.mode = mode & 0o666 | 0o600;
        if let Some(asked) = asked.filter(|asked| *asked != self.mode) {
            return Err(Error::invalid_config(format!(
                "{} was made with mode={:04o} and mode={asked:04o} was asked for; leave mode out of the URL to use the \
                 directory as it is, or choose another namespace or directory",
                path.display(),
                self.mode
            )));
        }
        let (user, group) = (geteuid(), getegid().as_raw());
        let shared = self.mode & 0o060 != 0 && there.gid() != group;
        let others = user.is_root() && (there.uid(), there.gid()) != (user.as_raw(), group);
        self.owner = (shared || others).then(|| Owner { user: others.then(|| there.uid()), group: there.gid() });
        Ok(())
    }

    fn version(&self) -> Result<Option<String>> {
        let path = self.path.join("format");
        match opening::read(&path) {
            Ok(text) => Ok(Some(String::from_utf8_lossy(&text).trim_end().to_owned())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failure("read", &path, error)),
        }
    }

    fn make_root(&self, root: &Path) -> Result<()> {
        if root.is_dir() {
            return Ok(());
        }
        let made = DirBuilder::new().recursive(true).mode(self.directory_mode()).create(root);
        made.and_then(|()| self.open_up(root)).map_err(|error| failure("make", root, error))
    }

    /// Makes the layout aside and renames it, so that it is there as a whole or not at all.
    fn make(&self) -> Result<()> {
        let parent = self.path.parent().unwrap_or(Path::new("/"));
        let aside = parent.join(format!("{UNFINISHED}{}", Uuid::new_v4().simple()));
        let made = self.fill(&aside).and_then(|()| fs::rename(&aside, &self.path));
        // A parent that may not be read cannot be forced to the disk.
        let _best_effort = sync(parent);
        if made.is_err() {
            let _best_effort = fs::remove_dir_all(&aside);
        }
        match made {
            // Another process was faster, or the directory has other files; its version tells which.
            Err(error) if matches!(error.kind(), io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::AlreadyExists) => {
                Ok(())
            }
            made => made.map_err(|error| failure("make", &self.path, error)),
        }
    }

    fn fill(&self, aside: &Path) -> io::Result<()> {
        DirBuilder::new().mode(self.directory_mode()).create(aside)?;
        self.open_up(aside)?;
        self.furnish(aside)?;
        self.write_format(&aside.join("format"))?;
        sync(aside)
    }

    /// Makes what is not there yet of directories and latches, on the disk too.
    fn furnish(&self, path: &Path) -> io::Result<()> {
        for name in DIRECTORIES {
            let path = path.join(name);
            match DirBuilder::new().mode(self.directory_mode()).create(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                made => made.and_then(|()| self.open_up(&path))?,
            }
        }
        for latch in latch::file_names() {
            match self.create_new(&path.join("latches").join(latch)) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                // It must be there after a power loss; what is in it may be lost.
                made => made?.write_all(latch::NO_FENCE.as_bytes())?,
            }
        }
        DIRECTORIES.iter().try_for_each(|name| sync(&path.join(name)))
    }

    fn write_format(&self, path: &Path) -> io::Result<()> {
        let mut file = self.create(path)?;
        writeln!(file, "{FORMAT}")?;
        file.sync_all()
    }

    /// Whether a power loss left a directory of ours whose format says nothing.
    fn is_torn(&self) -> Result<bool> {
        let says_nothing = self.version()?.is_some_and(|version| version.bytes().all(|byte| byte == 0));
        Ok(says_nothing && files(&self.path)?.iter().all(|(name, _)| is_ours(name)))
    }

    /// Completes a torn directory; two that do so at once do the same.
    fn repair(&mut self) -> Result<()> {
        tracing::warn!(directory = %self.path.display(), "the directory was torn when the machine went down; repairing");
        self.agree(None)?;
        let aside = self.path.join(format!("{UNFINISHED}{}", Uuid::new_v4().simple()));
        let repaired = self
            .furnish(&self.path)
            .and_then(|()| self.write_format(&aside))
            .and_then(|()| fs::rename(&aside, self.path.join("format")))
            .and_then(|()| sync(&self.path));
        repaired.map_err(|error| failure("repair", &self.path, error))
    }

    /// Removes directories that were being made when their maker died.
    fn tidy_unfinished(&self, root: &Path) {
        let changed = |path: &Path| fs::symlink_metadata(path).and_then(|found| found.modified());
        let Ok(now) = changed(&self.path.join("presence")) else { return };
        for (name, path) in files(root).unwrap_or_default() {
            let unfinished = name.strip_prefix(UNFINISHED).is_some_and(|id| Uuid::try_parse(id).is_ok());
            let abandoned =
                || changed(&path).is_ok_and(|made| now.duration_since(made).is_ok_and(|age| age > ABANDONED));
            if unfinished && abandoned() {
                let _best_effort = fs::remove_dir_all(&path);
            }
        }
    }

    /// Sets the mode whatever the umask says; a group handed down by the parent stays.
    fn open_up(&self, directory: &Path) -> io::Result<()> {
        let flags = opening::flags(OFlags::NOFOLLOW | OFlags::DIRECTORY);
        let directory = OpenOptions::new().read(true).custom_flags(flags).open(directory)?;
        let handed_down = directory.metadata()?.mode() & 0o2000;
        directory.set_permissions(Permissions::from_mode(self.directory_mode() | handed_down))
    }

    /// Who may read may also enter.
    fn directory_mode(&self) -> u32 {
        self.mode | (self.mode & 0o444) >> 2
    }

    /// Creates an empty file, in the place of what has the name, with the right mode whatever the umask says.
    pub(super) fn create(&self, path: &Path) -> io::Result<File> {
        match self.create_new(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                // Ours from an earlier try, or a link that someone laid there: never written through.
                fs::remove_file(path)?;
                self.create_new(path)
            }
            created => created,
        }
    }

    fn create_new(&self, path: &Path) -> io::Result<File> {
        let file = OpenOptions::new().append(true).create_new(true).mode(self.mode).open(path)?;
        self.hand_over(&file)?;
        Ok(file)
    }

    /// Lets a new file belong to whom the directory does: root that only looks must not take records away.
    pub(super) fn hand_over(&self, file: &File) -> io::Result<()> {
        if let Some(Owner { user, group }) = self.owner {
            let _where_permitted = fchown(file, user, Some(group));
        }
        file.set_permissions(Permissions::from_mode(self.mode))
    }

    /// Opens a file at its end; creates it when it is not there.
    pub(super) fn append(&self, path: &Path) -> io::Result<File> {
        let open = || opening::regular(OpenOptions::new().append(true), path);
        match open() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => match self.create_new(path) {
                // Another process was faster.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => open(),
                created => created,
            },
            opened => opened,
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn mode(&self) -> u32 {
        self.mode
    }

    /// Which life of the machine used the directory last.
    pub(super) fn boot(&self) -> PathBuf {
        self.path.join("boot")
    }

    pub(super) fn latch(&self, name: &str) -> PathBuf {
        self.path.join("latches").join(name)
    }

    pub(super) fn records(&self) -> PathBuf {
        self.path.join("records")
    }

    pub(super) fn record(&self, resource: &Resource) -> PathBuf {
        self.records().join(names::file_name(resource))
    }

    pub(super) fn presences(&self) -> PathBuf {
        self.path.join("presence")
    }

    pub(super) fn presence(&self, id: Uuid) -> PathBuf {
        self.presences().join(id.simple().to_string())
    }

    pub(super) fn watchers(&self) -> PathBuf {
        self.path.join("watchers")
    }

    pub(super) fn watcher(&self, id: Uuid) -> PathBuf {
        self.watchers().join(id.simple().to_string())
    }

    pub(super) fn history(&self) -> PathBuf {
        self.path.join("history.ndjson")
    }

    pub(super) fn older_history(&self) -> PathBuf {
        self.path.join("history.1.ndjson")
    }
}

fn is_ours(name: &str) -> bool {
    DIRECTORIES.contains(&name) || FILES.contains(&name) || name.starts_with(UNFINISHED)
}

/// Forces to the disk which files a directory has.
fn sync(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

/// The names and paths of a directory's files.
pub(super) fn files(directory: &Path) -> Result<Vec<(String, PathBuf)>> {
    let read = || -> io::Result<Vec<(String, PathBuf)>> {
        fs::read_dir(directory)?
            .map(|entry| entry.map(|entry| (entry.file_name().to_string_lossy().into_owned(), entry.path())))
            .collect()
    };
    read().map_err(|error| failure("list", directory, error))
}
