//! Measures leasehold beside what users would pick instead, and compares the figures with their bars.
//!
//! Each scenario runs its contenders in turn, round after round, and reports medians of the ratios within a round:
//! whatever else the machine does slows all contenders of a round. Allocations and system calls are counted, and
//! do not depend on the machine. The exit code is 0 whether or not the bars are met: a benchmark is not a test.

mod allocations;
mod children;
mod comparison;
mod pairs;
mod postgres_locks;
mod redis_locks;
mod redis_workers;
mod report;
mod scenarios;
mod stopwatch;
mod system_calls;

use std::{error::Error, fs, path::PathBuf, process::Command};

use clap::Parser;

use crate::{comparison::Effort, report::Section, scenarios::SCENARIOS};

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// Measures leasehold beside what users would pick instead.
#[derive(Debug, Parser)]
struct Options {
    /// Scenarios to run, by name or the beginning of it; all by default
    scenarios: Vec<String>,
    /// Prints the names of the scenarios
    #[arg(long)]
    list: bool,
    /// Rounds of each comparison
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Seconds for each contender in each round
    #[arg(long, default_value_t = 0.5)]
    seconds: f64,
    /// Also writes the report to this file
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Some(("child", child)) = arguments.split_first().map(|(first, rest)| (first.as_str(), rest)) {
        return children::run(child);
    }
    let options = Options::parse();
    if options.list {
        for scenario in SCENARIOS {
            println!("{:<16} {}", scenario.name, scenario.title);
        }
        return Ok(());
    }
    let chosen: Vec<_> = SCENARIOS
        .iter()
        .filter(|scenario| {
            options.scenarios.is_empty() || options.scenarios.iter().any(|name| scenario.name.starts_with(name))
        })
        .collect();
    if chosen.is_empty() {
        return Err(format!("no scenario begins with {:?}; --list prints them", options.scenarios).into());
    }
    let effort = Effort { rounds: options.rounds.max(1), seconds: options.seconds.max(0.01) };
    let mut text = heading(effort);
    print!("{text}");
    for scenario in chosen {
        let mut section = Section::new(scenario.name, scenario.title);
        if let Err(error) = (scenario.measure)(effort, &mut section) {
            section.note(format!("Measured no further: {error:#}"));
        }
        let section = section.to_string();
        print!("{section}");
        text.push_str(&section);
    }
    if let Some(file) = options.markdown {
        fs::write(file, text)?;
    }
    Ok(())
}

/// What the figures depend on: the commit, the machine, its load, and the effort.
fn heading(effort: Effort) -> String {
    let output_of = |program: &str, arguments: &[&str]| {
        let output = Command::new(program).args(arguments).output().ok()?;
        String::from_utf8(output.stdout).ok().map(|text| text.trim().to_owned())
    };
    let commit = output_of("git", &["describe", "--always", "--dirty"]).unwrap_or_default();
    let kernel = output_of("uname", &["-sr"]).unwrap_or_default();
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    format!(
        "# Benchmark of {commit}\n\n{kernel}, {cores} cores, load {load} at the start; {} rounds of {} s for each \
         contender.\nCompare the ratios and counts; the times are those of one machine.\n",
        effort.rounds, effort.seconds
    )
}
