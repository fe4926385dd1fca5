//! What doctor sees: reach, clock, rights, and settings of each server that can lose a lock.

use std::{collections::HashMap, time::Duration};

use redis::Cmd;

use super::{
    RedisBackend, Topology,
    connection::Connection,
    link::{Link, Live, Trouble},
    reply,
};
use crate::{
    Error, Result,
    backend::{Backend, Finding, Severity},
    clock::{Clock, SystemClock},
    lease::{
        Claim, HistoryFilter, Holder, LeaseId, LeaseKey, ListFilter, Names, Outcome,
        Renewal, Request, Resource, Ttl,
    },
};

/// Round trips measured.
const PINGS: usize = 50;
/// A server that answers later than this makes every lock slow.
const SLOW: Duration = Duration::from_millis(50);
/// A clock further off than this puts fences of different servers out of order.
const FAR_OFF: Duration = Duration::from_secs(5);

impl RedisBackend {
    pub(super) async fn findings(&self) -> Result<Vec<Finding>> {
        let mut findings = vec![self.promises()];
        for link in self.connection.links() {
            let server = Server::of(&link).await?;
            findings.push(server.reach(&link).await?);
            findings.push(server.clock(&link).await?);
            findings.push(server.version());
            match server.info(&link).await? {
                Some(info) => findings.extend([
                    server.eviction(&info),
                    server.persistence(&info),
                    server.replication(&info, &self.options.topology),
                ]),
                None => findings.push(server.finding(
                    Severity::Info,
                    "settings",
                    "this user may not ask for INFO, so that eviction, persistence and replicas are not known, and \
                     redlock takes each new connection for a restart; allow +info",
                )),
            }
        }
        findings.push(self.rights().await);
        Ok(findings)
    }

    fn promises(&self) -> Finding {
        let how = match &self.connection {
            Connection::One(_) => "",
            Connection::Cluster(cluster) if cluster.is_sharded() => "; a cluster with sharded pushes",
            Connection::Cluster(_) => "; a cluster of a version before 7, whose pushes go to every server",
        };
        let words = format!(
            "machines that reach one server; a lease ends with its ttl by the server's clock; fences: yes, fair \
             queue: yes, pushed grants: yes, survives failover: no{how}"
        );
        Finding::new(Severity::Info, "promises", words)
    }

    /// Whether this user may do all that a lock needs.
    async fn rights(&self) -> Finding {
        match self.try_everything().await {
            Ok(()) => Finding::new(Severity::Ok, "rights", "this user may acquire, renew, release, list and look back"),
            Err(error) => Finding::new(Severity::Failure, "rights", error.to_string()),
        }
    }

    async fn try_everything(&self) -> Result<()> {
        let id = LeaseId::random();
        let resource = Resource::new(format!("leasehold:doctor:{id}"))?;
        let key = LeaseKey::new(resource.clone(), id);
        let request = Request::new(key.clone(), Claim::SHARED, Holder::new("leasehold doctor")?).ttl(Ttl::new(Duration::from_secs(5))?);
        self.acquire(&request).await?;
        self.renew(&[Renewal::new(key.clone(), request.ttl)]).await?;
        let names = Names::Exactly(resource);
        self.page(&ListFilter::new(names.clone())).await?;
        self.release(&key, &Outcome::Cancelled).await?;
        self.ended(&HistoryFilter::new(names)).await.map(drop)
    }
}

/// One server, as examined.
struct Server {
    name: String,
    version: (u32, u32),
}

impl Server {
    async fn of(link: &Link) -> Result<Self> {
        let live = link.live().await?;
        let Live { address, server, .. } = &*live;
        Ok(Self { name: address.to_string(), version: server.version })
    }

    fn finding(&self, severity: Severity, subject: &str, words: impl std::fmt::Display) -> Finding {
        Finding::new(severity, subject, format!("{}: {words}", self.name))
    }

    async fn reach(&self, link: &Link) -> Result<Finding> {
        let mut took = Vec::with_capacity(PINGS);
        for _ in 0..PINGS {
            let before = SystemClock.now();
            tell(link, &redis::cmd("PING")).await?;
            took.push(SystemClock.now().since(before));
        }
        took.sort_unstable();
        let (median, worst) = (took[PINGS / 2], took[PINGS - 1]);
        let words = format!("{:.1} ms p50, {:.1} ms p99", millis(median), millis(worst));
        Ok(if median > SLOW {
            self.finding(Severity::Warning, "reachable", format!("{words}; each lock waits as long: move closer"))
        } else {
            self.finding(Severity::Ok, "reachable", words)
        })
    }

