//! Hand-off on Postgres: tasks that want the same name, beside blocked advisory locks.

use leasehold::Leasehold;

use super::prelude::*;
use crate::postgres_locks::{Blocked, Notified, server, server_cpu};

/// How many want the name at once.
const WAITERS: u64 = 32;

/// How many hand-offs the server's processor time is measured over.
const HAND_OFFS: u64 = 4_000;

/// How many instances they share, each with one connection.
const INSTANCES: u64 = 4;

pub(super) const SCENARIO: Scenario = Scenario {
    name: "postgres-handoff",
    title: "postgres:, hand-off among 32 tasks of 4 instances with one connection each, durable and not; beside 32 \
            connections that block in pg_advisory_lock, which never waits for the disk, and beside a bare queue whose \
            waiters are woken by NOTIFY, over as many connections.",
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
    let notified = runtime.block_on(Notified::connect(&server, INSTANCES))?;
    let ours = Contender::new("leasehold", |count| {
        pairs::spread(&runtime, WAITERS, count, |task, count| {
            let locks = instances.iter().cycle().nth(usize::try_from(task).unwrap_or_default()).cloned();
            async move { pairs::in_turns(locks.ok_or("no instance")?, "hot", count).await }
        })
    });
    let contenders =
        [ours, blocked.in_turns("advisory locks", &runtime), notified.in_turns("bare NOTIFY", WAITERS, &runtime)];
    let scores = compare(effort, &contenders)?;
    section.contenders(&scores);
    for contender in &contenders {
        let before = server_cpu(&server);
        (contender.operate)(HAND_OFFS)?;
        let cost = (server_cpu(&server) - before) / HAND_OFFS as f64;
        section.figure(format!("{durability}: server processor time, {}", contender.name), cost, "µs", None);
    }
    let figure = format!("32 waiters, {durability}: rate, beside blocked advisory locks");
    section.ratio(figure, scores[1].ratio, Bar::AtLeast(0.5));
    drop(contenders);
    for locks in instances {
        runtime.block_on(locks.close())?;
    }
    Ok(())
}
