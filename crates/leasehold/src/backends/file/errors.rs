//! Errors of the file system: which kind each is, and what the user should do.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use rustix::io::Errno;

use crate::Error;

/// Creates the error for a failed operation (`doing`, such as "read") on `path`, with advice.
pub(super) fn cannot(doing: &str, path: &Path, error: io::Error) -> Error {
    let advice = match Errno::from_io_error(&error) {
        Some(Errno::ACCESS | Errno::PERM) => {
            "give this user access to the directory, name another one, file:///path, or create one that users share: \
             sudo leasehold init file: --group NAME"
        }
        Some(Errno::ROFS) => "choose a directory that can be written to",
        Some(Errno::LOOP) => "it is a symbolic link, which may lead anywhere and is not followed; remove it",
        Some(Errno::NOSPC | Errno::DQUOT | Errno::FBIG) => "nothing was changed; free some space, then try again",
        Some(Errno::NOENT | Errno::NOTDIR) => "the directory is gone or not a directory; restore it and connect again",
        Some(Errno::MFILE | Errno::NFILE) => "too many files are open; raise the limit: ulimit -n",
        _ => "check the disk and the directory",
    };
    let message = format!("the file backend could not {doing} {} ({advice})", path.display());
    let failure = match Errno::from_io_error(&error) {
        Some(Errno::ACCESS | Errno::PERM) => Error::permission_denied(message + &blocked_by(path)),
        Some(Errno::ROFS) => Error::permission_denied(message),
        _ => Error::unavailable(message),
    };
    failure.caused_by(error)
}

/// The first directory on the way to `path` that this user may not enter.
pub(super) fn blocked_directory(path: &Path) -> Option<PathBuf> {
    let is_hidden =
        |path: &&Path| fs::symlink_metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied);
    let highest_hidden = path.ancestors().take_while(is_hidden).last()?;
    highest_hidden.parent().map(Path::to_owned)
}

/// Names the directory that denies access, unless that is `path` itself.
fn blocked_by(path: &Path) -> String {
    if let Some(directory) = blocked_directory(path) {
        return format!(": this user may not enter {}", directory.display());
    }
    let is_there = |path: &&Path| fs::symlink_metadata(path).is_ok();
    match path.ancestors().find(is_there) {
        Some(directory) if directory != path => format!(": this user may not write to {}", directory.display()),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;
    use crate::ErrorKind;

    #[test]
    fn each_errno_becomes_a_kind_and_names_the_path() {
        for (errno, kind) in [
            (Errno::ACCESS, ErrorKind::PermissionDenied),
            (Errno::ROFS, ErrorKind::PermissionDenied),
            (Errno::NOSPC, ErrorKind::Unavailable),
            (Errno::NOENT, ErrorKind::Unavailable),
            (Errno::IO, ErrorKind::Unavailable),
        ] {
            let error = cannot("write", Path::new("/here"), errno.into());
            assert_eq!(error.kind(), kind, "{errno}");
            assert!(error.to_string().contains("/here"), "{error}");
        }
    }

    #[test]
    fn the_message_says_what_to_do_and_the_source_is_the_error_that_came_back() {
        let error = cannot("write", Path::new("/"), Errno::NOSPC.into());
        assert!(
            error.to_string().ends_with("could not write / (nothing was changed; free some space, then try again)"),
            "{error}"
        );
        assert!(format!("{error:#}").ends_with("): No space left on device (os error 28)"), "{error:#}");
        let source = error.source().and_then(|source| source.downcast_ref::<io::Error>());
        assert_eq!(source.and_then(io::Error::raw_os_error), Some(Errno::NOSPC.raw_os_error()));
    }
}
