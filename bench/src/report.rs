//! Writes the figures as tables that read well both in a terminal and as Markdown.

use std::fmt;

use crate::comparison::{Score, Spread};

/// What a figure has to reach.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bar {
    AtLeast(f64),
    AtMost(f64),
}

impl Bar {
    fn verdict(self, value: f64) -> &'static str {
        let (met, nearly) = match self {
            Self::AtLeast(bar) => (value >= bar, value >= bar * 0.9),
            Self::AtMost(bar) => (value <= bar, value <= bar * 1.1),
        };
        match (met, nearly) {
            (true, _) => "met",
            (false, true) => "within 10 %",
            (false, false) => "missed",
        }
    }
}

impl fmt::Display for Bar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtLeast(bar) => write!(f, "at least {bar}"),
            Self::AtMost(bar) => write!(f, "at most {bar}"),
        }
    }
}

const CONTENDERS: [&str; 6] =
    ["", "µs each", "CPU µs each", "allocations each", "leasehold's rate : this rate", "by CPU time"];

/// The figures of one scenario.
#[derive(Debug)]
pub(crate) struct Section {
    name: &'static str,
    title: &'static str,
    contenders: Vec<Vec<String>>,
    figures: Vec<Vec<String>>,
    notes: Vec<String>,
}

impl Section {
    pub(crate) fn new(name: &'static str, title: &'static str) -> Self {
        Self { name, title, contenders: Vec::new(), figures: Vec::new(), notes: Vec::new() }
    }

    /// Adds one row for each contender of a comparison.
    pub(crate) fn contenders(&mut self, scores: &[Score]) {
        for score in scores {
            self.contenders.push(vec![
                score.name.to_owned(),
                short(score.micros),
                short(score.cpu_micros),
                short(score.allocations),
                range(score.ratio),
                range(score.cpu_ratio),
            ]);
        }
    }

    /// Adds a figure and compares it with its bar.
    pub(crate) fn figure(&mut self, what: impl Into<String>, value: f64, unit: &str, bar: Option<Bar>) {
        let (bar, verdict) = bar.map_or((String::new(), ""), |bar| (bar.to_string(), bar.verdict(value)));
        self.figures.push(vec![what.into(), format!("{} {unit}", short(value)), bar, verdict.to_owned()]);
    }

    /// Adds a ratio with its range over the rounds and compares its median with its bar.
    pub(crate) fn ratio(&mut self, what: impl Into<String>, ratio: Spread, bar: Bar) {
        self.figures.push(vec![what.into(), range(ratio), bar.to_string(), bar.verdict(ratio.median).to_owned()]);
    }

    /// Adds a line below the tables.
    pub(crate) fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }
}

impl fmt::Display for Section {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n## {}\n\n{}", self.name, self.title)?;
        table(f, CONTENDERS, &self.contenders)?;
        table(f, ["figure", "measured", "bar", ""], &self.figures)?;
        self.notes.iter().try_for_each(|note| writeln!(f, "\n{note}"))
    }
}

fn table<const N: usize>(f: &mut fmt::Formatter<'_>, head: [&str; N], rows: &[Vec<String>]) -> fmt::Result {
    if rows.is_empty() {
        return Ok(());
    }
    let head: Vec<String> = head.map(str::to_owned).into();
    let width = |column: usize| rows.iter().chain([&head]).map(|row| row[column].chars().count()).max().unwrap_or(0);
    let line = |f: &mut fmt::Formatter<'_>, row: &[String]| {
        row.iter().enumerate().try_for_each(|(column, cell)| write!(f, "| {cell:<0$} ", width(column)))?;
        writeln!(f, "|")
    };
    writeln!(f)?;
    line(f, &head)?;
    let rule: Vec<String> = (0..N).map(|column| "-".repeat(width(column))).collect();
    line(f, &rule)?;
    rows.iter().try_for_each(|row| line(f, row))
}

/// Median and range.
fn range(spread: Spread) -> String {
    format!("{} ({} to {})", short(spread.median), short(spread.least), short(spread.most))
}

/// Three significant digits, without an exponent.
fn short(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 1.0 => format!("{value:.2}"),
        size if size >= 0.1 => format!("{value:.3}"),
        _ => format!("{value:.4}"),
    }
}

#[cfg(test)]
mod tests {
    use super::Bar::{AtLeast, AtMost};

    #[test]
    fn a_verdict_allows_a_tenth_of_the_bar() {
        assert_eq!([0.3, 0.28, 0.26].map(|ratio| AtLeast(0.3).verdict(ratio)), ["met", "within 10 %", "missed"]);
        assert_eq!([8.0, 8.5, 9.0].map(|count| AtMost(8.0).verdict(count)), ["met", "within 10 %", "missed"]);
        assert_eq!([0.0, 1.0].map(|count| AtMost(0.0).verdict(count)), ["met", "missed"]);
        assert_eq!(AtMost(8.0).verdict(f64::NAN), "missed");
    }
}
