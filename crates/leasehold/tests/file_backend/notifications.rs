//! Notifications, events, history and findings.

use std::thread;

use super::*;

#[test]
fn history_is_newest_first_bounded_and_survives_a_torn_line() {
    in_directory(async |root| {
        let a = open(root).await;
        let note = "n".repeat(60_000);
        for round in 0..200 {
            let held = request(&format!("x{round}")).note(note.clone());
            granted(&a, &held).await;
            release(&a, &held).await;
        }
        let size = |file: &str| fs::metadata(root.join("test").join(file)).unwrap().len();
        let limit = (4 << 20) + 70_000;
        assert!(size("logs/history.ndjson") < limit && size("logs/history.1.ndjson") < limit);
        let newer = root.join("test/logs/history.ndjson");
        let whole = fs::read(&newer)?;
        fs::write(&newer, &whole[..whole.len() - 10])?;
        let told = a.history(&HistoryFilter::new(Names::All).limit(90)).await?;
        assert_eq!(told[0].resource, name("x198"));
        assert_eq!(told.len(), 90);
        assert!(told.is_sorted_by_key(|ended| std::cmp::Reverse(ended.ended_at)));
        Ok(())
    });
}

#[test]
fn a_watcher_that_stops_is_forgotten() {
    in_directory(async |root| {
        let (a, b) = (open(root).await, open(root).await);
        let events = b.watch(Names::All).await?;
        let watchers = || fs::read_to_string(root.join("test/watchers")).unwrap();
        assert!(watchers().contains(|c: char| c.is_ascii_hexdigit()));
        drop(events);
        granted(&a, &request("x")).await;
        until("an event that nobody wants ends the watching", || !watchers().contains(|c: char| c.is_ascii_hexdigit()))
            .await;
        Ok(())
    });
}

#[test]
fn a_healthy_directory_gets_a_clean_report() {
    in_directory(async |root| {
        let a = open(root).await;
        granted(&a, &request("x")).await;
        assert_eq!(a.guarantees().liveness, Liveness::Process);
        let findings = a.examine().await?;
        assert!(failures(&findings).is_empty(), "{findings:?}");
        fs::set_permissions(root.join("test"), fs::Permissions::from_mode(0o777))?;
        let findings = a.examine().await?;
        let warned = |finding: &Finding| finding.severity == Severity::Warning && finding.subject == "permissions";
        assert!(findings.iter().any(warned), "{findings:?}");
        Ok(())
    });
}

/// Fills the FIFO of an instance that does not get to read, until it refuses lines.
fn fill_fifo(root: &Path, id: &str) {
    let fifo = root.join("test/presence").join(id);
    let mut fifo = File::options().write(true).custom_flags(nonblocking()).open(fifo).unwrap();
    while fifo.write(b"a line that nobody knows\n").is_ok() {}
}

/// The flag that keeps a writer from waiting for a reader.
fn nonblocking() -> i32 {
    i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap()
}

#[test]
fn an_instance_whose_fifo_was_full_finds_out_that_it_missed_lines() {
    in_directory(async |root| {
        let b = open(root).await;
        let id = files(root.join("test/presence")).remove(0);
        let a = open(root).await;
        let mut hints = b.hints();
        let mut events = b.watch(Names::All).await?;
        let (first, second) = (request("x"), request("x"));
        granted(&a, &first).await;
        queued(&b, &second).await;
        // This thread reads what others write to `b`. It is blocked until another one has released.
        fill_fifo(root, &id);
        let releasing = || {
            run(async {
                release(&a, &first).await;
                Ok(())
            });
        };
        thread::scope(|scope| scope.spawn(releasing).join()).unwrap();
        assert_eq!(hint(&mut hints).await, Hint::Missed);
        assert!(holds(&b, &second).await);
        let mut next = async || std::future::poll_fn(|context| events.as_mut().poll_next(context)).await.unwrap();
        while next().await.is_ok() {}
        Ok(())
    });
}

#[test]
fn the_next_in_line_asks_again_when_a_grant_was_not_confirmed() {
    opened_by_clock(async |root, clock, a| {
        let holder = take(&a, "x").await;
        let stopped = Process::start("queue", root, "x");
        stopped.signal("-STOP");
        let mut third = Waiter::queue(open_by(root, clock).await).await;
        release(&a, &holder).await;
        no_hint(&mut third.hints).await;
        clock.advance(Duration::from_secs(6));
        third.gets_its_turn().await;
        Ok(())
    });
}

#[test]
fn a_grant_that_is_confirmed_beside_one_that_came_too_late_stays_confirmed() {
    opened_by_clock(async |root, clock, a| {
        let b = open_by(root, clock).await;
        let permits = |units| {
            let key = LeaseKey::new(name("x"), LeaseId::random());
            Request::new(key, Claim::permits(units, 2).unwrap(), Holder::unique())
        };
        let both = permits(2);
        granted(&a, &both).await;
        let (late, confirmed) = (permits(1).ttl(Ttl::new(Duration::from_secs(1)).unwrap()), permits(1));
        queued(&b, &late).await;
        queued(&b, &confirmed).await;
        release(&a, &both).await;
        clock.advance(Duration::from_secs(2));
        let renewals = [&late, &confirmed].map(|request| Renewal::new(request.key.clone(), request.ttl));
        let standings = b.renew(&renewals).await?.value;
        assert!(matches!(standings[..], [Standing::Gone, Standing::Holding(_)]), "{standings:?}");
        // Longer than anybody may take to confirm.
        clock.advance(Duration::from_secs(8));
        queued(&a, &permits(2)).await;
        assert!(holds(&b, &confirmed).await);
        Ok(())
    });
}
