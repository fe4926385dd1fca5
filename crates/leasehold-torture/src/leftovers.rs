//! What workers leave behind in a directory once all of them are gone.

use std::{fs, io, path::Path, thread, time::Duration};

use leasehold::blocking::Leasehold;

use crate::instant::{millis, now};

/// What a directory keeps when nobody uses it, beside its latches.
const LASTING: [&str; 5] = ["format", "boot", "watchers", "history.ndjson", "history.1.ndjson"];

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

/// Names every file that only a lease, a queue position or a live process accounts for.
fn walk(folder: &Path, left: &mut Vec<String>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let (path, kind) = entry.and_then(|entry| Ok((entry.path(), entry.file_type()?)))?;
        if kind.is_dir() {
            walk(&path, left)?;
        } else if !folder.ends_with("latches") && !LASTING.iter().any(|name| path.ends_with(name)) {
            left.push(path.display().to_string());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_record_of_a_lease_and_the_presence_of_its_process_are_found_while_they_last() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let url = format!("file://{}", root.path().display());
        let found = || {
            let mut left = Vec::new();
            walk(root.path(), &mut left).expect("it can be read");
            left.sort();
            left
        };
        let locks = Leasehold::connect(&url).expect("it can be made");
        let guard = locks.mutex("lock").acquire().expect("it is free");
        let [presence, record] = &found()[..] else { panic!("{:?}", found()) };
        assert!(presence.contains("/presence/"), "{presence}");
        assert!(record.contains("/records/"), "{record}");
        drop((guard, locks));
        assert!(find(&url, root.path()).expect("it can be read").is_empty());
    }
}
