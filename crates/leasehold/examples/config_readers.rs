//! Update a configuration of several parts while others read it.
//!
//! The lock `lock:config:{name}` is a read-write lock: readers share it, a writer has it alone, so nobody
//! reads one part old and the other new. Waiting is first come, first served, so a stream of readers cannot
//! keep a writer out. After writing, `downgrade` lets the readers in while the writer reads on: nobody can
//! change what it just wrote before it has made sure of it.

use std::{
    env,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use leasehold::{Lease, Leasehold, Result, lease::Mode};
use tokio::task::JoinSet;

/// Two files that must be of one version.
#[derive(Default)]
struct Config {
    routes: AtomicU32,
    limits: AtomicU32,
}

impl Config {
    fn versions(&self) -> [u32; 2] {
        [self.routes.load(Ordering::SeqCst), self.limits.load(Ordering::SeqCst)]
    }

    async fn write(&self, version: u32, lease: &Lease) -> Result<()> {
        self.routes.store(version, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(2)).await; // a reader here would see two versions
        lease.check()?;
        self.limits.store(version, Ordering::SeqCst);
        Ok(())
    }
}

#[tokio::main]
pub(crate) async fn main() -> Result<()> {
    let url = env::var("LEASEHOLD_URL").unwrap_or_else(|_| String::from("memory:"));
    let locks = Leasehold::connect(&url).await?;
    let config = Arc::new(Config::default());

    let mut readers = JoinSet::new();
    for _reader in 0..8 {
        let (lock, config) = (locks.read("lock:config:gateway"), Arc::clone(&config));
        readers.spawn(async move {
            for _time in 0..20 {
                let reading = lock.acquire().await?;
                let [routes, limits] = config.versions();
                assert_eq!(routes, limits, "a reader saw half an update");
                reading.release().await?;
            }
            Ok(())
        });
    }
    let (read, write) = (locks.read("lock:config:gateway"), locks.write("lock:config:gateway"));
    for version in 1..=10 {
        write.with(async |lease| config.write(version, &lease).await).await?;
    }
    readers.join_all().await.into_iter().collect::<Result<()>>()?;
    println!("8 readers and 10 updates: whole versions only, the last is {:?}", config.versions());

    let guard = write.acquire().await?;
    config.write(11, &guard).await?;
    guard.downgrade().await?;
    assert_eq!(guard.mode(), Mode::Shared);
    let beside = read.try_acquire().await?.expect("readers come in");
    assert!(write.try_acquire().await?.is_none(), "writers do not");
    println!("version 11 is read by its writer and by others at once");
    beside.release().await?;
    guard.release().await?;
    Ok(())
}
