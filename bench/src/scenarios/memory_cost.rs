//! What one uncontended pair in memory costs: allocations, processor time, system calls.

use keyed_lock::r#async::KeyedLock;
use leasehold::Leasehold;

use super::prelude::*;
use crate::system_calls::SystemCalls;

pub(super) const SCENARIO: Scenario = Scenario {
    name: "memory-cost",
    title: "memory:, uncontended pairs of one task. The processor time includes the backend's, so the engine's share is \
            less.",
    measure,
};

fn measure(effort: Effort, section: &mut Section) -> Result<()> {
    let runtime = one_thread()?;
    let locks = runtime.block_on(Leasehold::connect("memory:"))?;
    let keyed = KeyedLock::<String>::new();
    let mutex = tokio::sync::Mutex::new(());
    let scores = compare(
        effort,
        &[
            Contender::new("leasehold", |count| runtime.block_on(pairs::on(&locks, "order:42", count))),
            Contender::new("keyed-lock", |count| {
                runtime.block_on(async {
                    for _ in 0..count {
                        drop(keyed.lock("order:42".to_owned()).await);
                    }
                    Ok(())
                })
            }),
            Contender::new("tokio mutex", |count| {
                runtime.block_on(async {
                    for _ in 0..count {
                        drop(mutex.lock().await);
                    }
                    Ok(())
                })
            }),
        ],
    )?;
    section.contenders(&scores);
    section.figure("allocations of a pair", scores[0].allocations, "", Some(Bar::AtMost(8.0)));
    section.figure("processor time of a pair", scores[0].cpu_micros, "µs", Some(Bar::AtMost(3.0)));
    // Many pairs, since the wake-ups of the engine's thread depend on time and not on pairs.
    let calls = SystemCalls::of_each_pair("memory:", 20_000)?;
    section.figure("system calls of a pair", calls.total(), "", None);
    section.note(format!("System calls of a pair: {}.", calls.breakdown()));
    Ok(())
}
