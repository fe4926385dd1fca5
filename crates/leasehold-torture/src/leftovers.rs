//! What workers leave behind in a directory once all of them are gone.

use std::{fs, io, os::unix::fs::FileTypeExt, path::Path, thread, time::Duration};

use leasehold::blocking::Leasehold;

use crate::instant::{millis, now};

/// Opens and closes the locks once, as the next user would, then names what is left.
///
/// A process that was killed cannot clean up: whoever opens the directory next does.
pub(crate) fn find(url: &str, folder: &Path) -> io::Result<Vec<String>> {
    let locks = Leasehold::connect(url).map_err(io::Error::other)?;
    locks.close().map_err(io::Error::other)?;
    drop(locks);
    // Background tasks of the instance may end after `close` has returned.
    let until = now() + millis(5000);
    loop {
        let mut left = Vec::new();
        walk(folder, &mut left)?;
        if left.is_empty() || now() > until {
            return Ok(left);
        }
        thread::sleep(Duration::from_millis(20));
    }
}

fn walk(folder: &Path, left: &mut Vec<String>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let (path, kind) = entry.and_then(|entry| Ok((entry.path(), entry.file_type()?)))?;
        if kind.is_dir() {
            walk(&path, left)?;
        } else if kind.is_fifo() {
            left.push(format!("presence {}", path.display()));
        } else if folder.ends_with("records") {
            left.push(format!("record {}", path.display()));
        }
    }
    Ok(())
}
