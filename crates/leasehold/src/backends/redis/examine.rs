//! What doctor sees: reach, clock, rights, and settings of each server that can lose a lock.

use std::{collections::HashMap, fmt::Display, time::Duration};

use futures_util::future::try_join_all;
use redis::{Cmd, Value};

use super::{
    RedisBackend, Topology,
    connection::{Router, SendError},
    decode,
    options::{HistoryLevel, RedisOptions},
};
use crate::{
    Result,
    backend::{Backend, Finding, Severity},
    clock::{Clock, SystemClock},
    lease::{
        Claim, HistoryFilter, Holder, LeaseId, LeaseKey, ListFilter, Names, Outcome, Patience, Renewal, Request,
        Resource, Ttl,
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
        let (router, options) = (&self.shared.router, &*self.shared.options);
        let mut findings = vec![promises(router)];
        findings.extend(reach(router, options).await?);
        findings.extend(clocks(router, options).await?);
        for (name, info) in ask_servers(router, options, &redis::cmd("INFO")).await? {
            match info {
                Some(info) => {
                    let server = ExaminedServer { name, info: decode::info(&info) };
                    findings.extend([server.version(), server.eviction(), server.memory(), server.persistence()]);
                    findings.extend(server.replication(&options.topology));
                }
                None => findings.push(Finding::new(
                    Severity::Warning,
                    "settings",
                    format!(
                        "{name}: this user may not ask for INFO, so that memory, eviction, persistence and replicas are \
                         not known, and redlock refuses the server → ACL SETUSER … +info"
                    ),
                )),
            }
        }
        findings.push(self.rights().await);
        Ok(findings)
    }

    /// Whether this user may do all that a lock needs.
    async fn rights(&self) -> Finding {
        match self.try_everything().await {
            Ok(()) => {
                Finding::new(Severity::Ok, "rights", "this user may acquire, renew, release, list and read the history")
            }
            Err(error) => Finding::new(Severity::Failure, "rights", error.to_string()),
        }
    }

    async fn try_everything(&self) -> Result<()> {
        // What only doctor asked for is not worth a line in the history.
        let options = RedisOptions { history: HistoryLevel::Off, ..(*self.shared.options).clone() };
        let probe = Self::open(options).await?;
        let id = LeaseId::random();
        let resource = Resource::new(format!("leasehold:doctor:{id}"))?;
        let key = LeaseKey::new(resource.clone(), id);
        let holder = Holder::new("leasehold doctor")?;
        let request = Request::new(key.clone(), Claim::SHARED, holder).ttl(Ttl::new(Duration::from_secs(5))?);
        probe.acquire(&request).await?;
        // A waiter that accepts none ahead of it goes through the full script, which counts them.
        let other = LeaseKey::new(resource.clone(), LeaseId::random());
        let waiter = Request::new(other.clone(), Claim::EXCLUSIVE, request.holder.clone()).ttl(request.ttl);
        probe.acquire(&waiter.patience(Patience::Queue).max_waiters(0)).await?;
        probe.renew(&[Renewal::new(key.clone(), request.ttl)]).await?;
        let names = Names::Exactly(resource);
        self.shared.page(&ListFilter::new(names.clone())).await?;
        probe.release(&other, &Outcome::Cancelled).await?;
        probe.release(&key, &Outcome::Cancelled).await?;
        self.shared.ended(&HistoryFilter::new(names)).await.map(drop)
    }
}

fn promises(router: &Router) -> Finding {
    let how = match router.cluster() {
        None => "",
        Some(cluster) if cluster.is_sharded => "; a cluster with sharded pushes",
        Some(_) => "; a cluster of a version before 7, whose pushes go to every server",
    };
    let words = format!(
        "machines that reach one server; a lease ends with its ttl by the server's clock; fences: yes, fair queue: yes, \
         pushed grants: yes, survives failover: no{how}"
    );
    Finding::new(Severity::Info, "promises", words)
}

