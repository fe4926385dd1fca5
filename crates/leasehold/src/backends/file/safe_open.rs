//! Opens files where others may put things: never through a link, never blocking, regular files only.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read as _},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use rustix::fs::OFlags;

/// The largest file that is read as a whole.
pub(super) const LARGEST: usize = 16 << 20;

/// Opens a regular file; anything else is an error, at once.
pub(super) fn regular(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let safe = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    // `NOATIME` saves updating the access time; only the owner of a file may use it.
    let file = match options.custom_flags(flags(safe | OFlags::NOATIME)).open(path) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            options.custom_flags(flags(safe)).open(path)?
        }
        opened => opened?,
    };
    if file.metadata()?.is_file() { Ok(file) } else { Err(irregular()) }
}

/// The error for what is not a regular file.
pub(super) fn irregular() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "it is not a regular file; remove it")
}

/// Reads a whole file.
pub(super) fn read(path: &Path) -> io::Result<Vec<u8>> {
    let file = regular(OpenOptions::new().read(true), path)?;
    let mut bytes = Vec::new();
    file.take(LARGEST as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > LARGEST { Err(too_large()) } else { Ok(bytes) }
}

/// The error for a file that is larger than any of ours.
pub(super) fn too_large() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("it is larger than {} MiB", LARGEST >> 20))
}

/// Flags as the standard library takes them.
pub(super) fn flags(flags: OFlags) -> i32 {
    i32::try_from(flags.bits()).expect("the flags used here are small")
}
