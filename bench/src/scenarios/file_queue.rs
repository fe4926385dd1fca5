//! Queues on files: what each of 100 and of 1,000 waiters on one name costs.

use std::{
    io::{BufRead, BufReader, Read, Write, stdin},
    process::{Child, ChildStdin, ChildStdout},
    time::Duration,
};

use leasehold::{
    Leasehold,
    lease::{ListFilter, Names},
};
use tokio::task::JoinSet;

use super::prelude::*;
use crate::{
    children::{self, argument},
    stopwatch::Stopwatch,
};

pub(super) const SCENARIO: Scenario = Scenario {
    name: "file-queue",
    title: "file:, 100 and 1,000 waiters on one name, all queued before the holder releases: the time of each waiter \
            to queue, and of each hand-off.",
    measure,
};

const FEW: usize = 100;
const MANY: usize = 1_000;
const PROCESSES: usize = 4;
const NAME: &str = "hot";
/// Long enough for the slowest queue: a waiter that gives up would spoil the figures.
const PATIENCE: Duration = Duration::from_secs(60);

/// What each waiter of one queue took, in microseconds.
#[derive(Clone, Copy, Debug)]
struct Cost {
    queue: f64,
    hand_off: f64,
    /// Of this process, to queue and to hand off.
    cpu: f64,
}

fn measure(effort: Effort, section: &mut Section) -> Result<()> {
    let one = rounds(effort, in_one_process)?;
    compare("one process", "to queue", &one, |cost| cost.queue, section);
    compare("one process", "hand-off", &one, |cost| cost.hand_off, section);
    compare("one process", "processor time", &one, |cost| cost.cpu, section);
    let four = rounds(effort, in_four_processes)?;
    compare("4 processes", "to queue", &four, |cost| cost.queue, section);
    compare("4 processes", "hand-off", &four, |cost| cost.hand_off, section);
    Ok(())
}

fn rounds(effort: Effort, run: fn(usize) -> Result<Cost>) -> Result<Vec<[Cost; 2]>> {
    let round = |_| {
        // A short queue is over before a busy machine evens out: the median of several stands for the round.
        let short = (0..5).map(|_| run(FEW)).collect::<Result<Vec<_>>>()?;
        Ok([Cost::median(&short), run(MANY)?])
    };
    (0..effort.rounds).map(round).collect()
}

fn compare(place: &str, part: &str, rounds: &[[Cost; 2]], figure: fn(&Cost) -> f64, section: &mut Section) {
    let few = Spread::of(rounds.iter().map(|[few, _]| figure(few)));
    let many = Spread::of(rounds.iter().map(|[_, many]| figure(many)));
    let ratio = Spread::of(rounds.iter().map(|[few, many]| figure(many) / figure(few)));
    section.figure(format!("{place}, each of {FEW}: {part}"), few.median, "µs", None);
    section.figure(format!("{place}, each of {MANY}: {part}"), many.median, "µs", None);
    section.ratio(format!("{place}, {MANY} : {FEW}: {part}"), ratio, Bar::AtMost(4.0));
}

fn in_one_process(waiters: usize) -> Result<Cost> {
    let directory = tempfile::tempdir()?;
    two_workers()?.block_on(async {
        let locks = Leasehold::connect(&format!("file://{}", directory.path().display())).await?;
        let holder = locks.mutex(NAME).acquire().await?;
        let watch = Stopwatch::start();
        let mut tasks = wait_in_line(&locks, waiters);
        until_queued(&locks, waiters, || match tasks.try_join_next() {
            Some(waiter) => waiter?.and(Err("a waiter was granted a lock that is held".into())),
            None => Ok(()),
        })
        .await?;
        let queued = watch.nanos();
        holder.release().await?;
        all_succeed(tasks).await?;
        let cost = Cost::new(waiters, queued, watch);
        locks.close().await?;
        Ok(cost)
    })
}

