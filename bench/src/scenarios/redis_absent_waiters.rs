//! Ten thousand waiters of a process that is gone: how long one call keeps the server busy.

use std::{sync::Arc, time::Duration};

use futures_util::future::try_join_all;
use leasehold::{
    Holder, Resource, Ttl,
    backend::{Backend, Hint, Patience, Request},
    backends::redis::{RedisBackend, RedisOptions},
    lease::{Claim, LeaseId, LeaseKey, Outcome},
};
use leasehold_testkit::{redis::Server, until};
use tokio::time;

use super::prelude::*;

pub(super) const SCENARIO: Scenario = Scenario {
    name: "redis-absent",
    title: "redis: a lock is handed on past 10,000 waiters of a process that is gone: the longest that one call keeps the \
            server busy.",
    measure,
};

const WAITERS: usize = 10_000;
/// Requests on their way at once.
const AT_ONCE: usize = 250;

fn measure(effort: Effort, section: &mut Section) -> Result<()> {
    let runtime = two_workers()?;
    let rounds = effort.rounds.min(3);
    // Whatever else the machine does only adds to a call, so the shortest of the rounds tells most.
    let mut longest = Vec::new();
    for _ in 0..rounds {
        longest.push(runtime.block_on(hand_on())?);
    }
    let longest = longest.into_iter().min().unwrap_or_default();
    section.figure("longest call", longest.as_secs_f64() * 1000.0, "ms", Some(Bar::AtMost(10.0)));
    Ok(())
}

/// Hands a lock on past all that are gone, and returns how long the longest call took.
async fn hand_on() -> Result<Duration> {
    let server = Server::start();
    let open = async || RedisBackend::open(RedisOptions::from_url(&server.url(), "bench")?).await;
    let (holder, gone) = (open().await?, open().await?);
    let held = request(Patience::Try)?;
    holder.acquire(&held).await?;
    for _ in 0..WAITERS / AT_ONCE {
        try_join_all((0..AT_ONCE).map(|_| queue(&gone))).await?;
    }
    let last = request(Patience::Queue)?;
    holder.acquire(&last).await?;
    drop(gone);
    until(|| server.clients() == 1);

    server.time_calls();
    let mut hints = holder.hints();
    holder.release(&held.key, &Outcome::Completed).await?;
    let granted = async { while !matches!(hints.next().await, Some(Hint::Granted { id, .. }) if id == last.key.id) {} };
    time::timeout(Duration::from_secs(60), granted).await?;
    holder.release(&last.key, &Outcome::Completed).await?;
    holder.acquire(&request(Patience::Try)?).await?;
    Ok(server.longest_call())
}

async fn queue(backend: &Arc<RedisBackend>) -> Result<()> {
    backend.acquire(&request(Patience::Queue)?).await?;
    Ok(())
}

fn request(patience: Patience) -> Result<Request> {
    let key = LeaseKey::new(Resource::new("x")?, LeaseId::random());
    let ttl = Ttl::new(Duration::from_secs(600))?;
    Ok(Request::new(key, Claim::EXCLUSIVE, Holder::new("bench")?).ttl(ttl).patience(patience))
}
