//! First come, first served: of two waiters that `list` showed in a queue, the one ahead is granted first.
//!
//! Fences rise by grant, so they tell the order. A waiter whose process was stopped, put on a slow disk, or
//! cut off from its server, or whose server was replaced, may rightly lose its position, and is not compared.
//!
//! Where a process is the life of a lease, a waiter also loses its turn when it does not confirm it within the ttl,
//! which a neighbour that is stopped or on a slow disk may prevent:
//!
//! 1. `list` shows that A waits, and B behind it.
//! 2. The holder releases: A holds provisionally, for one ttl.
//! 3. A third process takes the latch to queue up, and its write, or the stop of the process, takes 2 s.
//! 4. A asks for the latch to confirm, and waits.
//! 5. The third process lets go. Whoever takes the latch next finds that A's turn has ended, and grants B.
//! 6. A reads that its lease is gone and asks anew, behind B: its fence is above B's.
//!
//! Step 2 comes after step 1, and step 6 one ttl after step 2 at the earliest. A waiter that was granted sooner after
//! it was seen in the queue has therefore not lost a turn in between, and is compared.

use std::collections::BTreeSet;

use leasehold::backend::Liveness;

use super::{Promises, Violation};
use crate::{
    history::{AcquisitionRecord, Queue, RunHistory},
    target::TTL,
};

pub(super) fn check(history: &RunHistory, rules: Promises) -> Vec<Violation> {
    if !rules.fifo {
        return Vec::new();
    }
    let mut reported = BTreeSet::new();
    let mut violations = Vec::new();
    for queue in &history.queues {
        let waiting =
            queue.waiting.iter().filter_map(|id| history.ask(id)).filter(|ask| is_comparable(history, rules, ask));
        let waiting: Vec<&AcquisitionRecord> = waiting.collect();
        for pair in waiting.windows(2) {
            let (ahead, behind) = (pair[0], pair[1]);
            if ahead.fence() > behind.fence()
                && kept_its_turn(rules, queue, ahead)
                && reported.insert((&ahead.id, &behind.id))
            {
                let what = format!("{}: {} was ahead of {}, granted first", queue.name, ahead.id, behind.id);
                let evidence = vec![ahead.describe(history.run.from), behind.describe(history.run.from)];
                violations.push(Violation::new("order", what, evidence));
            }
        }
    }
    violations
}

fn kept_its_turn(rules: Promises, queue: &Queue, ask: &AcquisitionRecord) -> bool {
    let ttl = u64::try_from(TTL.as_micros()).unwrap_or(u64::MAX);
    rules.liveness == Liveness::Ttl || ask.began().is_some_and(|began| began < queue.at + ttl)
}

fn is_comparable(history: &RunHistory, rules: Promises, ask: &AcquisitionRecord) -> bool {
    let life = history.life_of(ask);
    let from = ask.asked.at.saturating_sub(rules.reconnect);
    ask.began().is_some_and(|began| {
        !life.slow
            && !life.stopped_within(ask.asked.at, began)
            && !life.disturbed_within(from, began)
            && !history.failing_over_within(from, began)
    })
}

#[cfg(test)]
mod tests {
    use super::{super::sample, *};
    use crate::history::{Queue, Span};

    #[test]
    fn a_waiter_that_overtakes_is_found_unless_the_other_was_stopped() {
        let mut history = sample::history(2);
        for (life, id, fence) in [(0, "a", 9), (1, "b", 8)] {
            sample::ask(&mut history, life, id, 0, 1, 1);
            sample::hold(&mut history, id, fence, 10, 20);
        }
        let waiting = vec![String::from("a"), String::from("b")];
        history.queues.push(Queue { at: 5, name: String::from("lock"), holding: Vec::new(), waiting });
        assert_eq!(check(&history, sample::RULES).len(), 1);
        history.lives[0].stops.push(Span { from: 3, to: 8 });
        assert!(check(&history, sample::RULES).is_empty());
    }

    #[test]
    fn a_waiter_that_had_time_to_lose_its_turn_is_not_compared_where_turns_are_confirmed() {
        let rules = Promises { liveness: Liveness::Process, ..sample::RULES };
        let found = |granted: u64| {
            let mut history = sample::history(2);
            for (life, id, fence) in [(0, "a", 9), (1, "b", 8)] {
                sample::ask(&mut history, life, id, 0, 1, 1);
                sample::hold(&mut history, id, fence, granted, granted + 1);
            }
            let waiting = vec![String::from("a"), String::from("b")];
            history.queues.push(Queue { at: 5, name: String::from("lock"), holding: Vec::new(), waiting });
            check(&history, rules).len()
        };
        let ttl = u64::try_from(TTL.as_micros()).expect("it is short");
        assert_eq!((found(4 + ttl), found(5 + ttl)), (1, 0));
    }
}
