//! The route to the servers: one connection, or the servers of a cluster; and the epoch that each call expects there.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use redis::{Cmd, RedisError, Value};
use tokio::time;

use super::{
    super::{
        decode, errors,
        keys::{Keys, Partition},
        options::{Durability, RedisOptions, Topology},
        scripts::{Invocation, ScriptCall},
    },
    Connection, Epoch, EpochCell, Live, PushSink, SendError,
    cluster::Cluster,
    epoch,
};
use crate::{Error, Result, lease::Incarnation};

/// How often one call may find the server in another epoch.
const MAX_EPOCH_CHANGES: u32 = 4;
/// How often a call goes to another connection because one ended before it was sent.
const MAX_NOT_SENT: u32 = 4;

/// The route to the servers.
#[derive(Debug)]
pub(in super::super) struct Router {
    options: Arc<RedisOptions>,
    route: Route,
    /// Each call in flight that waits for durability acknowledgements has a clone, so that the references count them.
    waiting: Arc<()>,
}

#[derive(Debug)]
enum Route {
    /// One server has everything.
    One(Connection),
    /// Each server has some partitions.
    Cluster(Cluster),
}

/// The answer to a call, and the epoch in which it was given.
#[derive(Debug)]
pub(in super::super) struct Reply {
    pub(in super::super) value: Value,
    /// The reply to the command that was sent right after it, which may be an error, or `Nil`.
    pub(in super::super) followup: Value,
    pub(in super::super) incarnation: Incarnation,
}

/// The server that a call goes to, and the epoch that it is in there.
enum CallDestination<'a> {
    One(Arc<Live>),
    Partition(&'a Cluster, &'a Partition),
}

impl CallDestination<'_> {
    fn epoch(&self) -> &EpochCell {
        match self {
            Self::One(live) => &live.epoch,
            Self::Partition(cluster, partition) => &cluster.epochs[usize::from(partition.number)],
        }
    }

    fn is_closed(&self) -> bool {
        matches!(self, Self::One(live) if live.is_closed())
    }

    fn run_id(&self) -> Option<&str> {
        match self {
            Self::One(live) => live.server.run_id.as_deref(),
            // The client library chooses the server.
            Self::Partition(..) => None,
        }
    }

    fn incarnation(&self, epoch: &Epoch) -> Incarnation {
        match self {
            Self::One(_) => epoch.incarnation(),
            // Each server has an epoch of its own; any break counts as a new incarnation of the cluster.
            Self::Partition(cluster, _) => Incarnation(cluster.breaks.load(Ordering::SeqCst)),
        }
    }

    async fn send(&self, command: Cmd, followup: Option<&Cmd>, limit: Duration) -> Result<(Value, Value), SendError> {
        match (self, followup) {
            (Self::One(live), None) => Ok((live.send(&command, limit).await?, Value::Nil)),
            (Self::One(live), Some(followup)) => live.send_two(&command, followup, limit).await,
            (Self::Partition(cluster, partition), _) => Ok((cluster.send(partition, command).await?, Value::Nil)),
        }
    }
}

impl Router {
    /// Connects, and subscribes to the pushes for this instance.
    pub(in super::super) async fn open(
        options: &Arc<RedisOptions>,
        keys: &Keys,
        instance: &str,
        sink: Arc<dyn PushSink>,
    ) -> Result<Self> {
        let route = if options.topology == Topology::Cluster {
            if options.durability != Durability::None {
                let words = "durability= is not available in a cluster; use one server or sentinels";
                return Err(Error::unsupported(words));
            }
            Route::Cluster(Cluster::open(options, keys, instance, sink).await?)
        } else {
            let channels = keys.all().iter().map(|partition| partition.instance_channel(instance)).collect();
            Route::One(Connection::open(options, &keys.all()[0], Some(sink), channels).await?)
        };
        Ok(Self { options: Arc::clone(options), route, waiting: Arc::default() })
    }

