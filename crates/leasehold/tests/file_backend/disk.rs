//! Disks and directories that cannot be used.

use std::panic::AssertUnwindSafe;

use super::*;

/// Runs a test on a disk of its own that is mounted with this option.
fn on_a_disk(option: &str, test: impl AsyncFnOnce(&Path) -> Tried) {
    let root = tempfile::tempdir().unwrap();
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", option, "tmpfs"]).arg(root.path()).output();
    if !mounted.is_ok_and(|mount| mount.status.success()) {
        eprintln!("mounting is not permitted here: the disk with {option} was not tried");
        return;
    }
    let tried = std::panic::catch_unwind(AssertUnwindSafe(|| run(test(root.path()))));
    assert!(Command::new("umount").arg("-l").arg(root.path()).status().unwrap().success());
    tried.unwrap();
}

#[test]
fn a_full_disk_changes_nothing() {
    on_a_disk("size=1m", on_a_full_disk);
}

async fn on_a_full_disk(root: &Path) -> Tried {
    let (a, b) = (open(root).await, open(root).await);
    let held = request("x");
    let before = granted(&a, &held).await;
    let record = fs::read(record_of(root, "x"))?;
    let _full = fs::write(root.join("ballast"), vec![0; 2 << 20]).unwrap_err();
    for busy_or_free in ["x", "y"] {
        let error = b.acquire(&request(busy_or_free)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(format!("{error:#}").contains("free some space"), "{error:#}");
    }
    assert_eq!(fs::read(record_of(root, "x"))?, record);
    assert_eq!(files(root.join("test/records")), ["x.json"], "nothing is left aside");
    assert!(matches!(renewed(&a, &held).await, Standing::Holding(grant) if grant.fence == before.fence));
    assert_eq!(release(&a, &held).await, Released::Freed, "a release needs no space");
    fs::remove_file(root.join("ballast"))?;
    assert!(granted(&b, &request("x")).await.fence > before.fence);
    Ok(())
}

/// The kernel cuts what such a process writes, so that a record written over the one before would be torn.
#[test]
fn a_process_that_may_write_short_files_only_tears_no_record() {
    in_directory(async |root| {
        let a = open(root).await;
        let (held, mut next) = (request("x"), request("x"));
        next.metadata = Metadata::from_iter([(String::from("note"), "n".repeat(3000).into())]);
        granted(&a, &held).await;
        queued(&a, &next).await;
        let record = fs::read(record_of(root, "x"))?;
        assert!((3072..=4096).contains(&record.len()), "it fits into a page and not into the limit");
        let mut limited = Command::new("sh");
        // Blocks of 512 or of 1024 bytes, as the shell counts.
        limited.args(["-c", "ulimit -f 3; trap '' XFSZ; exec \"$0\" \"$@\""]).arg(env::current_exe()?);
        Process::start_by(limited, "fail to evict", root, "x");
        assert_eq!(fs::read(record_of(root, "x"))?, record);
        assert!(holds(&a, &held).await);
        Ok(())
    });
}

#[test]
fn a_directory_that_cannot_be_made_or_is_gone_is_an_error_that_names_it() {
    in_directory(async |root| {
        let file = root.join("file");
        fs::write(&file, "")?;
        let error = FileBackend::open(options(&file.join("below"), "")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.to_string().contains("file/below"), "{error}");

        let a = open(root).await;
        fs::rename(root.join("test"), root.join("moved"))?;
        let error = a.acquire(&request("x")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.to_string().contains("/test/"), "{error}");
        Ok(())
    });
}

#[test]
fn a_read_only_disk_is_a_matter_of_permission() {
    on_a_disk("ro", async |root| {
        let error = refused(root).await;
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
        Ok(())
    });
}

#[test]
fn another_format_and_other_files_are_refused() {
    in_directory(async |root| {
        drop(open(root).await);
        fs::write(root.join("test/format"), "leasehold-file 4 4\n")?;
        let error = refused(root).await;
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("leasehold-file 4"), "{error}");

        let other = tempfile::tempdir()?;
        fs::create_dir(other.path().join("test"))?;
        fs::write(other.path().join("test/thesis.tex"), "")?;
        let error = refused(other.path()).await;
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert_eq!(files(other.path().to_owned()), ["test"], "nothing is left aside");
        Ok(())
    });
}

#[test]
fn a_file_system_that_is_not_known_to_be_local_is_refused() {
    run(async {
        let error = FileBackend::open(options(Path::new("/proc/leasehold"), "")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("0x9fa0"), "{error}");
        Ok(())
    });
}

#[test]
fn a_missing_parent_is_named_and_not_made() {
    in_directory(async |root| {
        let missing = root.join("not-mounted");
        let error = FileBackend::open(options(&missing.join("deep/locks"), "")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert!(error.to_string().starts_with(&format!("{} does not exist", missing.display())), "{error}");
        assert!(!missing.exists());
        drop(open(&missing).await);
        assert!(missing.join("test").is_dir());
        Ok(())
    });
}
