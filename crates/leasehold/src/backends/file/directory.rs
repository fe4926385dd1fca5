//! The directory of a namespace: the paths of its files, and the mode and owner of new files.

use std::{
    fs::{self, File, OpenOptions, Permissions},
    io,
    os::{
        fd::AsRawFd,
        unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown},
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::OFlags,
    process::{Resource as Limit, getegid, geteuid, getrlimit},
};
use uuid::Uuid;

use super::{DefaultDirectory, FileOptions, errors::cannot, file_names, filesystem, layout, record_file, safe_open};
use crate::{Error, Result, lease::Resource};

/// Read and write access for the owner only.
const OWNER_ONLY: u32 = 0o600;

/// The directory of one namespace.
#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    mode: u32,
    owner: Option<Owner>,
    /// The user that this process runs as.
    pub(super) user: u32,
    pub(super) fsync: bool,
    /// Whether a record may be overwritten: not with fsync (a power loss may leave half of it), nor under a file-size
    /// limit of less than a page.
    pub(super) in_place: bool,
}

/// The owner to give new files to, if it is not the user who creates them.
#[derive(Clone, Copy, Debug)]
struct Owner {
    /// `None` if files stay with the user who creates them: only root can give them to another.
    user: Option<u32>,
    group: u32,
}

impl Directory {
    /// Opens the namespace's directory; creates it if it does not exist.
    pub(super) fn open(options: &FileOptions) -> Result<Self> {
        let path = options.root.join(&options.namespace);
        let usual = || options.default_directory.as_ref().map_or(OWNER_ONLY, DefaultDirectory::mode);
        let (mode, user) = (options.mode.unwrap_or_else(usual), geteuid().as_raw());
        let longest = getrlimit(Limit::Fsize).current;
        let in_place = !options.fsync && longest.is_none_or(|longest| longest >= record_file::PAGE as u64);
        let mut directory = Self { path, mode, owner: None, user, fsync: options.fsync, in_place };
        // Before anything is created, so that a refused file system stays untouched.
        let existing = directory.path.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
        filesystem::refuse_shared(existing, filesystem::magic(existing)?)?;
        layout::prepare(&mut directory, options)?;
        directory.adopt_mode_and_owner(options.mode)?;
        directory.refuse_links()?;
        Ok(directory)
    }

    /// Fails if a part of the directory is a link. Only the owner of the directory could plant one, to make this process
    /// write where the owner may not.
    fn refuse_links(&self) -> Result<()> {
        for part in [self.path.clone(), self.records(), self.presences(), self.logs(), self.path.join("latches")] {
            if fs::symlink_metadata(&part).is_ok_and(|found| !found.is_dir()) {
                let error = io::Error::new(io::ErrorKind::InvalidData, "it is not a directory; remove it");
                return Err(cannot("use", &part, error));
            }
        }
        Ok(())
    }

    /// Takes over the mode and the owner of the existing directory, so that all its users agree on them.
    pub(super) fn adopt_mode_and_owner(&mut self, asked: Option<u32>) -> Result<()> {
        let (path, format) = (&self.path, self.format());
        let metadata = fs::metadata(path).map_err(|error| cannot("read", path, error))?;
        let mode = fs::symlink_metadata(&format).map_err(|error| cannot("read", &format, error))?.mode();
        self.mode = mode & 0o666 | 0o600;
        if let Some(asked) = asked.filter(|asked| *asked != self.mode) {
            return Err(Error::invalid_config(format!(
                "{} was created with mode={:04o} and mode={asked:04o} was asked for; leave mode out of the URL to use \
                 the directory as it is, or choose another namespace or directory",
                path.display(),
                self.mode
            )));
        }
        let group = getegid().as_raw();
        let shared_with_other_group = self.mode & 0o060 != 0 && metadata.gid() != group;
        let root_for_another = self.user == 0 && (metadata.uid(), metadata.gid()) != (self.user, group);
        self.owner = (shared_with_other_group || root_for_another)
            .then(|| Owner { user: root_for_another.then(|| metadata.uid()), group: metadata.gid() });
        Ok(())
    }

    /// The mode of a directory: who may read its files may also enter it.
    pub(super) fn directory_mode(&self) -> u32 {
        self.mode | (self.mode & 0o444) >> 2
    }

    /// Returns whether other users may write to it.
    pub(super) fn is_shared(&self) -> bool {
        self.mode & 0o022 != 0
    }

    /// Creates an empty file with the right mode, whatever the umask; replaces an existing file.
    pub(super) fn create(&self, path: &Path) -> io::Result<File> {
        match self.create_new(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                // Left by an earlier try, or a link that someone planted: remove it, never write through it.
                fs::remove_file(path)?;
                self.create_new(path)
            }
            created => created,
        }
    }

    /// Creates an empty file; fails if it exists.
    pub(super) fn create_new(&self, path: &Path) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(self.mode);
        let file = match self.owner {
            // Root gives this file to another user, who may have replaced a directory by a link. So open the parent
            // without following links.
            Some(Owner { user: Some(_), .. }) => {
                let flags = safe_open::flags(OFlags::NOFOLLOW | OFlags::DIRECTORY);
                let parent = path.parent().unwrap_or(path);
                let parent = OpenOptions::new().read(true).custom_flags(flags).open(parent)?;
                let name = path.file_name().unwrap_or_default();
                options.open(Path::new("/proc/self/fd").join(parent.as_raw_fd().to_string()).join(name))?
            }
            _ => options.open(path)?,
        };
        self.set_owner_and_mode(&file)?;
        Ok(file)
    }

    /// Gives a new file the owner and the mode of the directory, so that files created by root stay usable for others.
    pub(super) fn set_owner_and_mode(&self, file: &File) -> io::Result<()> {
        if let Some(Owner { user, group }) = self.owner {
            let _where_permitted = fchown(file, user, Some(group));
        }
        // No common umask takes the owner's access away.
        if self.owner.is_none() && self.mode & !OWNER_ONLY == 0 {
            return Ok(());
        }
        file.set_permissions(Permissions::from_mode(self.mode))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn mode(&self) -> u32 {
        self.mode
    }

    pub(super) fn format(&self) -> PathBuf {
        self.path.join("format")
    }

    /// The file with the id of the boot in which the directory was last used.
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
        self.records().join(file_names::file_name(resource))
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

    fn logs(&self) -> PathBuf {
        self.path.join("logs")
    }

    pub(super) fn history(&self) -> PathBuf {
        self.logs().join("history.ndjson")
    }

    pub(super) fn runs(&self) -> PathBuf {
        self.logs().join("runs.ndjson")
    }

    pub(super) fn older_history(&self) -> PathBuf {
        self.logs().join("history.1.ndjson")
    }
}

/// The names and paths of a directory's files.
pub(super) fn list_files(directory: &Path) -> Result<Vec<(String, PathBuf)>> {
    let read = || -> io::Result<Vec<(String, PathBuf)>> {
        fs::read_dir(directory)?
            .map(|entry| entry.map(|entry| (entry.file_name().to_string_lossy().into_owned(), entry.path())))
            .collect()
    };
    read().map_err(|error| cannot("list", directory, error))
}