fn in_four_processes(waiters: usize) -> Result<Cost> {
    let directory = tempfile::tempdir()?;
    let url = format!("file://{}", directory.path().display());
    two_workers()?.block_on(async {
        let locks = Leasehold::connect(&url).await?;
        let holder = locks.mutex(NAME).acquire().await?;
        let share = (waiters / PROCESSES).to_string();
        let mut crowd = Vec::new();
        for _ in 0..PROCESSES {
            crowd.push(Crowd::start(&url, &share)?);
        }
        let watch = Stopwatch::start();
        crowd.iter_mut().try_for_each(Crowd::queue)?;
        until_queued(&locks, waiters, || crowd.iter_mut().try_for_each(Crowd::still_waits)).await?;
        let queued = watch.nanos();
        holder.release().await?;
        crowd.iter_mut().try_for_each(Crowd::finish)?;
        let cost = Cost::new(waiters, queued, watch);
        locks.close().await?;
        Ok(cost)
    })
}

impl Cost {
    fn median(costs: &[Self]) -> Self {
        let of = |figure: fn(&Self) -> f64| Spread::of(costs.iter().map(figure)).median;
        Self { queue: of(|cost| cost.queue), hand_off: of(|cost| cost.hand_off), cpu: of(|cost| cost.cpu) }
    }

    fn new(waiters: usize, queued: f64, watch: Stopwatch) -> Self {
        let each = |nanos: f64| nanos / 1e3 / waiters as f64;
        Self { queue: each(queued), hand_off: each(watch.nanos() - queued), cpu: each(watch.cpu_nanos()) }
    }
}

fn wait_in_line(locks: &Leasehold, waiters: usize) -> JoinSet<Result<()>> {
    let mut tasks = JoinSet::new();
    for _ in 0..waiters {
        let locks = locks.clone();
        tasks.spawn(async move {
            locks.mutex(NAME).wait(PATIENCE).acquire().await?.release().await?;
            Ok(())
        });
    }
    tasks
}

/// Fails with the first that fails: the others may then wait for nobody.
async fn all_succeed(mut tasks: JoinSet<Result<()>>) -> Result<()> {
    while let Some(waiter) = tasks.join_next().await {
        waiter??;
    }
    Ok(())
}

/// Completes when the record has the holder and `waiters` waiters; fails if a waiter fails.
async fn until_queued(locks: &Leasehold, waiters: usize, mut still_wait: impl FnMut() -> Result<()>) -> Result<()> {
    // Looks after the same time for each waiter, so that looking costs both sizes alike.
    let pause = Duration::from_micros(10) * u32::try_from(waiters)?;
    while locks.list(&ListFilter::new(Names::All)).await?.leases.len() <= waiters {
        still_wait()?;
        tokio::time::sleep(pause).await;
    }
    Ok(())
}

/// A child process with its share of the waiters.
struct Crowd {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Crowd {
    /// Returns when the child has connected.
    fn start(url: &str, waiters: &str) -> Result<Self> {
        let mut child = children::command("queue", &[url, waiters])?.spawn()?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("a child has no pipes".into());
        };
        let mut output = BufReader::new(output);
        output.read_line(&mut String::new())?;
        Ok(Self { child, input, output })
    }

    fn queue(&mut self) -> Result<()> {
        Ok(self.input.write_all(b"queue\n")?)
    }

    fn still_waits(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            Some(status) => Err(format!("a child with waiters ended early with {status}").into()),
            None => Ok(()),
        }
    }

    /// Returns when all waiters of the child have held the lock.
    fn finish(&mut self) -> Result<()> {
        self.output.read_to_end(&mut Vec::new())?;
        let status = self.child.wait()?;
        if status.success() { Ok(()) } else { Err(format!("a child with waiters ended with {status}").into()) }
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        // Both fail only for a child that has ended and was waited for.
        let _ended = self.child.kill().and_then(|()| self.child.wait());
    }
}

/// Connects, waits for a line, then has `WAITERS` tasks wait for the lock: `URL WAITERS`.
pub(crate) fn child(arguments: &[String]) -> Result<()> {
    let (url, waiters) = (argument::<String>(arguments, 0)?, argument(arguments, 1)?);
    two_workers()?.block_on(async {
        let locks = Leasehold::connect(&url).await?;
        println!("ready");
        stdin().read_line(&mut String::new())?;
        all_succeed(wait_in_line(&locks, waiters)).await
    })
}
