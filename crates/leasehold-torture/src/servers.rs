//! The private servers of a run, and how a master of them is replaced.

use std::io;

use leasehold_testkit::{
    Dice,
    redis::{Cluster, Sentinel, Server},
};

use crate::{
    args::BackendChoice,
    history::{Failover, Span},
    instant::{Micros, millis, now},
};

/// How many shards a cluster has: the replica of each master stands this many places behind it.
const SHARDS: usize = 3;
/// Servers that have not agreed by then are asked again.
const ASK_AGAIN: Micros = millis(6000);
/// What the servers are given to replace a master.
const LIMIT: Micros = millis(60_000);
/// What a master wrote this long before it was replaced may be missing on its replica: it writes first and copies then.
const LAG: Micros = millis(500);

/// Servers that belong together.
#[derive(Debug)]
pub(crate) enum Servers {
    /// One, or those of a quorum.
    Alone(Vec<Server>),
    Sentinel(Sentinel),
    Cluster(Cluster),
}

/// A master that is being replaced.
#[derive(Debug)]
pub(crate) struct Replacement {
    how: How,
    from: Micros,
    asked: Micros,
    pub(crate) pair: Pair,
    /// Since when the former master runs again, and until when it may have granted.
    revived: Option<Span>,
}

/// The positions of a master and of its replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pair {
    pub(crate) master: usize,
    pub(crate) replica: usize,
}

impl Replacement {
    fn new(how: How, from: Micros, pair: Pair) -> Self {
        Self { how, from, asked: from, pair, revived: None }
    }
}

/// How a master goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// By a command, while it runs.
    Asked,
    /// By kill -9; it comes back with nothing.
    Killed,
    /// By SIGSTOP; it continues once it was replaced, and does not know that.
    Stopped,
    /// The servers replaced it because it did not answer in time on a busy machine.
    Unasked,
}

impl Servers {
    /// Starts what the backend needs, if it needs servers.
    pub(crate) fn start(backend: BackendChoice) -> Option<Self> {
        let alone = |count: usize| Self::Alone((0..count).map(|_| Server::start()).collect());
        match backend {
            BackendChoice::Memory | BackendChoice::File => None,
            BackendChoice::Redis => Some(alone(1)),
            BackendChoice::Redlock => Some(alone(3)),
            BackendChoice::Sentinel => Some(Self::Sentinel(Sentinel::start())),
            BackendChoice::Cluster => Some(Self::Cluster(Cluster::start())),
        }
    }

    fn all(&self) -> &[Server] {
        match self {
            Self::Alone(servers) => servers,
            Self::Sentinel(sentinel) => &sentinel.servers,
            Self::Cluster(cluster) => &cluster.servers,
        }
    }

    /// Every port that a client may connect to.
    pub(crate) fn ports(&self) -> Vec<u16> {
        let sentinel = match self {
            Self::Sentinel(sentinel) => Some(sentinel.port()),
            Self::Alone(_) | Self::Cluster(_) => None,
        };
        self.all().iter().map(Server::port).chain(sentinel).collect()
    }

    /// The URL, where other ports lead to those of [`ports`](Self::ports), in the same order.
    pub(crate) fn url(&self, ports: &[u16]) -> String {
        let hosts: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        match (self, hosts.as_slice()) {
            (Self::Alone(_), [host]) => format!("redis://{host}"),
            // The servers lose nothing here, so that each of a quorum votes at once.
            (Self::Alone(_), hosts) => format!("redlock://{}?longest_ttl=0", hosts.join(",")),
            (Self::Sentinel(_), hosts) => format!("redis+sentinel://{}/mymaster", hosts[hosts.len() - 1]),
            (Self::Cluster(_), hosts) => format!("redis+cluster://{}", hosts.join(",")),
        }
    }

    /// Whether each server has a vote of its own.
    pub(crate) fn is_quorum(&self) -> bool {
        matches!(self, Self::Alone(servers) if servers.len() > 1)
    }

    /// Each master beside its replica, as positions, when nothing has been replaced.
    pub(crate) fn pairs(&self) -> Vec<Pair> {
        match self {
            Self::Alone(_) => Vec::new(),
            Self::Sentinel(_) => vec![Pair { master: 0, replica: 1 }],
            Self::Cluster(_) => (0..SHARDS).map(|at| Pair { master: at, replica: at + SHARDS }).collect(),
        }
    }

    /// A master that the servers have replaced since `seen`, though nobody asked for it.
    pub(crate) fn replaced_unasked(&self, pairs: &[Pair], seen: Micros) -> Option<Replacement> {
        let replaced = pairs.iter().find(|pair| is_master(&self.all()[pair.replica]))?;
        Some(Replacement::new(How::Unasked, seen, *replaced))
    }

