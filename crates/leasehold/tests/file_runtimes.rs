//! Notifications on files: a caller's runtime reads them too, and one that blocks or ends holds nobody up.
#![cfg(all(feature = "file", target_os = "linux"))]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{fs, path::Path, sync::mpsc, thread, time::Duration};

use leasehold::{
    Leasehold, Resource, Result,
    lease::{Ending, HistoryFilter, ListFilter, Names},
};
use tokio::runtime::{Builder, Runtime};

/// Renewals, which would find out the same, come after a third of this.
const TTL: Duration = Duration::from_secs(600);
/// What must come, comes within this, however busy the machine is.
const LIMIT: Duration = Duration::from_secs(60);

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

async fn open(directory: &Path) -> Result<Leasehold> {
    Leasehold::builder().ttl(TTL).wait(LIMIT).connect(&format!("file://{}", directory.display())).await
}

/// Waits for a name that `other` holds, until `other` releases it.
async fn take_over(name: &str, locks: &Leasehold, other: &Leasehold) -> Result<()> {
    let held = other.mutex(name).acquire().await?;
    let lock = locks.mutex(name);
    let (next, released) = tokio::join!(lock.acquire(), async {
        let both = ListFilter::new(Names::Exactly(Resource::new(name)?));
        while other.list(&both).await?.leases.len() < 2 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        held.release().await
    });
    released?;
    next?.release().await?;
    // A grant that is not noticed ends after five seconds, and the waiter gets another.
    let endings = other.history(&HistoryFilter::new(Names::Exactly(Resource::new(name)?))).await?;
    assert!(endings.iter().all(|ended| ended.ending == Ending::Released), "{endings:?}");
    Ok(())
}

#[test]
fn a_runtime_that_blocks_after_it_waited_holds_up_no_other() -> Result<()> {
    let directory = tempfile::tempdir().unwrap();
    let (blocks, is_blocked) = mpsc::channel();
    let (unblock, unblocked) = mpsc::channel::<()>();
    let here = runtime();
    let (locks, other) =
        here.block_on(async { Result::Ok((open(directory.path()).await?, open(directory.path()).await?)) })?;
    let (first, first_other) = (locks.clone(), other.clone());
    let blocked = thread::spawn(move || {
        runtime().block_on(async {
            let taken = take_over("x", &first, &first_other).await;
            blocks.send(taken).unwrap();
            let _ends_with_the_test = unblocked.recv();
        });
    });
    is_blocked.recv().unwrap()?;
    here.block_on(take_over("y", &locks, &other))?;
    drop(unblock);
    blocked.join().unwrap();
    Ok(())
}

#[test]
fn a_runtime_that_ends_is_followed_by_the_next() -> Result<()> {
    let directory = tempfile::tempdir().unwrap();
    let here = runtime();
    let (locks, other) =
        here.block_on(async { Result::Ok((open(directory.path()).await?, open(directory.path()).await?)) })?;
    for _ in 0..3 {
        runtime().block_on(take_over("x", &locks, &other))?;
    }
    Ok(())
}

/// Whether a single instance is left, and this process has no FIFO of another open.
fn is_alone(directory: &Path) -> bool {
    let presences = directory.join("default/presence");
    let is_gone = |link: &Path| link.parent() == Some(&presences) && link.to_string_lossy().ends_with(" (deleted)");
    let mut open = fs::read_dir("/proc/self/fd").unwrap().flatten().map(|fd| fs::read_link(fd.path()));
    fs::read_dir(&presences).unwrap().count() == 1 && !open.any(|link| link.is_ok_and(|link| is_gone(&link)))
}

#[test]
fn an_instance_that_is_dropped_closes_its_fifo_though_the_runtime_that_read_is_blocked() -> Result<()> {
    let directory = tempfile::tempdir().unwrap();
    let (here, blocked) = (runtime(), runtime());
    let other = here.block_on(open(directory.path()))?;
    let locks = blocked.block_on(open(directory.path()))?;
    blocked.block_on(take_over("x", &locks, &other))?;
    // The task that read is on a runtime that nobody polls from now on. An open FIFO would mean that the instance lives.
    drop(locks);
    here.block_on(async {
        let closed = async {
            while !is_alone(directory.path()) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(LIMIT, closed).await.expect("the FIFO of a dropped instance stays open");
    });
    Ok(())
}
