//! Latches that others hold.

use super::*;

#[test]
fn a_latch_that_passes_from_process_to_process_is_waited_for() {
    opened(async |root, a| {
        let held = take(&a, "a").await;
        // Together they have it for longer than anyone waits for one process, and each for much less than the looks at who
        // has it are apart.
        let latch = root.join("test/latches/0a");
        let spawn = || Command::new("flock").arg(&latch).arg("cat").stdin(Stdio::piped()).spawn().unwrap();
        let mut row: Vec<Child> = (0..10).map(|_| spawn()).collect();
        let inode = format!(":{} ", fs::metadata(&latch)?.ino());
        let locks = || {
            let all = fs::read_to_string("/proc/locks").unwrap();
            all.lines().filter(|line| line.contains(&inode)).map(str::to_owned).collect::<Vec<_>>()
        };
        while locks().len() < row.len() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let mut release = std::pin::pin!(a.release(&held.key, &Outcome::Completed));
        let mut waited = 0;
        // Whoever has it gives it up; which of those that wait is next is up to the kernel.
        let released = loop {
            match tokio::time::timeout(Duration::from_millis(300), release.as_mut()).await {
                Ok(released) => break released?,
                Err(_) => waited += 1,
            }
            let locks = locks();
            let has = |process: &Child| {
                locks.iter().any(|line| line.contains(&format!("WRITE {} ", process.id())) && !line.contains("->"))
            };
            row.iter_mut().filter(|process| has(process)).for_each(|process| drop(process.stdin.take()));
        };
        assert_eq!(released.value, Released::Freed);
        assert!(waited > 0, "it was not their latch");
        for process in &mut row {
            drop(process.stdin.take());
        }
        for mut process in row {
            process.wait()?;
        }
        Ok(())
    });
}

#[test]
fn a_latch_held_by_a_stopped_process_is_an_error_that_names_it() {
    opened(async |root, a| {
        let held = take(&a, "x").await;
        let mut stopped = Process::start("hold latches", root, "x");
        stopped.signal("-STOP");
        let asked = request("x");
        let started = SystemClock.now();
        let (error, other) = tokio::join!(a.acquire(&asked), a.acquire(&asked));
        let took = SystemClock.now().since(started);
        assert!(took > Duration::from_millis(1500) && took < Duration::from_secs(5), "{took:?}");
        for error in [error.unwrap_err(), other.unwrap_err()] {
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            assert!(error.to_string().contains(&format!("process {}", stopped.pid())), "{error}");
            assert!(error.to_string().contains("latches/"), "{error}");
        }
        let started = SystemClock.now();
        a.acquire(&asked).await.unwrap_err();
        assert!(SystemClock.now().since(started) < Duration::from_secs(1), "what is known to be stuck is said at once");
        stopped.kill();
        assert!(holds(&a, &held).await, "the abandoned wait does not keep the latch");
        assert_eq!(renewed(&a, &asked).await, Standing::Gone);
        Ok(())
    });
}

#[test]
fn a_list_of_all_shows_what_a_stopped_process_keeps_others_from_settling() {
    in_directory(async |root| {
        let a = open(root).await;
        let (held, waiting, long) = (request("x"), request("x"), request(&"y".repeat(Resource::MAX_BYTES)));
        granted(&a, &held).await;
        queued(&a, &waiting).await;
        granted(&a, &long).await;
        let mut stopped = Process::start("hold latches", root, "x");
        stopped.signal("-STOP");
        let listed = a.list(&ListFilter::new(Names::All)).await?.leases;
        assert_eq!(
            listed.iter().map(|lease| &lease.holder).collect::<Vec<_>>(),
            [&held.holder, &waiting.holder, &long.holder]
        );
        let error = a.list(&ListFilter::new(Names::Exactly(name("x")))).await.unwrap_err();
        assert!(error.to_string().contains(&format!("process {}", stopped.pid())), "{error}");
        stopped.kill();
        Ok(())
    });
}

#[test]
fn an_operation_that_waits_for_a_latch_delays_nothing_else() {
    in_directory(async |root| {
        let locks = connect(root).await?;
        let memory = leasehold::Leasehold::connect("memory:").await?;
        let dropped = locks.mutex("dropped").acquire().await?;
        let stopped = Process::start("hold latches", root, "x");
        let guard = memory.mutex("y").max_hold(Duration::from_millis(200)).acquire().await?;
        // One waits on the engine's behalf, one for a caller whose executor has this one thread.
        drop(dropped);
        let mutex = locks.mutex("x");
        tokio::select! {
            _ = guard.lost() => {}
            tried = mutex.try_acquire() => panic!("the latch is held: {tried:?}"),
        }
        assert!(fs::metadata(format!("/proc/{}", stopped.pid())).is_ok());
        Ok(())
    });
}
