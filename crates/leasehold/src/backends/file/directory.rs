//! The directory: its layout, its modes, and the version of what is in it.

use std::{
    fs::{self, DirBuilder, File, OpenOptions, Permissions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use uuid::Uuid;

use super::{FileOptions, failure::failure, filesystem, latch, names};
use crate::{Error, Result, lease::Resource};

const FORMAT: &str = "leasehold-file 1";

/// The directory of one namespace.
#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    mode: u32,
    pub(super) fsync: bool,
}

impl Directory {
    /// Opens the namespace's directory; makes it when it is not there.
    pub(super) fn open(options: &FileOptions) -> Result<Self> {
        let path = options.root.join(&options.namespace);
        let directory = Self { path, mode: options.mode, fsync: options.fsync };
        // Asked before anything is made, so that a refused file system stays untouched.
        let there = directory.path.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
        filesystem::refuse_shared(there, filesystem::magic(there)?)?;
        if directory.version()?.is_none() {
            directory.make_root(&options.root)?;
            directory.make()?;
        }
        match directory.version()? {
            Some(version) if version == FORMAT => Ok(directory),
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

    fn version(&self) -> Result<Option<String>> {
        let path = self.path.join("format");
        match fs::read_to_string(&path) {
            Ok(text) => Ok(Some(text.trim_end().to_owned())),
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
        let aside = parent.join(format!(".new-{}", Uuid::new_v4().simple()));
        let made = self.fill(&aside).and_then(|()| fs::rename(&aside, &self.path));
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
        for name in ["", "latches", "records", "presence", "watchers"] {
            let path = aside.join(name);
            DirBuilder::new().mode(self.directory_mode()).create(&path)?;
            self.open_up(&path)?;
        }
        for latch in latch::file_names() {
            self.create(&aside.join("latches").join(latch))?.write_all(latch::NO_FENCE.as_bytes())?;
        }
        writeln!(self.create(&aside.join("format"))?, "{FORMAT}")
    }

    /// Sets the mode whatever the umask says; a group handed down by the parent stays.
    fn open_up(&self, directory: &Path) -> io::Result<()> {
        let handed_down = fs::metadata(directory)?.mode() & 0o2000;
        fs::set_permissions(directory, Permissions::from_mode(self.directory_mode() | handed_down))
    }

    /// Who may read may also enter.
    fn directory_mode(&self) -> u32 {
        self.mode | (self.mode & 0o444) >> 2
    }

    /// Creates or empties a file that has the right mode whatever the umask says.
    pub(super) fn create(&self, path: &Path) -> io::Result<File> {
        let file = OpenOptions::new().write(true).create(true).truncate(true).mode(self.mode).open(path)?;
        file.set_permissions(Permissions::from_mode(self.mode))?;
        Ok(file)
    }

    /// Opens a file at its end; creates it when it is not there.
    pub(super) fn append(&self, path: &Path) -> io::Result<File> {
        match OpenOptions::new().append(true).open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let file = OpenOptions::new().append(true).create(true).mode(self.mode).open(path)?;
                // Another user may have been faster; the mode is right then.
                let _if_ours = file.set_permissions(Permissions::from_mode(self.mode));
                Ok(file)
            }
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