async fn reach(router: &Router, options: &RedisOptions) -> Result<Vec<Finding>> {
    let servers = ask_servers(router, options, &redis::cmd("PING")).await?;
    let mut took: HashMap<String, Vec<Duration>> = HashMap::new();
    for _ in 0..PINGS {
        for (name, length) in try_join_all(servers.iter().map(|(name, _)| ping(router, options, name))).await? {
            took.entry(name).or_default().push(length);
        }
    }
    let finding = |(name, mut took): (String, Vec<Duration>)| {
        took.sort_unstable();
        let (median, worst) = (took[took.len() / 2], took[took.len() - 1]);
        let words = format!("{name}: {:.1} ms median, {:.1} ms at most", millis(median), millis(worst));
        if median > SLOW {
            Finding::new(Severity::Warning, "reachable", format!("{words}; each lock waits as long: move closer"))
        } else {
            Finding::new(Severity::Ok, "reachable", words)
        }
    };
    Ok(took.into_iter().map(finding).collect())
}

/// How long this server takes to answer.
async fn ping(router: &Router, options: &RedisOptions, name: &str) -> Result<(String, Duration)> {
    let (before, command) = (SystemClock.now(), redis::cmd("PING"));
    match router.cluster() {
        // Where the user may not send it, `ask_servers` names the cluster instead of its servers.
        Some(cluster) if name != options.display_url() => match cluster.ask_master(name, command).await {
            Ok(_) | Err(SendError::Refused(_)) => {}
            Err(error) => return Err(error.into_error(options)),
        },
        _ => drop(ask_servers(router, options, &command).await?),
    }
    Ok((name.to_owned(), SystemClock.now().since(before)))
}

async fn clocks(router: &Router, options: &RedisOptions) -> Result<Vec<Finding>> {
    let before = SystemClock.wall();
    let answers = ask_servers(router, options, &redis::cmd("TIME")).await?;
    let ours = u64::midpoint(before.as_micros(), SystemClock.wall().as_micros());
    let mut findings = Vec::new();
    for (name, answer) in answers {
        let answer = answer.unwrap_or(Value::Nil);
        let [seconds, micros] = decode::array(&answer)? else {
            findings.push(Finding::new(
                Severity::Failure,
                "clock offset",
                format!("{name}: this user may not ask for TIME → ACL SETUSER … +time"),
            ));
            continue;
        };
        let theirs = decode::number(seconds)? * 1_000_000 + decode::number(micros)?;
        let offset = Duration::from_micros(theirs.abs_diff(ours));
        let words = format!("{name}: {:.1} ms from this machine; the server's clock decides", millis(offset));
        findings.push(Finding::new(
            if offset > FAR_OFF { Severity::Warning } else { Severity::Ok },
            "clock offset",
            words,
        ));
    }
    Ok(findings)
}

/// What each server answers to a plain command; `None` where this user may not ask.
async fn ask_servers(router: &Router, options: &RedisOptions, command: &Cmd) -> Result<Vec<(String, Option<Value>)>> {
    let answers = match (router.connection(), router.cluster()) {
        (Some(connection), _) => {
            let live = connection.live().await?;
            let name = live.address.to_string();
            match live.send(command, options.answer_limit).await {
                Ok(answer) => Ok(vec![(name, answer)]),
                Err(SendError::Refused(_)) => return Ok(vec![(name, None)]),
                Err(error) => Err(error),
            }
        }
        (None, Some(cluster)) => cluster.ask_masters(command.clone()).await,
        (None, None) => Ok(Vec::new()),
    };
    match answers {
        Ok(answers) => Ok(answers.into_iter().map(|(name, answer)| (name, Some(answer))).collect()),
        Err(SendError::Refused(_)) => Ok(vec![(options.display_url(), None)]),
        Err(error) => Err(error.into_error(options)),
    }
}

/// One server, as examined.
struct ExaminedServer {
    name: String,
    info: HashMap<String, String>,
}

impl ExaminedServer {
    fn finding(&self, severity: Severity, subject: &str, words: impl Display) -> Finding {
        Finding::new(severity, subject, format!("{}: {words}", self.name))
    }

    fn get(&self, name: &str) -> &str {
        self.info.get(name).map_or("", String::as_str)
    }

    fn number(&self, name: &str) -> u64 {
        self.get(name).parse().unwrap_or(0)
    }

