//! Nobody waits for nothing: while somebody waits for a name, it is granted again within a bound after it is free.
//!
//! A name is *served* while a holder works: from its grant until it is about to release, or until it is killed. A
//! holder that is stopped before its release has returned serves the name too: a stopped process keeps its lock
//! where the process is the life of a lease. A waiter counts while its process runs. Where a span with a waiter and
//! without service exceeds one ttl and some slack, something hangs. Nobody expects a grant while a master is being
//! replaced, nor while a slow disk delays a call: whoever makes it may have a latch that all others need, and several
//! delays in a row add up. An ask that failed with an error was answered and counts as no waiter; the report counts
//! errors by kind.

use leasehold::backend::Liveness;

use super::{Promises, Violation};
use crate::{
    history::{AcquisitionRecord, Queue, RunHistory},
    instant::{Micros, millis, seconds},
    target::TTL,
};

/// What scheduling and slow disks may add to one ttl.
const SLACK: Micros = millis(4000);

/// How long a name may go without a grant while somebody waits.
pub(crate) fn bound() -> Micros {
    u64::try_from(TTL.as_micros()).unwrap_or(u64::MAX) + SLACK
}

/// A span in which an acquisition waits or serves its name.
struct WaitSpan {
    from: Micros,
    to: Micros,
    waits: bool,
}

pub(super) fn check(history: &RunHistory, rules: Promises) -> Vec<Violation> {
    let stuck = history.by_name().into_iter().flat_map(|(name, asks)| check_name(history, rules, name, &asks));
    let failures = history.failures.iter().map(|what| Violation::new("progress", what.clone(), Vec::new()));
    stuck.chain(failures).collect()
}

fn check_name(history: &RunHistory, rules: Promises, name: &str, asks: &[&AcquisitionRecord]) -> Vec<Violation> {
    let mut edges = Vec::new();
    for stage in asks.iter().flat_map(|ask| stages(history, rules, ask)).filter(|stage| stage.from < stage.to) {
        edges.push((stage.from, 1_i64, stage.waits));
        edges.push((stage.to, -1, stage.waits));
    }
    for span in history.failovers.iter().map(|failover| &failover.span).chain(&history.delays) {
        edges.push((span.from, 1, false));
        edges.push((span.to, -1, false));
    }
    edges.sort_unstable();
    let (mut waiters, mut holders, mut since) = (0, 0, None);
    let mut violations = Vec::new();
    for (at, change, waits) in edges {
        *(if waits { &mut waiters } else { &mut holders }) += change;
        let stuck = waiters > 0 && holders == 0;
        match since {
            None if stuck => since = Some(at),
            Some(from) if !stuck => {
                since = None;
                if at - from > bound() {
                    violations.push(report(history, name, asks, from, at));
                }
            }
            _ => {}
        }
    }
    violations
}

/// When an acquisition waited, and when it served its name.
fn stages(history: &RunHistory, rules: Promises, ask: &AcquisitionRecord) -> Vec<WaitSpan> {
    let life = history.life_of(ask);
    let end = life.killed.unwrap_or(history.run.to).min(history.run.to);
    let mut stages = Vec::new();
    if ask.refusal.as_ref().is_none_or(|error| error.starts_with("WaitElapsed")) && !life.slow {
        let mut from = ask.asked.at;
        let until = ask.began().or(ask.gave_up).unwrap_or(end).min(end);
        for stop in &life.stops {
            if stop.from < until && stop.to > from {
                stages.push(WaitSpan { from, to: stop.from, waits: true });
                from = stop.to;
            }
        }
        stages.push(WaitSpan { from, to: until, waits: true });
    }
    if let Some(began) = ask.began() {
        // A slow disk rightly delays the release of its own lease.
        let ending = if life.slow { ask.released } else { ask.ending };
        let to = ending.or(ask.lost).unwrap_or(end).min(end);
        stages.push(WaitSpan { from: began, to, waits: false });
        if rules.liveness == Liveness::Process {
            let released = ask.released.or(ask.lost).unwrap_or(end);
            let stops = life.stops.iter().filter(|stop| began <= stop.from && stop.from < released);
            stages.extend(stops.map(|stop| WaitSpan { from: stop.from, to: stop.to, waits: false }));
        }
    }
    stages
}

