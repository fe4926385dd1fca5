//! Files of lines that several processes append to.

use std::{
    fs::{File, OpenOptions},
    io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write as _},
    ops::Range,
    os::unix::fs::FileExt as _,
    path::Path,
};

use super::{directory::Directory, safe_open};

/// A file to which lines are appended.
#[derive(Debug)]
pub(super) struct AppendFile {
    pub(super) file: File,
    /// Whether a full disk or a power loss left the last line incomplete. The next write then starts on a new line.
    incomplete: bool,
}

impl AppendFile {
    /// Opens the file; creates it if it does not exist.
    pub(super) fn open(directory: &Directory, path: &Path) -> io::Result<Self> {
        let open = || safe_open::regular(OpenOptions::new().read(true).append(true), path);
        let file = match open() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => match directory.create_new(path) {
                // Another process may be faster.
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => open(),
            },
            opened => opened,
        }?;
        let mut last = [b'\n'];
        if let Some(at) = file.metadata()?.len().checked_sub(1) {
            file.read_at(&mut last, at)?;
        }
        Ok(Self { file, incomplete: last != [b'\n'] })
    }

    /// Appends lines with one write, so that those of two processes never mix.
    pub(super) fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        if std::mem::take(&mut self.incomplete) {
            return self.file.write_all(&[b"\n", lines].concat());
        }
        self.file.write_all(lines)
    }
}

/// Reads the lines in a part of a file. If the part is too large, reads only its end.
pub(super) fn lines(mut file: &File, part: Range<u64>) -> io::Result<impl Iterator<Item = io::Result<Vec<u8>>>> {
    let start = part.start.max(part.end.saturating_sub(safe_open::LARGEST as u64));
    file.seek(SeekFrom::Start(start))?;
    let lines = BufReader::new(file.take(part.end.saturating_sub(start))).split(b'\n');
    // The first one may have lost its beginning.
    Ok(lines.skip(usize::from(start > part.start)))
}
