//! Many leases and many waiters on one Redis server: what a pair, renewals, and waiting cost.

use std::{
    io::{BufRead, BufReader, Write},
    time::Duration,
};

use leasehold::{Attempt, Leasehold};
use leasehold_testkit::redis::Server;
use tokio::{runtime::Runtime, task::JoinSet, time::sleep};

use super::{prelude::*, redis_pairs};
use crate::{
    children,
    redis_locks::{Locks, RedisLock, scripts_called, server_cpu},
};

pub(super) const SCENARIO: Scenario = Scenario {
    name: "redis-scale",
    title: "redis:, pairs of 64 tasks beside 1,000 and beside 1,000,000 live leases; renewing 100,000 leases; 1,000 idle \
            waiters; 10,000 waiters of a process that was killed.",
    measure,
};

const FEW_LEASES: u64 = 1_000;
const MANY_LEASES: u64 = 1_000_000;
const HELD: u64 = 100_000;
const IDLE_WAITERS: u64 = 1_000;
const DEAD_WAITERS: u64 = 10_000;
const NAME: &str = "hot";

fn measure(effort: Effort, section: &mut Section) -> Result<()> {
    let runtime = two_workers()?;
    dead_waiters(&runtime, section)?;
    idle_waiters(&runtime, section)?;
    renewals(&runtime, section)?;
    live_leases(effort, &runtime, section)
}

fn live_leases(effort: Effort, runtime: &Runtime, section: &mut Section) -> Result<()> {
    let [few, many] = [Server::start(), Server::start()];
    fill(runtime, &few, FEW_LEASES)?;
    fill(runtime, &many, MANY_LEASES)?;
    let on_few = runtime.block_on(Locks::open(RedisLock::Leasehold, &[few.port()]))?;
    let on_many = runtime.block_on(Locks::open(RedisLock::Leasehold, &[many.port()]))?;
    let contenders = [
        redis_pairs::contender("1,000 live leases", runtime, &on_few, 64),
        redis_pairs::contender("1,000,000 live leases", runtime, &on_many, 64),
    ];
    let scores = compare(effort, &contenders)?;
    section.contenders(&scores);
    section.ratio("time of a pair, 1,000,000 : 1,000 live leases", scores[1].ratio, Bar::AtMost(1.3));
    let mut ratios = Vec::new();
    for _ in 0..5 {
        let mut costs = Vec::new();
        for (server, contender) in [&few, &many].into_iter().zip(&contenders) {
            let before = server_cpu(server);
            (contender.operate)(20_000)?;
            costs.push(server_cpu(server) - before);
        }
        ratios.push(costs[1] / costs[0]);
    }
    section.ratio("server processor time of a pair, 1,000,000 : 1,000", Spread::of(ratios), Bar::AtMost(1.3));
    drop(contenders);
    runtime.block_on(on_few.close())?;
    runtime.block_on(on_many.close())
}

/// Leaves this many leases behind that live for an hour.
fn fill(runtime: &Runtime, server: &Server, leases: u64) -> Result<()> {
    let locks = runtime.block_on(Leasehold::connect(&server.url()))?;
    pairs::spread(runtime, 256, leases, |task, count| {
        let locks = locks.clone();
        async move {
            for number in 0..count {
                let lock = locks.mutex(format!("live:{task}:{number}")).ttl(Duration::from_secs(3600));
                lock.acquire_detached().await?;
            }
            Ok(())
        }
    })?;
    Ok(runtime.block_on(locks.close())?)
}

