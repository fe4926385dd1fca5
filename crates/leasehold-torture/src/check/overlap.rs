//! Belief never exceeds capacity.
//!
//! A holder believes from the instant after `acquire` returned until the instant before the last `check` that
//! passed: both lie inside the true span, so that a reported overlap is one. Further rules:
//!
//! - A killed worker's interval ends with its last check. Where the process is the life of a lease, it ends at the
//!   instant before the kill was sent, unless the worker recorded that it was about to release: a live process,
//!   running or stopped, holds what it has not released.
//! - A stopped worker's interval goes on if a check passes after it continues, and ends with the last check otherwise.
//! - A failover may forget what the former master wrote last, which is documented: a holder that may have been forgotten
//!   does not count beside one whom the new master granted.
//! - The conductor evicts nobody. An evicted holder believes until it notices, which is documented and not checked.

use leasehold::backend::Liveness;

use super::{Promises, Violation};
use crate::{
    history::{AcquisitionRecord, RunHistory},
    instant::Micros,
};

/// A change of who believes.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Edge {
    at: Micros,
    /// Ends sort before begins: intervals that touch do not overlap.
    begins: bool,
    ask: usize,
}

pub(super) fn check(history: &RunHistory, rules: Promises) -> Vec<Violation> {
    history.by_name().values().flat_map(|asks| check_name(history, rules, asks)).collect()
}

fn check_name(history: &RunHistory, rules: Promises, asks: &[&AcquisitionRecord]) -> Vec<Violation> {
    let mut edges = Vec::new();
    for (index, ask) in asks.iter().enumerate() {
        if let (Some(from), Some(to)) = (ask.began(), believed_until(history, rules, ask))
            && from < to
        {
            edges.push(Edge { at: from, begins: true, ask: index });
            edges.push(Edge { at: to, begins: false, ask: index });
        }
    }
    edges.sort_unstable();
    let mut holding: Vec<&AcquisitionRecord> = Vec::new();
    let mut violations = Vec::new();
    for edge in edges {
        let ask = asks[edge.ask];
        if !edge.begins {
            holding.retain(|other| other.id != ask.id);
            continue;
        }
        holding.push(ask);
        let counted = holding.iter().filter(|other| other.id == ask.id || !history.one_may_be_forgotten(other, ask));
        let units: u64 = counted.map(|ask| u64::from(ask.asked.units)).sum();
        if units > u64::from(ask.asked.capacity) {
            let what = format!("{}: {} believe at once, beyond the capacity", ask.asked.name, holding.len());
            let evidence = holding.iter().map(|ask| ask.describe(history.run.from)).collect();
            violations.push(Violation::new("overlap", what, evidence));
        }
    }
    violations
}

fn believed_until(history: &RunHistory, rules: Promises, ask: &AcquisitionRecord) -> Option<Micros> {
    let life = history.life_of(ask);
    match life.killed {
        Some(killed) if rules.liveness == Liveness::Process && ask.ending.is_none() && ask.lost.is_none() => {
            Some(killed)
        }
        _ => ask.believed,
    }
}

#[cfg(test)]
mod tests {
    use super::{super::sample, *};
    use crate::{
        history::{Failover, Span},
        instant::millis,
    };

    const MUTEX: u32 = u32::MAX;

    fn two_holds(second_from: u64) -> RunHistory {
        let mut history = sample::history(2);
        sample::ask(&mut history, 0, "a", 0, MUTEX, MUTEX);
        sample::ask(&mut history, 1, "b", 0, MUTEX, MUTEX);
        sample::hold(&mut history, "a", 1, 10, 20);
        sample::hold(&mut history, "b", 2, second_from, 30);
        history
    }

    #[test]
    fn two_believers_of_a_mutex_are_found() {
        assert_eq!(check(&two_holds(19), sample::RULES).len(), 1);
        assert!(check(&two_holds(20), sample::RULES).is_empty());
    }

    #[test]
    fn readers_share_and_a_writer_does_not() {
        let mut history = sample::history(1);
        for (id, units) in [("read 1", 1), ("read 2", 1), ("write", MUTEX)] {
            sample::ask(&mut history, 0, id, 0, units, MUTEX);
        }
        sample::hold(&mut history, "read 1", 1, 10, 20);
        sample::hold(&mut history, "read 2", 2, 12, 20);
        assert!(check(&history, sample::RULES).is_empty());
        sample::hold(&mut history, "write", 3, 15, 16);
        assert_eq!(check(&history, sample::RULES).len(), 1);
    }

    #[test]
    fn where_a_process_is_the_life_a_holder_believes_until_it_is_killed() {
        let mut history = sample::history(2);
        sample::ask(&mut history, 0, "a", 0, MUTEX, MUTEX);
        sample::ask(&mut history, 1, "b", 0, MUTEX, MUTEX);
        sample::hold(&mut history, "b", 2, 50, 60);
        history.add(0, line(10, crate::event::LogEvent::Began { id: String::from("a"), fence: 1 }));
        history.lives[0].killed = Some(55);
        assert_eq!(check(&history, Promises { liveness: Liveness::Process, ..sample::RULES }).len(), 1);
        assert!(check(&history, sample::RULES).is_empty());
    }

    fn line(at: u64, event: crate::event::LogEvent) -> crate::event::LogLine {
        crate::event::LogLine { at, event }
    }

    #[test]
    fn only_what_a_failover_may_have_forgotten_is_excused() {
        // The master was replaced from 10 s to 12 s, and may have kept from its replica what it wrote since 9.5 s.
        let found = |one: (u64, u64), other: (u64, u64)| {
            let mut history = sample::history(2);
            for (life, id, (from, to)) in [(0, "a", one), (1, "b", other)] {
                sample::ask(&mut history, life, id, millis(from) - 1, 1, 1);
                sample::hold(&mut history, id, from, millis(from), millis(to));
            }
            let span = Span { from: millis(10_000), to: millis(12_000) };
            let forgets = vec![Span { from: millis(9500), to: millis(10_000) }];
            history.failovers.push(Failover { span, forgets });
            check(&history, sample::RULES).len()
        };
        assert_eq!(found((9800, 10_500), (10_200, 10_300)), 0, "the new master did not know it");
        assert_eq!(found((9400, 9700), (9600, 9700)), 1, "nobody had replaced the master");
        assert_eq!(found((9800, 11_100), (10_200, 10_300)), 1, "its holder must have learned of it within one ttl");
        assert_eq!(found((10_100, 10_500), (10_200, 10_300)), 1, "the new master granted both");
    }
}