    fn version(&self) -> Finding {
        let version = self.get("redis_version");
        let mut parts = version.split('.').map(|part| part.parse().unwrap_or(0));
        if (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) < (6, 2) {
            return self.finding(Severity::Failure, "version", format!("Redis {version} is too old: use 6.2 or newer"));
        }
        self.finding(Severity::Ok, "version", version)
    }

    fn eviction(&self) -> Finding {
        match (self.get("maxmemory_policy"), self.number("maxmemory")) {
            ("noeviction" | "", _) => self.finding(Severity::Ok, "eviction", "noeviction"),
            (policy, 1..) => self.finding(
                Severity::Failure,
                "eviction",
                format!("maxmemory-policy={policy} can delete held locks → set noeviction or use a server of its own"),
            ),
            (policy, 0) => self.finding(
                Severity::Warning,
                "eviction",
                format!("maxmemory-policy={policy} will delete held locks once maxmemory is set → set noeviction"),
            ),
        }
    }

    fn memory(&self) -> Finding {
        let (used, most) = (self.number("used_memory"), self.number("maxmemory"));
        let percent = (used * 100).checked_div(most);
        match percent {
            None => self.finding(Severity::Ok, "memory", format!("{} MB used, no limit", used >> 20)),
            Some(100..) => self.finding(
                Severity::Failure,
                "memory",
                "full: leases that are held go on, every new one is refused → raise maxmemory or delete other data",
            ),
            Some(percent @ 90..) => self.finding(
                Severity::Warning,
                "memory",
                format!(
                    "{percent} % of maxmemory is used; when it is full every new lease is refused → raise maxmemory"
                ),
            ),
            Some(percent) => self.finding(Severity::Ok, "memory", format!("{percent} % of maxmemory is used")),
        }
    }

    fn persistence(&self) -> Finding {
        if self.get("aof_enabled") == "1" {
            let words = "append-only file: a restart keeps what was written (all of it with appendfsync always)";
            return self.finding(Severity::Ok, "persistence", words);
        }
        let words = "no append-only file: a restart forgets locks, holders learn it at the next renewal and fences rise \
                     on → set appendonly yes, or use fences";
        self.finding(Severity::Warning, "persistence", words)
    }

    fn replication(&self, topology: &Topology) -> Vec<Finding> {
        if !matches!(self.get("role"), "master" | "") {
            let words = "it is a replica and cannot grant locks → name the master, or use redis+sentinel://";
            return vec![self.finding(Severity::Failure, "replication", words)];
        }
        let count = self.number("connected_slaves");
        let mut findings = vec![match count {
            0 if *topology == Topology::Single => self.finding(Severity::Ok, "replication", "no replicas: no failover"),
            0 => self.finding(Severity::Warning, "replication", "no replica is connected: nobody can take over"),
            count => {
                let durability = match topology {
                    // A cluster refuses it.
                    Topology::Cluster => String::new(),
                    Topology::Single | Topology::Sentinel { .. } => format!("durability=replicas:{count}, "),
                };
                let words = format!(
                    "{count} replicas, asynchronous: a failover can lose a lock just taken → use fences, {durability}redlock \
                     or Postgres"
                );
                self.finding(Severity::Warning, "replication", words)
            }
        }];
        if count > 0 && !self.info.contains_key("min_slaves_good_slaves") {
            findings.push(self.finding(
                Severity::Warning,
                "split brain",
                "a master that is cut off from its replicas goes on granting while another takes its place → set \
                 min-replicas-to-write 1 and min-replicas-max-lag below your ttl",
            ));
        }
        findings
    }
}

fn millis(length: Duration) -> f64 {
    length.as_secs_f64() * 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durability_is_advised_only_where_it_is_available() {
        let info = [("role", "master"), ("connected_slaves", "2")];
        let info = info.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let server = ExaminedServer { name: String::from("one"), info: HashMap::from(info) };
        let advice = |topology| server.replication(&topology)[0].message.clone();
        assert!(advice(Topology::Single).contains("durability=replicas:2"), "{}", advice(Topology::Single));
        assert!(!advice(Topology::Cluster).contains("durability="), "{}", advice(Topology::Cluster));
    }
}
