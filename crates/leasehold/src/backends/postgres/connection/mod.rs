//! One connection to the server: made, greeted, and asked with a limit on every answer.

mod call;
mod dial;
mod links;
mod slot;
mod tls;

use std::{
    future::poll_fn,
    os::fd::OwnedFd,
    sync::{Arc, OnceLock, atomic::AtomicBool},
};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    runtime::Handle,
    sync::{OnceCell, mpsc},
    task::AbortHandle,
    time::timeout,
};
use tokio_postgres::{
    AsyncMessage, Client, Config, Notification, Statement,
    types::{ToSql, Type},
};
use uuid::Uuid;

pub(super) use self::{
    links::Links,
    slot::{Reply, Slot},
    tls::Tls,
};
use super::{
    calls::{self, Call},
    decode,
    errors::{Failure, Kind},
    options::{Life, Pooler, PostgresOptions},
};
use crate::{Result, lease::Incarnation};

/// A parameter and its type: a pooler may forget what was prepared, so types always go along.
pub(super) type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

/// The stream of notifications of a connection.
pub(super) type Notifications = mpsc::UnboundedReceiver<Notification>;

/// What it takes to connect.
#[derive(Debug)]
pub(super) struct Connector {
    pub(super) options: PostgresOptions,
    pub(super) place: String,
    pub(super) runtime: Handle,
    tls: Tls,
    texts: Vec<String>,
    /// Whether a pooler lends server connections for a transaction at a time; known from the first connection on.
    lent: OnceLock<bool>,
}

/// What the server says about itself and this connection.
#[derive(Clone, Debug)]
pub(super) struct Greeting {
    pub(super) in_recovery: bool,
    pub(super) incarnation: Incarnation,
    pub(super) installed: bool,
    /// What the start of this server session was marked with.
    pub(super) marker: Option<String>,
    /// Whether transactions are READ COMMITTED and READ WRITE unless they say otherwise.
    pub(super) usual: bool,
}

/// One connection.
#[derive(Debug)]
pub(super) struct Connection {
    client: Client,
    connector: Arc<Connector>,
    /// Whether each call was made before.
    asked: Vec<AtomicBool>,
    prepared: Vec<OnceCell<Statement>>,
    driver: AbortHandle,
    /// Whether each call is put into a transaction of its own.
    wrapped: AtomicBool,
    /// Locked while the statements of a transaction are sent, so that no other thread sends between them.
    sending: Mutex<()>,
    pub(super) greeting: Greeting,
    /// Its socket, where a child may inherit it.
    pub(super) socket: Option<Arc<OwnedFd>>,
}

/// A client, what moves its messages, and its socket if it is ours.
struct Reached {
    client: Client,
    driver: AbortHandle,
    socket: Option<OwnedFd>,
}

impl Connector {
    pub(super) fn new(options: PostgresOptions) -> Result<Arc<Self>> {
        let lent = OnceLock::new();
        if let Some(said) = options.pooler.lends() {
            lent.get_or_init(|| said);
        }
        Ok(Arc::new(Self {
            place: options.place(),
            tls: options.tls()?,
            runtime: Handle::current(),
            texts: calls::texts(&options.schema),
            lent,
            options,
        }))
    }

    /// Whether nothing may stay on a server connection from one transaction to the next.
    pub(super) fn is_lent(&self) -> bool {
        self.lent.get().copied().unwrap_or(true)
    }

    /// Connects and greets.
    pub(super) async fn connect(self: &Arc<Self>) -> Result<Connection, Failure> {
        self.connect_within_limit(None).await
    }

    /// Connects and greets; what is notified comes by the stream until the connection ends.
    pub(super) async fn connect_to_listen(self: &Arc<Self>) -> Result<(Connection, Notifications), Failure> {
        let (sender, notifications) = mpsc::unbounded_channel();
        Ok((self.connect_within_limit(Some(sender)).await?, notifications))
    }

    async fn connect_within_limit(
        self: &Arc<Self>,
        listener: Option<mpsc::UnboundedSender<Notification>>,
    ) -> Result<Connection, Failure> {
        let limit = self.options.connect_limit;
        timeout(limit, self.connect_unlimited(listener)).await.unwrap_or_else(|_| {
            Err(Failure::new(Kind::Unavailable, format!("postgres at {} did not answer within {limit:?}", self.place)))
        })
    }

