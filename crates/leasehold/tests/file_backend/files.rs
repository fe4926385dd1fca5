//! Which files are written, and when.

use super::*;

#[test]
fn odd_and_long_names_work_and_do_not_collide() {
    in_directory(async |root| {
        let a = open(root).await;
        let long = "l".repeat(512);
        let longer = format!("{}m", "l".repeat(511));
        let mut names =
            ["..", ".", "a/b", "a%2Fb", "a%b", "../../x", "~x", ".x", "замок:日本", "a b", "A", "a", &long, &longer];
        for text in names {
            granted(&a, &request(text)).await;
        }
        let page = a.list(&ListFilter::new(Names::All)).await?;
        let listed: Vec<&str> = page.leases.iter().map(|lease| lease.resource.as_str()).collect();
        names.sort_unstable();
        assert_eq!(listed, names);
        let prefixed = a.list(&ListFilter::new(Names::Prefix(String::from("l")))).await?;
        assert_eq!(prefixed.leases.len(), 2);
        assert_eq!(files(root.to_owned()), ["test"]);
        Ok(())
    });
}

#[test]
fn a_renewal_that_changes_nothing_writes_nothing() {
    in_directory(async |root| {
        let (a, b) = (open(root).await, open(root).await);
        let (held, waiting) = (request("x"), request("x"));
        granted(&a, &held).await;
        queued(&b, &waiting).await;
        let path = record_of(root, "x");
        let identity = || {
            let file = fs::metadata(&path).unwrap();
            (file.ino(), file.mtime(), file.mtime_nsec(), file.ctime_nsec())
        };
        let before = identity();
        for _ in 0..3 {
            assert!(holds(&a, &held).await);
            assert!(waits(&b, &waiting).await);
            granted(&a, &held).await;
        }
        a.list(&ListFilter::new(Names::All)).await?;
        assert_eq!(identity(), before);
        let metadata = Metadata::from_iter([(String::from("leader"), true.into())]);
        let renewal = Renewal::new(held.key.clone(), held.ttl).metadata(metadata);
        a.renew(&[renewal]).await?;
        assert_ne!(identity(), before);
        Ok(())
    });
}

#[test]
fn a_free_resource_leaves_no_record_and_its_fence_rises() {
    opened_by_clock(async |root, clock, a| {
        let mut newest = Fence::new(0);
        for _ in 0..5 {
            let held = request("x");
            let fence = granted(&a, &held).await.fence;
            assert!(fence > newest);
            newest = fence;
            release(&a, &held).await;
            assert!(!record_of(root, "x").exists());
            clock.set_wall(Timestamp::from_micros(0));
        }
        drop(a);
        assert!(files(root.join("test/records")).is_empty(), "nothing is left aside");
        Ok(())
    });
}

/// 1. b reads a file. 2. a takes it out of use. 3. a writes its next record to it, and the name leads there again.
#[test]
fn a_file_that_is_written_anew_is_read_anew() {
    in_directory(async |root| {
        let (a, b) = (open(root).await, open(root).await);
        let inode = || fs::metadata(record_of(root, "x")).unwrap().ino();
        let (first, second) = (request("x"), request("x"));
        granted(&a, &first).await;
        let holders = async || b.list(&ListFilter::new(Names::All)).await.unwrap().leases;
        assert_eq!(holders().await[0].holder, first.holder);
        let before = inode();
        release(&a, &first).await;
        granted(&a, &second).await;
        assert_eq!(inode(), before, "no file is made for each record");
        assert_eq!(holders().await[0].holder, second.holder);
        Ok(())
    });
}

#[test]
fn a_few_files_are_left_aside_and_whoever_removes_or_replaces_them_changes_no_record() {
    in_directory(async |root| {
        let (a, b) = (open(root).await, open(root).await);
        let names: Vec<String> = (0..20).map(|number| format!("n{number}")).collect();
        let held: Vec<Request> = names.iter().map(|name| request(name)).collect();
        for held in &held {
            granted(&a, held).await;
        }
        for held in &held {
            release(&a, held).await;
        }
        let aside = || files(root.join("test/records")).into_iter().filter(|name| name.starts_with('.'));
        assert!((1..=4).contains(&aside().count()), "{:?}", aside().collect::<Vec<_>>());
        for (name, tampering) in aside().zip([true, false].into_iter().cycle()) {
            let path = root.join("test/records").join(name);
            let old = fs::read(&path)?;
            fs::remove_file(&path)?;
            if tampering {
                fs::write(&path, old)?;
            }
        }
        for held in &held {
            let next = request(held.key.resource.as_str());
            granted(&a, &next).await;
            queued(&b, held).await;
            release(&a, &next).await;
            assert!(holds(&b, held).await);
        }
        Ok(())
    });
}

#[test]
fn a_record_that_fits_is_written_over_the_one_before_unless_a_power_loss_must_not_tear_it() {
    run(async {
        for (query, in_place) in [("", true), ("?fsync=1", false)] {
            let root = tempfile::tempdir()?;
            let open = async || FileBackend::open(options(root.path(), query)).await.unwrap();
            let (a, b) = (open().await, open().await);
            let (first, second) = (request("x"), request("x"));
            let file = || fs::metadata(record_of(root.path(), "x")).map(|file| (file.ino(), file.len())).unwrap();
            granted(&a, &first).await;
            queued(&b, &second).await;
            let longest = file();
            release(&a, &first).await;
            assert_eq!(file() == longest, in_place, "handed over");
            let handed_over = file();
            assert!(holds(&b, &second).await);
            assert_eq!(file() == handed_over, in_place, "confirmed");
            let seen = open().await.list(&ListFilter::new(Names::All)).await?.leases;
            assert_eq!(seen.iter().map(|lease| &lease.holder).collect::<Vec<_>>(), [&second.holder]);
            assert!(matches!(seen[0].state, LeaseState::Holding { .. }));
        }
        Ok(())
    });
}

/// A power loss may leave one page of a file as it was, so that a longer record would be torn.
#[test]
fn a_record_longer_than_a_page_gets_a_new_file() {
    in_directory(async |root| {
        let (a, b) = (open(root).await, open(root).await);
        let note = "n".repeat(1000);
        let inode = || fs::metadata(record_of(root, "x")).unwrap().ino();
        let mut long = request("x");
        long.metadata = Metadata::from_iter([(String::from("note"), note.repeat(5).into())]);
        granted(&a, &long).await;
        let first = inode();
        let kept = File::open(record_of(root, "x"))?;
        queued(&b, &request("x")).await;
        assert_ne!(inode(), first);
        assert_eq!(kept.metadata()?.nlink(), 0, "it is removed");
        Ok(())
    });
}

#[test]
fn every_change_may_be_forced_to_the_disk() {
    in_directory(async |root| {
        let a = FileBackend::open(options(root, "?fsync=1")).await?;
        let held = request("x");
        granted(&a, &held).await;
        assert_eq!(release(&a, &held).await, Released::Freed);
        Ok(())
    });
}
