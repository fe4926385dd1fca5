//! Runs contenders in interleaved rounds and compares the first with each of the others.

use crate::{Result, allocations, stopwatch::Stopwatch};

/// How much to measure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    pub(crate) rounds: usize,
    /// For each contender in each round.
    pub(crate) seconds: f64,
}

/// One way to do the same work.
pub(crate) struct Contender<'a> {
    pub(crate) name: &'static str,
    /// Does the work `count` times.
    pub(crate) operate: Box<dyn Fn(u64) -> Result<()> + 'a>,
}

impl<'a> Contender<'a> {
    pub(crate) fn new(name: &'static str, operate: impl Fn(u64) -> Result<()> + 'a) -> Self {
        Self { name, operate: Box::new(operate) }
    }

    fn sample(&self, count: u64) -> Result<Sample> {
        let watch = Stopwatch::start();
        (self.operate)(count)?;
        Ok(Sample { nanos: watch.nanos() / count as f64, cpu_nanos: watch.cpu_nanos() / count as f64 })
    }

    /// How many operations take about `seconds`.
    fn count_for(&self, seconds: f64) -> Result<u64> {
        let mut count = 64;
        loop {
            let total = self.sample(count)?.nanos * count as f64;
            let wanted = seconds * 1e9;
            if total * 8.0 >= wanted {
                let scaled = count as f64 * wanted / total;
                // Clamped first: the cast only drops the fraction.
                #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 1 and 1e12")]
                return Ok(scaled.clamp(1.0, 1e12) as u64);
            }
            count *= 4;
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Sample {
    nanos: f64,
    cpu_nanos: f64,
}

/// What one contender took for each operation: medians over the rounds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Score {
    pub(crate) name: &'static str,
    pub(crate) micros: f64,
    pub(crate) cpu_micros: f64,
    pub(crate) allocations: f64,
    /// The first contender's rate divided by this one's.
    pub(crate) ratio: Spread,
    /// The same by processor time, which a busy machine disturbs less.
    pub(crate) cpu_ratio: Spread,
}

/// Compares the first contender with the others: one score for each, in their order.
pub(crate) fn compare(effort: Effort, contenders: &[Contender<'_>]) -> Result<Vec<Score>> {
    // Allocations repeat exactly: a short run counts them as well as a long one.
    const COUNTED: u64 = 10_000;
    let counts: Vec<u64> = contenders.iter().map(|one| one.count_for(effort.seconds)).collect::<Result<_>>()?;
    let mut samples = vec![Vec::with_capacity(effort.rounds); contenders.len()];
    for round in 0..effort.rounds {
        // Each round begins with another contender, so that none always runs after the same one.
        for turn in 0..contenders.len() {
            let index = (round + turn) % contenders.len();
            samples[index].push(contenders[index].sample(counts[index])?);
        }
    }
    let score = |index: usize| {
        let of = |figure: fn(&Sample) -> f64| Spread::of(samples[index].iter().map(figure)).median / 1e3;
        let ratio = |figure: fn(&Sample) -> f64| {
            Spread::of(samples[index].iter().zip(&samples[0]).map(|(theirs, ours)| figure(theirs) / figure(ours)))
        };
        Ok(Score {
            name: contenders[index].name,
            micros: of(|sample| sample.nanos),
            cpu_micros: of(|sample| sample.cpu_nanos),
            allocations: allocations::of_each(counts[index].min(COUNTED), &contenders[index].operate)?,
            ratio: ratio(|sample| sample.nanos),
            cpu_ratio: ratio(|sample| sample.cpu_nanos),
        })
    };
    (0..contenders.len()).map(score).collect()
}

/// Median and range of a figure over the rounds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spread {
    pub(crate) least: f64,
    pub(crate) median: f64,
    pub(crate) most: f64,
}

impl Spread {
    /// Of at least one figure.
    pub(crate) fn of(figures: impl IntoIterator<Item = f64>) -> Self {
        let mut figures: Vec<f64> = figures.into_iter().collect();
        figures.sort_by(f64::total_cmp);
        let at = |index: usize| figures.get(index).copied().unwrap_or(f64::NAN);
        Self { least: at(0), median: at(figures.len() / 2), most: at(figures.len().saturating_sub(1)) }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_spread_is_the_middle_and_both_ends() {
        let spread = Spread::of([5.0, 1.0, 9.0, 2.0, 3.0]);
        assert_eq!([spread.least, spread.median, spread.most].map(f64::to_bits), [1.0, 3.0, 9.0].map(f64::to_bits));
    }

    #[test]
    fn every_contender_runs_in_every_round() {
        let calls = [Cell::new(0), Cell::new(0)];
        let contenders = [0, 1].map(|index| {
            let calls = &calls[index];
            Contender::new("", move |_| {
                calls.set(calls.get() + 1);
                Ok(())
            })
        });
        let calls_in = |rounds| {
            let _scores = compare(Effort { rounds, seconds: 0.0 }, &contenders).unwrap();
            [calls[0].take(), calls[1].take()]
        };
        let (few, many) = (calls_in(2), calls_in(7));
        assert_eq!([many[0] - few[0], many[1] - few[1]], [5, 5]);
    }
}
