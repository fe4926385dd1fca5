//! Counts the system calls of a child process with `strace -c -f`.

use std::{collections::BTreeMap, fs, process::Command};

use crate::{Result, children::command_line};

/// The system calls of each pair, by name, most frequent first.
#[derive(Debug)]
pub(crate) struct SystemCalls(Vec<(String, f64)>);

impl SystemCalls {
    /// Counts those of `pairs` on this URL, from one task.
    ///
    /// The difference between `pairs` and twice as many: starting and connecting cancel out.
    pub(crate) fn of_each_pair(url: &str, pairs: u64) -> Result<Self> {
        let once = trace(url, pairs)?;
        let twice = trace(url, 2 * pairs)?;
        let mut calls: Vec<(String, f64)> = twice
            .into_iter()
            .map(|(name, count)| {
                let before = once.get(&name).copied().unwrap_or(0.0);
                (name, (count - before) / pairs as f64)
            })
            .collect();
        calls.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        Ok(Self(calls))
    }

    pub(crate) fn total(&self) -> f64 {
        self.0.iter().map(|(_, count)| count).sum()
    }

    /// The calls that at least one pair in twenty makes.
    pub(crate) fn breakdown(&self) -> String {
        let often = self.0.iter().filter(|(_, count)| *count >= 0.05);
        let parts: Vec<String> = often.map(|(name, count)| format!("{name} {count:.1}")).collect();
        parts.join(", ")
    }
}

fn trace(url: &str, pairs: u64) -> Result<BTreeMap<String, f64>> {
    let summary = tempfile::NamedTempFile::new()?;
    let outcome = Command::new("strace")
        .args(["-c", "-f", "-U", "calls,name", "-o"])
        .arg(summary.path())
        .args(command_line("pairs", &[url, &pairs.to_string()])?)
        .status()
        .map_err(|error| format!("strace cannot be run ({error}); scripts/bench installs it"))?;
    if !outcome.success() {
        return Err(format!("the traced child ended with {outcome}").into());
    }
    Ok(parse(&fs::read_to_string(summary.path())?))
}

/// Reads lines such as `  1234 futex`; the heading, the rules and the total are not calls.
fn parse(summary: &str) -> BTreeMap<String, f64> {
    let lines = summary.lines().filter_map(|line| line.trim().split_once(' '));
    let counted = lines.filter_map(|(count, name)| Some((name.trim().to_owned(), count.parse().ok()?)));
    counted.filter(|(name, _)| name != "total").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_is_its_calls_without_heading_and_total() {
        let summary = "    calls syscall\n--------- ------------------\n      272 epoll_wait\n     5005 getrandom\n\
                       --------- ------------------\n     5277 total\n";
        let expected = [("epoll_wait".to_owned(), 272.0), ("getrandom".to_owned(), 5005.0)];
        assert_eq!(parse(summary), BTreeMap::from(expected));
    }
}
