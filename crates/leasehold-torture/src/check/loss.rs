//! A loss is reported in time: `lost` completes soon after the lease ended, whatever else its process does.

use super::{Promises, Violation};
use crate::{
    history::RunHistory,
    instant::{Micros, millis, seconds},
};

/// How late a busy machine may make `lost`. Faults that block do so for longer.
const BOUND: Micros = millis(1500);

pub(super) fn check(history: &RunHistory, _rules: Promises) -> Vec<Violation> {
    let late = history.losses.iter().filter(|loss| loss.delay.to.saturating_sub(loss.delay.from) > BOUND);
    // A stopped process cannot report.
    let late = late.filter(|loss| !history.lives[loss.life].stopped_within(loss.delay.from, loss.delay.to));
    late.map(|loss| {
        let when = |at: Micros| seconds(at.saturating_sub(history.run.from));
        let what = format!("{}: `lost` came {} s late", loss.what, seconds(loss.delay.to - loss.delay.from));
        let slow = if history.lives[loss.life].slow { ", on a slow disk" } else { "" };
        let label = &history.lives[loss.life].label;
        let evidence =
            format!("in {label}{slow}, due at {} s, reported at {} s", when(loss.delay.from), when(loss.delay.to));
        Violation::new("loss", what, vec![evidence])
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::{super::sample, *};
    use crate::history::{LossTimes, Span};

    #[test]
    fn a_late_report_is_found_unless_its_process_was_stopped() {
        let mut history = sample::history(1);
        history.losses.push(LossTimes { life: 0, what: String::from("a"), delay: Span { from: 10, to: 10 + BOUND } });
        assert!(check(&history, sample::RULES).is_empty());
        history.losses.push(LossTimes { life: 0, what: String::from("a"), delay: Span { from: 10, to: 11 + BOUND } });
        assert_eq!(check(&history, sample::RULES).len(), 1);
        history.lives[0].stops.push(Span { from: 10, to: 11 });
        assert!(check(&history, sample::RULES).is_empty());
    }
}
