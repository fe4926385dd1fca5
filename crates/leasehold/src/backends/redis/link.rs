//! One connection to one server, kept alive: commands, pushes, and what is learnt on connecting.
//!
//! RESP3 carries the pushes on the connection of the commands, so that a
//! subscription stands before the first command and both end together. After
//! every new connection the instance is told that hints were missed.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use redis::{AsyncConnectionConfig, Cmd, PushInfo, PushKind, RedisError, Value, aio::MultiplexedConnection};
use tokio::{
    runtime::Handle,
    sync::{Notify, watch},
    task::AbortHandle,
    time,
};
use uuid::Uuid;

use super::{
    client::{self, ServerFacts},
    failure,
    finder::Finder,
    options::{Address, RedisOptions},
};
use crate::{Error, ErrorKind, Result};

/// Pauses between two tries to connect: short at first, so that a dropped connection costs little.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// What becomes of pushes and of new connections.
pub(super) trait Listener: Send + Sync + 'static {
    /// A message came on a channel.
    fn message(&self, channel: &[u8], message: &[u8]);
    /// Pushes may have been missed.
    fn missed(&self);
}

/// A connection to one server that comes back by itself.
pub(super) struct Link(Arc<Shared>);

struct Shared {
    finder: Finder,
    options: Arc<RedisOptions>,
    listener: Arc<dyn Listener>,
    live: watch::Sender<Option<Arc<Live>>>,
    trouble: Mutex<Option<Arc<Error>>>,
    channels: Arc<Mutex<Vec<Channel>>>,
    keeper: Mutex<Option<AbortHandle>>,
}

/// A channel to be subscribed to on every connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Channel {
    /// Of the server, or of the whole cluster.
    Plain(String),
    /// Of one slot.
    Sharded(String),
}

impl Channel {
    /// Whether it is the channel of a slot, with this name.
    fn is_of_slot(&self, name: &[u8]) -> bool {
        matches!(self, Self::Sharded(own) if own.as_bytes() == name)
    }
}

/// A connection, and what the server told on connecting.
pub(super) struct Live {
    connection: MultiplexedConnection,
    pub(super) server: ServerFacts,
    /// Where it is.
    pub(super) address: Address,
    /// Ends the connection: it is broken, or the server is no longer the right one.
    give_up: Arc<Notify>,
    closed: Arc<AtomicBool>,
}

/// Why a command has no answer.
#[derive(Debug)]
pub(super) enum Trouble {
    /// It was certainly not done.
    NotSent(Error),
    /// Nobody can say whether it was done.
    Unknown(Error),
    /// The server refused it.
    Refused(RedisError),
}

impl Trouble {
    /// What the user is told.
    pub(super) fn at(self, options: &RedisOptions) -> Error {
        match self {
            Self::NotSent(error) | Self::Unknown(error) => error,
            Self::Refused(error) => failure::refused(&options.place(), &error),
        }
    }
}

impl Link {
    /// Connects for the first time; from then on it reconnects without end.
    pub(super) async fn open(
        finder: Finder,
        options: Arc<RedisOptions>,
        listener: Arc<dyn Listener>,
        channels: Vec<Channel>,
    ) -> Result<Self> {
        let link = Self::new(finder, options, listener, channels);
        let first = link.0.connect().await?;
        link.start(Some(first));
        Ok(link)
    }

    /// Begins to connect and does not wait for it.
    pub(super) fn begin(
        finder: Finder,
        options: Arc<RedisOptions>,
        listener: Arc<dyn Listener>,
        channels: Vec<Channel>,
    ) -> Self {
        let link = Self::new(finder, options, listener, channels);
        link.start(None);
        link
    }

    fn new(finder: Finder, options: Arc<RedisOptions>, listener: Arc<dyn Listener>, channels: Vec<Channel>) -> Self {
        Self(Arc::new(Shared {
            finder,
            options,
            listener,
            live: watch::Sender::new(None),
            trouble: Mutex::new(None),
            channels: Arc::new(Mutex::new(channels)),
            keeper: Mutex::new(None),
        }))
    }

    fn start(&self, first: Option<Arc<Live>>) {
        if let Some(live) = &first {
            self.0.live.send_replace(Some(Arc::clone(live)));
        }
        let keeper = Handle::current().spawn(Arc::clone(&self.0).keep(first));
        *self.0.keeper.lock() = Some(keeper.abort_handle());
    }

    /// The connection, waited for as long as an answer may take.
    pub(super) async fn live(&self) -> Result<Arc<Live>, Error> {
        let is_open = |live: &Option<Arc<Live>>| live.as_ref().is_some_and(|live| !live.is_closed());
        if let Some(live) = self.0.live.borrow().as_ref().filter(|live| !live.is_closed()) {
            return Ok(Arc::clone(live));
        }
        let mut lives = self.0.live.subscribe();
        let limit = self.0.options.answer_limit;
        match time::timeout(limit, lives.wait_for(is_open)).await {
            Ok(Ok(live)) => Ok(Arc::clone(live.as_ref().expect("it was waited for"))),
            _ => Err(self.0.why_not()),
        }
    }

