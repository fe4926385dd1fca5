//! Run a cron job once, although every instance's clock fires.
//!
//! The lock is named `cron:{task}`. `try_with` does not wait: whoever finds it busy has nothing to do. An
//! instance whose clock is late may find it free again, so the one who runs also notes *for when*, under
//! the lock: the lock keeps two runs apart, the note keeps the second from happening.

use std::{env, sync::Arc, time::Duration};

use leasehold::{Leasehold, Result};
use tokio::{sync::Mutex, task::JoinSet};

const TONIGHT: u32 = 20_260_314;

#[derive(Debug, PartialEq)]
enum Tick {
    Ran,
    Busy,
    AlreadyDone,
}

async fn tick(instance: &Leasehold, last_run: &Mutex<Option<u32>>) -> Result<Tick> {
    let lock = instance.mutex("cron:nightly-cleanup");
    let tick = lock.try_with(async |_lease| {
        let mut last_run = last_run.lock().await;
        if *last_run == Some(TONIGHT) {
            return Ok(Tick::AlreadyDone);
        }
        tokio::time::sleep(Duration::from_millis(100)).await; // … clean up …
        *last_run = Some(TONIGHT);
        Ok(Tick::Ran)
    });
    Ok(tick.await?.unwrap_or(Tick::Busy))
}

#[tokio::main]
pub(crate) async fn main() -> Result<()> {
    let url = env::var("LEASEHOLD_URL").unwrap_or_else(|_| String::from("memory:"));
    let last_run = Arc::new(Mutex::new(None)); // stands for a row in the database

    let mut instances = JoinSet::new();
    for lateness in [0, 5, 10, 50, 200] {
        let (url, last_run) = (url.clone(), Arc::clone(&last_run));
        instances.spawn(async move {
            let locks = Leasehold::connect(&url).await?;
            tokio::time::sleep(Duration::from_millis(lateness)).await;
            tick(&locks, &last_run).await
        });
    }
    let ticks = instances.join_all().await.into_iter().collect::<Result<Vec<_>>>()?;

    println!("five clocks fired: {ticks:?}");
    assert_eq!(ticks.iter().filter(|tick| **tick == Tick::Ran).count(), 1);
    Ok(())
}
