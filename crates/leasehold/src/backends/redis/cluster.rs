//! The masters of a cluster: who has which slot, one link to each, and failover followed.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use redis::{Cmd, RedisError, ServerErrorKind, Value};
use tokio::{runtime::Handle, task::AbortHandle, time};

use super::{
    failure,
    finder::Finder,
    keys::{Partition, SLOTS},
    link::{Channel, Heard, Link, Listener, Trouble},
    options::{Address, RedisOptions},
    reply,
};
use crate::{Error, Result};

/// How often a command follows the slot to another server.
const MOST_MOVES: usize = 8;
/// While a server is away the others are asked this often who took its place.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// A cluster, as one instance sees it.
pub(super) struct Cluster {
    shared: Arc<Shared>,
    watcher: AbortHandle,
}

struct Shared {
    options: Arc<RedisOptions>,
    instance: String,
    listener: Arc<dyn Listener>,
    sharded: bool,
    map: Mutex<Map>,
    looking: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Map {
    /// Ranges of slots and who has them.
    owners: Vec<Range>,
    links: HashMap<Address, Arc<Link>>,
    /// Partitions whose channel is subscribed to, and where.
    heard: HashMap<u16, HeardAt>,
}

#[derive(Clone)]
struct Range {
    first: u16,
    last: u16,
    owner: Address,
}

#[derive(Clone)]
struct HeardAt {
    partition: Partition,
    owner: Address,
}

impl Map {
    fn owner(&self, slot: u16) -> Option<Address> {
        let range = self.owners.iter().find(|range| (range.first..=range.last).contains(&slot))?;
        Some(range.owner.clone())
    }

    fn moved(&mut self, slot: u16, owner: Address) {
        // Found before the range it was cut out of.
        self.owners.insert(0, Range { first: slot, last: slot, owner });
    }
}

impl Cluster {
    pub(super) async fn open(options: Arc<RedisOptions>, instance: &str, listener: Arc<dyn Listener>) -> Result<Self> {
        let mut failed = None;
        for seed in &options.servers {
            let opened = Link::open(Finder::At(seed.clone()), Arc::clone(&options), Arc::clone(&listener), Vec::new());
            let link = match opened.await {
                Ok(link) => link,
                Err(error) => {
                    failed = Some(error);
                    continue;
                }
            };
            let newer = link.live().await?.server.version >= (7, 0);
            let shared = Arc::new(Shared {
                options: Arc::clone(&options),
                instance: instance.to_owned(),
                listener,
                sharded: newer,
                map: Mutex::default(),
                looking: tokio::sync::Mutex::new(()),
            });
            shared.map.lock().links.insert(seed.clone(), Arc::new(link));
            shared.look_from(seed).await?;
            let watcher = Handle::current().spawn(Arc::clone(&shared).watch_over()).abort_handle();
            return Ok(Self { shared, watcher });
        }
        Err(failed.unwrap_or_else(|| Error::invalid_config("no server of the cluster is named")))
    }

    /// Whether pushes reach only those who subscribed at the server of the slot.
    pub(super) fn is_sharded(&self) -> bool {
        self.shared.sharded
    }

    /// Sends a command to whoever has the partition, following it if it moved.
    pub(super) async fn send(&self, partition: &Partition, command: &Cmd) -> Result<Heard, Trouble> {
        let slot = partition.slot();
        let mut last = None;
        for _ in 0..MOST_MOVES {
            let Some(owner) = self.shared.map.lock().owner(slot) else {
                self.shared.look().await;
                time::sleep(LOOK_EVERY / 5).await;
                continue;
            };
            let link = self.shared.link(&owner);
            match link.send(command).await {
                Err(Trouble::Refused(error)) if failure::is_moved(&error) => {
                    self.shared.follow(slot, &owner, &error).await;
                    last = Some(Trouble::Refused(error));
                }
                Err(Trouble::Refused(error)) if error.kind() == ServerErrorKind::Ask.into() => {
                    let Some((host, port)) = error.redirect_node() else { return Err(Trouble::Refused(error)) };
                    let to = Address { host: host_told(host, &owner), port };
                    return self.shared.link(&to).send_asking(command).await;
                }
                Err(Trouble::NotSent(error)) => {
                    self.shared.look().await;
                    if self.shared.map.lock().owner(slot).as_ref() == Some(&owner) {
                        return Err(Trouble::NotSent(error));
                    }
                    last = Some(Trouble::NotSent(error));
                }
                heard => return heard,
            }
        }
        Err(last.unwrap_or_else(|| {
            Trouble::NotSent(Error::unavailable(format!(
                "no server of {} has slot {slot}",
                self.shared.options.place()
            )))
        }))
    }

