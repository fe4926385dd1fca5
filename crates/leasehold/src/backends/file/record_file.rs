//! One open record file: what it contains, and how the next record overwrites it.
//!
//! A record that fits into the file and into one page overwrites the previous
//! one: the kernel copies a page in one step, so a killed process has written
//! all of it or nothing. Any other record goes to another file, which then takes
//! the record's name (`record.rs`). Readers hold the latch, so nobody sees half
//! a record.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read as _},
    os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::Path,
};

use rustix::fs::OFlags;

use super::{directory::Directory, safe_open};

/// Only files of at most this length are overwritten: a file system writes a page as a whole, or leaves the old one.
pub(super) const PAGE: usize = 4096;

/// A buffer that begins at a page boundary. The kernel copies page by page, and may notice between two pages that the
/// process was killed; here it has only one page to copy.
#[repr(align(4096))]
struct PageBuffer([u8; PAGE]);

/// An open file, and what was last read from it or written to it.
#[derive(Debug)]
pub(super) struct RecordFile {
    file: File,
    /// Device and inode.
    identity: (u64, u64),
    /// Whether it is open for writing, belongs to this user and has no other hard link.
    writable: bool,
    /// The content as this process last read or wrote it; empty if it is longer than a page.
    content: Vec<u8>,
}

impl RecordFile {
    /// Opens and reads a file; returns its length too.
    pub(super) fn read(directory: &Directory, path: &Path, buffer: &mut Vec<u8>) -> io::Result<(Self, usize)> {
        let open = |write, flags| {
            let flags = safe_open::flags(flags | OFlags::NOFOLLOW | OFlags::NONBLOCK);
            OpenOptions::new().read(true).write(write).custom_flags(flags).open(path)
        };
        // `NOATIME` saves updating the access time; only the owner of a file may use it.
        let (file, writable) = match open(true, OFlags::NOATIME) {
            Ok(file) => (file, true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(error),
            Err(_) => (open(false, OFlags::empty())?, false),
        };
        let mut opened = Self::new(directory, file, writable)?;
        let length = read_into(buffer, &opened.file)?;
        opened.remember(&buffer[..length]);
        Ok((opened, length))
    }

    /// Creates a file with this content; replaces a file of the same name.
    pub(super) fn create(directory: &Directory, path: &Path, bytes: &[u8]) -> io::Result<Self> {
        let mut created = Self::new(directory, directory.create(path)?, true)?;
        created.write(directory, bytes)?;
        Ok(created)
    }

    fn new(directory: &Directory, file: File, writable: bool) -> io::Result<Self> {
        let found = file.metadata()?;
        if !found.is_file() {
            return Err(safe_open::irregular());
        }
        // A file with another hard link, or of another user, may be in use elsewhere.
        let writable = writable && found.nlink() == 1 && found.uid() == directory.user;
        Ok(Self { file, identity: (found.dev(), found.ino()), writable, content: Vec::new() })
    }

    /// Returns whether `path` refers to this file.
    pub(super) fn has_name(&self, path: &Path) -> bool {
        self.has_identity(identity(path))
    }

    /// Returns whether this is the file that [`identity`] found.
    pub(super) fn has_identity(&self, found: Option<(u64, u64)>) -> bool {
        found == Some(self.identity)
    }

    /// Reads the file again; returns its content if that has changed since it was last read or written.
    pub(super) fn reload_if_changed(&mut self) -> io::Result<Option<&[u8]>> {
        // Longer than a page: never overwritten, so unchanged.
        if self.content.is_empty() {
            return Ok(None);
        }
        let mut bytes = [0; PAGE];
        let length = self.file.read_at(&mut bytes, 0)?;
        if bytes[..length] == self.content {
            return Ok(None);
        }
        self.remember(&bytes[..length]);
        Ok(Some(&self.content))
    }

    /// Returns what the file holds, which is at most a page.
    pub(super) fn read_again(&mut self) -> io::Result<&[u8]> {
        self.reload_if_changed()?;
        Ok(&self.content)
    }

    /// Returns whether the file can be reused for a later record.
    pub(super) fn is_reusable(&self) -> bool {
        self.writable && !self.content.is_empty()
    }

    /// Returns whether a record of this length fits into a spare file.
    pub(super) fn fits(length: usize) -> bool {
        length <= PAGE
    }

    /// Returns whether a record of this length may be written over the one in the file.
    pub(super) fn has_room(&self, length: usize) -> bool {
        self.is_reusable() && length <= self.content.len()
    }

    /// Writes a record. If the file is longer, pads the last line with spaces, before its line end: truncating would be
    /// a second step.
    pub(super) fn write(&mut self, directory: &Directory, record: &[u8]) -> io::Result<()> {
        if record.len() > safe_open::LARGEST {
            return Err(safe_open::too_large());
        }
        if !record.is_empty() && Self::fits(record.len()) {
            let line_end = record.len() - 1;
            let length = record.len().max(self.content.len());
            let mut page = PageBuffer([b' '; PAGE]);
            page.0[..line_end].copy_from_slice(&record[..line_end]);
            page.0[length - 1] = record[line_end];
            self.file.write_all_at(&page.0[..length], 0)?;
            self.remember(&page.0[..length]);
        } else {
            self.file.write_all_at(record, 0)?;
            self.remember(record);
        }
        if directory.fsync { self.file.sync_all() } else { Ok(()) }
    }

    fn remember(&mut self, bytes: &[u8]) {
        self.content.clear();
        if bytes.len() <= PAGE {
            self.content.extend_from_slice(bytes);
        }
    }
}

/// The device and inode of the file at `path`.
pub(super) fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

/// Reads a whole file with as few calls as possible; returns its length.
fn read_into(buffer: &mut Vec<u8>, mut file: &File) -> io::Result<usize> {
    // The reads below overwrite the old contents, and the caller looks only at the length they return.
    buffer.resize(buffer.len().max(PAGE), 0);
    let mut length = 0;
    loop {
        length += file.read(&mut buffer[length..])?;
        if length > safe_open::LARGEST {
            return Err(safe_open::too_large());
        }
        // A read that leaves room has reached the end.
        if length < buffer.len() {
            return Ok(length);
        }
        buffer.resize(length * 2, 0);
    }
}