fn report(history: &RunHistory, name: &str, asks: &[&AcquisitionRecord], from: Micros, to: Micros) -> Violation {
    let when = |at: Micros| seconds(at.saturating_sub(history.run.from));
    let what = format!(
        "{name}: nobody was granted it for {} s, from {} s to {} s, though somebody waited",
        seconds(to - from),
        when(from),
        when(to),
    );
    let mut evidence = Vec::new();
    for life in &history.lives {
        if let Some(killed) = life.killed.filter(|killed| (from.saturating_sub(millis(500))..to).contains(killed)) {
            evidence.push(format!("{} was killed at {} s", life.label, when(killed)));
        }
        for stop in life.stops.iter().filter(|stop| stop.from < to && from < stop.to) {
            evidence.push(format!("{} was stopped from {} s to {} s", life.label, when(stop.from), when(stop.to)));
        }
    }
    for (pid, child) in history.children.iter().filter(|(_, child)| child.idle) {
        let parent = &history.lives[child.life];
        if parent.killed.is_some_and(|killed| killed < to && from < killed + bound() * 2) {
            evidence.push(format!("{} had forked the idle child {pid}", parent.label));
        }
    }
    for life in &history.lives {
        for cut in life.disturbances.iter().filter(|cut| cut.from < to && from < cut.to) {
            evidence.push(format!("{} was cut off from {} s to {} s", life.label, when(cut.from), when(cut.to)));
        }
    }
    let mut listed: Vec<&Queue> = history.queues.iter().filter(|queue| queue.name == name).collect();
    listed.retain(|queue| (from..to).contains(&queue.at));
    listed.sort_by_key(|queue| queue.at);
    listed.dedup_by(|one, other| one.holding == other.holding);
    for queue in listed {
        evidence.push(format!(
            "`list` showed at {} s: {:?} held it, {:?} waited",
            when(queue.at),
            queue.holding,
            queue.waiting
        ));
    }
    let last = asks.iter().filter(|ask| ask.began().is_some_and(|began| began <= from)).max_by_key(|ask| ask.began());
    evidence.extend(last.map(|ask| format!("last holder: {}", ask.describe(history.run.from))));
    let next = asks.iter().filter(|ask| ask.began().is_some_and(|began| began >= to)).min_by_key(|ask| ask.began());
    evidence.extend(next.map(|ask| format!("next holder: {}", ask.describe(history.run.from))));
    Violation::new("progress", what, evidence)
}

#[cfg(test)]
mod tests {
    use super::{super::sample, *};
    use crate::history::Span;

    /// One holder until 1 s, and the next one, who asked meanwhile, from `next`.
    fn history(next: Micros) -> RunHistory {
        let mut history = sample::history(2);
        sample::ask(&mut history, 0, "a", 0, 1, 1);
        sample::hold(&mut history, "a", 1, 0, millis(1000));
        sample::ask(&mut history, 1, "b", millis(500), 1, 1);
        sample::hold(&mut history, "b", 2, next, next + 1);
        history
    }

    #[test]
    fn a_free_name_that_nobody_is_granted_is_found() {
        let late = millis(1001) + bound();
        assert!(check(&history(late - millis(2)), sample::RULES).is_empty());
        assert_eq!(check(&history(late), sample::RULES).len(), 1);
    }

    #[test]
    fn a_stopped_holder_serves_and_a_waiter_that_is_granted_while_it_is_stopped_does_not() {
        let rules = Promises { liveness: Liveness::Process, ..sample::RULES };
        let stop = Span { from: millis(1500), to: millis(2501) + bound() };
        let granted = |at| {
            let mut history = history(stop.to + 1);
            sample::ask(&mut history, 0, "c", millis(600), 1, 1);
            sample::hold(&mut history, "c", 3, at, stop.to);
            history.lives[0].stops.push(stop);
            check(&history, rules)
        };
        assert!(granted(stop.from).is_empty());
        assert_eq!(granted(stop.to - 1).len(), 1);
    }

    #[test]
    fn nobody_is_late_while_a_slow_disk_delays_a_call() {
        let late = millis(1001) + bound();
        let mut history = history(late);
        history.delays.push(Span { from: millis(1100), to: millis(1101) });
        assert!(check(&history, sample::RULES).is_empty());
    }

    #[test]
    fn a_stopped_waiter_does_not_count_as_waiting() {
        let late = millis(1001) + bound();
        let mut history = history(late);
        history.lives[1].stops.push(Span { from: millis(1100), to: late - 1 });
        assert!(check(&history, sample::RULES).is_empty());
    }
}
