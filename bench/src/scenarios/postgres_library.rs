//! The library on Postgres, beside the classic functions called over as many connections as there are tasks.

use leasehold::Leasehold;

use super::prelude::*;
use crate::postgres_locks::{Callers, Functions, server};

pub(super) const SCENARIO: Scenario = Scenario {
    name: "postgres-library",
    title: "postgres:, uncontended pairs of the library, 64 tasks and one, durable; beside the classic functions over as \
            many connections.",
    measure,
};

fn measure(effort: Effort, section: &mut Section) -> Result<()> {
    let runtime = two_workers()?;
    let server = server(&runtime, true)?;
    for (tasks, least) in [(64, 2.0), (1, 0.9)] {
        let locks = runtime.block_on(Leasehold::connect(&server.url()))?;
        let theirs = runtime.block_on(Callers::connect(&server, Functions::Classic, tasks))?;
        let ours = Contender::new("leasehold", |count| {
            pairs::spread(&runtime, tasks, count, |task, count| {
                let locks = locks.clone();
                async move { pairs::on(&locks, &format!("order:{task}"), count).await }
            })
        });
        let scores = compare(effort, &[ours, theirs.pairs(Functions::Classic.name(), &runtime)])?;
        section.ratio(
            format!("{tasks} tasks: rate, beside the classic functions"),
            scores[1].ratio,
            Bar::AtLeast(least),
        );
        runtime.block_on(locks.close())?;
    }
    Ok(())
}
