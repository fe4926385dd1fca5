//! A connection to one server that reconnects by itself, and carries commands and pushes.
//!
//! RESP3 carries the pushes on the connection of the commands, so that the
//! subscriptions exist before the first command and end with the connection. After
//! every new connection the instance assumes that pushes were missed.

mod cluster;
mod cluster_link;
mod dial;
mod discovery;
#[cfg_attr(not(target_os = "linux"), path = "drive_stub.rs")]
mod drive;
mod epoch;
mod router;
#[cfg(target_os = "linux")]
mod socket;

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use redis::{AsyncConnectionConfig, Cmd, Pipeline, PushInfo, PushKind, RedisError, Value, aio::MultiplexedConnection};
use tokio::{
    runtime::Handle,
    sync::{Notify, watch},
    task::AbortHandle,
    time,
};

use self::{dial::ServerFacts, drive::Drive};
pub(super) use self::{
    discovery::Discovery,
    epoch::{Epoch, EpochCell},
    router::{Reply, Router},
};
use super::{
    decode, errors,
    keys::Partition,
    options::{Address, RedisOptions},
};
use crate::{Error, Result, backend::Backoff};

/// Receives pushes, and learns when some may be missing.
pub(super) trait PushSink: Send + Sync + 'static {
    /// A message came on a channel.
    fn message(&self, channel: &[u8], message: &[u8]);
    /// Pushes may have been missed.
    fn missed(&self);
}

/// A connection to one server that reconnects by itself.
pub(super) struct Connection(Arc<Shared>);

struct Shared {
    discovery: Discovery,
    options: Arc<RedisOptions>,
    /// The one partition of the server, whose epoch is read on connecting.
    partition: Partition,
    sink: Option<Arc<dyn PushSink>>,
    live: watch::Sender<Option<Arc<Live>>>,
    last_error: Mutex<Option<Error>>,
    channels: Mutex<Vec<String>>,
    task: Mutex<Option<AbortHandle>>,
}

/// An established connection, and what the server said on connecting.
pub(super) struct Live {
    connection: MultiplexedConnection,
    /// Present if the thread that sends a command also writes it to the socket.
    drive: Option<Drive>,
    pub(super) server: ServerFacts,
    pub(super) address: Address,
    /// The epoch that this connection found.
    pub(super) epoch: EpochCell,
    /// Notified to end the connection and make another: it is broken, or the server is no longer the right one.
    reconnect: Arc<Notify>,
    closed: Arc<AtomicBool>,
}

/// Why a command has no answer.
#[derive(Debug)]
pub(super) enum SendError {
    /// It was certainly not done.
    NotSent(Error),
    /// Nobody can say whether it was done.
    Unknown(Error),
    /// The server refused it.
    Refused(RedisError),
}

impl SendError {
    /// The error for the user.
    pub(super) fn into_error(self, options: &RedisOptions) -> Error {
        match self {
            Self::NotSent(error) | Self::Unknown(error) => error,
            Self::Refused(error) => errors::refused(options, &error),
        }
    }
}

impl Connection {
    /// Connects for the first time; from then on it reconnects without end.
    ///
    /// Without a sink it carries commands only.
    pub(super) async fn open(
        options: &Arc<RedisOptions>,
        partition: &Partition,
        sink: Option<Arc<dyn PushSink>>,
        channels: Vec<String>,
    ) -> Result<Self> {
        let connection = Self(Arc::new(Shared {
            discovery: Discovery::new(options)?,
            options: Arc::clone(options),
            partition: partition.clone(),
            sink,
            live: watch::Sender::new(None),
            last_error: Mutex::new(None),
            channels: Mutex::new(channels),
            task: Mutex::new(None),
        }));
        let first = connection.0.connect().await?;
        connection.0.live.send_replace(Some(Arc::clone(&first)));
        let task = Handle::current().spawn(Arc::clone(&connection.0).keep_connected(first));
        *connection.0.task.lock() = Some(task.abort_handle());
        Ok(connection)
    }

    /// Returns the established connection; waits at most `answer_limit` for one.
    pub(super) async fn live(&self) -> Result<Arc<Live>> {
        if let Some(live) = self.current() {
            return Ok(live);
        }
        let mut lives = self.0.live.subscribe();
        let is_open = |live: &Option<Arc<Live>>| live.as_ref().is_some_and(|live| !live.is_closed());
        let waited = time::timeout(self.0.options.answer_limit, lives.wait_for(is_open)).await;
        let live = waited.ok().and_then(|live| live.ok()?.clone());
        live.ok_or_else(|| self.0.not_connected_error())
    }