    /// Subscribes to the partition's channel where its slot is, once, following it if it moved.
    pub(super) async fn hear(&self, partition: &Partition) -> Result<()> {
        let channel = self.shared.channel(partition);
        for _ in 0..MOST_MOVES {
            let owner = {
                let map = self.shared.map.lock();
                let owner = map.owner(partition.slot());
                match (map.heard.get(&partition.number), owner) {
                    // It may have moved away and come back without our noticing more than its going.
                    (Some(heard), Some(owner))
                        if heard.owner == owner && map.links.get(&owner).is_some_and(|link| link.hears(&channel)) =>
                    {
                        return Ok(());
                    }
                    (_, Some(owner)) => owner,
                    // Whoever sends next finds out.
                    (_, None) => return Ok(()),
                }
            };
            match self.shared.hear_at(partition, &owner).await {
                Ok(()) => return Ok(()),
                Err(Trouble::Refused(error)) if failure::is_moved(&error) => {
                    self.shared.follow(partition.slot(), &owner, &error).await;
                }
                Err(Trouble::Refused(error)) => return Err(failure::refused(&owner.to_string(), &error)),
                Err(Trouble::NotSent(error) | Trouble::Unknown(error)) => return Err(error),
            }
        }
        // A waiter that cannot be told is told by its renewal.
        Ok(())
    }

    /// Any link that is connected.
    pub(super) fn any_link(&self) -> Result<Arc<Link>> {
        let map = self.shared.map.lock();
        map.links
            .values()
            .find(|link| link.current().is_some())
            .or_else(|| map.links.values().next())
            .cloned()
            .ok_or_else(|| Error::unavailable(format!("{} has no servers", self.shared.options.place())))
    }

    pub(super) async fn unsubscribe(&self, channel: &Channel) {
        let links: Vec<Arc<Link>> = self.shared.map.lock().links.values().cloned().collect();
        for link in links {
            if link.hears(channel) {
                link.unsubscribe(channel).await;
            }
        }
    }

    /// A link to each server that has slots.
    pub(super) fn masters(&self) -> Vec<Arc<Link>> {
        let owners: HashSet<Address> = self.shared.map.lock().owners.iter().map(|range| range.owner.clone()).collect();
        owners.iter().map(|owner| self.shared.link(owner)).collect()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.watcher.abort();
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").field("at", &self.shared.options.place()).finish_non_exhaustive()
    }
}

impl Shared {
    fn link(&self, address: &Address) -> Arc<Link> {
        let mut map = self.map.lock();
        let begin = || {
            let (options, listener) = (Arc::clone(&self.options), Arc::clone(&self.listener));
            Arc::new(Link::begin(Finder::At(address.clone()), options, listener, Vec::new()))
        };
        Arc::clone(map.links.entry(address.clone()).or_insert_with(begin))
    }

    /// The channel on which this instance is told about its leases in the partition.
    fn channel(&self, partition: &Partition) -> Channel {
        let name = partition.to(&self.instance);
        if self.sharded { Channel::Sharded(name) } else { Channel::Plain(name) }
    }

    /// Takes note of where the slot has gone, as its owner until now tells.
    async fn follow(&self, slot: u16, from: &Address, error: &RedisError) {
        if let Some((host, port)) = error.redirect_node() {
            self.map.lock().moved(slot, Address { host: host_told(host, from), port });
        }
        self.listener.missed();
        self.look().await;
    }

