//! The way to the servers: one link, or one to each master of a cluster.

use std::sync::Arc;

use redis::{Cmd, RedisError, Value};
use tokio::time;

use super::{
    cluster::Cluster,
    failure,
    finder::Finder,
    keys::{Keys, Partition},
    link::{Channel, Heard, Link, Listener, Live, Trouble},
    options::{RedisOptions, Topology},
    scripts::Call,
};
use crate::{Error, Result};

/// The way to the servers.
#[derive(Debug)]
pub(super) enum Connection {
    /// One server has everything.
    One(Arc<Link>),
    /// Each server has some partitions.
    Cluster(Cluster),
}

/// An answer, and who gave it.
pub(super) struct Answered {
    pub(super) value: Value,
    pub(super) live: Arc<Live>,
}

impl From<Heard> for Answered {
    fn from(heard: Heard) -> Self {
        Self { value: heard.value, live: heard.live }
    }
}

impl Connection {
    pub(super) async fn open(
        options: &Arc<RedisOptions>,
        keys: &Keys,
        instance: &str,
        listener: Arc<dyn Listener>,
    ) -> Result<Self> {
        if options.topology == Topology::Cluster {
            return Ok(Self::Cluster(Cluster::open(Arc::clone(options), instance, listener).await?));
        }
        let finder = Self::finder(options)?;
        let channels = keys.all().iter().map(|partition| Channel::Plain(partition.to(instance))).collect();
        Ok(Self::One(Arc::new(Link::open(finder, Arc::clone(options), listener, channels).await?)))
    }

    /// How the one server is found.
    pub(super) fn finder(options: &RedisOptions) -> Result<Finder> {
        match &options.topology {
            Topology::Sentinel { master } => {
                Ok(Finder::Sentinels { sentinels: options.servers.clone(), master: master.clone() })
            }
            Topology::Single | Topology::Cluster => {
                let server = options.servers.first().cloned();
                Ok(Finder::At(server.ok_or_else(|| Error::invalid_config("no server is named"))?))
            }
        }
    }

    /// Runs a script where the partition lives.
    ///
    /// A server that forgot the script is given its text; one that is only
    /// starting, or no longer the master, did nothing and is asked again.
    pub(super) async fn run(&self, partition: &Partition, call: &Call, options: &RedisOptions) -> Result<Answered> {
        let heard = match &options.clock {
            None => self.send(partition, call.by_hash()).await,
            Some(clock) => self.send(partition, &call.at(clock.wall())).await,
        };
        match heard {
            Ok(heard) => Ok(heard.into()),
            Err(Trouble::NotSent(error) | Trouble::Unknown(error)) => Err(error),
            Err(Trouble::Refused(error)) => Box::pin(self.insist(partition, call, options, error)).await,
        }
    }

    /// Asks on where the first answer was no answer.
    async fn insist(
        &self,
        partition: &Partition,
        call: &Call,
        options: &RedisOptions,
        mut refusal: RedisError,
    ) -> Result<Answered> {
        let by_text = call.by_text();
        let asking = async {
            loop {
                let may_pass =
                    failure::is_not_ready(&refusal) || failure::is_readonly(&refusal) && self.follows_failover();
                if may_pass {
                    if failure::is_readonly(&refusal) {
                        self.look_again();
                    }
                    time::sleep(options.answer_limit / 40).await;
                } else if !failure::is_no_script(&refusal) {
                    return Err(failure::refused(&options.place(), &refusal));
                }
                match self.send(partition, &by_text).await {
                    Ok(heard) => return Ok(heard.into()),
                    Err(Trouble::NotSent(error) | Trouble::Unknown(error)) => return Err(error),
                    Err(Trouble::Refused(error)) => refusal = error,
                }
            }
        };
        match time::timeout(options.answer_limit * 2, asking).await {
            Ok(answer) => answer,
            Err(_) => Err(failure::unanswered(&options.place(), "it is not ready")),
        }
    }

    async fn send(&self, partition: &Partition, command: &Cmd) -> Result<Heard, Trouble> {
        match self {
            Self::One(link) => link.send(command).await,
            Self::Cluster(cluster) => cluster.send(partition, command).await,
        }
    }

    /// Runs a plain command where the partition lives.
    pub(super) async fn ask(&self, partition: &Partition, command: &Cmd, options: &RedisOptions) -> Result<Value> {
        let heard = self.send(partition, command).await.map_err(|trouble| trouble.at(options))?;
        Ok(heard.value)
    }

    /// Sees to it that this instance hears about its leases in the partition.
    pub(super) async fn hear(&self, partition: &Partition) -> Result<()> {
        match self {
            // Subscribed on connecting.
            Self::One(_) => Ok(()),
            Self::Cluster(cluster) => cluster.hear(partition).await,
        }
    }

    /// Hears, or no longer hears, what everyone is told.
    pub(super) async fn subscribe(&self, channel: Channel, options: &RedisOptions) -> Result<()> {
        let subscribed = match self {
            Self::One(link) => link.subscribe(channel).await,
            Self::Cluster(cluster) => cluster.any_link()?.subscribe(channel).await,
        };
        subscribed.map_err(|trouble| trouble.at(options))
    }

    pub(super) async fn unsubscribe(&self, channel: &Channel) {
        match self {
            Self::One(link) => link.unsubscribe(channel).await,
            Self::Cluster(cluster) => cluster.unsubscribe(channel).await,
        }
    }

    /// A link to each server that keeps leases.
    pub(super) fn links(&self) -> Vec<Arc<Link>> {
        match self {
            Self::One(link) => vec![Arc::clone(link)],
            Self::Cluster(cluster) => cluster.masters(),
        }
    }

    /// Whether another server may take the place of this one.
    fn follows_failover(&self) -> bool {
        match self {
            Self::One(link) => link.follows_failover(),
            Self::Cluster(_) => true,
        }
    }

    fn look_again(&self) {
        if let Self::One(link) = self
            && let Some(live) = link.current()
        {
            live.give_up();
        }
    }
}
