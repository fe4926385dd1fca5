//! Watch jobs by their locks: what runs, and what went wrong.
//!
//! Each job runs under `job:{type}:{id}`, so that no id is worked on twice. Whoever looks at what is held
//! sees what runs; whoever looks at what ended sees how: released, failed, a panic included, or expired when
//! the process died. No job writes a log for that; the block that locks is the block that tracks.

use std::{env, fmt, io};

use leasehold::{
    Leasehold, Result,
    lease::{Ending, HistoryFilter, LeaseState, ListFilter, Names},
};
use tokio::task::JoinSet;

/// Why a job failed, of the lock or of the work.
#[derive(Debug)]
struct JobError(String);

impl<E: std::error::Error> From<E> for JobError {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}

impl fmt::Display for JobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

async fn resize(locks: Leasehold, picture: u32) -> Result<(), JobError> {
    let lock = locks.mutex(format!("job:resize:{picture}"));
    lock.with(async |_lease| match picture {
        2 => Err(io::Error::other("the disk is full"))?,
        3 => panic!("picture 3 has no pixels"),
        _ => Ok(()),
    })
    .await
}

#[tokio::main]
pub(crate) async fn main() -> Result<()> {
    let url = env::var("LEASEHOLD_URL").unwrap_or_else(|_| String::from("memory:"));
    let (worker, busy) = (Leasehold::connect(&url).await?, Leasehold::connect(&url).await?);

    let running = busy.mutex("job:resize:4").note("12 MB").acquire().await?;
    let mut jobs = JoinSet::new();
    for picture in 1..=3 {
        jobs.spawn(resize(worker.clone(), picture));
    }
    while jobs.join_next().await.is_some() {}
    worker.close().await?; // a panic releases in the background; this waits for it

    let names = Names::Prefix(String::from("job:resize:"));
    let held = busy.list(&ListFilter::new(names.clone())).await?.leases;
    for lease in &held {
        println!("{} runs ({})", lease.resource, lease.note.as_deref().unwrap_or_default());
    }
    let filter = HistoryFilter::new(names).failures(true).since(running.acquired_at());
    let problems = busy.history(&filter).await?;
    for job in &problems {
        let problem = job.problem.as_ref().map(|problem| format!("{}: {}", problem.kind, problem.details));
        println!("{} {}: {}", job.resource, job.ending, problem.unwrap_or_default());
    }

    assert!(matches!(held[..], [ref job] if matches!(job.state, LeaseState::Holding { .. })));
    let mut failed: Vec<&str> = problems.iter().map(|job| job.resource.as_str()).collect();
    failed.sort_unstable();
    assert_eq!(failed, ["job:resize:2", "job:resize:3"]);
    assert!(problems.iter().all(|job| job.ending == Ending::Failed && job.problem.is_some()));
    running.release().await?;
    Ok(())
}
