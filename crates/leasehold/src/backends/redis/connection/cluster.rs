//! The servers of a cluster. The client library routes commands, and follows slots and failovers; lost subscriptions
//! are restored here.

use std::{
    collections::BTreeSet,
    fmt,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::future::{Either, join_all, select};
use parking_lot::Mutex;
use redis::{
    Cmd, PushInfo, PushKind, RedisError, Value,
    cluster_routing::{MultipleNodeRoutingInfo, Route, RoutingInfo, SingleNodeRoutingInfo, SlotAddr},
};
use tokio::{runtime::Handle, sync::Notify, task::AbortHandle, time};

use super::{
    super::{
        decode, errors,
        keys::{Keys, Partition},
        options::RedisOptions,
    },
    EpochCell, PushSink, SendError,
    cluster_link::{ClusterLink, LinkState},
    dial,
};
use crate::{Error, Result, backend::Backoff};

/// Counts subscribers at the slot's master: a script with a key always runs there.
const COUNT_AT_MASTER: &str = "return redis.call('PUBSUB', 'SHARDNUMSUB', KEYS[1])[2]";
/// How long the library may take to learn which server has a slot.
const UNTIL_SLOTS_ARE_KNOWN: Duration = Duration::from_millis(20);

/// A cluster, as one instance sees it.
pub(in super::super) struct Cluster {
    link: Arc<ClusterLink>,
    options: Arc<RedisOptions>,
    /// Whether pushes are sharded: all subscribers are then at the server of the slot, which can tell who is absent.
    pub(in super::super) is_sharded: bool,
    pub(super) epochs: Vec<EpochCell>,
    instance: String,
    subscriptions: Subscriptions,
    resubscriber: AbortHandle,
    /// Counts lost subscriptions and epoch changes: the cluster's incarnation.
    pub(super) breaks: Arc<AtomicU64>,
}

impl Cluster {
    pub(super) async fn open(
        options: &Arc<RedisOptions>,
        keys: &Keys,
        instance: &str,
        sink: Arc<dyn PushSink>,
    ) -> Result<Self> {
        let url = options.display_url();
        let failed = |error: RedisError| errors::unreachable(&url, options, &error);
        let breaks = Arc::new(AtomicU64::new(0));
        let broken = Arc::new(Notify::new());
        let (counted, noticed, receiver) = (Arc::clone(&breaks), Arc::clone(&broken), Arc::clone(&sink));
        let pushes = move |push: PushInfo| -> Result<(), ()> {
            match (push.kind, push.data.as_slice()) {
                // A slot has moved, or a server went away.
                (PushKind::Disconnection | PushKind::SUnsubscribe, _) => {
                    counted.fetch_add(1, Ordering::SeqCst);
                    receiver.missed();
                    noticed.notify_one();
                }
                (PushKind::Message | PushKind::SMessage, [Value::BulkString(channel), Value::BulkString(message)]) => {
                    receiver.message(channel, message);
                }
                _ => {}
            }
            Ok(())
        };
        let servers = Arc::new(Mutex::new(options.servers.clone()));
        let link = Arc::new(ClusterLink::open(options, &servers, None).await.map_err(failed)?);
        link.learn_servers().await;
        // A server that gives a slot away sends an unsolicited `sunsubscribe`. The library takes it for the pending
        // reply and shifts all later replies by one. So subscriptions use separate connections.
        let listening = ClusterLink::open(options, &servers, Some(Arc::new(pushes))).await.map_err(failed)?;
        let hello = link.route(redis::cmd("HELLO"), ClusterLink::anywhere()).await.map_err(failed)?;
        let is_sharded = dial::version(&decode::pairs(&hello)) >= (7, 0);
        let subscriptions = Subscriptions {
            link: Arc::new(listening),
            commands: Arc::clone(&link),
            options: Arc::clone(options),
            is_sharded,
            channels: Arc::default(),
            broken,
        };
        let resubscribing = subscriptions.clone().resubscribe(sink, Arc::clone(&breaks));
        Ok(Self {
            link,
            options: Arc::clone(options),
            is_sharded,
            epochs: keys.all().iter().map(|_| EpochCell::default()).collect(),
            instance: instance.to_owned(),
            subscriptions,
            resubscriber: Handle::current().spawn(resubscribing).abort_handle(),
            breaks,
        })
    }

    /// Sends a command to the server that has the partition.
    pub(super) async fn send(&self, partition: &Partition, command: Cmd) -> Result<Value, SendError> {
        let route = SingleNodeRoutingInfo::SpecificNode(Route::new(partition.slot, SlotAddr::Master));
        self.route(command, RoutingInfo::SingleNode(route), self.options.answer_limit).await
    }

    /// Sends a command to every master; the answers by address.
    pub(in super::super) async fn ask_masters(&self, command: Cmd) -> Result<Vec<(String, Value)>, SendError> {
        let route = RoutingInfo::MultiNode((MultipleNodeRoutingInfo::AllMasters, None));
        match self.route(command, route, self.options.answer_limit * 2).await? {
            Value::Map(answers) => Ok(answers
                .into_iter()
                .map(|(address, value)| (decode::text(&address).unwrap_or_default().to_owned(), value))
                .collect()),
            one => Ok(vec![(self.options.display_url(), one)]),
        }
    }

    /// Sends a command to the master of this address, as `ask_masters` names it.
    pub(in super::super) async fn ask_master(&self, address: &str, command: Cmd) -> Result<Value, SendError> {
        let (host, port) = address.rsplit_once(':').unwrap_or((address, ""));
        let route = SingleNodeRoutingInfo::ByAddress { host: host.to_owned(), port: port.parse().unwrap_or(6379) };
        self.route(command, RoutingInfo::SingleNode(route), self.options.answer_limit).await
    }

    async fn route(&self, command: Cmd, route: RoutingInfo, limit: Duration) -> Result<Value, SendError> {
        let url = self.options.display_url();
        let before = self.link.state();
        match time::timeout(limit, self.link.route(command, route)).await {
            Ok(Ok(value)) => value.extract_error().map_err(SendError::Refused),
            Ok(Err(error)) if errors::is_refusal(&error) => Err(SendError::Refused(error)),
            Ok(Err(error)) => Err(SendError::Unknown(errors::unanswered(&url, &error.to_string()))),
            Err(_) => {
                Handle::current().spawn(self.subscriptions.clone().reopen(before));
                Err(SendError::Unknown(errors::unanswered(&url, &format!("nothing came within {limit:?}"))))
            }
        }
    }

    /// Subscribes to the channel on which the partition pushes grants to this instance, unless that was done before.
    pub(super) async fn listen_in(&self, partition: &Partition) -> Result<()> {
        self.subscribe(&partition.instance_channel(&self.instance)).await
    }

    pub(super) async fn subscribe(&self, channel: &str) -> Result<()> {
        if self.subscriptions.channels.lock().contains(channel) {
            return Ok(());
        }
        self.subscriptions.subscribe(channel).await?;
        self.subscriptions.channels.lock().insert(channel.to_owned());
        Ok(())
    }

    pub(super) async fn unsubscribe(&self, channel: &str) {
        self.subscriptions.channels.lock().remove(channel);
        let mut connection = self.subscriptions.link.connection();
        let _best_effort = if self.is_sharded {
            connection.sunsubscribe(channel).await
        } else {
            connection.unsubscribe(channel).await
        };
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.resubscriber.abort();
    }
}

/// The channels of an instance. A server that gives a slot away ends the subscriptions there, and the library does not
/// restore them.
#[derive(Clone)]
struct Subscriptions {
    link: Arc<ClusterLink>,
    /// The link for commands, which after a break finds out which servers there are.
    commands: Arc<ClusterLink>,
    options: Arc<RedisOptions>,
    is_sharded: bool,
    channels: Arc<Mutex<BTreeSet<String>>>,
    /// Notified when subscriptions ended that are still wanted.
    broken: Arc<Notify>,
}

impl Subscriptions {
    /// Reopens both links if no server has answered since `before`: the library keeps using connections that the
    /// network has dropped silently. If only one server hangs, the links stay and the cluster replaces that server.
    async fn reopen(self, before: LinkState) {
        let listening = self.link.state();
        if self.commands.reopen(before).await && self.link.reopen(listening).await {
            self.broken.notify_one();
        }
    }

    async fn subscribe(&self, channel: &str) -> Result<()> {
        let url = self.options.display_url();
        let started = self.link.state();
        let subscribing = async {
            loop {
                let before = self.link.state();
                match select(pin!(self.subscribe_once(channel)), pin!(self.link.reopened(before))).await {
                    Either::Left((subscribed, _)) => return subscribed,
                    Either::Right(_) => {}
                }
            }
        };
        match time::timeout(self.options.answer_limit, subscribing).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => {
                // The link may have been opened anew, without any subscription.
                self.broken.notify_one();
                Err(errors::unreachable(&url, &self.options, &error))
            }
            Err(_) => {
                // The library's connection can hang as a whole while servers are replaced.
                if self.link.reopen(started).await {
                    self.broken.notify_one();
                }
                Err(Error::unavailable(format!("{url} did not confirm a subscription in time")))
            }
        }
    }

    async fn subscribe_once(&self, channel: &str) -> Result<(), RedisError> {
        if !self.is_sharded {
            return self.query(redis::cmd("SUBSCRIBE").arg(channel)).await.map(drop);
        }
        loop {
            // Asking for a key of the slot makes the library look for its master.
            self.query(redis::cmd("EXISTS").arg(channel)).await?;
            self.query(redis::cmd("SSUBSCRIBE").arg(channel)).await?;
            // A replica confirms a subscription, too, and its master does not count it.
            let counted = self.query(redis::cmd("EVAL").arg(COUNT_AT_MASTER).arg(1).arg(channel)).await?;
            if counted != Value::Int(0) {
                return Ok(());
            }
            time::sleep(UNTIL_SLOTS_ARE_KNOWN).await;
        }
    }

    /// Sends a command and returns its answer.
    async fn query(&self, command: &Cmd) -> Result<Value, RedisError> {
        loop {
            match self.link.send(command).await? {
                // The library took the end of another subscription for the answer: that one has to be made again, too.
                Value::Push { kind: PushKind::SUnsubscribe | PushKind::Unsubscribe, .. } => self.broken.notify_one(),
                answer => return Ok(answer),
            }
        }
    }

    /// Subscribes to all channels again after every break, where their slots are by then.
    async fn resubscribe(self, sink: Arc<dyn PushSink>, breaks: Arc<AtomicU64>) {
        loop {
            self.broken.notified().await;
            let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));
            loop {
                // Before each try, because the last server that is known may be replaced next.
                let learned = time::timeout(self.options.answer_limit, self.commands.learn_servers()).await;
                let channels: Vec<String> = self.channels.lock().iter().cloned().collect();
                let again = channels.iter().map(|channel| self.subscribe(channel));
                let subscribed = join_all(again).await.iter().all(Result::is_ok);
                if subscribed && learned.is_ok_and(|answered| answered) {
                    break;
                }
                time::sleep(backoff.pause()).await;
            }
            breaks.fetch_add(1, Ordering::SeqCst);
            sink.missed();
        }
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").field("at", &self.options.display_url()).finish_non_exhaustive()
    }
}