    /// The established connection, if there is one just now.
    pub(super) fn current(&self) -> Option<Arc<Live>> {
        self.0.live.borrow().as_ref().filter(|live| !live.is_closed()).cloned()
    }

    /// Whether another server may take the place of this one.
    pub(super) fn follows_failover(&self) -> bool {
        self.0.discovery.wants_master()
    }

    /// Subscribes on this connection and on every later one.
    pub(super) async fn subscribe(&self, channel: &str) -> Result<(), SendError> {
        {
            let mut channels = self.0.channels.lock();
            if channels.iter().any(|known| known == channel) {
                return Ok(());
            }
            channels.push(channel.to_owned());
        }
        let subscribed = self.subscribe_now(channel).await;
        if subscribed.is_err() {
            // Later connections must not subscribe for a caller who got an error.
            self.0.forget(channel);
        }
        subscribed
    }

    async fn subscribe_now(&self, channel: &str) -> Result<(), SendError> {
        let live = self.live().await.map_err(SendError::NotSent)?;
        dial::subscribe(&live.connection, channel, self.0.options.answer_limit).await.map_err(|error| {
            if errors::is_refusal(&error) {
                SendError::Refused(error)
            } else {
                SendError::NotSent(errors::unreachable(&live.display_name(), &self.0.options, &error))
            }
        })
    }

    /// Ends a subscription.
    pub(super) async fn unsubscribe(&self, channel: &str) {
        self.0.forget(channel);
        if let Some(live) = self.current() {
            let mut command = redis::cmd("UNSUBSCRIBE");
            command.arg(channel);
            let _best_effort = live.send(&command, self.0.options.answer_limit).await;
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if let Some(task) = self.0.task.lock().take() {
            task.abort();
        }
        self.0.live.send_replace(None);
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("to", &self.0.options.display_url()).finish_non_exhaustive()
    }
}

impl Live {
    /// Sends one command and waits for its answer, at most `limit`.
    pub(super) async fn send(&self, command: &Cmd, limit: Duration) -> Result<Value, SendError> {
        let mut connection = self.connection.clone();
        let answer = self.in_time(limit, connection.send_packed_command(command)).await?;
        answer.extract_error().map_err(SendError::Refused)
    }

    /// Sends two commands, the second right behind the first. If only the second fails, its error is returned as its
    /// value, since the first was done.
    pub(super) async fn send_two(
        &self,
        first: &Cmd,
        second: &Cmd,
        limit: Duration,
    ) -> Result<(Value, Value), SendError> {
        let mut both = Pipeline::new();
        both.add_command(first.clone()).add_command(second.clone());
        let mut connection = self.connection.clone();
        let mut values = self.in_time(limit, connection.send_packed_commands(&both, 0, 2)).await?.into_iter();
        let mut next = || values.next().unwrap_or(Value::Nil);
        Ok((next().extract_error().map_err(SendError::Refused)?, next()))
    }

    async fn in_time<T>(
        &self,
        limit: Duration,
        answer: impl Future<Output = Result<T, RedisError>>,
    ) -> Result<T, SendError> {
        if self.is_closed() {
            return Err(SendError::NotSent(Error::unavailable(format!(
                "{} closed the connection",
                self.display_name()
            ))));
        }
        let unknown = |why: &str| {
            self.reconnect();
            SendError::Unknown(errors::unanswered(&self.display_name(), why))
        };
        let answer = match &self.drive {
            Some(drive) => match drive.send(limit, answer).await {
                // It may be half open, so that nothing will ever come again.
                Err(_) if drive.has_expired() => return Err(unknown(&format!("nothing came within {limit:?}"))),
                answer => Ok(answer),
            },
            None => time::timeout(limit, answer).await,
        };
        match answer {
            // Answers that come after the end of a connection may belong to other questions.
            Ok(_) if self.is_closed() => Err(unknown("the connection ended")),
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) if errors::is_refusal(&error) => Err(SendError::Refused(error)),
            Ok(Err(error)) => Err(unknown(&error.to_string())),
            Err(_) => Err(unknown(&format!("nothing came within {limit:?}"))),
        }
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    fn display_name(&self) -> String {
        format!("redis at {}", self.address)
    }

