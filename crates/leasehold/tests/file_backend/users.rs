//! Modes, owners, and users that share a directory.

use super::*;

const NOBODY: u32 = 65534;
const SOMEBODY: u32 = 65533;

/// Whether other users can be tried here.
fn is_root() -> bool {
    let root = fs::metadata("/proc/self").unwrap().uid() == 0;
    if !root {
        eprintln!("not run by root: other users were not tried");
    }
    root
}

/// Runs a test in a directory that every user may write to.
fn in_directory_of_all_users(test: impl AsyncFnOnce(&Path) -> Tried) {
    if !is_root() {
        return;
    }
    in_directory(async |root| {
        fs::set_permissions(root, fs::Permissions::from_mode(0o777))?;
        test(root).await
    });
}

#[test]
fn root_gives_what_it_writes_to_the_owner_of_the_directory() {
    if !is_root() {
        return;
    }
    in_directory(async |root| {
        let dead = open(root).await;
        granted(&dead, &request("x")).await;
        let a = open(root).await;
        queued(&a, &request("x")).await;
        drop(dead);
        let to = format!("{NOBODY}:{NOBODY}");
        assert!(Command::new("chown").args(["-R", &to]).arg(root).status()?.success());
        let b = open(root).await;
        assert_eq!(b.list(&ListFilter::new(Names::All)).await?.leases.len(), 1, "the dead one's record is rewritten");
        let mut written = vec![record_of(root, "x"), root.join("test/logs/history.ndjson")];
        let presences = root.join("test/presence");
        written.extend(files(presences.clone()).into_iter().map(|presence| presences.join(presence)));
        assert_eq!(written.len(), 4);
        for path in written {
            let file = fs::metadata(&path)?;
            assert_eq!((file.uid(), file.gid()), (NOBODY, NOBODY), "{}", path.display());
        }
        Ok(())
    });
}

#[test]
fn two_users_of_one_directory_exclude_and_wake_each_other() {
    in_directory_of_all_users(async |root| {
        drop(FileBackend::open(options(root, "?mode=0666")).await?);
        let mut first = Process::start_as(NOBODY, "hold", root, "x");
        let mut second = Process::start_as(SOMEBODY, "queue", root, "x");
        let mut third = Waiter::queue(open(root).await).await;
        assert_eq!(third.ahead, 1);
        let holder = async || {
            let leases = third.backend.list(&ListFilter::new(Names::All)).await.unwrap().leases;
            leases.into_iter().find(|lease| matches!(lease.state, LeaseState::Holding { .. })).map(|lease| lease.holder)
        };
        let before = holder().await;
        first.kill();
        let after = holder().await;
        assert!(before.is_some() && after.is_some() && before != after, "handed from one user to the other");
        second.kill();
        third.gets_its_turn().await;
        Ok(())
    });
}

#[test]
fn a_user_is_woken_by_the_death_of_another_users_process() {
    in_directory_of_all_users(async |root| {
        // Made by the other user, so that root is the guest here.
        let mut maker = Process::start_as(NOBODY, "hold shared by all", root, "x");
        assert_eq!(fs::metadata(root.join("test"))?.uid(), NOBODY);
        let mut holder = Process::start("hold", root, "y");
        let mut waiter = Process::start_as(SOMEBODY, "queue until granted", root, "y");
        holder.kill();
        assert!(waiter.0.wait()?.success(), "woken by the death of a process of root");
        let mut next = Waiter::queue(open(root).await).await;
        maker.kill();
        next.gets_its_turn().await;
        Ok(())
    });
}

