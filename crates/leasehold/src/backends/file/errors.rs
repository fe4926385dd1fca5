//! Errors of the file system: which kind each is, and what the user should do.

use std::{io, path::Path};

use rustix::io::Errno;

use crate::Error;

/// The error of `doing` something to `path`, with what to do about it.
pub(super) fn cannot(doing: &str, path: &Path, error: io::Error) -> Error {
    let errno = Errno::from_io_error(&error);
    let message = |advice: &str| format!("the file backend could not {doing} {}; {advice}", path.display());
    match errno {
        Some(Errno::ACCESS | Errno::PERM) => Error::permission_denied(message(
            "give this user access to the directory, name another one (file:///path), or make one that users \
             share: sudo leasehold init file: --group NAME",
        )),
        Some(Errno::ROFS) => Error::permission_denied(message("choose a directory that can be written to")),
        Some(Errno::LOOP) => {
            Error::unavailable(message("it is a symbolic link, which may lead anywhere and is not followed; remove it"))
        }
        Some(Errno::NOSPC | Errno::DQUOT | Errno::FBIG) => {
            Error::unavailable(message("nothing was changed; free some space, then try again"))
        }
        Some(Errno::NOENT | Errno::NOTDIR) => {
            Error::unavailable(message("the directory is gone or not a directory; restore it and connect again"))
        }
        Some(Errno::MFILE | Errno::NFILE) => {
            Error::unavailable(message("too many files are open; raise the limit (ulimit -n)"))
        }
        _ => Error::unavailable(message("look at the disk and the directory")),
    }
    .caused_by(error)
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
}
