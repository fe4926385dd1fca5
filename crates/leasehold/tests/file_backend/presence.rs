//! What becomes of an instance whose presence is removed, and of presences whose instance is gone.

use super::*;

fn remove_presences(root: &Path) {
    for presence in files(root.join("test/presence")) {
        fs::remove_file(root.join("test/presence").join(presence)).unwrap();
    }
}

#[test]
fn an_instance_whose_presence_was_removed_gives_up_what_it_held_and_asks_for_nothing() {
    in_directory(async |root| {
        let a = open(root).await;
        let mut hints = a.hints();
        let (held, kept) = (request("x"), detached("kept"));
        let fence = granted(&a, &held).await.fence;
        granted(&a, &kept).await;
        remove_presences(root);
        let b = open(root).await;
        let error = a.acquire(&request("y")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.to_string().contains("connect again"), "{error}");
        granted(&b, &request("y")).await;
        assert_eq!(hint(&mut hints).await, Hint::Missed, "all leases are to be asked about");
        assert_eq!(renewed(&a, &held).await, Standing::Gone);
        assert!(holds(&a, &kept).await, "what no process keeps is kept");
        assert_eq!(release(&a, &held).await, Released::Gone);
        assert!(a.acquire(&held).await.is_err());
        assert!(a.list(&ListFilter::new(Names::All)).await.is_err());
        assert!(a.watch(Names::All).await.is_err());
        assert!(failures(&a.examine().await?).iter().any(|finding| finding.subject == "presence"));
        assert!(granted(&b, &request("x")).await.fence > fence);
        assert_eq!(endings(&b, "x").await, [Ending::Disconnected]);
        no_hint(&mut hints).await;
        Ok(())
    });
}

#[test]
fn an_instance_whose_directory_was_removed_or_replaced_gives_up_what_it_held() {
    run(async {
        for replaced in [false, true] {
            let root = tempfile::tempdir()?;
            let a = open(root.path()).await;
            let held = request("x");
            granted(&a, &held).await;
            if replaced {
                fs::rename(root.path().join("test"), root.path().join("moved"))?;
                granted(&open(root.path()).await, &request("x")).await;
            } else {
                fs::remove_dir_all(root.path().join("test"))?;
            }
            assert_eq!(renewed(&a, &held).await, Standing::Gone);
            assert_eq!(release(&a, &held).await, Released::Gone);
            assert!(a.acquire(&request("x")).await.unwrap_err().to_string().contains("connect again"));
        }
        Ok(())
    });
}

#[test]
fn a_guard_whose_presence_was_removed_is_lost_at_the_next_use_of_its_instance() {
    in_directory(async |root| {
        let a = connect(root).await?;
        let guard = a.mutex("x").acquire().await?;
        remove_presences(root);
        guard.check()?;
        assert!(a.mutex("y").try_acquire().await.is_err());
        tokio::time::timeout(Duration::from_secs(5), guard.lost()).await.expect("long before the next renewal");
        assert!(guard.check().is_err());
        Ok(())
    });
}

#[test]
fn dead_presences_are_tidied_and_live_ones_never() {
    in_directory(async |root| {
        Process::start("hold", root, "killed").kill();
        let a = open(root).await;
        let held = request("kept");
        granted(&a, &held).await;
        std::thread::scope(|threads| {
            for _ in 0..4 {
                threads.spawn(|| Process::start("wander", root, "crossroads"));
            }
        });
        assert!(holds(&a, &held).await);
        assert_eq!(files(root.join("test/presence")).len(), 1);
        assert_eq!(files(root.join("test/records")).len(), 2, "the killed one's record waits to be looked at");
        assert_eq!(a.list(&ListFilter::new(Names::All)).await?.leases.len(), 1);
        assert_eq!(endings(&a, "killed").await, [Ending::Disconnected]);
        Ok(())
    });
}

#[test]
fn a_presence_that_is_only_being_made_is_left_alone() {
    in_directory(async |root| {
        let _a = open(root).await;
        let presences = root.join("test/presence");
        let made = [
            (".new-0b1f8a54c2a14f7e9a3d7e61d0c5b2a1", "10 seconds ago"),
            (".new-1b1f8a54c2a14f7e9a3d7e61d0c5b2a1", "2 minutes ago"),
            ("2b1f8a54c2a14f7e9a3d7e61d0c5b2a1", "now"),
        ];
        for (name, age) in made {
            assert!(Command::new("mkfifo").arg(presences.join(name)).status()?.success());
            touch(&presences.join(name), age);
        }
        let _b = open(root).await;
        assert_eq!(made.map(|(name, _)| presences.join(name).exists()), [true, false, false]);
        assert_eq!(files(presences).len(), 3);
        Ok(())
    });
}