    async fn hear_at(&self, partition: &Partition, owner: &Address) -> Result<(), Trouble> {
        self.link(owner).subscribe(self.channel(partition)).await?;
        let heard = HeardAt { partition: partition.clone(), owner: owner.clone() };
        self.map.lock().heard.insert(partition.number, heard);
        Ok(())
    }

    /// Asks whoever answers who has which slot.
    async fn look(&self) {
        let Ok(_one_at_a_time) = self.looking.try_lock() else {
            // Someone is asking already: wait for what they learn.
            drop(self.looking.lock().await);
            return;
        };
        let known: Vec<Address> = {
            let map = self.map.lock();
            let connected = map.links.iter().filter(|(_, link)| link.current().is_some());
            connected.map(|(address, _)| address.clone()).chain(self.options.servers.iter().cloned()).collect()
        };
        for address in known {
            if self.link(&address).current().is_some() && self.look_from(&address).await.is_ok() {
                return;
            }
        }
    }

    async fn look_from(&self, address: &Address) -> Result<()> {
        let mut command = redis::cmd("CLUSTER");
        command.arg("SLOTS");
        let answer = match self.link(address).send(&command).await {
            Ok(heard) => heard.value,
            Err(Trouble::NotSent(error) | Trouble::Unknown(error)) => return Err(error),
            Err(Trouble::Refused(error)) => return Err(failure::refused(&address.to_string(), &error)),
        };
        let owners = Self::ranges(&answer, address)?;
        if owners.is_empty() {
            return Err(Error::unavailable(format!("the cluster at {address} has no slots yet")));
        }
        let changed;
        let gone: Vec<HeardAt> = {
            let mut map = self.map.lock();
            let before = Map { owners: std::mem::replace(&mut map.owners, owners), ..Map::default() };
            let has_moved = |slot| before.owner(slot) != map.owner(slot);
            changed = !before.owners.is_empty() && (0..SLOTS).any(has_moved);
            let owners: HashSet<Address> = map.owners.iter().map(|range| range.owner.clone()).collect();
            map.links.retain(|address, link| owners.contains(address) || link.current().is_some());
            let moved = |heard: &&HeardAt| map.owner(heard.partition.slot()).is_some_and(|owner| owner != heard.owner);
            map.heard.values().filter(moved).cloned().collect()
        };
        for heard in gone {
            let owner = self.map.lock().owner(heard.partition.slot());
            if let Some(owner) = owner
                && let Err(trouble) = self.hear_at(&heard.partition, &owner).await
            {
                tracing::debug!(?trouble, %owner, "cannot subscribe yet");
            }
        }
        if changed {
            self.listener.missed();
        }
        Ok(())
    }

    fn ranges(answer: &Value, teller: &Address) -> Result<Vec<Range>> {
        let mut owners = Vec::new();
        for range in reply::array(answer)? {
            let [first, last, master, ..] = reply::array(range)? else { continue };
            let [host, port, ..] = reply::array(master)? else { continue };
            let slot = |value| reply::number(value).map(|slot| u16::try_from(slot).unwrap_or(u16::MAX));
            let host = host_told(reply::text(host).unwrap_or_default(), teller);
            let owner = Address { host, port: u16::try_from(reply::number(port)?).unwrap_or(0) };
            owners.push(Range { first: slot(first)?, last: slot(last)?, owner });
        }
        Ok(owners)
    }

    /// Looks for a successor as long as a server is away; costs nothing while all are there.
    async fn watch_over(self: Arc<Self>) {
        loop {
            time::sleep(LOOK_EVERY).await;
            let all_there = {
                let map = self.map.lock();
                let there = |owner: &Address| map.links.get(owner).is_none_or(|link| link.current().is_some());
                map.owners.iter().all(|range| there(&range.owner))
            };
            if !all_there {
                self.look().await;
            }
        }
    }
}

/// A server that does not know its own name is where we found it.
fn host_told(told: &str, teller: &Address) -> String {
    if told.is_empty() || told == "?" { teller.host.clone() } else { told.to_owned() }
}
