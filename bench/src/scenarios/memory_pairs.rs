//! Uncontended pairs in memory: 64 tasks, each on a name of its own.

use std::{collections::HashMap, sync::Arc};

use keyed_lock::r#async::KeyedLock;
use leasehold::Leasehold;
use lockable::LockPool;
use parking_lot::Mutex;

use super::prelude::*;

pub(super) const SCENARIO: Scenario = Scenario {
    name: "memory-pairs",
    title: "memory:, uncontended pairs of 64 tasks, each on its own name, on 2 workers.",
    measure,
};

const TASKS: u64 = 64;

fn measure(effort: Effort, section: &mut Section) -> Result<()> {
    let runtime = two_workers()?;
    let locks = runtime.block_on(Leasehold::connect("memory:"))?;
    let keyed = Arc::new(KeyedLock::<String>::new());
    let pool = Arc::new(LockPool::<String>::new());
    let map = Arc::new(Mutex::new(HashMap::<String, Arc<tokio::sync::Mutex<()>>>::new()));
    let scores = compare(
        effort,
        &[
            Contender::new("leasehold", |count| {
                pairs::spread(&runtime, TASKS, count, |number, count| {
                    let locks = locks.clone();
                    async move { pairs::on(&locks, &format!("order:{number}"), count).await }
                })
            }),
            Contender::new("keyed-lock", |count| {
                pairs::spread(&runtime, TASKS, count, |number, count| {
                    let keyed = Arc::clone(&keyed);
                    async move {
                        let name = format!("order:{number}");
                        for _ in 0..count {
                            drop(keyed.lock(name.clone()).await);
                        }
                        Ok(())
                    }
                })
            }),
            Contender::new("lockable", |count| {
                pairs::spread(&runtime, TASKS, count, |number, count| {
                    let pool = Arc::clone(&pool);
                    async move {
                        let name = format!("order:{number}");
                        for _ in 0..count {
                            drop(pool.async_lock(name.clone()).await);
                        }
                        Ok(())
                    }
                })
            }),
            Contender::new("map of tokio mutexes", |count| {
                pairs::spread(&runtime, TASKS, count, |number, count| {
                    let map = Arc::clone(&map);
                    async move {
                        let name = format!("order:{number}");
                        for _ in 0..count {
                            let mutex = Arc::clone(map.lock().entry(name.clone()).or_default());
                            drop(mutex.lock().await);
                        }
                        Ok(())
                    }
                })
            }),
        ],
    )?;
    section.contenders(&scores);
    section.ratio("rate, beside keyed-lock", scores[1].ratio, Bar::AtLeast(0.3));
    section.note("The map is never cleaned up; the others forget a name when nobody holds it.");
    Ok(())
}
