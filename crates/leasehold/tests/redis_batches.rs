//! Very many leases are renewed on a Redis server by few commands.
//!
//! The only test of its process: the leases that it leaves behind keep the thread busy that renews them.
#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests, too")]

use std::time::Duration;

use leasehold::{Guard, LeaseHealth, Leasehold};
use leasehold_testkit::redis::Server;
use tokio::{task::JoinSet, time};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_thousand_leases_are_renewed_in_batches() {
    const HELD: usize = 100_000;
    const TTL: Duration = Duration::from_secs(30);
    let server = Server::start();
    // A crowded machine may take its time; what is counted are commands.
    let url = format!("{}?answer_limit=20s", server.url());
    let locks = Leasehold::builder().wait(Duration::from_secs(60)).connect(&url).await.unwrap();
    let mut guards: Vec<Guard> = Vec::with_capacity(HELD);
    let mut asking = JoinSet::new();
    for task in 0..64 {
        let locks = locks.clone();
        asking.spawn(async move {
            let mut guards = Vec::new();
            for at in (task..HELD).step_by(64) {
                guards.push(locks.mutex(format!("job:{at}")).ttl(TTL).acquire().await.unwrap());
            }
            guards
        });
    }
    while let Some(some) = asking.join_next().await {
        guards.extend(some.unwrap());
    }
    let held = |guards: &[Guard]| guards.iter().filter(|guard| guard.health() == LeaseHealth::Held).count();
    assert_eq!(held(&guards), HELD);
    for interval in 0..3 {
        server.reset_calls();
        time::sleep(TTL / 3).await;
        let (asked, held) = (server.sent(), held(&guards));
        println!("interval {interval}: {asked} commands, {held} held");
        assert!(asked <= 400, "{asked} commands in one interval");
        assert_eq!(held, HELD, "some were lost or in doubt");
    }
    // Not given back one by one: the server and this process go with them.
    std::mem::forget(guards);
}