    fn settings(&self) -> String {
        let push = match &self.route {
            Route::One(_) => 'P',
            Route::Cluster(cluster) if cluster.is_sharded => 'S',
            Route::Cluster(_) => 'B',
        };
        epoch::settings(&self.options, push)
    }

    /// A connection of its own for calls that wait for durability acknowledgements, which blocks it.
    pub(in super::super) async fn open_without_pushes(options: &Arc<RedisOptions>, keys: &Keys) -> Result<Self> {
        let connection = Connection::open(options, &keys.all()[0], None, Vec::new()).await?;
        Ok(Self { options: Arc::clone(options), route: Route::One(connection), waiting: Arc::default() })
    }

    /// Runs a script where the partition lives, and sends the command `followup` right behind it.
    ///
    /// Sends the text of the script to a server that has forgotten it, and reads
    /// the epoch anew where it has changed. A server that is still loading or
    /// has become a replica did nothing: the call is repeated on a new connection.
    pub(in super::super) async fn run(
        &self,
        partition: &Partition,
        call: &ScriptCall<'_>,
        followup: Option<&Cmd>,
    ) -> Result<Reply> {
        let _waits = followup.map(|_| Arc::clone(&self.waiting));
        let mut failed = Failures::default();
        let mut epoch_changes = 0;
        let mut invocation = Invocation::Hash;
        loop {
            let destination = self.destination(partition).await?;
            let epoch = match destination.epoch().get() {
                Some(epoch) => epoch,
                None => match self.read_or_start_epoch(&destination, partition).await {
                    Ok(epoch) => epoch,
                    Err(error) => {
                        failed.retry_or_fail(error, &destination, self).await?;
                        continue;
                    }
                },
            };
            let command = call.command(invocation, &epoch.text, &self.settings());
            match destination.send(command, followup, self.limit(followup)).await {
                Ok((value, _)) if decode::is_other_epoch(&value) => {
                    epoch_changes += 1;
                    if epoch_changes > MAX_EPOCH_CHANGES {
                        let url = self.options.display_url();
                        return Err(Error::unavailable(format!(
                            "{url} lost its data repeatedly during one call; is something flushing it?"
                        )));
                    }
                    if let Err(error) = self.read_or_start_epoch(&destination, partition).await {
                        failed.retry_or_fail(error, &destination, self).await?;
                    }
                }
                Ok((value, followup)) => {
                    return Ok(Reply { value, followup, incarnation: destination.incarnation(&epoch) });
                }
                Err(SendError::Refused(refusal)) if errors::is_no_script(&refusal) => invocation = Invocation::Text,
                Err(error) => failed.retry_or_fail(error, &destination, self).await?,
            }
        }
    }

    /// Reads the epoch of the partition, or starts one.
    async fn read_or_start_epoch(
        &self,
        destination: &CallDestination<'_>,
        partition: &Partition,
    ) -> Result<Arc<Epoch>, SendError> {
        let command = epoch::begin(partition, destination.run_id(), &self.settings());
        let (value, _) = destination.send(command, None, self.options.answer_limit).await?;
        let epoch = Arc::new(decode::epoch(&value, &self.options).map_err(SendError::NotSent)?);
        if destination.epoch().set(&epoch)
            && let CallDestination::Partition(cluster, _) = destination
        {
            cluster.breaks.fetch_add(1, Ordering::SeqCst);
        }
        Ok(epoch)
    }

    async fn destination<'a>(&'a self, partition: &'a Partition) -> Result<CallDestination<'a>> {
        match &self.route {
            Route::One(connection) => Ok(CallDestination::One(connection.live().await?)),
            Route::Cluster(cluster) => Ok(CallDestination::Partition(cluster, partition)),
        }
    }

