//! Decides which file systems are safe for locks: those that only one kernel writes to.

use std::path::Path;

use super::errors::cannot;
use crate::{Error, Result};

/// Whether locks on a file system exclude every process that can reach its files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LockSupport {
    /// They do: one kernel alone writes to it.
    Local(&'static str),
    /// They may not, or nobody has checked.
    Refused(&'static str),
}

/// The lock support of the file system with this `f_type`.
pub(super) const fn lock_support(magic: u32) -> LockSupport {
    match magic {
        0xEF53 => LockSupport::Local("ext4"),
        0x5846_5342 => LockSupport::Local("xfs"),
        0x9123_683E => LockSupport::Local("btrfs"),
        0x0102_1994 => LockSupport::Local("tmpfs"),
        0x8584_58F6 => LockSupport::Local("ramfs"),
        0x794C_7630 => LockSupport::Local("overlayfs"),
        0x2FC1_2FC1 => LockSupport::Local("zfs"),
        0xF2F5_2010 => LockSupport::Local("f2fs"),
        0xCA45_1A4E => LockSupport::Local("bcachefs"),
        0x3153_464A => LockSupport::Local("jfs"),
        0x5265_4973 => LockSupport::Local("reiserfs"),
        0x6969 => LockSupport::Refused("nfs"),
        0x517B | 0xFF53_4D42 | 0xFE53_4D42 => LockSupport::Refused("smb"),
        0x6573_5546 => LockSupport::Refused("fuse"),
        0x0102_1997 => LockSupport::Refused("9p"),
        0x00C3_6400 => LockSupport::Refused("ceph"),
        0x0BD0_0BD0 => LockSupport::Refused("lustre"),
        0x786F_4256 => LockSupport::Refused("vboxsf"),
        0x5346_414F => LockSupport::Refused("afs"),
        _ => LockSupport::Refused("unknown"),
    }
}

/// The type number of the file system that holds `path`.
pub(super) fn magic(path: &Path) -> Result<u32> {
    let found = rustix::fs::statfs(path).map_err(|error| cannot("examine the file system of", path, error.into()))?;
    // The kernel's field is signed and wider on some machines; the magic is its low 32 bits.
    Ok(u32::try_from(i128::from(found.f_type) & 0xFFFF_FFFF).unwrap_or_default())
}

/// Fails on a file system that two kernels may share.
pub(super) fn refuse_shared(path: &Path, magic: u32) -> Result<()> {
    match lock_support(magic) {
        LockSupport::Local(_) => Ok(()),
        LockSupport::Refused(name) => Err(Error::unsupported(format!(
            "{} is on a file system of type {name} (0x{magic:x}), where two machines may share one directory and \
             a lock on one would not exclude the other; choose a directory on a local disk, or a server backend",
            path.display()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn local_file_systems_are_accepted_and_all_others_refused() {
        for local in [0xEF53, 0x5846_5342, 0x9123_683E, 0x0102_1994, 0x794C_7630, 0x2FC1_2FC1] {
            assert!(matches!(lock_support(local), LockSupport::Local(_)), "{local:x}");
        }
        for (magic, word) in [(0x6969, "nfs"), (0x6573_5546, "fuse"), (0x1234_5678, "0x12345678")] {
            let error = refuse_shared(Path::new("/somewhere"), magic).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.to_string().contains(word), "{error}");
        }
    }
}
