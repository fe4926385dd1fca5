//! Acquires and releases names again and again, from one task or many, on leasehold and on a bare flock.

use std::{
    fs::{File, OpenOptions},
    path::Path,
};

use leasehold::Leasehold;
use tokio::{
    runtime::Runtime,
    task::{JoinSet, yield_now},
};

use crate::{Result, children::argument, comparison::Contender, scenarios::one_thread};

/// Acquires and releases `name` `count` times.
pub(crate) async fn on(locks: &Leasehold, name: &str, count: u64) -> Result<()> {
    for _ in 0..count {
        locks.mutex(name).acquire().await?.release().await?;
    }
    Ok(())
}

/// Divides `count` operations among `tasks` tasks, each with a number of its own, and waits for all of them.
pub(crate) fn spread<F>(runtime: &Runtime, tasks: u64, count: u64, task: impl Fn(u64, u64) -> F) -> Result<()>
where
    F: Future<Output = Result<()>> + Send + 'static,
{
    runtime.block_on(async {
        let mut running = JoinSet::new();
        for number in 0..tasks {
            running.spawn(task(number, count / tasks + u64::from(number < count % tasks)));
        }
        running.join_all().await.into_iter().collect()
    })
}

/// A contender whose tasks take turns on one name, on leasehold.
pub(crate) fn turns<'a>(runtime: &'a Runtime, tasks: u64, locks: &'a Leasehold) -> Contender<'a> {
    Contender::new("leasehold", move |count| {
        spread(runtime, tasks, count, |_, count| in_turns(locks.clone(), "hot", count))
    })
}

/// Takes turns on `name` with other tasks, `count` times: each lets the others run while it holds.
pub(crate) async fn in_turns(locks: Leasehold, name: &str, count: u64) -> Result<()> {
    for _ in 0..count {
        let guard = locks.mutex(name).acquire().await?;
        yield_now().await;
        guard.release().await?;
    }
    Ok(())
}

/// Locks and unlocks an open file `count` times.
pub(crate) fn on_flock(file: &File, count: u64) -> Result<()> {
    for _ in 0..count {
        file.lock()?;
        file.unlock()?;
    }
    Ok(())
}

/// Opens the file of a flock, as each process that locks it does.
pub(crate) fn open_flock(path: &Path) -> Result<File> {
    Ok(OpenOptions::new().create(true).truncate(false).write(true).open(path)?)
}

/// The child process whose system calls are counted: `URL COUNT`.
pub(crate) fn child(arguments: &[String]) -> Result<()> {
    let (url, count) = (argument::<String>(arguments, 0)?, argument(arguments, 1)?);
    one_thread()?.block_on(async {
        let locks = Leasehold::connect(&url).await?;
        on(&locks, "pair", count).await
    })
}
