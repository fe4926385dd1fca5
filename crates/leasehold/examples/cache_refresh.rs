//! Refresh a cached value once, however many requests find it missing or old.
//!
//! The lock `singleton:{operation}` lets one request do the expensive load. Where there is nothing to serve,
//! the others wait for it a little, and look again before they load themselves. Where there is an old value
//! they do not wait at all: `try_with` tells them that someone is at it, and they serve what there is.

use std::{
    env,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use leasehold::{Leasehold, Result};
use tokio::task::JoinSet;

struct Prices {
    locks: Leasehold,
    /// The version in the cache; 0 if there is none.
    cached: AtomicU32,
    loads: AtomicU32,
}

impl Prices {
    async fn get(&self, wanted: u32) -> Result<u32> {
        let cached = self.cached.load(Ordering::SeqCst);
        if cached >= wanted {
            return Ok(cached);
        }
        let lock = self.locks.mutex("singleton:refresh-prices").wait(Duration::from_secs(5));
        if cached == 0 {
            lock.with(async |_lease| self.refresh(wanted).await).await
        } else {
            let refreshed = lock.try_with(async |_lease| self.refresh(wanted).await).await?;
            Ok(refreshed.unwrap_or(cached))
        }
    }

    /// Called under the lock.
    async fn refresh(&self, wanted: u32) -> Result<u32> {
        if self.cached.load(Ordering::SeqCst) < wanted {
            tokio::time::sleep(Duration::from_millis(100)).await; // … the expensive query …
            self.loads.fetch_add(1, Ordering::SeqCst);
            self.cached.store(wanted, Ordering::SeqCst);
        }
        Ok(self.cached.load(Ordering::SeqCst))
    }
}

#[tokio::main]
pub(crate) async fn main() -> Result<()> {
    let url = env::var("LEASEHOLD_URL").unwrap_or_else(|_| String::from("memory:"));
    let locks = Leasehold::connect(&url).await?;
    let prices = Arc::new(Prices { locks, cached: AtomicU32::new(0), loads: AtomicU32::new(0) });

    for wanted in [1, 2] {
        let mut requests = JoinSet::new();
        for _request in 0..30 {
            let prices = Arc::clone(&prices);
            requests.spawn(async move { prices.get(wanted).await });
        }
        let served = requests.join_all().await.into_iter().collect::<Result<Vec<_>>>()?;

        let stale = served.iter().filter(|version| **version < wanted).count();
        println!("version {wanted}: {} requests, {stale} of them got the version before", served.len());
        assert_eq!(prices.loads.load(Ordering::SeqCst), wanted, "one load for all of them");
        assert!(served.iter().all(|version| *version > 0 && *version + 1 >= wanted), "never older than that");
    }
    Ok(())
}
