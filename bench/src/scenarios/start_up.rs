//! One short command under a lock, from start to end, beside flock(1).

use std::{
    env, io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use leasehold_testkit::redis;

use super::prelude::*;
use crate::{postgres_locks, stopwatch::Stopwatch};

pub(super) const SCENARIO: Scenario = Scenario {
    name: "start-up",
    title: "`leasehold run NAME -- true` from start to end, supervisor included, beside `flock FILE true`. The command is \
            the one that `scripts/dist` made, as it is shipped, if it is there.",
    measure,
};

/// The command as it is shipped, a static binary, or the one that was built with the benchmark; and which it is.
fn command() -> io::Result<(PathBuf, &'static str)> {
    let built = env::current_exe()?.with_file_name("leasehold");
    let target = built.parent().and_then(Path::parent);
    match target.map(|target| target.join("x86_64-unknown-linux-musl/dist/leasehold")) {
        Some(shipped) if shipped.exists() => Ok((shipped, "The command is the static binary that is shipped.")),
        _ => Ok((built, "The command is the release build, linked dynamically.")),
    }
}

fn measure(effort: Effort, section: &mut Section) -> Result<()> {
    let (command, which) = command()?;
    let directory = tempfile::tempdir()?;
    let postgres = postgres_locks::server(&two_workers()?, true)?;
    let redis = redis::Server::start();
    let urls = [format!("file://{}", directory.path().join("locks").display()), postgres.url(), redis.url()];
    let mut flock = Command::new("flock");
    flock.arg(directory.path().join("flock")).arg("true");
    let mut contenders = vec![flock];
    for url in &urls {
        let mut leasehold = Command::new(&command);
        leasehold.args(["run", "-q", "start-up", "--", "true"]).env("LEASEHOLD_URL", url);
        contenders.push(leasehold);
    }
    let mut rounds = vec![Vec::new(); contenders.len()];
    for round in 0..effort.rounds {
        for turn in 0..contenders.len() {
            let index = (round + turn) % contenders.len();
            rounds[index].push(millis_of_a_run(&mut contenders[index], effort.seconds)?);
        }
    }
    section.note(which);
    let bars = [("file:", Bar::AtMost(3.5)), ("postgres:", Bar::AtMost(8.0)), ("redis:", Bar::AtMost(8.0))];
    let flock = rounds.remove(0);
    section.figure("flock".to_owned(), Spread::of(flock.iter().copied()).median, "ms", None);
    for ((backend, bar), rounds) in bars.into_iter().zip(rounds) {
        section.figure(format!("leasehold on {backend}"), Spread::of(rounds.iter().copied()).median, "ms", None);
        let ratios = rounds.iter().zip(&flock).map(|(ours, theirs)| ours / theirs);
        section.ratio(format!("time, leasehold on {backend} : flock"), Spread::of(ratios), bar);
    }
    Ok(())
}

/// Runs the command again and again for about `seconds`; the median time in milliseconds.
fn millis_of_a_run(command: &mut Command, seconds: f64) -> Result<f64> {
    let mut times = Vec::new();
    let round = Stopwatch::start();
    while round.nanos() < Duration::from_secs_f64(seconds).as_nanos() as f64 {
        let run = Stopwatch::start();
        let status = command.stdin(Stdio::null()).status()?;
        if !status.success() {
            return Err(format!("{command:?} ended with {status}").into());
        }
        times.push(run.nanos() / 1e6);
    }
    Ok(Spread::of(times).median)
}