    /// Sends one command and waits for its answer, as long as that may take.
    pub(super) async fn send(&self, command: &Cmd) -> Result<Heard, Trouble> {
        let live = self.live().await.map_err(Trouble::NotSent)?;
        let value = live.send(command, self.0.options.answer_limit).await?;
        Ok(Heard { value, live })
    }

    /// Sends one command to a server that is only just taking over its slot.
    pub(super) async fn send_asking(&self, command: &Cmd) -> Result<Heard, Trouble> {
        let both = self.send_two(&redis::cmd("ASKING"), command).await?;
        Ok(Heard { value: both.second, live: both.live })
    }

    /// Sends two commands, the second right behind the first.
    pub(super) async fn send_two(&self, first: &Cmd, second: &Cmd) -> Result<HeardTwo, Trouble> {
        let live = self.live().await.map_err(Trouble::NotSent)?;
        let mut both = redis::pipe();
        both.add_command(first.clone()).add_command(second.clone());
        let mut connection = live.connection.clone();
        let unknown = |why: &str| {
            live.give_up();
            Trouble::Unknown(failure::unanswered(&live.place(), why))
        };
        let answer = time::timeout(self.0.options.answer_limit, connection.send_packed_commands(&both, 0, 2)).await;
        let mut values = match answer {
            Ok(_) if live.is_closed() => return Err(unknown("the connection ended")),
            Ok(Ok(values)) => values.into_iter(),
            Ok(Err(error)) if failure::is_refusal(&error) => return Err(Trouble::Refused(error)),
            Ok(Err(error)) => return Err(unknown(&error.to_string())),
            Err(_) => return Err(unknown("nothing came in time")),
        };
        let mut next = || values.next().unwrap_or(Value::Nil).extract_error().map_err(Trouble::Refused);
        let (first, second) = (next()?, next()?);
        Ok(HeardTwo { first, second, live: Arc::clone(&live) })
    }

    /// Whether it is subscribed to this channel.
    pub(super) fn hears(&self, channel: &Channel) -> bool {
        self.0.channels.lock().contains(channel)
    }

    /// Whether another server may take the place of this one.
    pub(super) fn follows_failover(&self) -> bool {
        self.0.finder.wants_master()
    }

    /// Subscribes on this connection and on every later one.
    pub(super) async fn subscribe(&self, channel: Channel) -> Result<(), Trouble> {
        {
            let mut channels = self.0.channels.lock();
            if channels.contains(&channel) {
                return Ok(());
            }
            channels.push(channel.clone());
        }
        let live = self.live().await.map_err(Trouble::NotSent)?;
        let subscribed = client::subscribe(&live.connection, &channel, self.0.options.answer_limit).await;
        subscribed.map_err(|error| {
            self.0.forget(&channel);
            if failure::is_refusal(&error) {
                Trouble::Refused(error)
            } else {
                Trouble::NotSent(failure::unreachable(&live.place(), &error))
            }
        })
    }

    /// Subscribes no longer.
    pub(super) async fn unsubscribe(&self, channel: &Channel) {
        self.0.forget(channel);
        // That of a slot goes when its server does.
        if let Channel::Plain(name) = channel {
            let _best_effort = self.send(redis::cmd("UNSUBSCRIBE").arg(name)).await;
        }
    }

    /// Whether it is connected just now, and to what.
    pub(super) fn current(&self) -> Option<Arc<Live>> {
        self.0.live.borrow().clone().filter(|live| !live.is_closed())
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if let Some(keeper) = self.0.keeper.lock().take() {
            keeper.abort();
        }
        self.0.live.send_replace(None);
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("to", &self.0.options.place()).finish_non_exhaustive()
    }
}

/// An answer, and the connection that brought it.
pub(super) struct Heard {
    pub(super) value: Value,
    pub(super) live: Arc<Live>,
}

/// Two answers, and the connection that brought them.
pub(super) struct HeardTwo {
    pub(super) first: Value,
    pub(super) second: Value,
    pub(super) live: Arc<Live>,
}

impl Live {
    async fn send(&self, command: &Cmd, limit: Duration) -> Result<Value, Trouble> {
        if self.is_closed() {
            return Err(Trouble::NotSent(Error::unavailable(format!("{} closed the connection", self.place()))));
        }
        let mut connection = self.connection.clone();
        let answer = time::timeout(limit, connection.send_packed_command(command)).await;
        match answer.map(|answer| answer.and_then(Value::extract_error)) {
            // Answers that come after the end of a connection may belong to other questions.
            Ok(_) if self.is_closed() => {
                Err(Trouble::Unknown(failure::unanswered(&self.place(), "the connection ended")))
            }
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) if failure::is_refusal(&error) => Err(Trouble::Refused(error)),
            Ok(Err(error)) => {
                self.give_up();
                Err(Trouble::Unknown(failure::unanswered(&self.place(), &error.to_string())))
            }
            Err(_) => {
                // It may be half open, so that nothing will ever come again.
                self.give_up();
                Err(Trouble::Unknown(failure::unanswered(&self.place(), &format!("nothing came within {limit:?}"))))
            }
        }
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    fn place(&self) -> String {
        format!("redis at {}", self.address)
    }

