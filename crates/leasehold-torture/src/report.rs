//! What came of a run, as text for people and as JSON for programs.

use std::{
    collections::BTreeMap,
    io::{self, Write},
};

use serde::Serialize;

use crate::{args::RunPlan, check::Violation, history::RunHistory};

/// How many violations of one checker the text shows.
const SHOWN: usize = 5;

/// What came of a run.
#[derive(Debug, Serialize)]
pub(crate) struct RunSummary {
    backend: String,
    client: String,
    seconds: u64,
    seed: u64,
    processes: usize,
    asks: usize,
    acquisitions: usize,
    cancelled: usize,
    losses: usize,
    /// Asks that ended without a grant, by kind of error.
    refusals: BTreeMap<String, u64>,
    longest_wait_ms: u64,
    observed_queues: usize,
    faults: BTreeMap<&'static str, u64>,
    notes: Vec<String>,
    /// How many violations each checker found.
    found: BTreeMap<&'static str, usize>,
    violations: Vec<Violation>,
}

impl RunSummary {
    pub(crate) fn new(
        plan: &RunPlan,
        seconds: u64,
        history: &RunHistory,
        faults: BTreeMap<&'static str, u64>,
        notes: Vec<String>,
        violations: Vec<Violation>,
    ) -> Self {
        let asks = &history.asks;
        let waits = asks.iter().filter_map(|ask| ask.began().map(|began| began.saturating_sub(ask.asked.at)));
        let mut refusals = BTreeMap::new();
        for error in asks.iter().filter_map(|ask| ask.refusal.as_deref()) {
            let kind = error.split(':').next().unwrap_or_default();
            *refusals.entry(kind.to_owned()).or_default() += 1;
        }
        let mut found = BTreeMap::new();
        for violation in &violations {
            *found.entry(violation.checker).or_default() += 1;
        }
        Self {
            backend: format!("{:?}", plan.backend).to_lowercase(),
            client: format!("{:?}", plan.client),
            seconds,
            seed: plan.seed,
            processes: history.lives.len(),
            asks: asks.len(),
            acquisitions: asks.iter().filter(|ask| ask.began().is_some()).count(),
            cancelled: asks.iter().filter(|ask| ask.gave_up.is_some() && ask.refusal.is_none()).count(),
            losses: asks.iter().filter(|ask| ask.lost.is_some()).count(),
            refusals,
            longest_wait_ms: waits.max().unwrap_or(0) / 1000,
            observed_queues: history.queues.len(),
            faults,
            notes,
            found,
            violations,
        }
    }

    pub(crate) fn is_clean(&self) -> bool {
        self.violations.is_empty()
    }

    /// Prints the report in the form that the plan asks for.
    pub(crate) fn print(&self, plan: &RunPlan) -> io::Result<()> {
        let mut output = io::stdout().lock();
        if plan.json {
            serde_json::to_writer_pretty(&mut output, self)?;
            return writeln!(output);
        }
        writeln!(
            output,
            "{}: {} s, {} processes, seed {}, client {}",
            self.backend, self.seconds, self.processes, self.seed, self.client
        )?;
        writeln!(
            output,
            "{} asks: {} acquired, {} cancelled, {} lost; refused: {:?}",
            self.asks, self.acquisitions, self.cancelled, self.losses, self.refusals
        )?;
        writeln!(output, "longest wait {} ms, {} queues observed", self.longest_wait_ms, self.observed_queues)?;
        writeln!(output, "faults: {:?}", self.faults)?;
        for note in &self.notes {
            writeln!(output, "note: {note}")?;
        }
        for (checker, count) in &self.found {
            writeln!(output, "\n{count} violations of {checker}")?;
            for violation in self.violations.iter().filter(|violation| violation.checker == *checker).take(SHOWN) {
                writeln!(output, "- {}", violation.what)?;
                for line in &violation.evidence {
                    writeln!(output, "    {line}")?;
                }
            }
        }
        if self.is_clean() {
            writeln!(output, "no violation")?;
        }
        Ok(())
    }
}
