//! Read locks on Redis: 64 tasks on one name, of which 95 % of the locks are shared, beside mutexes of their own.

use leasehold::Leasehold;
use leasehold_testkit::redis::Server;

use super::prelude::*;
use crate::redis_locks::report_server_costs;

pub(super) const SCENARIO: Scenario = Scenario {
    name: "redis-readers",
    title: "redis:, 64 tasks on one name that take 19 read locks and then a write lock, beside 64 tasks with uncontended \
            mutexes.",
    measure,
};

const TASKS: u64 = 64;
const LOCKS_FOR_ONE_WRITE: u64 = 20;

fn measure(effort: Effort, section: &mut Section) -> Result<()> {
    let server = Server::start();
    let runtime = two_workers()?;
    let locks = runtime.block_on(Leasehold::builder().wait_forever().connect(&server.url()))?;
    let contenders = [
        Contender::new("95 % readers", |count| {
            pairs::spread(&runtime, TASKS, count, |task, count| {
                let locks = locks.clone();
                async move {
                    let (read, write) = (locks.read("config"), locks.write("config"));
                    for number in 0..count {
                        // Writers come one by one, not all 64 at once.
                        let writes = (number + task) % LOCKS_FOR_ONE_WRITE == 0;
                        let lock = if writes { &write } else { &read };
                        lock.acquire().await?.release().await?;
                    }
                    Ok(())
                }
            })
        }),
        Contender::new("mutexes", |count| {
            pairs::spread(&runtime, TASKS, count, |task, count| {
                let locks = locks.clone();
                async move { pairs::on(&locks, &format!("order:{task}"), count).await }
            })
        }),
    ];
    let scores = compare(effort, &contenders)?;
    section.contenders(&scores);
    report_server_costs(&server, &contenders, "", section)?;
    section.ratio("rate, beside uncontended mutexes", scores[1].ratio, Bar::AtLeast(0.5));
    runtime.block_on(locks.close())?;
    Ok(())
}
