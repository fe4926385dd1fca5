//! Hand-off in memory: 16 tasks that want the same name.

use std::sync::Arc;

use leasehold::Leasehold;
use tokio::{sync::Mutex, task::yield_now};

use super::prelude::*;

pub(super) const SCENARIO: Scenario = Scenario {
    name: "memory-handoff",
    title: "memory:, hand-off among 16 tasks on one name, on 2 workers. Each critical section yields once, so that \
            the others queue and every release hands the lock on.",
    measure,
};

const TASKS: u64 = 16;

fn measure(effort: Effort, section: &mut Section) -> Result<()> {
    let runtime = two_workers()?;
    let locks = runtime.block_on(Leasehold::connect("memory:"))?;
    let mutex = Arc::new(Mutex::new(()));
    let scores = compare(
        effort,
        &[
            pairs::turns(&runtime, TASKS, &locks),
            Contender::new("tokio mutex", |count| {
                pairs::spread(&runtime, TASKS, count, |_, count| {
                    let mutex = Arc::clone(&mutex);
                    async move {
                        for _ in 0..count {
                            let guard = mutex.lock().await;
                            yield_now().await;
                            drop(guard);
                        }
                        Ok(())
                    }
                })
            }),
        ],
    )?;
    section.contenders(&scores);
    section.ratio("rate, beside a tokio mutex", scores[1].ratio, Bar::AtLeast(0.05));
    Ok(())
}
