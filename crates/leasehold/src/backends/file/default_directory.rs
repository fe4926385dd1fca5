//! Chooses the directory of a `file:` URL without a path: the machine-wide one if an operator created it, otherwise the
//! user's own.

use std::{
    env,
    ffi::OsString,
    fs::{self, Metadata},
    io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{Access, AtFlags, CWD, accessat},
    io::Errno,
    process::geteuid,
};

use super::errors::cannot;
use crate::{Error, Result, lease::holder::name_in};

/// The machine-wide directory.
const MACHINE: &str = "/var/lib/leasehold";

/// The directory that `file:` uses when it has no path.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DefaultDirectory {
    /// The directory for all users of this machine. `leasehold init file: --group NAME` creates it.
    Machine(PathBuf),
    /// The user's own directory, because there is no machine-wide one.
    User(PathBuf),
}

impl DefaultDirectory {
    /// Returns the path of the machine-wide directory, which an operator can create.
    ///
    /// The path is `/var/lib/leasehold`; packagers and tests can name another one in `$LEASEHOLD_MACHINE_DIR`.
    pub fn of_machine() -> PathBuf {
        let named = env::var_os("LEASEHOLD_MACHINE_DIR").map(PathBuf::from);
        named.filter(|path| path.is_absolute()).unwrap_or_else(|| PathBuf::from(MACHINE))
    }

    /// Returns the directory that `file:` uses now.
    ///
    /// If the machine-wide directory exists but cannot be used, this fails instead of falling back to the user's own.
    ///
    /// # Errors
    /// `PermissionDenied` if the machine-wide directory cannot be examined, is no directory, is private to another user
    /// or is for a group that this user is not in; `InvalidConfig` if there is none and the user has no home directory.
    pub fn find() -> Result<Self> {
        Self::choose(Self::of_machine(), user_state_directory(|name| env::var_os(name)))
    }

