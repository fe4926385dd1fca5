//! Hand-off on Postgres: tasks that want the same name, beside blocked advisory locks.

use leasehold::Leasehold;

use super::prelude::*;
use crate::postgres_locks::{Blocked, server};

/// How many want the name at once.
const WAITERS: u64 = 32;

/// How many instances they share, each with one connection.
const INSTANCES: u64 = 4;

pub(super) const SCENARIO: Scenario = Scenario {
    name: "postgres-handoff",
    title: "postgres:, hand-off among 32 tasks of 4 instances with one connection each, durable and not; beside 32 \
            connections that block in pg_advisory_lock, which never waits for the disk.",
    measure,
};

fn measure(effort: Effort, section: &mut Section) -> Result<()> {
    for durability in ["durable", "async"] {
        measure_hand_offs(effort, durability, section)?;
    }
    Ok(())
}

fn measure_hand_offs(effort: Effort, durability: &str, section: &mut Section) -> Result<()> {
    let runtime = two_workers()?;
    let server = server(&runtime, durability == "durable")?;
    let mut instances = Vec::new();
    for _ in 0..INSTANCES {
        let url = format!("{}?connections=1&durability={durability}", server.url());
        instances.push(runtime.block_on(Leasehold::builder().wait_forever().connect(&url))?);
    }
    let blocked = runtime.block_on(Blocked::connect(&server, WAITERS))?;
    let ours = Contender::new("leasehold", |count| {
        pairs::spread(&runtime, WAITERS, count, |task, count| {
            let locks = instances.iter().cycle().nth(usize::try_from(task).unwrap_or_default()).cloned();
            async move { pairs::in_turns(locks.ok_or("no instance")?, "hot", count).await }
        })
    });
    let scores = compare(effort, &[ours, blocked.in_turns("advisory locks", &runtime)])?;
    section.contenders(&scores);
    let figure = format!("32 waiters, {durability}: rate, beside blocked advisory locks");
    section.ratio(&figure, scores[1].ratio, Bar::AtLeast(0.5));
    for locks in instances {
        runtime.block_on(locks.close())?;
    }
    Ok(())
}
