//! Errors of the file system: which kind each is, and what the user should do.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use rustix::io::Errno;

use crate::Error;

/// The error of `doing` something to `path`, with what to do about it.
#[expect(clippy::needless_pass_by_value, reason = "errors are handed over by map_err")]
pub(super) fn cannot(doing: &str, path: &Path, error: io::Error) -> Error {
    let errno = Errno::from_io_error(&error);
    let message = format!("the file backend could not {doing} {}", path.display());
    let refused = |why: String| Error::permission_denied(format!("{message}{why}"));
    let failed = || Error::unavailable(message.as_str());
    let (failure, advice) = match errno {
        Some(Errno::ACCESS | Errno::PERM) => (
            refused(barrier_words(path)),
            "give this user access to the directory, name another one (file:///path), or make one that users share: \
             sudo leasehold init file: --group NAME",
        ),
        Some(Errno::ROFS) => (refused(String::new()), "choose a directory that can be written to"),
        Some(Errno::LOOP) => {
            (failed(), "it is a symbolic link, which may lead anywhere and is not followed; remove it")
        }
        Some(Errno::NOSPC | Errno::DQUOT | Errno::FBIG) => {
            (failed(), "nothing was changed; free some space, then try again")
        }
        Some(Errno::NOENT | Errno::NOTDIR) => {
            (failed(), "the directory is gone or not a directory; restore it and connect again")
        }
        Some(Errno::MFILE | Errno::NFILE) => (failed(), "too many files are open; raise the limit (ulimit -n)"),
        _ => (failed(), "look at the disk and the directory"),
    };
    // One error, so that what came back is not told again as its cause.
    failure.caused_by(io::Error::new(error.kind(), format!("{error}; {advice}")))
}

/// The first directory on the way to `path` that this user may not enter.
pub(super) fn barrier(path: &Path) -> Option<PathBuf> {
    let is_hidden =
        |path: &&Path| fs::symlink_metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied);
    let highest_hidden = path.ancestors().take_while(is_hidden).last()?;
    highest_hidden.parent().map(Path::to_owned)
}

/// Which directory is in the way, if it is not plain from the path.
fn barrier_words(path: &Path) -> String {
    if let Some(directory) = barrier(path) {
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
    fn what_came_back_is_told_before_what_to_do() {
        let error = format!("{:#}", cannot("write", Path::new("/"), Errno::NOSPC.into()));
        let (what, advice) = error.split_once("; ").unwrap();
        assert!(what.ends_with("could not write /: No space left on device (os error 28)"), "{error}");
        assert!(advice.ends_with("try again"), "{error}");
    }
}