    fn choose(machine: PathBuf, own: Option<PathBuf>) -> Result<Self> {
        match fs::symlink_metadata(&machine) {
            Ok(_) if !machine.is_dir() => Err(Error::permission_denied(format!(
                "file: uses {0}, which is no directory; sudo mv {0} {0}.old && sudo leasehold init file: --group NAME, \
                 or use another directory: file:///path",
                machine.display()
            ))),
            Ok(found) if is_private_to_another(&found) => Err(Error::permission_denied(format!(
                "file: uses {0}, and only its owner may use that directory; if no lock is held there: sudo mv {0} \
                 {0}.old && sudo leasehold init file: --group NAME, or use another directory: file:///path",
                machine.display()
            ))),
            Ok(found) if is_closed_to_this_user(&machine, &found) => {
                Err(not_in_the_group(&machine, found.gid(), geteuid().as_raw()))
            }
            Ok(_) => Ok(Self::Machine(machine)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => own.map(Self::User).ok_or_else(|| {
                Error::invalid_config(format!(
                    "file: has no directory to use: {} does not exist, and $HOME is not set; create the former with \
                     `sudo leasehold init file: --group NAME`, or write file:///path",
                    machine.display()
                ))
            }),
            Err(error) => Err(cannot("look at", &machine, error)),
        }
    }

    /// Returns the path of the directory.
    pub fn path(&self) -> &Path {
        match self {
            Self::Machine(path) | Self::User(path) => path,
        }
    }

    /// The directory that `file:` used for this user before the machine-wide one existed.
    pub(super) fn previous_directory(&self) -> Option<PathBuf> {
        match self {
            Self::Machine(_) => user_state_directory(|name| env::var_os(name)),
            Self::User(_) => None,
        }
    }

    /// The machine-wide directory, if it did not exist when this directory was chosen.
    pub(super) fn missing_machine_directory(&self) -> Option<PathBuf> {
        match self {
            Self::Machine(_) => None,
            Self::User(_) => Some(Self::of_machine()),
        }
    }

    /// The mode of the files in a new namespace: whoever may write to the machine-wide directory may use them.
    pub(super) fn mode(&self) -> u32 {
        let Self::Machine(path) = self else { return 0o600 };
        let mode = fs::metadata(path).map_or(0, |found| found.mode());
        [0o666, 0o660].into_iter().find(|shared| mode & shared == *shared).unwrap_or(0o600)
    }
}

/// Returns whether the directory is private to another user.
fn is_private_to_another(directory: &Metadata) -> bool {
    let (user, of_others) = (geteuid(), directory.mode() & 0o077);
    of_others == 0 && directory.uid() != user.as_raw() && !user.is_root()
}

/// Returns whether the directory is for a group, and this user may not enter it.
fn is_closed_to_this_user(directory: &Path, found: &Metadata) -> bool {
    let is_for_group = found.mode() & 0o017 == 0o010;
    // Asks the kernel: an access list may let in more than the group.
    is_for_group && accessat(CWD, directory, Access::EXEC_OK, AtFlags::EACCESS) == Err(Errno::ACCESS)
}

/// The error of a user who is not in the group of the machine-wide directory.
fn not_in_the_group(machine: &Path, group: u32, user: u32) -> Error {
    let group = name_in("/etc/group", group).unwrap_or(group.to_string());
    let (user, name) = match name_in("/etc/passwd", user) {
        Some(name) => (name.clone(), name),
        None => (format!("user {user}"), String::from("USER")),
    };
    Error::permission_denied(format!(
        "file: uses {}, which is for the group {group}, and {user} is not in it; sudo usermod -aG {group} {name}, then \
         log in again, or use another directory: file:///path",
        machine.display()
    ))
}

/// The user's state directory.
fn user_state_directory(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let given = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = given("XDG_STATE_HOME").or_else(|| given("HOME").map(|home| home.join(".local/state")))?;
    Some(state.join("leasehold"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_directory_is_found() {
        let with = |set: &'static str, value: &'static str| {
            user_state_directory(move |name| (name == set).then(|| OsString::from(value)))
        };
        assert_eq!(with("XDG_STATE_HOME", "/s"), Some(PathBuf::from("/s/leasehold")));
        assert_eq!(with("HOME", "/h"), Some(PathBuf::from("/h/.local/state/leasehold")));
        assert_eq!(with("HOME", "relative"), None);
    }

    #[test]
    fn the_machine_wide_directory_comes_first_and_its_lack_is_explained() {
        let machine = tempfile::tempdir().unwrap();
        let own = PathBuf::from("/h/leasehold");
        let found = DefaultDirectory::choose(machine.path().to_owned(), Some(own.clone())).unwrap();
        assert_eq!((found.path(), found.mode()), (machine.path(), 0o600));
        let absent = machine.path().join("absent");
        assert_eq!(DefaultDirectory::choose(absent.clone(), Some(own.clone())).unwrap(), DefaultDirectory::User(own));
        let error = DefaultDirectory::choose(absent, None).unwrap_err();
        assert!(error.to_string().contains("sudo leasehold init file:"), "{error}");
    }

    #[test]
    fn what_is_no_directory_is_not_replaced_by_the_users_own() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        fs::write(&file, "").unwrap();
        std::os::unix::fs::symlink("nowhere", &link).unwrap();
        for machine in [file, link] {
            let error = DefaultDirectory::choose(machine, Some(PathBuf::from("/h/leasehold"))).unwrap_err();
            assert_eq!(error.kind(), crate::ErrorKind::PermissionDenied);
            assert!(error.to_string().contains("which is no directory; sudo mv "), "{error}");
        }
    }

    #[test]
    fn a_user_outside_the_group_is_told_how_to_get_in() {
        let error = not_in_the_group(Path::new("/d"), 0, 0);
        assert_eq!(error.kind(), crate::ErrorKind::PermissionDenied);
        let words =
            "file: uses /d, which is for the group root, and root is not in it; sudo usermod -aG root root, then";
        assert!(error.to_string().starts_with(words), "{error}");
        let error = not_in_the_group(Path::new("/d"), 4_000_000, 4_000_001).to_string();
        assert!(error.contains("the group 4000000, and user 4000001 is not in it"), "{error}");
        assert!(error.contains("sudo usermod -aG 4000000 USER,"), "{error}");
    }
}
