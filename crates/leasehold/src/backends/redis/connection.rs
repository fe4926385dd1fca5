//! The way to the servers: one link, or one to each master of a cluster.

use std::sync::Arc;

use redis::Value;
use tokio::time;

use super::{
    cluster::Cluster,
    failure,
    finder::Finder,
    keys::{Keys, Partition},
    link::{Channel, Link, Listener, Live, Trouble},
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

impl Connection {
    pub(super) async fn open(
        options: &Arc<RedisOptions>,
        keys: &Keys,
        instance: &str,
        listener: Arc<dyn Listener>,
    ) -> Result<Self> {
        let finder = match &options.topology {
            Topology::Cluster => {
                return Ok(Self::Cluster(Cluster::open(Arc::clone(options), instance, listener).await?));
            }
            Topology::Single => {
                Finder::At(options.servers.first().cloned().ok_or_else(|| Error::invalid_config("no server is named"))?)
            }
            Topology::Sentinel { master } => {
                Finder::Sentinels { sentinels: options.servers.clone(), master: master.clone() }
            }
        };
        let channels = keys.all().map(|partition| Channel::Plain(partition.to(instance))).collect();
        Ok(Self::One(Arc::new(Link::open(finder, Arc::clone(options), listener, channels).await?)))
    }

    /// Runs a script where the partition lives.
    ///
    /// A server that forgot the script is given its text; one that is only
    /// starting, or no longer the master, did nothing and is asked again.
    pub(super) async fn run(&self, partition: &Partition, call: &Call, options: &RedisOptions) -> Result<Answered> {
        let mut command = match &options.clock {
            None => call.by_hash(),
            Some(clock) => call.at(clock.wall()),
        };
        let asking = async {
            loop {
                let heard = match self {
                    Self::One(link) => link.send(&command).await,
                    Self::Cluster(cluster) => cluster.send(partition, &command).await,
                };
                match heard {
                    Ok(heard) => return Ok(Answered { value: heard.value, live: heard.live }),
                    Err(Trouble::NotSent(error) | Trouble::Unknown(error)) => return Err(error),
                    Err(Trouble::Refused(error)) if failure::is_no_script(&error) => command = call.by_text(),
                    Err(Trouble::Refused(error)) if failure::is_not_ready(&error) => {
                        time::sleep(options.answer_limit / 40).await;
                    }
                    Err(Trouble::Refused(error)) if failure::is_readonly(&error) && self.follows_failover() => {
                        self.look_again();
                        time::sleep(options.answer_limit / 40).await;
                    }
                    Err(Trouble::Refused(error)) => return Err(failure::refused(&options.place(), &error)),
                }
            }
        };
        match time::timeout(options.answer_limit * 2, asking).await {
            Ok(answer) => answer,
            Err(_) => Err(failure::unanswered(&options.place(), "it is not ready")),
        }
    }

    /// Runs a plain command where the partition lives.
    pub(super) async fn ask(
        &self,
        partition: &Partition,
        command: &redis::Cmd,
        options: &RedisOptions,
    ) -> Result<Value> {
        let heard = match self {
            Self::One(link) => link.send(command).await,
            Self::Cluster(cluster) => cluster.send(partition, command).await,
        };
        match heard {
            Ok(heard) => Ok(heard.value),
            Err(Trouble::NotSent(error) | Trouble::Unknown(error)) => Err(error),
            Err(Trouble::Refused(error)) => Err(failure::refused(&options.place(), &error)),
        }
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
    pub(super) async fn subscribe(&self, channel: Channel) -> Result<()> {
        match self {
            Self::One(link) => link.subscribe(channel).await,
            Self::Cluster(cluster) => cluster.any_link()?.subscribe(channel).await,
        }
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