    /// Ends this connection; another one is made at once.
    pub(super) fn give_up(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.give_up.notify_one();
    }
}

impl Shared {
    /// Keeps a connection for as long as the link lives.
    async fn keep(self: Arc<Self>, mut current: Option<Arc<Live>>) {
        let mut pause = FIRST_PAUSE;
        let mut first = current.is_none();
        loop {
            if let Some(live) = current.take() {
                live.give_up.notified().await;
                live.closed.store(true, Ordering::SeqCst);
                self.live.send_replace(None);
                pause = FIRST_PAUSE;
            }
            match self.connect().await {
                Ok(live) => {
                    *self.trouble.lock() = None;
                    self.live.send_replace(Some(Arc::clone(&live)));
                    if !std::mem::take(&mut first) {
                        self.listener.missed();
                    }
                    current = Some(live);
                }
                Err(error) => {
                    tracing::debug!(%error, "cannot connect yet");
                    *self.trouble.lock() = Some(Arc::new(error));
                    time::sleep(jittered(pause)).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            }
        }
    }

    async fn connect(&self) -> Result<Arc<Live>> {
        let limit = self.options.connect_limit;
        let connecting = async {
            let address = self.finder.find(&self.options).await?;
            self.connect_to(address).await
        };
        match time::timeout(limit, connecting).await {
            Ok(connected) => connected,
            Err(_) => Err(Error::unavailable(format!("{} did not answer within {limit:?}", self.options.place()))),
        }
    }

    async fn connect_to(&self, address: Address) -> Result<Arc<Live>> {
        let give_up = Arc::new(Notify::new());
        let closed = Arc::new(AtomicBool::new(false));
        let pushes = {
            let (listener, give_up, closed) = (Arc::clone(&self.listener), Arc::clone(&give_up), Arc::clone(&closed));
            let channels = Arc::clone(&self.channels);
            move |push: PushInfo| -> Result<(), ()> {
                match (push.kind, push.data.as_slice()) {
                    (PushKind::Disconnection, _) => {
                        closed.store(true, Ordering::SeqCst);
                        give_up.notify_one();
                    }
                    // Its slot has moved to another server: asking about its leases finds out which.
                    (PushKind::SUnsubscribe, [Value::BulkString(channel), ..]) => {
                        channels.lock().retain(|known| !known.is_of_slot(channel));
                        listener.missed();
                    }
                    (
                        PushKind::Message | PushKind::SMessage,
                        [Value::BulkString(channel), Value::BulkString(message)],
                    ) => {
                        listener.message(channel, message);
                    }
                    _ => {}
                }
                Ok(())
            }
        };
        let place = address.to_string();
        let failed = |error: &RedisError| failure::unreachable(&place, error);
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_pipeline_buffer_size(1024)
            .set_push_sender(pushes);
        let client = client::client(&address, &self.options).map_err(|error| failed(&error))?;
        let connecting = client.get_multiplexed_async_connection_with_config(&config);
        let connection = connecting.await.map_err(|error| failed(&error))?;
        let server = client::facts(&connection).await.map_err(|error| failed(&error))?;
        if !server.is_master && self.finder.wants_master() {
            return Err(Error::unavailable(format!("{place} is a replica and no master yet")));
        }
        let channels = self.channels.lock().clone();
        for channel in &channels {
            match client::subscribe(&connection, channel, self.options.answer_limit).await {
                // Its slot is another server's now; the next command about it finds out whose.
                Err(error) if failure::is_moved(&error) => self.forget(channel),
                subscribed => subscribed.map_err(|error| failed(&error))?,
            }
        }
        Ok(Arc::new(Live { connection, server, address, give_up, closed }))
    }

    fn forget(&self, channel: &Channel) {
        self.channels.lock().retain(|known| known != channel);
    }

    fn why_not(&self) -> Error {
        match self.trouble.lock().as_deref() {
            Some(error) if error.kind() == ErrorKind::PermissionDenied => Error::permission_denied(error.to_string()),
            Some(error) => Error::unavailable(error.to_string()),
            None => Error::unavailable(format!("{} is not connected", self.options.place())),
        }
    }
}

/// Half to all of the span, so that a thousand processes do not come back in one instant.
fn jittered(span: Duration) -> Duration {
    let part = u32::from(Uuid::new_v4().as_bytes()[0]);
    span / 2 + span * part / 510
}
