//! Fences rise: no two grants of a name share one, and a later grant has a higher one.
//!
//! A grant happens between the call of `acquire` and its return. Grant B is certainly later than grant A in two cases:
//! B's `acquire` was called after A's had returned; or both were exclusive holders, who follow one another, and A's
//! `acquire` returned first. The second case leaves out pairs of which a failover may have lost one grant.

use std::collections::HashMap;

use super::{Promises, Violation};
use crate::history::{AcquisitionRecord, RunHistory};

pub(super) fn check(history: &RunHistory, _rules: Promises) -> Vec<Violation> {
    history.by_name().values().flat_map(|asks| check_name(history, asks)).collect()
}

fn check_name(history: &RunHistory, asks: &[&AcquisitionRecord]) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut report = |what: &str, one: &AcquisitionRecord, other: &AcquisitionRecord| {
        let evidence = vec![one.describe(history.run.from), other.describe(history.run.from)];
        violations.push(Violation::new("fences", format!("{}: {what}", one.asked.name), evidence));
    };

    let mut seen: HashMap<u64, &AcquisitionRecord> = HashMap::new();
    let mut granted: Vec<&AcquisitionRecord> = asks.iter().copied().filter(|ask| ask.began().is_some()).collect();
    for ask in &granted {
        if let Some(other) = seen.insert(ask.fence(), ask) {
            report("two grants share a fence", other, ask);
        }
    }

    // Asks in order, each compared with the highest fence among grants that had returned before.
    granted.sort_by_key(|ask| ask.asked.at);
    let mut returned = granted.clone();
    returned.sort_by_key(|ask| ask.began());
    let mut before = returned.iter().peekable();
    let mut highest: Option<&AcquisitionRecord> = None;
    for ask in granted {
        while let Some(other) = before.next_if(|other| other.began() < Some(ask.asked.at)) {
            highest = highest.into_iter().chain([*other]).max_by_key(|ask| ask.fence());
        }
        if let Some(other) = highest.filter(|other| other.fence() > ask.fence()) {
            report("a later grant has a lower fence", other, ask);
        }
    }

    let exclusive = returned.into_iter().filter(|ask| ask.asked.units == ask.asked.capacity && ask.believed.is_some());
    let exclusive: Vec<&AcquisitionRecord> = exclusive.collect();
    for pair in exclusive.windows(2) {
        if pair[0].fence() > pair[1].fence() && !history.one_may_be_forgotten(pair[0], pair[1]) {
            report("a later exclusive holder has a lower fence", pair[0], pair[1]);
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::{super::sample, *};

    fn fences(first: u64, second: u64) -> Vec<Violation> {
        let mut history = sample::history(1);
        sample::ask(&mut history, 0, "a", 0, 1, 3);
        sample::hold(&mut history, "a", first, 10, 20);
        sample::ask(&mut history, 0, "b", 11, 1, 3);
        sample::hold(&mut history, "b", second, 12, 20);
        check(&history, sample::RULES)
    }

    #[test]
    fn a_fence_that_repeats_or_falls_is_found() {
        assert!(fences(7, 8).is_empty());
        assert_eq!(fences(7, 7).len(), 1);
        assert_eq!(fences(7, 6).len(), 1);
    }

    #[test]
    fn exclusive_holders_are_compared_though_they_asked_at_once() {
        let mut history = sample::history(1);
        for (id, fence, from) in [("a", 8, 10), ("b", 7, 20)] {
            sample::ask(&mut history, 0, id, 0, 1, 1);
            sample::hold(&mut history, id, fence, from, from + 5);
        }
        assert_eq!(check(&history, sample::RULES).len(), 1);
    }
}
