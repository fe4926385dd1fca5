//! The contenders on Redis servers: leasehold, rslock, and the least that a lock can cost.

use std::{sync::LazyLock, time::Duration};

use futures_util::{StreamExt, stream::FuturesUnordered};
use leasehold::Leasehold;
use leasehold_testkit::redis::Server;
use redis::{RedisError, Script, aio::MultiplexedConnection};

use crate::{
    Result,
    comparison::{Contender, Spread},
    pairs,
    report::Section,
};

const TTL: Duration = Duration::from_secs(30);

static COMPARE_AND_DELETE: LazyLock<Script> = LazyLock::new(|| {
    Script::new("if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0")
});

/// What can lock on one server, or on a majority of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RedisLock {
    Leasehold,
    Rslock,
    /// `SET NX PX`, then compare and delete, on one multiplexed connection to each server; returns with a majority.
    Raw,
}

impl RedisLock {
    pub(crate) const ALL: [Self; 3] = [Self::Leasehold, Self::Rslock, Self::Raw];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Leasehold => "leasehold",
            Self::Rslock => "rslock",
            Self::Raw => "raw",
        }
    }

    pub(crate) fn parse(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| format!("nothing is called {name}").into())
    }
}

/// One contender, connected.
#[derive(Clone, Debug)]
pub(crate) enum Locks {
    Leasehold(Leasehold),
    Rslock(rslock::LockManager),
    Raw(Vec<MultiplexedConnection>),
}

impl Locks {
    /// Connects to the servers on these ports.
    pub(crate) async fn open(kind: RedisLock, ports: &[u16]) -> Result<Self> {
        let urls: Vec<String> = ports.iter().map(|port| format!("redis://127.0.0.1:{port}")).collect();
        Ok(match kind {
            RedisLock::Leasehold => Self::Leasehold(Leasehold::connect(&leasehold_url(ports)).await?),
            RedisLock::Rslock => Self::Rslock(rslock::LockManager::new(urls)),
            RedisLock::Raw => {
                let mut connections = Vec::new();
                for url in urls {
                    connections.push(redis::Client::open(url)?.get_multiplexed_async_connection().await?);
                }
                Self::Raw(connections)
            }
        })
    }

    /// Acquires and releases a name that nobody else wants `count` times.
    pub(crate) async fn pairs(self, name: &str, count: u64) -> Result<()> {
        match self {
            Self::Leasehold(locks) => pairs::on(&locks, name, count).await,
            Self::Rslock(manager) => {
                for _ in 0..count {
                    let lock = manager.lock(name.as_bytes(), TTL).await?;
                    manager.unlock(&lock).await;
                }
                Ok(())
            }
            Self::Raw(mut connections) => {
                for number in 0..count {
                    raw_pair(&mut connections, name, &format!("{number:032}")).await?;
                }
                Ok(())
            }
        }
    }

    pub(crate) async fn close(self) -> Result<()> {
        match self {
            Self::Leasehold(locks) => Ok(locks.close().await?),
            Self::Rslock(_) | Self::Raw(_) => Ok(()),
        }
    }
}

/// The URL of one server, or of a quorum whose fresh nodes vote at once.
pub(crate) fn leasehold_url(ports: &[u16]) -> String {
    let hosts: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    match hosts.as_slice() {
        [host] => format!("redis://{host}"),
        hosts => format!("redlock://{}?longest_ttl=0", hosts.join(",")),
    }
}

async fn raw_pair(connections: &mut [MultiplexedConnection], name: &str, value: &str) -> Result<()> {
    let mut set = redis::cmd("SET");
    set.arg(name).arg(value).arg("NX").arg("PX").arg(30_000);
    let mut delete = COMPARE_AND_DELETE.key(name);
    delete.arg(value);
    if let [connection] = connections {
        set.query_async::<Option<String>>(connection).await?.ok_or("the name is taken")?;
        delete.invoke_async::<u64>(connection).await?;
        return Ok(());
    }
    let set = |connection| {
        let set = &set;
        async move { Ok(set.query_async::<Option<String>>(connection).await?.is_some()) }
    };
    majority(connections.iter_mut().map(set).collect()).await?;
    let delete = |connection| {
        let delete = &delete;
        async move { Ok(delete.invoke_async::<u64>(connection).await? == 1) }
    };
    majority(connections.iter_mut().map(delete).collect()).await
}

/// Returns with the yes that makes a majority; the answers that come later are not waited for.
async fn majority<F: Future<Output = Result<bool, RedisError>>>(mut calls: FuturesUnordered<F>) -> Result<()> {
    let mut needed = calls.len() / 2 + 1;
    while let Some(yes) = calls.next().await {
        needed -= usize::from(yes?);
        if needed == 0 {
            return Ok(());
        }
    }
    Err("too few servers agreed".into())
}

/// The processor time that a server has used, in microseconds.
pub(crate) fn server_cpu(server: &Server) -> f64 {
    let info = server.ask(&["INFO", "cpu"]).to_string();
    let seconds = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok());
    (seconds("used_cpu_user:").unwrap_or(f64::NAN) + seconds("used_cpu_sys:").unwrap_or(f64::NAN)) * 1e6
}

/// What an operation of a contender costs the server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServerCost {
    /// Processor time in µs.
    pub(crate) cpu: f64,
    /// Calls of scripts.
    pub(crate) scripts: f64,
}

/// The median cost of an operation, of three runs of `count` operations.
pub(crate) fn server_cost(server: &Server, contender: &Contender<'_>, count: u64) -> Result<ServerCost> {
    let (mut cpu, mut scripts) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        let before = (server_cpu(server), scripts_called(server));
        (contender.operate)(count)?;
        cpu.push((server_cpu(server) - before.0) / count as f64);
        scripts.push((scripts_called(server) - before.1) / count as f64);
    }
    Ok(ServerCost { cpu: Spread::of(cpu).median, scripts: Spread::of(scripts).median })
}

/// Adds what an operation of each contender costs the server; `where_measured` begins each line.
pub(crate) fn report_server_costs(
    server: &Server,
    contenders: &[Contender<'_>],
    where_measured: &str,
    section: &mut Section,
) -> Result<()> {
    for contender in contenders {
        let (cost, name) = (server_cost(server, contender, 10_000)?, contender.name);
        section.figure(format!("{where_measured}server processor time of {name}"), cost.cpu, "µs", None);
        section.figure(format!("{where_measured}script calls of {name}"), cost.scripts, "", None);
    }
    Ok(())
}

/// How many scripts clients have called since the last reset: all that leasehold sends about leases.
pub(crate) fn scripts_called(server: &Server) -> f64 {
    (server.calls("evalsha") + server.calls("eval")) as f64
}
