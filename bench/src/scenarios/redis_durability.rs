//! Locks that wait for a replica, 40 ms away: how far they run in parallel.

use std::time::Duration;

use leasehold::Leasehold;
use leasehold_testkit::{Proxy, redis::Server, until};

use super::{prelude::*, redis_pairs};
use crate::redis_locks::Locks;

pub(super) const SCENARIO: Scenario = Scenario {
    name: "redis-durability",
    title: "redis: with durability=replicas:1 and 40 ms to the replica and back: uncontended pairs of 64 tasks beside 1 \
            task, while a lease of 6 s is held.",
    measure,
};

fn measure(effort: Effort, section: &mut Section) -> Result<()> {
    let primary = Server::start();
    let network = Proxy::to(primary.port());
    let replica = Server::with(&["--save", "", "--replicaof", &format!("127.0.0.1 {}", network.port())]);
    until(|| replica.ask(&["INFO", "replication"]).to_string().contains("master_link_status:up"));
    network.slow_down(20);
    let runtime = two_workers()?;
    let url = format!("{}?durability=replicas:1", primary.url());
    let locks = runtime.block_on(Leasehold::connect(&url))?;
    let held = runtime.block_on(locks.mutex("held").ttl(Duration::from_secs(6)).acquire())?;
    let contender = Locks::Leasehold(locks.clone());
    let scores = compare(
        effort,
        &[
            redis_pairs::contender("64 tasks", &runtime, &contender, 64),
            redis_pairs::contender("1 task", &runtime, &contender, 1),
        ],
    )?;
    section.contenders(&scores);
    section.ratio("rate, 64 tasks : 1 task", scores[1].ratio, Bar::AtLeast(20.0));
    section.figure("leases lost", f64::from(u8::from(held.check().is_err())), "", Some(Bar::AtMost(0.0)));
    drop(held);
    runtime.block_on(locks.close())?;
    Ok(())
}
