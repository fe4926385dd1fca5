//! Files that no leasehold wrote.

use super::*;

/// Puts another file in the place of a record: no leasehold changes one that is there.
fn replace(path: &Path, content: &[u8]) {
    fs::remove_file(path).unwrap();
    fs::write(path, content).unwrap();
}

#[test]
fn a_garbage_record_is_named_and_after_its_removal_fences_keep_rising() {
    opened_by_clock(async |root, clock, a| {
        let before = granted(&a, &request("x")).await.fence;
        granted(&a, &request("y")).await;
        let path = record_of(root, "x");
        let whole = fs::read(&path)?;
        let other = fs::read(record_of(root, "y"))?;
        for garbage in [b"{\"v\":2,", &b""[..], b"\0\0\0\0", &whole[..whole.len() / 2], &other] {
            replace(&path, garbage);
            let error = a.acquire(&request("x")).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            assert!(error.to_string().contains("x.json") && error.to_string().contains("remove the file"), "{error}");
            assert_eq!(fs::read(&path)?, garbage, "nothing was changed");
            assert!(a.list(&ListFilter::new(Names::Exactly(name("x")))).await.is_err());
            assert_eq!(a.list(&ListFilter::new(Names::All)).await?.leases.len(), 1, "the rest is listed");
            assert!(failures(&a.examine().await?).iter().any(|finding| finding.message.contains("x.json")));
        }
        replace(&path, b"{\"v\":3,\"oldest_reader\":3}\n");
        assert_eq!(a.acquire(&request("x")).await.unwrap_err().kind(), ErrorKind::Unsupported);
        fs::remove_file(&path)?;
        clock.set_wall(Timestamp::from_micros(1_000_000));
        assert!(granted(&a, &request("x")).await.fence > before, "the latch remembers");
        Ok(())
    });
}

#[test]
fn a_hostile_record_is_refused_and_spoils_nothing_else() {
    opened(async |root, a| {
        let held = take(&a, "order:42").await;
        queued(&a, &request("order:42")).await;
        let path = record_of(root, "order%3A42");
        let latch = root.join("test/latches/1a");
        let fence = fs::read(&latch)?;
        let sound = lines_of(&path);
        let permit = serde_json::json!({"mode": "permit", "units": 1, "capacity": 2});
        let second = sound[2]["entry"]["id"].clone();
        for (line, place, value) in [
            (0, "/last_fence", 10_000_000_000_000_000_u64.into()),
            (0, "/last_fence", Fence::MAX.get().into()),
            (0, "/last_fence", u64::MAX.into()),
            (0, "/entries", 1.into()),
            (1, "/entry/grant/fence", 10_000_000_000_000_000_u64.into()),
            (1, "/entry/grant/fence", (Fence::MAX.get() - 1).into()),
            (1, "/entry/claim/units", 1.into()),
            (1, "/entry/claim/capacity", 1.into()),
            (1, "/entry/claim/mode", "permit".into()),
            (1, "/entry/claim/mode", "leader".into()),
            (2, "/entry/claim", permit),
            (1, "/entry/ttl/secs", 0.into()),
            (1, "/entry/ttl/secs", u64::MAX.into()),
            (1, "/entry/id", second),
            (0, "/resource", "order:43".into()),
        ] {
            let mut hostile = sound.clone();
            *hostile[line].pointer_mut(place).expect(place) = value.clone();
            fs::remove_file(&path)?;
            write_lines(&path, &hostile);
            let error = a.acquire(&request("order:42")).await.expect_err(place);
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            assert!(error.to_string().contains("is corrupt"), "{place}: {error}");
            assert!(a.release(&held.key, &Outcome::Completed).await.is_err());
            assert_eq!(fs::read(&latch)?, fence, "{place} = {value} poisoned the latch");
        }
        fs::remove_file(&path)?;
        granted(&a, &request("order:42")).await;
        Ok(())
    });
}

#[test]
fn a_renewal_of_many_tells_which_one_is_in_doubt() {
    opened(async |root, a| {
        let held = [request("x"), request("y"), request("x")];
        granted(&a, &held[0]).await;
        granted(&a, &held[1]).await;
        queued(&a, &held[2]).await;
        let renewals = held.each_ref().map(|request| Renewal::new(request.key.clone(), request.ttl));
        let told = a.renew(&renewals).await?.value;
        assert!(matches!(told[..], [Standing::Holding(_), Standing::Holding(_), Standing::Waiting(_)]), "{told:?}");
        replace(&record_of(root, "x"), b"");
        let told = a.renew(&renewals).await?.value;
        assert!(matches!(told[..], [Standing::Unknown, Standing::Holding(_), Standing::Unknown]), "{told:?}");
        assert!(a.renew(&renewals[..1]).await.is_err());
        Ok(())
    });
}