    /// Begins to replace a master. Returns what was done.
    pub(crate) fn replace(&mut self, pair: Pair, dice: &mut Dice) -> Option<(&'static str, Replacement)> {
        let Pair { master: old, replica: new } = pair;
        let from = now();
        let (what, how) = match dice.below(3) {
            0 => ("failover, by command", How::Asked),
            1 => ("failover, master killed", How::Killed),
            _ => ("failover, master stopped", How::Stopped),
        };
        let begins = match (how, &mut *self) {
            (How::Asked, Self::Sentinel(sentinel)) => sentinel.begins_failover(),
            (How::Asked, servers) => servers.all()[new].ask(&["CLUSTER", "FAILOVER"]).to_string() == "OK",
            (How::Killed, Self::Sentinel(Sentinel { servers, .. }) | Self::Cluster(Cluster { servers })) => {
                servers[old].kill();
                true
            }
            (_, servers) => {
                servers.all()[old].signal("STOP");
                true
            }
        };
        begins.then_some((what, Replacement::new(how, from, pair)))
    }

    /// Looks how far the replacement has come; once the former master follows the new one, it is over.
    pub(crate) fn follow(&mut self, replacement: &mut Replacement) -> io::Result<Option<Failover>> {
        let Replacement { how, from, pair: Pair { master: old, replica: new }, .. } = *replacement;
        if now() > from + LIMIT {
            return Err(io::Error::other(format!("the servers did not replace a master: {replacement:?}")));
        }
        let Some(revived) = replacement.revived else {
            if self.is_replaced(old, new) {
                replacement.revived = Some(self.revive(how, old, new));
            } else if how == How::Asked && now() > replacement.asked + ASK_AGAIN {
                replacement.asked = now();
                match self {
                    Self::Sentinel(sentinel) => drop(sentinel.begins_failover()),
                    Self::Alone(_) | Self::Cluster(_) => drop(self.all()[new].ask(&["CLUSTER", "FAILOVER"])),
                }
            }
            return Ok(None);
        };
        let info = self.all()[old].ask(&["INFO", "replication"]).to_string();
        if !info.contains("role:slave") || !info.contains("master_link_status:up") {
            return Ok(None);
        }
        let before = from.saturating_sub(LAG);
        let demoted = revived.to.max(revived.from);
        let forgets = match (how, &*self) {
            // The master of a cluster stops answering until its replica has everything.
            (How::Asked, Self::Cluster(_)) => Vec::new(),
            (How::Unasked, Self::Cluster(_)) => vec![Span { from: before, to: now() }],
            (How::Asked | How::Unasked, _) => vec![Span { from: before, to: demoted }],
            (How::Killed, _) => vec![Span { from: before, to: from }],
            // It executes what had been sent to it before it learns that it was replaced.
            (How::Stopped, Self::Cluster(_)) => {
                vec![Span { from: before, to: from }, Span { from: revived.from, to: now() }]
            }
            (How::Stopped, _) => vec![Span { from: before, to: from }, Span { from: revived.from, to: demoted }],
        };
        Ok(Some(Failover { span: Span { from, to: now() }, forgets }))
    }

    fn is_replaced(&self, old: usize, new: usize) -> bool {
        match self {
            Self::Alone(_) => true,
            Self::Sentinel(sentinel) => {
                sentinel.master() == sentinel.servers[new].port() && is_master(&sentinel.servers[new])
            }
            Self::Cluster(cluster) => {
                let others = cluster.servers.iter().enumerate().filter(|(at, _)| *at != old);
                let is_ok = |server: &Server| server.ask(&["CLUSTER", "INFO"]).to_string().contains("cluster_state:ok");
                is_master(&cluster.servers[new]) && others.map(|(_, server)| server).all(is_ok)
            }
        }
    }

    /// Lets the former master run again and follow the new one; in a cluster it finds that out by itself.
    ///
    /// Returns from when it ran, and when it followed.
    fn revive(&mut self, how: How, old: usize, new: usize) -> Span {
        let port = self.all()[new].port().to_string();
        let from = now();
        match (how, &mut *self) {
            (How::Killed, Self::Sentinel(Sentinel { servers, .. }) | Self::Cluster(Cluster { servers })) => {
                servers[old].launch();
            }
            (How::Stopped, servers) => servers.all()[old].signal("CONT"),
            (How::Asked | How::Killed | How::Unasked, _) => {}
        }
        if let Self::Sentinel(sentinel) = self {
            // The sentinel would do so some seconds later.
            sentinel.servers[old].command(&["REPLICAOF", "127.0.0.1", &port]);
        }
        Span { from, to: now() }
    }
}

fn is_master(server: &Server) -> bool {
    server.ask(&["ROLE"]).parts().first().is_some_and(|role| role.to_string() == "master")
}
