//! The scenarios, and what they share.

mod file_pairs;
mod memory_cost;
mod memory_handoff;
mod memory_pairs;
mod postgres_functions;
mod postgres_handoff;
mod postgres_library;
mod redis_absent_waiters;
mod redis_durability;
mod redis_handoff;
mod redis_pairs;
mod redis_readers;
mod redis_scale;
mod redlock_pairs;
mod redlock_tries;
mod start_up;

pub(crate) mod file_handoff;
pub(crate) mod file_queue;
pub(crate) mod memory_held;

use tokio::runtime::{Builder, Runtime};

use crate::{Result, comparison::Effort, report::Section};

/// What nearly every scenario uses.
mod prelude {
    pub(super) use super::{Scenario, one_thread, two_workers};
    pub(super) use crate::{
        Result,
        comparison::{Contender, Effort, Spread, compare},
        pairs,
        report::{Bar, Section},
    };
}

/// One thing to measure.
#[derive(Debug)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    pub(crate) measure: fn(Effort, &mut Section) -> Result<()>,
}

/// All scenarios, in the order in which they run.
pub(crate) const SCENARIOS: &[Scenario] = &[
    memory_pairs::SCENARIO,
    memory_handoff::SCENARIO,
    memory_cost::SCENARIO,
    memory_held::SCENARIO,
    file_pairs::SCENARIO,
    file_queue::SCENARIO,
    file_handoff::SCENARIO,
    postgres_functions::SCENARIO,
    postgres_library::SCENARIO,
    postgres_handoff::SCENARIO,
    redis_pairs::SCENARIO,
    redis_handoff::SCENARIO,
    redis_readers::SCENARIO,
    redis_scale::SCENARIO,
    redis_durability::SCENARIO,
    redis_absent_waiters::SCENARIO,
    redlock_pairs::SCENARIO,
    redlock_tries::SCENARIO,
    start_up::SCENARIO,
];

/// A runtime of two workers, as on a small server.
pub(crate) fn two_workers() -> Result<Runtime> {
    Ok(Builder::new_multi_thread().worker_threads(2).enable_all().build()?)
}

/// A runtime on the calling thread.
pub(crate) fn one_thread() -> Result<Runtime> {
    Ok(Builder::new_current_thread().enable_all().build()?)
}