    async fn clock(&self, link: &Link) -> Result<Finding> {
        let before = SystemClock.wall();
        let answer = tell(link, &redis::cmd("TIME")).await?.unwrap_or(redis::Value::Nil);
        let after = SystemClock.wall();
        let [seconds, micros] = reply::array(&answer)? else {
            return Ok(self.finding(Severity::Info, "clock offset", "this user may not ask for TIME"));
        };
        let theirs = reply::number(seconds)? * 1_000_000 + reply::number(micros)?;
        let ours = u64::midpoint(before.as_micros(), after.as_micros());
        let offset = Duration::from_micros(theirs.abs_diff(ours));
        let words = format!("{:.1} ms from this machine; the server's clock decides", millis(offset));
        let severity = if offset > FAR_OFF { Severity::Warning } else { Severity::Ok };
        Ok(self.finding(severity, "clock offset", words))
    }

    fn version(&self) -> Finding {
        let (major, minor) = self.version;
        if self.version < (6, 2) {
            let words = format!("Redis {major}.{minor} is too old: use 6.2 or newer");
            return self.finding(Severity::Failure, "version", words);
        }
        self.finding(Severity::Ok, "version", format!("{major}.{minor}"))
    }

    async fn info(&self, link: &Link) -> Result<Option<HashMap<String, String>>> {
        Ok(tell(link, &redis::cmd("INFO")).await?.map(|told| reply::info(&told)))
    }

    fn eviction(&self, info: &HashMap<String, String>) -> Finding {
        let policy = info.get("maxmemory_policy").map_or("noeviction", String::as_str);
        let limited = info.get("maxmemory").is_some_and(|most| most != "0");
        match (policy, limited) {
            ("noeviction", _) => self.finding(Severity::Ok, "eviction", "noeviction"),
            (policy, true) => self.finding(
                Severity::Failure,
                "eviction",
                format!("maxmemory-policy={policy} can delete a held lock → set noeviction or use a server of its own"),
            ),
            (policy, false) => self.finding(
                Severity::Warning,
                "eviction",
                format!("maxmemory-policy={policy} will delete held locks once maxmemory is set → set noeviction"),
            ),
        }
    }

    fn persistence(&self, info: &HashMap<String, String>) -> Finding {
        if info.get("aof_enabled").is_some_and(|on| on == "1") {
            let words = "append-only file: a restart keeps what was written (all of it with appendfsync always)";
            return self.finding(Severity::Ok, "persistence", words);
        }
        let words = "no append-only file: a restart forgets locks, holders are told at the next renewal and fences \
                     rise on → set appendonly yes, or use fences";
        self.finding(Severity::Warning, "persistence", words)
    }

    fn replication(&self, info: &HashMap<String, String>, topology: &Topology) -> Finding {
        let role = info.get("role").map_or("master", String::as_str);
        if role != "master" {
            let words = "it is a replica and cannot keep locks → name the master, or use redis+sentinel://";
            return self.finding(Severity::Failure, "replication", words);
        }
        match info.get("connected_slaves").and_then(|count| count.parse::<u32>().ok()).unwrap_or(0) {
            0 if *topology == Topology::Single => self.finding(Severity::Ok, "replication", "no replicas: no failover"),
            0 => self.finding(Severity::Warning, "replication", "no replica is connected: nobody can take over"),
            count => self.finding(
                Severity::Warning,
                "replication",
                format!(
                    "{count} replicas, asynchronous: a failover can lose a lock just taken → use fences, \
                     durability=replicas:{count}, redlock or Postgres"
                ),
            ),
        }
    }
}

/// The answer to a plain command; `None` where this user may not ask.
async fn tell(link: &Link, command: &Cmd) -> Result<Option<redis::Value>, Error> {
    match link.send(command).await {
        Ok(heard) => Ok(Some(heard.value)),
        Err(Trouble::NotSent(error) | Trouble::Unknown(error)) => Err(error),
        Err(Trouble::Refused(_)) => Ok(None),
    }
}

fn millis(length: Duration) -> f64 {
    length.as_secs_f64() * 1000.0
}
