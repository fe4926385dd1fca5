//! Uncontended pairs on one Redis server, beside rslock and beside the least that a lock can cost.

use leasehold_testkit::redis::Server;
use tokio::runtime::Runtime;

use super::prelude::*;
use crate::{
    comparison::Score,
    redis_locks::{Locks, RedisLock, server_cost},
    redis_workers::RedisWorkers,
};

pub(super) const SCENARIO: Scenario = Scenario {
    name: "redis-pairs",
    title: "redis:, uncontended pairs, each task on its own name: 64 tasks, 1 task, and 4 processes of 16 tasks; beside \
            rslock, and beside raw SET NX + compare-and-delete on one multiplexed connection.",
    measure,
};

fn measure(effort: Effort, section: &mut Section) -> Result<()> {
    let server = Server::start();
    let ports = [server.port()];
    let many = by_tasks(effort, &ports, 64, |contenders| server_costs(&server, contenders, section))?;
    section.contenders(&many);
    section.figure("64 tasks: client processor time of a pair", many[0].cpu_micros, "µs", Some(Bar::AtMost(9.0)));
    section.ratio("64 tasks: rate, beside rslock", many[1].ratio, Bar::AtLeast(1.0));
    section.ratio("64 tasks: rate, beside raw", many[2].ratio, Bar::AtLeast(0.8));
    let processes = by_processes(effort, &ports)?;
    section.ratio("4 processes of 16 tasks: rate, beside rslock", processes[1].ratio, Bar::AtLeast(1.0));
    section.ratio("4 processes of 16 tasks: rate, beside raw", processes[2].ratio, Bar::AtLeast(0.8));
    let one = by_tasks(effort, &ports, 1, |_| Ok(()))?;
    section.figure("1 task: leasehold's pair", one[0].micros, "µs", None);
    section.figure("1 task: client processor time of leasehold's pair", one[0].cpu_micros, "µs", None);
    section.figure("1 task: rslock's pair", one[1].micros, "µs", None);
    section.ratio("1 task: rate, beside rslock", one[1].ratio, Bar::AtLeast(0.85));
    Ok(())
}

/// Compares the contenders on the servers of these ports, with this many tasks in this process.
pub(super) fn by_tasks(
    effort: Effort,
    ports: &[u16],
    tasks: u64,
    mut also: impl FnMut(&[Contender<'_>]) -> Result<()>,
) -> Result<Vec<Score>> {
    let runtime = two_workers()?;
    let mut opened = Vec::new();
    for kind in RedisLock::ALL {
        opened.push((kind, runtime.block_on(Locks::open(kind, ports))?));
    }
    let contenders: Vec<Contender<'_>> =
        opened.iter().map(|(kind, locks)| contender(kind.name(), &runtime, locks, tasks)).collect();
    let scores = compare(effort, &contenders)?;
    also(&contenders)?;
    drop(contenders);
    opened.into_iter().try_for_each(|(_, locks)| runtime.block_on(locks.close()))?;
    Ok(scores)
}

/// Uncontended pairs of this many tasks.
pub(super) fn contender<'a>(name: &'static str, runtime: &'a Runtime, locks: &'a Locks, tasks: u64) -> Contender<'a> {
    Contender::new(name, move |count| {
        pairs::spread(runtime, tasks, count, |task, count| {
            let locks = locks.clone();
            async move { locks.pairs(&format!("order:{task}"), count).await }
        })
    })
}

/// Compares the contenders with 16 tasks in each of 4 processes.
pub(super) fn by_processes(effort: Effort, ports: &[u16]) -> Result<Vec<Score>> {
    let mut started = Vec::new();
    for kind in RedisLock::ALL {
        started.push((kind, RedisWorkers::start(kind, 4, 16, ports)?));
    }
    let contenders: Vec<Contender<'_>> =
        started.iter().map(|(kind, workers)| Contender::new(kind.name(), |count| workers.pairs(count))).collect();
    compare(effort, &contenders)
}

/// The processor time that each contender costs the server.
fn server_costs(server: &Server, contenders: &[Contender<'_>], section: &mut Section) -> Result<()> {
    for contender in contenders {
        let bar = (contender.name == RedisLock::Leasehold.name()).then_some(Bar::AtMost(7.0));
        let what = format!("64 tasks: server processor time of {}'s pair", contender.name);
        section.figure(what, server_cost(server, contender, 20_000)?.cpu, "µs", bar);
    }
    Ok(())
}