/// What root makes in another user's namespace becomes that user's, and that user may lay a link after root has opened it.
#[test]
fn root_makes_nothing_through_a_link_of_the_one_who_owns_the_namespace() {
    if !is_root() {
        return;
    }
    run(async {
        let (root, precious) = (tempfile::tempdir()?, tempfile::tempdir()?);
        fs::set_permissions(root.path(), fs::Permissions::from_mode(0o1777))?;
        let mut maker = Process::start_as(NOBODY, "hold", root.path(), "y");
        maker.kill();
        let locks = open(root.path()).await;
        let records = root.path().join("test/records");
        fs::remove_dir_all(&records)?;
        std::os::unix::fs::symlink(precious.path(), &records)?;
        let refused = locks.acquire(&request("daemon")).await;
        assert!(refused.is_err(), "{refused:?}");
        assert_eq!(files(precious.path().to_owned()), [""; 0]);
        Ok(())
    });
}

#[test]
fn the_mode_is_honoured_whatever_the_umask() {
    run(async {
        let parent = tempfile::tempdir()?;
        fs::set_permissions(parent.path(), fs::Permissions::from_mode(0o2750))?;
        let root = parent.path().join("shared");
        let mode = |path: &str| fs::metadata(root.join(path)).unwrap().permissions().mode() & 0o7777;
        let a = FileBackend::open(options(&root, "?mode=0660")).await?;
        let held = request("x");
        granted(&a, &held).await;
        assert_eq!(["", "test", "test/latches", "test/records"].map(mode), [0o3770, 0o2750, 0o2750, 0o2770]);
        let presence = format!("test/presence/{}", files(root.join("test/presence"))[0]);
        assert_eq!(["test/records/x.json", "test/latches/00", "test/format", &presence].map(mode), [0o660; 4]);
        release(&a, &held).await;
        assert_eq!(mode("test/logs/history.ndjson"), 0o660);
        assert_eq!(fs::metadata(parent.path())?.permissions().mode() & 0o7777, 0o2750, "what was there stays");

        let private = tempfile::tempdir()?;
        open(private.path()).await;
        assert_eq!(fs::metadata(private.path().join("test"))?.permissions().mode() & 0o777, 0o700);
        Ok(())
    });
}

#[test]
fn a_directory_keeps_its_mode_for_everyone() {
    in_directory(async |root| {
        let _a = FileBackend::open(options(root, "?mode=0660")).await?;
        let b = open(root).await;
        granted(&b, &request("x")).await;
        assert_eq!(fs::metadata(record_of(root, "x"))?.permissions().mode() & 0o777, 0o660);
        FileBackend::open(options(root, "?mode=0660")).await?;
        let error = FileBackend::open(options(root, "?mode=0600")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert!(error.to_string().contains("0660") && error.to_string().contains("0600"), "{error}");
        Ok(())
    });
}

/// What another member of the group can do by hand.
fn as_member(root: &Path, script: &str) -> bool {
    let mut shell = Command::new("sh");
    shell.args(["-c", script]).current_dir(root).uid(SOMEBODY).gid(NOBODY);
    shell.stderr(Stdio::null()).status().unwrap().success()
}

#[test]
fn a_member_of_the_group_cannot_replace_the_directories_or_remove_a_latch() {
    if !is_root() {
        return;
    }
    run(async {
        let parent = tempfile::tempdir()?;
        fs::set_permissions(parent.path(), fs::Permissions::from_mode(0o2755))?;
        std::os::unix::fs::chown(parent.path(), None, Some(NOBODY))?;
        let root = parent.path().join("shared");
        let a = FileBackend::open(options(&root, "?mode=0660")).await?;
        for part in ["records", "presence", "logs", "latches", "format", "boot", "watchers", "latches/1a"] {
            assert!(!as_member(&root, &format!("mv test/{part} stolen")), "{part} was moved");
            assert!(!as_member(&root, &format!("ln -sfT /tmp test/{part}")), "{part} was replaced");
        }
        assert!(!as_member(&root, "mv test stolen") && !as_member(&root, "rmdir test"));
        assert!(as_member(&root, "touch test/records/x.json test/logs/x && rm test/records/x.json test/logs/x"));
        granted(&a, &request("x")).await;
        Ok(())
    });
}