#[test]
fn a_record_is_of_bounded_size() {
    opened(async |root, a| {
        let wordy = request("x").note("n".repeat(17 << 20));
        let error = a.acquire(&wordy).await.unwrap_err();
        assert!(format!("{error:#}").contains("16 MiB"), "{error}");
        granted(&a, &request("x")).await;
        File::create(record_of(root, "y"))?.set_len(17 << 20)?;
        let error = a.acquire(&request("y")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(format!("{error:#}").contains("16 MiB"), "{error}");
        Ok(())
    });
}

#[test]
fn a_link_in_the_place_of_a_directory_is_refused() {
    run(async {
        let (root, elsewhere) = (tempfile::tempdir()?, tempfile::tempdir()?);
        drop(open(root.path()).await);
        for part in ["records", "latches", "presence"] {
            let path = root.path().join("test").join(part);
            fs::rename(&path, root.path().join("aside"))?;
            std::os::unix::fs::symlink(elsewhere.path(), &path)?;
            let error = refused(root.path()).await;
            assert!(format!("{error:#}").contains("not a directory"), "{error}");
            fs::remove_file(&path)?;
            fs::rename(root.path().join("aside"), &path)?;
        }
        assert_eq!(fs::read_dir(elsewhere.path())?.count(), 0, "nothing was written there");
        Ok(())
    });
}

#[test]
fn nothing_is_written_or_read_through_a_link() {
    opened(async |root, a| {
        let victim = root.join("precious");
        let lay = |name: &str| {
            let path = root.join("test").join(name);
            let _if_there = fs::remove_file(&path);
            fs::write(&victim, "0000000000000000\n").unwrap();
            std::os::unix::fs::symlink(&victim, &path).unwrap();
        };
        let unharmed = || assert_eq!(fs::read_to_string(&victim).unwrap(), "0000000000000000\n");
        let id = files(root.join("test/presence")).remove(0);
        let held = request("order:42");

        lay(&format!("records/.{id}-1a"));
        granted(&a, &held).await;
        unharmed();
        lay("logs/history.ndjson");
        release(&a, &held).await;
        unharmed();
        assert!(a.history(&HistoryFilter::new(Names::All)).await.is_err());
        lay("watchers");
        assert!(a.watch(Names::All).await.is_err());
        unharmed();
        fs::remove_file(root.join("test/watchers"))?;
        File::create(root.join("test/watchers"))?;
        lay("boot");
        lay(&format!("records/.{id}-ff"));
        a.examine().await?;
        drop(open(root).await);
        unharmed();
        for (link, resource) in [("records/order%3A42.json", "order:42"), ("latches/1e", "cron:daily")] {
            lay(link);
            let error = a.acquire(&request(resource)).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            assert!(format!("{error:#}").contains("symbolic link"), "{error}");
            unharmed();
        }
        lay("format");
        assert!(FileBackend::open(options(root, "")).await.is_err());
        unharmed();
        Ok(())
    });
}

/// For what might block the thread itself, where no timer of a runtime could tell. What blocks does so for ever, and a
/// busy disk may take seconds for a large file: the bound is far from both.
pub(super) fn within_a_minute(work: impl FnOnce() + Send + 'static) {
    let (done, heard) = std::sync::mpsc::channel();
    let worker = std::thread::spawn(move || {
        work();
        let _late = done.send(());
    });
    let in_time = heard.recv_timeout(Duration::from_secs(60));
    assert!(in_time != Err(std::sync::mpsc::RecvTimeoutError::Timeout), "it hangs");
    worker.join().unwrap();
}

#[test]
fn what_is_no_file_is_refused_at_once() {
    within_a_minute(|| {
        run(async {
            let root = tempfile::tempdir()?;
            let a = open(root.path()).await;
            let held = request("order:42");
            granted(&a, &held).await;
            let hashed = format!("records/~{}.json", "0".repeat(64));
            for name in ["records/x.json", &hashed, "logs/history.ndjson", "boot", "latches/1a", "watchers", "format"] {
                let path = root.path().join("test").join(name);
                let _if_there = fs::remove_file(&path);
                assert!(Command::new("mkfifo").arg(&path).status()?.success());
                let _either = a.history(&HistoryFilter::new(Names::All)).await;
                let _either = a.release(&held.key, &Outcome::Completed).await;
                let _either = FileBackend::open(options(root.path(), "")).await;
                a.list(&ListFilter::new(Names::All)).await?;
                a.examine().await?;
            }
            let error = a.acquire(&request("x")).await.unwrap_err();
            assert!(format!("{error:#}").contains("not a regular file"), "{error}");
            Ok(())
        });
    });
}