    /// Ends this connection; another one is made at once.
    pub(super) fn reconnect(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.reconnect.notify_one();
    }
}

impl Shared {
    /// Makes another connection whenever one has ended.
    async fn keep_connected(self: Arc<Self>, mut live: Arc<Live>) {
        loop {
            live.reconnect.notified().await;
            live.closed.store(true, Ordering::SeqCst);
            if let Some(drive) = &live.drive {
                drive.end();
            }
            self.live.send_replace(None);
            live = self.connect_with_retries().await;
            *self.last_error.lock() = None;
            self.live.send_replace(Some(Arc::clone(&live)));
            if let Some(sink) = &self.sink {
                sink.missed();
            }
        }
    }

    /// Tries until it is connected: short pauses at first, so that a dropped connection costs little.
    async fn connect_with_retries(&self) -> Arc<Live> {
        let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));
        loop {
            match self.connect().await {
                Ok(live) => return live,
                Err(error) => {
                    tracing::debug!(%error, "cannot connect yet");
                    *self.last_error.lock() = Some(error);
                    time::sleep(backoff.pause()).await;
                }
            }
        }
    }

    async fn connect(&self) -> Result<Arc<Live>> {
        let limit = self.options.connect_limit;
        let connecting = async {
            let address = self.discovery.find(&self.options).await?;
            self.connect_to(address).await
        };
        match time::timeout(limit, connecting).await {
            Ok(connected) => connected,
            Err(_) => Err(errors::too_slow(&self.options, limit)),
        }
    }

    async fn connect_to(&self, address: Address) -> Result<Arc<Live>> {
        let reconnect = Arc::new(Notify::new());
        let closed = Arc::new(AtomicBool::new(false));
        let pushes = {
            let (sink, reconnect, closed) = (self.sink.clone(), Arc::clone(&reconnect), Arc::clone(&closed));
            move |push: PushInfo| -> Result<(), ()> {
                match (push.kind, push.data.as_slice()) {
                    (PushKind::Disconnection, _) => {
                        closed.store(true, Ordering::SeqCst);
                        reconnect.notify_one();
                    }
                    (PushKind::Message, [Value::BulkString(channel), Value::BulkString(message)]) => {
                        if let Some(sink) = &sink {
                            sink.message(channel, message);
                        }
                    }
                    _ => {}
                }
                Ok(())
            }
        };
        let place = address.to_string();
        let failed = |error: &RedisError| errors::unreachable(&place, &self.options, error);
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_pipeline_buffer_size(1024)
            .set_push_sender(pushes);
        let connecting = dial::connect(&address, &self.options, config, &reconnect);
        let (connection, drive) = connecting.await.map_err(|error| failed(&error))?;
        let server = dial::facts(&connection).await.map_err(|error| failed(&error))?;
        if !server.is_master && self.discovery.wants_master() {
            return Err(Error::unavailable(format!("{place} is a replica and no master yet")));
        }
        let channels = self.channels.lock().clone();
        for channel in &channels {
            let subscribed = dial::subscribe(&connection, channel, self.options.answer_limit).await;
            subscribed.map_err(|error| failed(&error))?;
        }
        let live = Live { connection, drive, server, address, epoch: EpochCell::default(), reconnect, closed };
        self.read_epoch(&live).await?;
        Ok(Arc::new(live))
    }

    /// Finds out which epoch the server is in. If the server rejects this, the first call reports the error.
    async fn read_epoch(&self, live: &Live) -> Result<()> {
        let settings = epoch::settings(&self.options, 'P');
        let begin = epoch::begin(&self.partition, live.server.run_id.as_deref(), &settings);
        match live.send(&begin, self.options.answer_limit).await {
            Ok(answer) => {
                live.epoch.set(&Arc::new(decode::epoch(&answer, &self.options)?));
                Ok(())
            }
            Err(SendError::Refused(_)) => Ok(()),
            Err(SendError::NotSent(error) | SendError::Unknown(error)) => Err(error),
        }
    }

    fn forget(&self, channel: &str) {
        self.channels.lock().retain(|known| known != channel);
    }

    fn not_connected_error(&self) -> Error {
        match &*self.last_error.lock() {
            Some(error) => errors::copy_of(error),
            None => Error::unavailable(format!("{} is not connected", self.options.display_url())),
        }
    }
}
