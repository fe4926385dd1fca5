//! Which files are written, and when.

use super::*;

#[test]
fn odd_and_long_names_work_and_do_not_collide() {
    run(async {
        let root = tempfile::tempdir()?;
        let a = open(root.path()).await;
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
        assert_eq!(files(root.path().to_owned()), ["test"]);
        Ok(())
    });
}

#[test]
fn a_renewal_that_changes_nothing_writes_nothing() {
    run(async {
        let root = tempfile::tempdir()?;
        let (a, b) = (open(root.path()).await, open(root.path()).await);
        let (held, waiting) = (request("x"), request("x"));
        granted(&a, &held).await;
        queued(&b, &waiting).await;
        let path = record_of(root.path(), "x");
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
    run(async {
        let root = tempfile::tempdir()?;
        let clock = ManualClock::new();
        let a = open_by(root.path(), &clock).await;
        let mut newest = Fence::new(0);
        for _ in 0..5 {
            let held = request("x");
            let fence = granted(&a, &held).await.fence;
            assert!(fence > newest);
            newest = fence;
            release(&a, &held).await;
            assert!(files(root.path().join("test/records")).is_empty());
            clock.set_wall(Timestamp::from_micros(0));
        }
        Ok(())
    });
}

#[test]
fn every_change_may_be_forced_to_the_disk() {
    run(async {
        let root = tempfile::tempdir()?;
        let a = FileBackend::open(options(root.path(), "?fsync=1")).await?;
        let held = request("x");
        granted(&a, &held).await;
        assert_eq!(release(&a, &held).await, Released::Freed);
        Ok(())
    });
}
