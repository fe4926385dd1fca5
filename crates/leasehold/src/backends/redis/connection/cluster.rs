//! The servers of a cluster, routed to by the client library: it follows slots, failovers and subscriptions.

use std::{
    collections::HashSet,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use redis::{
    Cmd, ProtocolVersion, PushInfo, PushKind, RedisError, Value,
    cluster::ClusterClientBuilder,
    cluster_async::ClusterConnection,
    cluster_routing::{MultipleNodeRoutingInfo, Route, RoutingInfo, SingleNodeRoutingInfo, SlotAddr},
};
use tokio::time;

use super::{
    super::{
        decode, errors,
        keys::{Keys, Partition},
        options::RedisOptions,
    },
    Listener, MemoryCell, SendError, dial,
};
use crate::{Error, Result};

/// How often the library tries again where a slot has moved or a server is away; every call may be repeated.
const RETRIES: u32 = 8;

/// A cluster, as one instance sees it.
pub(in super::super) struct Cluster {
    connection: ClusterConnection,
    options: Arc<RedisOptions>,
    /// Pushes reach only those who subscribed at the server of the slot: it can tell who is absent.
    pub(in super::super) is_sharded: bool,
    pub(super) memories: Vec<MemoryCell>,
    instance: String,
    subscribed: Mutex<HashSet<u16>>,
    /// Counts breaks in what was received, and memories that were lost.
    pub(super) breaks: Arc<AtomicU64>,
}

impl Cluster {
    pub(super) async fn open(
        options: &Arc<RedisOptions>,
        keys: &Keys,
        instance: &str,
        listener: Arc<dyn Listener>,
    ) -> Result<Self> {
        let place = options.place();
        let failed = |error: RedisError| errors::unreachable(&place, &error);
        let breaks = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&breaks);
        let pushes = move |push: PushInfo| -> Result<(), ()> {
            match (push.kind, push.data.as_slice()) {
                // A slot has moved, a server went away, or a subscription stands again.
                (PushKind::Disconnection | PushKind::SUnsubscribe | PushKind::SSubscribe | PushKind::Subscribe, _) => {
                    counted.fetch_add(1, Ordering::SeqCst);
                    listener.missed();
                }
                (PushKind::Message | PushKind::SMessage, [Value::BulkString(channel), Value::BulkString(message)]) => {
                    listener.message(channel, message);
                }
                _ => {}
            }
            Ok(())
        };
        let nodes = options.servers.iter().map(|server| dial::connection_info(server, options));
        let nodes = nodes.collect::<Result<Vec<_>, _>>().map_err(failed)?;
        let mut builder = ClusterClientBuilder::new(nodes)
            .use_protocol(ProtocolVersion::RESP3)
            .connection_timeout(options.connect_limit / 2)
            .response_timeout(options.answer_limit)
            .retries(RETRIES)
            .min_retry_wait(5)
            .max_retry_wait(200)
            .push_sender(pushes);
        if let Some(tls) = &options.tls {
            builder = builder.certs(dial::certificates(tls));
        }
        let client = builder.build().map_err(failed)?;
        let mut connection = client.get_async_connection().await.map_err(failed)?;
        let anywhere = RoutingInfo::SingleNode(SingleNodeRoutingInfo::Random);
        let hello = connection.route_command(redis::cmd("HELLO"), anywhere).await.map_err(failed)?;
        Ok(Self {
            connection,
            options: Arc::clone(options),
            is_sharded: dial::version(&decode::pairs(&hello)) >= (7, 0),
            memories: keys.all().iter().map(|_| MemoryCell::default()).collect(),
            instance: instance.to_owned(),
            subscribed: Mutex::default(),
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
            one => Ok(vec![(self.options.place(), one)]),
        }
    }

    async fn route(&self, command: Cmd, route: RoutingInfo, limit: Duration) -> Result<Value, SendError> {
        let place = self.options.place();
        let mut connection = self.connection.clone();
        match time::timeout(limit, connection.route_command(command, route)).await {
            Ok(Ok(value)) => value.extract_error().map_err(SendError::Refused),
            Ok(Err(error)) if errors::is_refusal(&error) => Err(SendError::Refused(error)),
            Ok(Err(error)) => Err(SendError::Unknown(errors::unanswered(&place, &error.to_string()))),
            Err(_) => Err(SendError::Unknown(errors::unanswered(&place, &format!("nothing came within {limit:?}")))),
        }
    }

    /// Subscribes to what this instance is told about its leases in the partition, once.
    pub(super) async fn listen_in(&self, partition: &Partition) -> Result<()> {
        if self.subscribed.lock().contains(&partition.number) {
            return Ok(());
        }
        let channel = partition.to(&self.instance);
        let mut connection = self.connection.clone();
        let subscribed = async {
            if self.is_sharded { connection.ssubscribe(&channel).await } else { connection.subscribe(&channel).await }
        };
        self.subscribed_in_time(subscribed).await?;
        self.subscribed.lock().insert(partition.number);
        Ok(())
    }

    pub(super) async fn subscribe(&self, channel: &str) -> Result<()> {
        let mut connection = self.connection.clone();
        self.subscribed_in_time(connection.subscribe(channel)).await
    }

    async fn subscribed_in_time(&self, subscribing: impl Future<Output = Result<(), RedisError>>) -> Result<()> {
        let place = self.options.place();
        match time::timeout(self.options.answer_limit, subscribing).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(errors::unreachable(&place, &error)),
            Err(_) => Err(Error::unavailable(format!("{place} did not confirm a subscription in time"))),
        }
    }

    pub(super) async fn unsubscribe(&self, channel: &str) {
        let _best_effort = self.connection.clone().unsubscribe(channel).await;
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").field("at", &self.options.place()).finish_non_exhaustive()
    }
}