    /// How long to wait for the answer to a call: `answer_limit`. A call that waits for durability acknowledgements has
    /// twice as long, and half of `answer_limit` more for each other such call in flight, which may be ahead of it on
    /// the connection.
    fn limit(&self, followup: Option<&Cmd>) -> Duration {
        let limit = self.options.answer_limit;
        let others = Arc::strong_count(&self.waiting).saturating_sub(2);
        match followup {
            None => limit,
            Some(_) => limit * 2 + limit / 2 * u32::try_from(others).unwrap_or(u32::MAX),
        }
    }

    /// Sends a command that is not a script to the server of the partition.
    pub(in super::super) async fn send_plain(&self, partition: &Partition, command: Cmd) -> Result<Value> {
        let destination = self.destination(partition).await?;
        let answer = destination.send(command, None, self.options.answer_limit).await;
        Ok(answer.map_err(|error| error.into_error(&self.options))?.0)
    }

    /// Makes sure that this instance receives the pushes about its leases in the partition.
    pub(in super::super) async fn listen_in(&self, partition: &Partition) -> Result<()> {
        match &self.route {
            // Subscribed on connecting.
            Route::One(_) => Ok(()),
            Route::Cluster(cluster) => cluster.listen_in(partition).await,
        }
    }

    pub(in super::super) async fn subscribe(&self, channel: &str) -> Result<()> {
        match &self.route {
            Route::One(connection) => {
                connection.subscribe(channel).await.map_err(|error| error.into_error(&self.options))
            }
            Route::Cluster(cluster) => cluster.subscribe(channel).await,
        }
    }

    pub(in super::super) async fn unsubscribe(&self, channel: &str) {
        match &self.route {
            Route::One(connection) => connection.unsubscribe(channel).await,
            Route::Cluster(cluster) => cluster.unsubscribe(channel).await,
        }
    }

    /// The cluster, where there is one.
    pub(in super::super) fn cluster(&self) -> Option<&Cluster> {
        match &self.route {
            Route::One(_) => None,
            Route::Cluster(cluster) => Some(cluster),
        }
    }

    /// The one connection, where there is no cluster.
    pub(in super::super) fn connection(&self) -> Option<&Connection> {
        match &self.route {
            Route::One(connection) => Some(connection),
            Route::Cluster(_) => None,
        }
    }
}

/// How one call has failed so far.
#[derive(Default)]
struct Failures {
    from_replica: u32,
    waited: Duration,
    not_sent: u32,
}

impl Failures {
    /// Returns if the call may be made again; fails otherwise, and the error says what to do.
    async fn retry_or_fail(
        &mut self,
        error: SendError,
        destination: &CallDestination<'_>,
        router: &Router,
    ) -> Result<()> {
        match error {
            SendError::Refused(refusal) => self.on_refusal(&refusal, destination, router).await,
            // The connection ended before the call was sent. The next try waits for another connection.
            SendError::NotSent(_) if destination.is_closed() && self.not_sent < MAX_NOT_SENT => {
                self.not_sent += 1;
                Ok(())
            }
            error => Err(error.into_error(&router.options)),
        }
    }

    /// Waits or reconnects where another server may answer, or this one later.
    async fn on_refusal(
        &mut self,
        refusal: &RedisError,
        destination: &CallDestination<'_>,
        router: &Router,
    ) -> Result<()> {
        let options = &router.options;
        let mut follows = matches!(destination, CallDestination::Partition(..));
        if errors::is_readonly(refusal)
            && let (CallDestination::One(live), Route::One(connection)) = (destination, &router.route)
        {
            // The address may lead to another server by now, so reconnect and ask again.
            live.reconnect();
            self.from_replica += 1;
            follows = connection.follows_failover() || self.from_replica < 2;
        }
        let may_pass = errors::is_not_ready(refusal) || errors::is_readonly(refusal) && follows;
        if !may_pass {
            return Err(errors::refused(options, refusal));
        }
        let pause = options.answer_limit / 40;
        self.waited += pause;
        if self.waited > options.answer_limit * 2 {
            return Err(errors::unanswered(&options.display_url(), "it is not ready"));
        }
        time::sleep(pause).await;
        Ok(())
    }
}
