//! Keep at most 10 calls to an external API in flight, from all instances together.
//!
//! The provider counts calls over all our machines, so the limit has to. Each permit of the semaphore
//! `sem:api:geocoder` is a lease of its own: those of a crashed instance come back after their ttl, and the
//! limit never leaks away. Permits are given in the order they were asked for.

use std::{
    env,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use leasehold::{Leasehold, Result};
use tokio::task::JoinSet;

const LIMIT: u32 = 10;

/// The provider, who counts.
#[derive(Default)]
struct Geocoder {
    in_flight: AtomicUsize,
    most: AtomicUsize,
}

impl Geocoder {
    async fn locate(&self) {
        let now = self.in_flight.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(30)).await;
        self.in_flight.fetch_sub(1, Ordering::SeqCst);
    }
}

#[tokio::main]
pub(crate) async fn main() -> Result<()> {
    let url = env::var("LEASEHOLD_URL").unwrap_or_else(|_| String::from("memory:"));
    let instances = [Leasehold::connect(&url).await?, Leasehold::connect(&url).await?];
    let geocoder = Arc::new(Geocoder::default());

    let mut calls = JoinSet::new();
    for at in 0..40 {
        let permits = instances[at % 2].semaphore("sem:api:geocoder", LIMIT);
        let geocoder = Arc::clone(&geocoder);
        calls.spawn(async move {
            let permit = permits.acquire().await?;
            geocoder.locate().await;
            permit.release().await
        });
    }
    let released = calls.join_all().await.into_iter().collect::<Result<Vec<_>>>()?;

    let most = geocoder.most.load(Ordering::SeqCst);
    println!("{} calls, at most {most} at once", released.len());
    assert!((2..=10).contains(&most));
    Ok(())
}
