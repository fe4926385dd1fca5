//! Write the daily report under a lock, and see tomorrow why it failed today.
//!
//! The lock `cron:daily-report` keeps two runs from writing one report. `with` releases it however the run
//! ends, stops the run if the lock is lost, and records an error with its type and words: the history of
//! locks is the history of jobs, with nothing else to install.

use std::{env, fmt};

use leasehold::{
    Leasehold, Resource,
    lease::{Ending, HistoryFilter, Names},
};

#[derive(Debug)]
pub(crate) enum ReportError {
    Database(&'static str),
    Lock(leasehold::Error),
}

impl fmt::Display for ReportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Database(problem) => write!(f, "database: {problem}"),
            Self::Lock(error) => write!(f, "lock: {error}"),
        }
    }
}

impl From<leasehold::Error> for ReportError {
    fn from(error: leasehold::Error) -> Self {
        Self::Lock(error)
    }
}

async fn run(locks: &Leasehold, orders: Result<u32, &'static str>) -> Result<String, ReportError> {
    let lock = locks.mutex("cron:daily-report").note("report for the sales team");
    lock.with(async |lease| {
        let orders = orders.map_err(ReportError::Database)?; // … query …
        lease.check()?; // the query took its time: is it still ours to write?
        Ok(format!("{orders} orders"))
    })
    .await
}

#[tokio::main]
pub(crate) async fn main() -> Result<(), ReportError> {
    let url = env::var("LEASEHOLD_URL").unwrap_or_else(|_| String::from("memory:"));
    let locks = Leasehold::connect(&url).await?;

    assert!(run(&locks, Err("connection refused")).await.is_err());
    let report = run(&locks, Ok(42)).await?;
    assert_eq!(report, "42 orders");

    let name = Resource::new("cron:daily-report")?;
    let newest = locks.history(&HistoryFilter::new(Names::Exactly(name)).limit(2)).await?;
    for run in &newest {
        let problem = run.problem.as_ref().map(|problem| format!("{}: {}", problem.kind, problem.details));
        println!("{} {} {}", run.resource, run.ending, problem.unwrap_or_default());
    }
    assert_eq!(newest[0].ending, Ending::Released);
    assert_eq!(newest[1].ending, Ending::Failed);
    let problem = newest[1].problem.as_ref().expect("a failure tells what went wrong");
    assert_eq!((&*problem.kind, &*problem.details), ("ReportError", "database: connection refused"));
    Ok(())
}
