//! The client library's connection to a cluster, opened anew when every server that it knows is gone.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;
use redis::{
    Cmd, ErrorKind, ProtocolVersion, PushInfo, RedisError, Value,
    cluster::ClusterClientBuilder,
    cluster_async::ClusterConnection,
    cluster_routing::{RoutingInfo, SingleNodeRoutingInfo},
};

use tokio::{sync::watch, time};

use super::{
    super::{
        decode,
        options::{Address, RedisOptions},
    },
    dial,
};

/// How many times the library retries if a slot has moved or a server is down; every call is safe to repeat.
const RETRIES: u32 = 8;

/// Receives what servers push.
pub(super) type Pushes = Arc<dyn Fn(PushInfo) -> Result<(), ()> + Send + Sync>;

/// A connection to the servers of a cluster.
///
/// The library connects to the servers that it was opened with and to the
/// masters that those name. Once all of them have been replaced it finds
/// no server, even if the cluster works: the link is then opened anew with the
/// servers that the cluster named last.
pub(super) struct ClusterLink {
    options: Arc<RedisOptions>,
    /// The servers of the cluster as it last named them.
    servers: Arc<Mutex<Vec<Address>>>,
    pushes: Option<Pushes>,
    connection: Mutex<ClusterConnection>,
    /// How often it was opened.
    openings: watch::Sender<u64>,
    /// How many commands were answered through it.
    answers: AtomicU64,
    reopening: tokio::sync::Mutex<()>,
}

/// How often a link was opened, and how many commands were answered through it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LinkState {
    opening: u64,
    answers: u64,
}

impl ClusterLink {
    /// Connects to the cluster of these servers.
    pub(super) async fn open(
        options: &Arc<RedisOptions>,
        servers: &Arc<Mutex<Vec<Address>>>,
        pushes: Option<Pushes>,
    ) -> Result<Self, RedisError> {
        let connection = connect(options, servers, pushes.as_ref()).await?;
        Ok(Self {
            options: Arc::clone(options),
            servers: Arc::clone(servers),
            pushes,
            connection: Mutex::new(connection),
            openings: watch::Sender::new(1),
            answers: AtomicU64::new(0),
            reopening: tokio::sync::Mutex::default(),
        })
    }

    pub(super) fn anywhere() -> RoutingInfo {
        RoutingInfo::SingleNode(SingleNodeRoutingInfo::Random)
    }

    pub(super) fn connection(&self) -> ClusterConnection {
        self.connection.lock().clone()
    }

    /// How the link is now, to be compared when a command goes unanswered.
    pub(super) fn state(&self) -> LinkState {
        LinkState { opening: *self.openings.borrow(), answers: self.answers.load(Ordering::SeqCst) }
    }

    /// Opens the link anew, unless something was answered after `since` or another task is opening it; returns whether
    /// it did so.
    pub(super) async fn reopen(&self, since: LinkState) -> bool {
        let Ok(_alone) = self.reopening.try_lock() else { return false };
        if self.state() != since {
            return false;
        }
        // Bounded, since the library can hang while servers are replaced, and nobody else opens the link meanwhile.
        let opening = connect(&self.options, &self.servers, self.pushes.as_ref());
        let Ok(Ok(connection)) = time::timeout(self.options.connect_limit, opening).await else { return false };
        *self.connection.lock() = connection;
        self.openings.send_modify(|openings| *openings += 1);
        true
    }

    /// Completes when the link is opened anew: what was sent through it before may never be answered.
    pub(super) async fn reopened(&self, since: LinkState) {
        let mut openings = self.openings.subscribe();
        let _the_sender_is_ours = openings.wait_for(|opening| *opening != since.opening).await;
    }

    /// Sends a command by this route. If no server could be reached, opens the link anew for the next command.
    pub(super) async fn route(&self, command: Cmd, route: RoutingInfo) -> Result<Value, RedisError> {
        let before = self.state();
        let answered = self.connection().route_command(command, route).await;
        self.on_answer(answered, before).await
    }

    /// Sends a command to the server of the key or channel that it names.
    pub(super) async fn send(&self, command: &Cmd) -> Result<Value, RedisError> {
        let before = self.state();
        let answered = command.query_async(&mut self.connection()).await;
        self.on_answer(answered, before).await
    }

    /// Asks the cluster which servers it has, replicas included, since one of them may become a master. Returns whether
    /// it answered.
    pub(super) async fn learn_servers(&self) -> bool {
        let mut slots = redis::cmd("CLUSTER");
        slots.arg("SLOTS");
        let Ok(slots) = self.route(slots, Self::anywhere()).await else { return false };
        let named = decode::cluster_nodes(&slots);
        if !named.is_empty() {
            *self.servers.lock() = self.options.servers.iter().cloned().chain(named).collect();
        }
        true
    }

    async fn on_answer(&self, answered: Result<Value, RedisError>, before: LinkState) -> Result<Value, RedisError> {
        if answered.as_ref().is_err_and(nobody_was_reached) {
            self.reopen(before).await;
        } else {
            self.answers.fetch_add(1, Ordering::SeqCst);
        }
        answered
    }
}

fn nobody_was_reached(error: &RedisError) -> bool {
    error.kind() == ErrorKind::ClusterConnectionNotFound || error.is_io_error()
}

async fn connect(
    options: &RedisOptions,
    servers: &Mutex<Vec<Address>>,
    pushes: Option<&Pushes>,
) -> Result<ClusterConnection, RedisError> {
    let nodes: Result<Vec<_>, _> = servers.lock().iter().map(|server| dial::connection_info(server, options)).collect();
    let mut builder = ClusterClientBuilder::new(nodes?)
        .use_protocol(ProtocolVersion::RESP3)
        .connection_timeout(options.connect_limit / 2)
        .response_timeout(options.answer_limit)
        .retries(RETRIES)
        .min_retry_wait(5)
        .max_retry_wait(200);
    if let Some(tls) = &options.tls {
        builder = builder.certs(dial::certificates(tls));
    }
    if let Some(pushes) = pushes.map(Arc::clone) {
        builder = builder.push_sender(move |push: PushInfo| pushes(push));
    }
    builder.build()?.get_async_connection().await
}

impl fmt::Debug for ClusterLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterLink").field("servers", &self.servers).finish_non_exhaustive()
    }
}
