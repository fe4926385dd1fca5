//! A queue on a quorum beside clients that only try: whether their tries obstruct it.

use std::{sync::Arc, time::Duration};

use leasehold::Leasehold;
use leasehold_testkit::redis::Server;
use parking_lot::Mutex;
use tokio::{runtime::Runtime, task::JoinSet, time::sleep};

use super::prelude::*;
use crate::{redis_locks::leasehold_url, stopwatch::now};

pub(super) const SCENARIO: Scenario = Scenario {
    name: "redlock-tries",
    title: "redlock: over 5 servers, 4 waiters that hold one name for 2 ms each, alone and beside 32 clients that try it \
            every 5 ms.",
    measure,
};

const WAITERS: usize = 4;
const TRIES: usize = 32;
const HOLD: Duration = Duration::from_millis(2);
const PAUSE: Duration = Duration::from_millis(5);
const NAME: &str = "hot";
/// Gaps need more time than rates.
const LONGER: f64 = 4.0;

/// What the waiters got in one round.
#[derive(Clone, Copy, Debug)]
struct TriesRound {
    /// Grants a second.
    rate: f64,
    longest_gap_millis: f64,
}

fn measure(effort: Effort, section: &mut Section) -> Result<()> {
    let servers: [Server; 5] = std::array::from_fn(|_| Server::start());
    let url = leasehold_url(&servers.each_ref().map(Server::port));
    let runtime = two_workers()?;
    let open = |count: usize| -> Result<Vec<Leasehold>> {
        (0..count).map(|_| Ok(runtime.block_on(Leasehold::builder().wait_forever().connect(&url))?)).collect()
    };
    let (waiters, clients) = (open(WAITERS)?, open(TRIES)?);
    let mut rounds = [Vec::new(), Vec::new()];
    for _ in 0..effort.rounds {
        rounds[0].push(contend(&runtime, &waiters, &[], effort.seconds * LONGER)?);
        rounds[1].push(contend(&runtime, &waiters, &clients, effort.seconds * LONGER)?);
    }
    let [alone, beside] = &rounds;
    for (what, rounds) in [("alone", alone), ("beside tries", beside)] {
        let rate = Spread::of(rounds.iter().map(|round| round.rate)).median;
        section.figure(format!("{what}: grants a second"), rate, "", None);
        let longest = rounds.iter().map(|round| round.longest_gap_millis).fold(0.0, f64::max);
        let bar = (what != "alone").then_some(Bar::AtMost(100.0));
        section.figure(format!("{what}: longest gap between grants"), longest, "ms", bar);
    }
    let ratios = beside.iter().zip(alone).map(|(beside, alone)| beside.rate / alone.rate);
    section.ratio("grants, beside tries : alone", Spread::of(ratios), Bar::AtLeast(0.7));
    for locks in waiters.into_iter().chain(clients) {
        runtime.block_on(locks.close())?;
    }
    Ok(())
}

/// Has the waiters contend for `seconds` while the clients try.
fn contend(runtime: &Runtime, waiters: &[Leasehold], clients: &[Leasehold], seconds: f64) -> Result<TriesRound> {
    let grants = Arc::new(Mutex::new(vec![now()]));
    let end = now() + u64::try_from(Duration::from_secs_f64(seconds).as_nanos())?;
    let mut tasks: JoinSet<Result<()>> = JoinSet::new();
    runtime.block_on(async {
        for locks in waiters {
            let (locks, grants) = (locks.clone(), Arc::clone(&grants));
            tasks.spawn(async move {
                while now() < end {
                    let guard = locks.mutex(NAME).acquire().await?;
                    grants.lock().push(now());
                    sleep(HOLD).await;
                    guard.release().await?;
                }
                Ok(())
            });
        }
        for locks in clients {
            let locks = locks.clone();
            tasks.spawn(async move {
                while now() < end {
                    if let Some(guard) = locks.mutex(NAME).try_acquire().await? {
                        guard.release().await?;
                    }
                    sleep(PAUSE).await;
                }
                Ok(())
            });
        }
        tasks.join_all().await.into_iter().collect::<Result<()>>()
    })?;
    let grants = grants.lock();
    let longest_gap = grants.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(u64::MAX);
    Ok(TriesRound { rate: grants.len() as f64 / seconds, longest_gap_millis: longest_gap as f64 / 1e6 })
}
