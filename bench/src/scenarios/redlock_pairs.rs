//! Uncontended pairs on a quorum of 5 Redis servers, beside rslock and raw, and with one node that hangs.

use leasehold_testkit::redis::Server;

use super::{
    prelude::*,
    redis_pairs::{by_processes, by_tasks, contender},
};
use crate::{
    redis_locks::{Locks, RedisLock},
    stopwatch::Stopwatch,
};

pub(super) const SCENARIO: Scenario = Scenario {
    name: "redlock-pairs",
    title: "redlock: over 5 servers, uncontended pairs, each task on its own name: 64 tasks, 4 processes of 16 tasks, and \
            1 task; beside rslock over 5, and beside raw over 5 that returns at the third yes. Then with one node hung.",
    measure,
};

fn measure(effort: Effort, section: &mut Section) -> Result<()> {
    let healthy: [Server; 5] = std::array::from_fn(|_| Server::start());
    let ports = healthy.each_ref().map(Server::port);
    let many = by_tasks(effort, &ports, 64, |_| Ok(()))?;
    section.contenders(&many);
    section.ratio("64 tasks: rate, beside rslock", many[1].ratio, Bar::AtLeast(1.0));
    let processes = by_processes(effort, &ports)?;
    section.ratio("4 processes of 16 tasks: rate, beside rslock", processes[1].ratio, Bar::AtLeast(1.0));
    let one = by_tasks(effort, &ports, 1, |_| Ok(()))?;
    section.figure("1 task: leasehold's pair", one[0].micros, "µs", None);
    section.figure("1 task: rslock's pair", one[1].micros, "µs", None);
    section.ratio("1 task: rate, beside rslock", one[1].ratio, Bar::AtLeast(0.85));
    with_one_hung(effort, &ports, section)
}

/// The last node hangs, then the first, in whose queue everybody waits.
fn with_one_hung(effort: Effort, healthy: &[u16], section: &mut Section) -> Result<()> {
    let runtime = two_workers()?;
    for (hung, which) in [(4, "last"), (0, "first")] {
        let servers: [Server; 5] = std::array::from_fn(|_| Server::start());
        let ports = servers.each_ref().map(Server::port);
        let partial = runtime.block_on(Locks::open(RedisLock::Leasehold, &ports))?;
        servers[hung].signal("STOP");
        let mut opening = Vec::new();
        for _ in 0..effort.rounds {
            let watch = Stopwatch::start();
            let locks = runtime.block_on(Locks::open(RedisLock::Leasehold, &ports))?;
            opening.push(watch.nanos() / 1e6);
            runtime.block_on(locks.close())?;
        }
        let what = format!("the {which} node hung: opening");
        section.figure(what, Spread::of(opening).median, "ms", Some(Bar::AtMost(100.0)));
        let whole = runtime.block_on(Locks::open(RedisLock::Leasehold, healthy))?;
        for tasks in [64, 1] {
            let contenders =
                [contender("one hung", &runtime, &partial, tasks), contender("healthy", &runtime, &whole, tasks)];
            let scores = compare(effort, &contenders)?;
            let what = format!("the {which} node hung, {tasks} tasks: rate, beside all healthy");
            section.ratio(what, scores[1].ratio, Bar::AtLeast(0.5));
        }
        runtime.block_on(whole.close())?;
        runtime.block_on(partial.close())?;
        servers[hung].signal("CONT");
    }
    Ok(())
}
