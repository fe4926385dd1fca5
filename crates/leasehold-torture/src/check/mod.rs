//! The checkers: each looks at the history of a run for one kind of violation.

mod fences;
mod forks;
mod leaks;
mod loss;
mod order;
mod overlap;
mod progress;

use leasehold::backend::Liveness;
use serde::Serialize;

use crate::{history::RunHistory, instant::Micros};

/// Something that must not happen, and the lines that show it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Violation {
    pub(crate) checker: &'static str,
    pub(crate) what: String,
    pub(crate) evidence: Vec<String>,
}

impl Violation {
    fn new(checker: &'static str, what: String, evidence: Vec<String>) -> Self {
        Self { checker, what, evidence }
    }
}

/// What the backend of the run promises.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Promises {
    pub(crate) liveness: Liveness,
    /// Waiters are served in the order they came.
    pub(crate) fifo: bool,
    /// How long after a disturbance or a failover a waiter may still be out of reach.
    pub(crate) reconnect: Micros,
}

/// Runs every checker.
pub(crate) fn all(history: &RunHistory, rules: Promises) -> Vec<Violation> {
    let checkers =
        [overlap::check, fences::check, order::check, progress::check, loss::check, leaks::check, forks::check];
    checkers.iter().flat_map(|check| check(history, rules)).collect()
}

/// Histories written by hand, for the tests of the checkers.
#[cfg(test)]
mod sample {
    use leasehold::backend::Liveness;

    use super::Promises;
    use crate::{
        event::{LogEvent, LogLine},
        history::{RunHistory, Span, WorkerLife},
    };

    pub(super) const RULES: Promises = Promises { liveness: Liveness::Ttl, fifo: true, reconnect: 0 };

    /// A history with `workers` processes and nothing in it.
    pub(super) fn history(workers: usize) -> RunHistory {
        let life = |index| WorkerLife { label: format!("w{index}"), ..WorkerLife::default() };
        let mut history = RunHistory::default();
        history.run = Span { from: 0, to: 60_000_000 };
        history.lives.extend((0..workers).map(life));
        history
    }

    /// Adds an ask for all of `capacity`, or for a part.
    pub(super) fn ask(history: &mut RunHistory, life: usize, id: &str, at: u64, units: u32, capacity: u32) {
        let (id, name) = (id.to_owned(), String::from("lock"));
        history.add(life, LogLine { at, event: LogEvent::Asked { id, name, units, capacity } });
    }

    /// Adds a grant that is believed from `from` to `to`, and released then.
    pub(super) fn hold(history: &mut RunHistory, id: &str, fence: u64, from: u64, to: u64) {
        let life = history.ask(id).expect("it was asked for").life;
        let id = id.to_owned();
        history.add(life, LogLine { at: from, event: LogEvent::Began { id: id.clone(), fence } });
        history.add(life, LogLine { at: to, event: LogEvent::Believed { id: id.clone() } });
        history.add(life, LogLine { at: to, event: LogEvent::Ending { id: id.clone() } });
        history.add(life, LogLine { at: to, event: LogEvent::Released { id, error: None } });
    }
}