    async fn connect_unlimited(
        self: &Arc<Self>,
        listener: Option<mpsc::UnboundedSender<Notification>>,
    ) -> Result<Connection, Failure> {
        let marker = (self.options.pooler == Pooler::Auto && self.lent.get() != Some(&true))
            .then(|| Uuid::new_v4().simple().to_string());
        let config = self.options.current_config().map_err(|error| Failure::from_error(&error))?;
        let reached = match self.reach(&self.marked(config.clone(), marker.as_deref()), listener.clone()).await {
            // Poolers refuse what they do not know at the start of a connection; the server does not.
            Err(failure) if marker.is_some() && failure.kind == Kind::Refused => self.reach(&config, listener).await?,
            reached => reached?,
        };
        let greeting = self.greet(&reached.client).await?;
        if greeting.in_recovery {
            return Err(Failure::new(
                Kind::Unavailable,
                format!("postgres at {} is a standby, which cannot grant; connect to the primary", self.place),
            ));
        }
        if self.options.pooler == Pooler::Auto {
            let lent = marker.is_none() || greeting.marker != marker;
            if *self.lent.get_or_init(|| lent) != lent && lent {
                let words = format!("there is a pooler at {} where there was none before; say ?pooler=", self.place);
                return Err(Failure::new(Kind::Unavailable, words));
            }
        }
        Ok(Connection {
            client: reached.client,
            connector: Arc::clone(self),
            asked: self.texts.iter().map(|_| AtomicBool::new(false)).collect(),
            prepared: self.texts.iter().map(|_| OnceCell::new()).collect(),
            driver: reached.driver,
            wrapped: AtomicBool::new(!greeting.usual),
            sending: Mutex::new(()),
            greeting,
            socket: reached.socket.map(Arc::new),
        })
    }

    /// Adds what the start of a session of our own says; a session that others use never hears of it.
    fn marked(&self, mut config: Config, marker: Option<&str>) -> Config {
        let mut own = String::new();
        if let Some(marker) = marker {
            own.push_str(" -c leasehold_client.connection=");
            own.push_str(marker);
        }
        if marker.is_some() || self.options.pooler == Pooler::None {
            own.push_str(&self.options.start_options());
        }
        if !own.is_empty() {
            let options = config.get_options().unwrap_or_default().to_owned() + &own;
            config.options(options.trim_start());
        }
        config
    }

    async fn reach(
        &self,
        config: &Config,
        listener: Option<mpsc::UnboundedSender<Notification>>,
    ) -> Result<Reached, Failure> {
        if listener.is_some() && self.options.life == Life::Connection {
            return self.reach_by_own_socket(config, listener).await;
        }
        let reached = config.connect(self.tls.0.clone()).await;
        let (client, driver) = reached.map_err(|error| Failure::connecting(&self.place, &error))?;
        Ok(Reached { client, driver: self.drive(driver, listener), socket: None })
    }

    /// Moves the messages of a connection until it ends.
    fn drive<S, T>(
        &self,
        mut driver: tokio_postgres::Connection<S, T>,
        listener: Option<mpsc::UnboundedSender<Notification>>,
    ) -> AbortHandle
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let task = self.runtime.spawn(async move {
            while let Some(Ok(message)) = poll_fn(|cx| driver.poll_message(cx)).await {
                if let (AsyncMessage::Notification(notification), Some(listener)) = (message, &listener) {
                    let _nobody_listens = listener.send(notification);
                }
            }
        });
        task.abort_handle()
    }

    /// The first server of those the URL names that is no standby.
    async fn reach_by_own_socket(
        &self,
        config: &Config,
        listener: Option<mpsc::UnboundedSender<Notification>>,
    ) -> Result<Reached, Failure> {
        let targets = dial::targets(config);
        let limit = self.options.connect_limit / u32::try_from(targets.len()).unwrap_or(1).max(1);
        let mut failure = Failure::new(Kind::Unavailable, format!("{} names no server", self.place));
        for (at, target) in targets.iter().enumerate() {
            let dialled = match dial::dial(config, &self.tls.0, target, limit).await {
                Ok(Ok(dialled)) => dialled,
                Ok(Err(error)) => {
                    failure = Failure::connecting(&self.place, &error);
                    continue;
                }
                Err(error) => {
                    let words = format!("cannot connect to postgres at {}: {error}", self.place);
                    failure = Failure::new(Kind::Unavailable, words);
                    continue;
                }
            };
            let driver = self.drive(dialled.driver, listener.clone());
            let last = at + 1 == targets.len();
            match self.greet(&dialled.client).await {
                Ok(greeting) if last || !greeting.in_recovery => {
                    return Ok(Reached { client: dialled.client, driver, socket: Some(dialled.socket) });
                }
                Ok(_) => {}
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    async fn greet(&self, client: &Client) -> Result<Greeting, Failure> {
        client
            .query_typed(self.text(Call::Greet), &[])
            .await
            .map_err(|error| Failure::connecting(&self.place, &error))
            .and_then(|rows| decode::greeting(&rows))
    }

    fn text(&self, call: Call) -> &str {
        &self.texts[call as usize]
    }
}
