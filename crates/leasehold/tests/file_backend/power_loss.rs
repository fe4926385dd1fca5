//! What a power loss and a restart leave behind.

use super::*;

#[test]
fn after_a_reboot_the_wall_clock_tells_what_is_left() {
    opened_by_clock(async |root, clock, a| {
        granted(&a, &detached("x")).await;
        let path = record_of(root, "x");
        let mut lines = lines_of(&path);
        lines[0]["boot"] = "another boot".into();
        lines[1]["entry"]["expires_at"] = 1.into();
        let write = || {
            // A record is a new file each time: an instance that has the old one open would not look inside.
            fs::remove_file(&path).unwrap();
            write_lines(&path, &lines);
        };
        write();
        let left = async || a.list(&ListFilter::new(Names::All)).await.unwrap().leases[0].expires_in;
        clock.advance(Duration::from_secs(10));
        assert_eq!(left().await, Some(Duration::from_secs(20)));
        clock.set_wall(Timestamp::from_micros(0));
        clock.advance(Duration::from_secs(5));
        assert_eq!(left().await, Some(Duration::from_secs(15)), "from then on the steady clock counts");
        write();
        clock.set_wall(Timestamp::from_micros(0));
        assert_eq!(left().await, Some(Ttl::DEFAULT.get()), "never more than the ttl");
        Ok(())
    });
}

#[test]
fn what_a_power_loss_tore_is_removed_once_and_fences_keep_rising() {
    opened_by_clock(async |root, clock, a| {
        let before = granted(&a, &request("x")).await.fence;
        granted(&a, &detached("y")).await;
        drop(a);
        fs::write(record_of(root, "x"), "")?;
        let b = open_by(root, clock).await;
        assert!(b.acquire(&request("x")).await.is_err(), "within the same boot it is garbage");
        drop(b);
        fs::write(root.join("test/boot"), "another boot")?;
        let c = open_by(root, clock).await;
        assert!(granted(&c, &request("x")).await.fence > before);
        queued(&c, &request("y")).await;
        Ok(())
    });
}

/// 1. A record's file is taken out of use. 2. The record of another resource is written to it and put in its place.
/// 3. The power fails when the names are on the disk and the content is not.
#[test]
fn a_record_that_a_power_loss_left_under_another_name_is_removed() {
    opened_by_clock(async |root, clock, a| {
        granted(&a, &detached("y")).await;
        drop(a);
        fs::copy(record_of(root, "y"), record_of(root, "x"))?;
        fs::write(root.join("test/boot"), "another boot")?;
        let b = open_by(root, clock).await;
        granted(&b, &request("x")).await;
        queued(&b, &request("y")).await;
        Ok(())
    });
}

#[test]
fn a_directory_torn_by_a_power_loss_is_repaired_and_fences_keep_rising() {
    in_directory(async |root| {
        let clock = ManualClock::new();
        for torn in [&b""[..], b"\0\0\0\0\0\0\0\0"] {
            let a = open_by(root, &clock).await;
            let before = granted(&a, &request("x")).await.fence;
            drop(a);
            fs::write(root.join("test/format"), torn)?;
            fs::remove_file(root.join("test/watchers"))?;
            fs::remove_file(root.join("test/latches/05"))?;
            let b = open_by(root, &clock).await;
            assert_eq!(fs::read(root.join("test/format"))?, b"leasehold-file 3 3\n");
            assert!(root.join("test/watchers").is_file() && root.join("test/latches/05").is_file());
            clock.set_wall(Timestamp::from_micros(0));
            assert!(granted(&b, &request("x")).await.fence > before);
        }
        assert!(!files(root.join("test")).iter().any(|name| name.starts_with(".new-")));
        fs::write(root.join("test/format"), "")?;
        fs::write(root.join("test/thesis.tex"), "")?;
        assert_eq!(refused(root).await.kind(), ErrorKind::Unsupported, "it may be another's");
        Ok(())
    });
}

#[test]
fn directories_whose_maker_died_are_tidied() {
    in_directory(async |root| {
        let made = [
            (".new-0b1f8a54c2a14f7e9a3d7e61d0c5b2a1", "10 minutes ago"),
            (".new-1b1f8a54c2a14f7e9a3d7e61d0c5b2a1", "2 hours ago"),
            (".new-ideas", "2 hours ago"),
        ];
        for (name, age) in made {
            fs::create_dir_all(root.join(name).join("latches"))?;
            touch(&root.join(name), age);
        }
        let _a = open(root).await;
        assert_eq!(made.map(|(name, _)| root.join(name).exists()), [true, false, true]);
        Ok(())
    });
}
