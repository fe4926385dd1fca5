//! The checks of `leasehold doctor`: file system, permissions, leftover files, write latency and invalid records.

use std::{fs, io::Write as _, os::unix::fs::MetadataExt, path::Path, time::Duration};

use super::{
    directory::list_files,
    file_names::{self, FileName},
    filesystem::{self, LockSupport},
    latch,
    ops::FileInstance,
    presence,
};
use crate::{
    Result,
    backend::{Finding, Severity},
};

/// A disk that takes longer than this for a small file makes every lock slow.
const SLOW: Duration = Duration::from_millis(20);

impl FileInstance {
    pub(super) fn findings(&self) -> Result<Vec<Finding>> {
        let mut findings = vec![
            Finding::new(
                Severity::Info,
                "promises",
                "one machine; a lease lives as long as its process, a stopped process keeps it; queues are fair, \
                 grants are pushed, fences rise",
            ),
            self.file_system()?,
        ];
        findings.extend(self.permissions());
        findings.push(self.leftovers()?);
        findings.push(self.write_latency());
        findings.extend(self.records()?);
        if self.is_removed() {
            findings.push(Finding::new(Severity::Failure, "presence", self.own_presence.removed_error().to_string()));
        }
        Ok(findings)
    }

    fn file_system(&self) -> Result<Finding> {
        let path = self.directory.path();
        let magic = filesystem::magic(path)?;
        let place = path.display();
        Ok(match filesystem::lock_support(magic) {
            LockSupport::Local(name) => {
                Finding::new(Severity::Ok, "file system", format!("{place} is on {name}, which is local"))
            }
            LockSupport::Refused(name) => Finding::new(
                Severity::Failure,
                "file system",
                format!("{place} is on {name} (0x{magic:x}), which two machines may share; move it to a local disk"),
            ),
        })
    }

    fn permissions(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        let mut open_to_all = false;
        let records = self.directory.records();
        // The directory of the namespace, and the root that contains it.
        for directory in records.ancestors().skip(1).take(2) {
            let others_replace =
                fs::metadata(directory).is_ok_and(|found| found.mode() & 0o022 != 0 && found.mode() & 0o1000 == 0);
            if others_replace && self.directory.mode() & 0o006 == 0 {
                let place = directory.display();
                let message = format!("whoever shares {place} can replace the files of others there; chmod +t {place}");
                findings.push(Finding::new(Severity::Warning, "permissions", message));
            }
        }
        // Those two, and the directory of the records.
        for directory in records.ancestors().take(3) {
            let world_writable = fs::metadata(directory).is_ok_and(|directory| directory.mode() & 0o1002 == 0o002);
            if world_writable {
                open_to_all = true;
                let is_meant = self.directory.mode() & 0o006 != 0;
                let advice = if is_meant {
                    let root = records.ancestors().nth(2).unwrap_or(&records).display();
                    format!(
                        "to share it with a group instead, when no lock is held: remove {root} and create it for \
                         a group"
                    )
                } else {
                    format!("chmod o-w {}", directory.display())
                };
                let message = format!("{} can be emptied by every user; {advice}", directory.display());
                findings.push(Finding::new(Severity::Warning, "permissions", message));
            }
        }
        if !open_to_all {
            let mode = self.directory.mode();
            findings.push(Finding::new(Severity::Ok, "permissions", format!("files are created with mode {mode:04o}")));
        }
        if ["/tmp", "/var/tmp"].iter().any(|temporary| self.directory.path().starts_with(temporary)) {
            findings.push(Finding::new(
                Severity::Warning,
                "temporary",
                format!(
                    "{} may be tidied by the system while locks are held; choose a directory outside /tmp",
                    self.directory.path().display()
                ),
            ));
        }
        findings
    }

    fn leftovers(&self) -> Result<Finding> {
        let removed = presence::tidy(&self.directory, &self.own_presence)?;
        Ok(match removed {
            0 => Finding::new(Severity::Ok, "leftovers", "none"),
            removed => Finding::new(Severity::Info, "leftovers", format!("{removed} files of dead processes removed")),
        })
    }

    fn write_latency(&self) -> Finding {
        let probe = self.own_presence.temporary_path(u64::MAX);
        let started = self.clock.now();
        let written = self.directory.create(&probe).and_then(|mut file| {
            file.write_all(&[b'x'; 512])?;
            if self.directory.fsync { file.sync_all() } else { Ok(()) }
        });
        let removed = fs::remove_file(&probe);
        let took = self.clock.now().since(started);
        match written.and(removed) {
            Err(error) => Finding::new(Severity::Failure, "writing", format!("{}: {error}", probe.display())),
            Ok(()) if took > SLOW => Finding::new(
                Severity::Warning,
                "writing",
                format!("a small file took {took:?}; every lock waits as long: use a faster disk, or leave fsync off"),
            ),
            Ok(()) => Finding::new(Severity::Ok, "writing", format!("a small file took {took:?}")),
        }
    }

    fn records(&self) -> Result<Vec<Finding>> {
        let times = self.times();
        let mut valid = 0;
        let mut findings = Vec::new();
        for (name, path) in list_files(&self.directory.records())? {
            let latch = match file_names::parse(&name) {
                FileName::Other if name.starts_with('.') => continue,
                FileName::Other => {
                    findings.push(unknown(&path));
                    continue;
                }
                FileName::Of(resource) => latch::number(&resource),
                FileName::Hashed(first) => latch::number_by_hash(first),
            };
            match self.resource_of(&path, latch, &times) {
                Ok(_) => valid += 1,
                Err(error) => findings.push(Finding::new(Severity::Failure, "record", format!("{error:#}"))),
            }
        }
        if findings.is_empty() {
            findings.push(Finding::new(Severity::Ok, "records", format!("{valid}, all valid")));
        }
        Ok(findings)
    }
}

fn unknown(path: &Path) -> Finding {
    Finding::new(Severity::Warning, "record", format!("{} is not a record; remove it", path.display()))
}