fn renewals(runtime: &Runtime, section: &mut Section) -> Result<()> {
    const TTL: Duration = Duration::from_secs(45);
    let server = Server::start();
    runtime.block_on(async {
        let locks = Leasehold::builder().ttl(TTL).connect(&server.url()).await?;
        let mut tasks = JoinSet::new();
        for task in 0..64 {
            let (locks, share) = (locks.clone(), HELD / 64 + u64::from(task < HELD % 64));
            tasks.spawn(async move {
                let mut guards = Vec::new();
                for number in 0..share {
                    guards.push(locks.mutex(format!("held:{task}:{number}")).acquire().await?);
                }
                Ok(guards)
            });
        }
        let guards: Vec<_> =
            tasks.join_all().await.into_iter().collect::<Result<Vec<_>>>()?.into_iter().flatten().collect();
        server.reset_calls();
        // Each lease is renewed every third of its ttl, or a little earlier.
        sleep(TTL).await;
        section.figure(
            "commands that renew 100,000 leases",
            scripts_called(&server) / 3.0,
            "",
            Some(Bar::AtMost(400.0)),
        );
        let lost = guards.iter().filter(|guard| guard.check().is_err()).count();
        section.figure("of these, leases lost", lost as f64, "", Some(Bar::AtMost(0.0)));
        // Releasing them one by one is no part of this.
        guards.into_iter().for_each(std::mem::forget);
        Ok(())
    })
}

fn idle_waiters(runtime: &Runtime, section: &mut Section) -> Result<()> {
    let server = Server::start();
    runtime.block_on(async {
        let locks = Leasehold::builder().wait_forever().ttl(Duration::from_secs(60)).connect(&server.url()).await?;
        let holder = locks.mutex(NAME).acquire().await?;
        let mut waiters = JoinSet::new();
        for _ in 0..IDLE_WAITERS {
            let locks = locks.clone();
            waiters.spawn(async move { locks.mutex(NAME).acquire().await?.release().await.map(drop) });
        }
        until_queued(&locks, IDLE_WAITERS).await?;
        server.reset_calls();
        sleep(Duration::from_secs(5)).await;
        section.figure("1,000 idle waiters: commands in 5 s", scripts_called(&server), "", Some(Bar::AtMost(0.0)));
        section.figure("1,000 idle waiters: connections", server.clients() as f64, "", Some(Bar::AtMost(1.0)));
        holder.release().await?;
        waiters.join_all().await.into_iter().collect::<Result<(), leasehold::Error>>()?;
        Ok(locks.close().await?)
    })
}

/// Completes when this many wait for the name.
async fn until_queued(locks: &Leasehold, waiters: u64) -> Result<()> {
    loop {
        if let Attempt::Busy(busy) = locks.mutex(NAME).try_acquire_or_busy().await?
            && u64::from(busy.waiting) >= waiters
        {
            return Ok(());
        }
        sleep(Duration::from_millis(100)).await;
    }
}

fn dead_waiters(runtime: &Runtime, section: &mut Section) -> Result<()> {
    let server = Server::start();
    server.command(&["CONFIG", "SET", "slowlog-log-slower-than", "500"]);
    runtime.block_on(async {
        let locks = Leasehold::builder().wait_forever().connect(&server.url()).await?;
        let holder = locks.mutex(NAME).acquire().await?;
        let mut child = children::command("queue", &[&server.url(), &DEAD_WAITERS.to_string()])?.spawn()?;
        let (Some(mut input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("a child has no pipes".into());
        };
        let mut output = BufReader::new(output);
        output.read_line(&mut String::new())?;
        input.write_all(b"queue\n")?;
        until_queued(&locks, DEAD_WAITERS).await?;
        child.kill()?;
        child.wait()?;
        server.command(&["SLOWLOG", "RESET"]);
        holder.release().await?;
        for _ in 0..20 {
            locks.mutex(NAME).acquire().await?.release().await?;
        }
        // When the leases of the dead run out, somebody has to sweep them.
        sleep(Duration::from_secs(32)).await;
        locks.mutex(NAME).acquire().await?.release().await?;
        let slow = server.command(&["SLOWLOG", "GET", "128"]);
        let micros =
            |entry: &leasehold_testkit::redis::RespReply| entry.parts().get(2)?.to_string().parse::<f64>().ok();
        let longest = slow.parts().iter().filter_map(micros).fold(0.0, f64::max);
        section.figure("10,000 dead waiters: longest call", longest / 1e3, "ms", Some(Bar::AtMost(10.0)));
        Ok(locks.close().await?)
    })
}
