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

/// A contender whose tasks each use a name of their own; what follows `=>` locks and unlocks it.
macro_rules! pairs_on {
    ($title:literal, $runtime:expr, $locks:ident, $name:ident => $pair:expr) => {
        Contender::new($title, |count| {
            pairs::spread($runtime, TASKS, count, |number, count| {
                let $locks = Arc::clone(&$locks);
                async move {
                    let $name = format!("order:{number}");
                    for _ in 0..count {
                        $pair;
                    }
                    Ok(())
                }
            })
        })
    };
}

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
            pairs_on!("keyed-lock", &runtime, keyed, name => drop(keyed.lock(name.clone()).await)),
            pairs_on!("lockable", &runtime, pool, name => drop(pool.async_lock(name.clone()).await)),
            pairs_on!("map of tokio mutexes", &runtime, map, name => {
                let mutex = Arc::clone(map.lock().entry(name.clone()).or_default());
                drop(mutex.lock().await);
            }),
        ],
    )?;
    section.contenders(&scores);
    section.ratio("rate, beside keyed-lock", scores[1].ratio, Bar::AtLeast(0.3));
    section.note("The map is never cleaned up; the others forget a name when nobody holds it.");
    Ok(())
}
