//! Hand-off between two processes on files, beside a blocked flock.

use std::{path::Path, thread, time::Duration};

use leasehold::Leasehold;

use super::prelude::*;
use crate::{
    children::{self, argument},
    stopwatch::{Stopwatch, now},
};

pub(super) const SCENARIO: Scenario = Scenario {
    name: "file-handoff",
    title: "file:, hand-off between two processes: from the call that releases to the return of the call that was \
            blocked in the other process, beside a blocked flock.",
    measure,
};

/// Long enough for the other process to block before the holder releases.
const HOLD: Duration = Duration::from_millis(1);
/// Long enough for the other process to get the lock: flock(2) would give it back to whoever asks first.
const AWAY: Duration = Duration::from_micros(500);

const KINDS: [&str; 2] = ["leasehold", "flock"];

/// One time that a process held the lock, in nanoseconds of the clock that processes share.
#[derive(Clone, Copy, Debug)]
struct HoldTimes {
    process: usize,
    asked: u64,
    acquired: u64,
    released: u64,
}

/// What two processes took for each hand-off, in microseconds.
#[derive(Clone, Copy, Debug)]
struct HandOffRound {
    latency: f64,
    /// Of both processes.
    cpu: f64,
    hand_offs: usize,
}

fn measure(effort: Effort, section: &mut Section) -> Result<()> {
    let mut rounds = [Vec::new(), Vec::new()];
    for round in 0..effort.rounds {
        for turn in 0..KINDS.len() {
            let kind = (round + turn) % KINDS.len();
            rounds[kind].push(alternate(KINDS[kind], effort.seconds)?);
        }
    }
    let [ours, theirs] = rounds;
    for (name, rounds) in KINDS.into_iter().zip([&ours, &theirs]) {
        let median = |figure: fn(&HandOffRound) -> f64| Spread::of(rounds.iter().map(figure)).median;
        section.figure(format!("{name}: latency of a hand-off"), median(|round| round.latency), "µs", None);
        section.figure(format!("{name}: processor time of a hand-off"), median(|round| round.cpu), "µs", None);
        section.figure(format!("{name}: hand-offs in a round"), median(|round| round.hand_offs as f64), "", None);
    }
    let ratios = ours.iter().zip(&theirs).map(|(ours, theirs)| ours.latency / theirs.latency);
    section.ratio("latency, leasehold : flock", Spread::of(ratios), Bar::AtMost(10.0));
    Ok(())
}

/// Has two processes hand one lock to and fro for about `seconds`.
fn alternate(kind: &str, seconds: f64) -> Result<HandOffRound> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().to_str().ok_or("the temporary directory is not UTF-8")?;
    let millis = Duration::from_secs_f64(seconds).as_millis().to_string();
    let start = || Ok(children::command("alternate", &[kind, path, &millis])?.spawn()?);
    let children: Vec<_> = [start(), start()].into_iter().collect::<Result<_>>()?;
    let (mut holds, mut cpu) = (Vec::new(), 0.0);
    for (process, child) in children.into_iter().enumerate() {
        let output = child.wait_with_output()?;
        if !output.status.success() {
            return Err(format!("a child that alternates ended with {}", output.status).into());
        }
        for line in String::from_utf8(output.stdout)?.lines() {
            let numbers: Vec<u64> = line.split(' ').map(str::parse).collect::<Result<_, _>>()?;
            match numbers[..] {
                [asked, acquired, released] => holds.push(HoldTimes { process, asked, acquired, released }),
                [nanos] => cpu += nanos as f64,
                _ => return Err(format!("a child that alternates printed {line:?}").into()),
            }
        }
    }
    holds.sort_by_key(|hold| hold.acquired);
    // A hand-off is from one process to the other, which had asked before: it was blocked.
    let latencies: Vec<f64> = holds
        .windows(2)
        .filter(|pair| pair[0].process != pair[1].process && pair[1].asked < pair[0].released)
        .map(|pair| pair[1].acquired.saturating_sub(pair[0].released) as f64 / 1e3)
        .collect();
    let hand_offs = latencies.len();
    Ok(HandOffRound { latency: Spread::of(latencies).median, cpu: cpu / 1e3 / hand_offs as f64, hand_offs })
}

/// Holds the lock again and again, then prints the times: `leasehold|flock DIRECTORY MILLIS`.
pub(crate) fn child(arguments: &[String]) -> Result<()> {
    let (kind, directory) = (argument::<String>(arguments, 0)?, argument::<String>(arguments, 1)?);
    let end = now() + argument::<u64>(arguments, 2)? * 1_000_000;
    if kind == "flock" {
        let file = pairs::open_flock(&Path::new(&directory).join("flock"))?;
        let mut log = GrantLog::start();
        while now() < end {
            let asked = now();
            file.lock()?;
            log.hold(asked);
            file.unlock()?;
            thread::sleep(AWAY);
        }
        log.print();
        return Ok(());
    }
    one_thread()?.block_on(async {
        let locks = Leasehold::connect(&format!("file://{directory}")).await?;
        let mut log = GrantLog::start();
        while now() < end {
            let asked = now();
            let guard = locks.mutex("hot").acquire().await?;
            log.hold(asked);
            guard.release().await?;
            thread::sleep(AWAY);
        }
        log.print();
        Ok(locks.close().await?)
    })
}

/// What a child has measured since it connected.
struct GrantLog {
    watch: Stopwatch,
    holds: Vec<[u64; 3]>,
}

impl GrantLog {
    fn start() -> Self {
        Self { watch: Stopwatch::start(), holds: Vec::new() }
    }

    /// Keeps the lock that was just acquired for a while; the caller releases it next.
    fn hold(&mut self, asked: u64) {
        let acquired = now();
        thread::sleep(HOLD);
        self.holds.push([asked, acquired, now()]);
    }

    fn print(&self) {
        println!("{:.0}", self.watch.cpu_nanos());
        for [asked, acquired, released] in &self.holds {
            println!("{asked} {acquired} {released}");
        }
    }
}
