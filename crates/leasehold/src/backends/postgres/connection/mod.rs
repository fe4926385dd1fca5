//! One connection to the server: connects, reads the server's state, and limits the wait for every answer.

mod call;
mod dial;
mod lazy;
mod router;
mod tls;

use std::{
    future::poll_fn,
    io,
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
    AsyncMessage, Client, Config, Notification,
    types::{ToSql, Type},
};
use uuid::Uuid;

pub(super) use self::{
    dial::SessionSocket,
    lazy::{LazyConnection, Reply},
    router::ConnectionRouter,
    tls::Tls,
};
use super::{
    decode,
    errors::{Failure, FailureKind},
    options::{LivenessOption, Pooler, PostgresOptions},
    schema::InstalledVersion,
    statements::{self, Statement},
};
use crate::{Result, lease::Incarnation};

/// A parameter and its type: a pooler may forget what was prepared, so types always go along.
pub(super) type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

/// The stream of notifications of a connection.
pub(super) type Notifications = mpsc::UnboundedReceiver<Notification>;

/// The settings that all connections share.
#[derive(Debug)]
pub(super) struct Connector {
    pub(super) options: PostgresOptions,
    /// Where the server is, in words that hold no secret.
    pub(super) address: String,
    pub(super) runtime: Handle,
    tls: Tls,
    texts: Vec<String>,
    /// Whether a pooler shares server sessions between transactions; known from the first connection on.
    transaction_pooled: OnceLock<bool>,
}

/// What the server says about itself and this connection.
#[derive(Clone, Debug)]
pub(super) struct ServerInfo {
    pub(super) in_recovery: bool,
    pub(super) incarnation: Incarnation,
    pub(super) installed: bool,
    /// The marker in the startup options of this server session.
    pub(super) marker: Option<String>,
    /// Whether transactions are READ COMMITTED and READ WRITE by default.
    pub(super) default_transaction_ok: bool,
}

/// One connection.
#[derive(Debug)]
pub(super) struct Connection {
    client: Client,
    connector: Arc<Connector>,
    /// Whether each statement was sent before.
    used_once: Vec<AtomicBool>,
    prepared: Vec<OnceCell<tokio_postgres::Statement>>,
    driver: AbortHandle,
    /// Whether each statement is sent in an explicit transaction.
    explicit_transaction: AtomicBool,
    /// Locked while the statements of a transaction are sent, so that no other thread sends between them.
    sending: Mutex<()>,
    pub(super) server_info: ServerInfo,
    /// The version of the schema, if it was read on connecting.
    pub(super) installed_version: Option<InstalledVersion>,
    /// Its socket, where a child may inherit it.
    pub(super) socket: Option<Arc<SessionSocket>>,
}

/// A client, its driver task, and its socket if we opened it.
struct RawConnection {
    client: Client,
    driver: AbortHandle,
    socket: Option<SessionSocket>,
}

impl Connector {
    pub(super) fn new(options: PostgresOptions) -> Result<Arc<Self>> {
        let transaction_pooled = OnceLock::new();
        if let Some(configured) = options.pooler.transaction_pooled() {
            transaction_pooled.get_or_init(|| configured);
        }
        Ok(Arc::new(Self {
            address: options.address(),
            tls: options.tls()?,
            runtime: Handle::current(),
            texts: statements::texts(&options.schema),
            transaction_pooled,
            options,
        }))
    }

    /// Whether session state is lost between transactions.
    pub(super) fn is_transaction_pooled(&self) -> bool {
        self.transaction_pooled.get().copied().unwrap_or(true)
    }

    /// Connects and reads the server's state.
    pub(super) async fn connect(self: &Arc<Self>) -> Result<Connection, Failure> {
        self.connect_within_limit(None).await
    }

    /// Connects and reads the server's state; notifications come by the stream until the connection ends.
    pub(super) async fn connect_to_listen(self: &Arc<Self>) -> Result<(Connection, Notifications), Failure> {
        let (sender, notifications) = mpsc::unbounded_channel();
        Ok((self.connect_within_limit(Some(sender)).await?, notifications))
    }

    async fn connect_within_limit(
        self: &Arc<Self>,
        listener: Option<mpsc::UnboundedSender<Notification>>,
    ) -> Result<Connection, Failure> {
        let limit = self.options.connect_limit;
        let connected = timeout(limit, self.connect_unlimited(listener)).await;
        connected.unwrap_or_else(|_| Err(Failure::too_slow(&self.address, limit)))
    }

    async fn connect_unlimited(
        self: &Arc<Self>,
        listener: Option<mpsc::UnboundedSender<Notification>>,
    ) -> Result<Connection, Failure> {
        let is_listening = listener.is_some();
        let marker = (self.options.pooler == Pooler::Auto && self.transaction_pooled.get() != Some(&true))
            .then(|| Uuid::new_v4().simple().to_string());
        let config = self.options.current_config().map_err(|error| Failure::from_error(&error))?;
        let raw = match self.connect_raw(&self.with_marker(config.clone(), marker.as_deref()), listener.clone()).await {
            // Poolers reject unknown startup options: retry without the marker.
            Err(failure) if marker.is_some() && failure.kind == FailureKind::StartupRejected => {
                self.connect_raw(&config, listener).await?
            }
            raw => raw?,
        };
        // One round trip for both. Without a schema, or the right to use it, there is no version.
        let (server_info, version) =
            tokio::join!(self.read_server_info(&raw.client), self.read_version(&raw.client, is_listening));
        let server_info = server_info?;
        if server_info.in_recovery {
            return Err(Failure::new(
                FailureKind::Unavailable,
                format!("postgres at {} is a standby, which cannot grant; connect to the primary", self.address),
            ));
        }
        if self.options.pooler == Pooler::Auto {
            let transaction_pooled = marker.is_none() || server_info.marker != marker;
            if *self.transaction_pooled.get_or_init(|| transaction_pooled) != transaction_pooled && transaction_pooled {
                let message =
                    format!("there is a pooler at {} where there was none before; say ?pooler=", self.address);
                return Err(Failure::new(FailureKind::Unavailable, message));
            }
        }
        Ok(Connection {
            client: raw.client,
            connector: Arc::clone(self),
            used_once: self.texts.iter().map(|_| AtomicBool::new(false)).collect(),
            prepared: self.texts.iter().map(|_| OnceCell::new()).collect(),
            driver: raw.driver,
            explicit_transaction: AtomicBool::new(!server_info.default_transaction_ok),
            sending: Mutex::new(()),
            server_info,
            installed_version: version,
            socket: raw.socket.map(Arc::new),
        })
    }

    /// Adds startup options, which a pooled session never receives.
    fn with_marker(&self, mut config: Config, marker: Option<&str>) -> Config {
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

    async fn connect_raw(
        &self,
        config: &Config,
        listener: Option<mpsc::UnboundedSender<Notification>>,
    ) -> Result<RawConnection, Failure> {
        if listener.is_some() && self.options.liveness == LivenessOption::Connection {
            return self.connect_by_own_socket(config, listener).await;
        }
        let connected = config.connect(self.tls.0.clone()).await;
        let (client, driver) = connected.map_err(|error| self.cannot_connect(&error))?;
        Ok(RawConnection { client, driver: self.drive(driver, listener), socket: None })
    }

    /// Spawns the driver task of a connection, which moves its messages until it ends.
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

    /// Connects to the first listed server that is not a standby.
    async fn connect_by_own_socket(
        &self,
        config: &Config,
        listener: Option<mpsc::UnboundedSender<Notification>>,
    ) -> Result<RawConnection, Failure> {
        let servers = dial::server_addresses(config);
        let limit = self.options.connect_limit / u32::try_from(servers.len()).unwrap_or(1).max(1);
        let mut failure = Failure::new(FailureKind::Unavailable, format!("{} names no server", self.address));
        for (index, server) in servers.iter().enumerate() {
            let opened = match dial::dial(config, &self.tls.0, server, limit).await {
                Ok(Ok(opened)) => opened,
                Ok(Err(error)) => {
                    failure = self.cannot_connect(&error);
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                    failure = Failure::too_slow(&self.address, limit);
                    continue;
                }
                Err(error) => {
                    let advice = super::errors::to_check(&error.to_string());
                    let message = format!("cannot connect to postgres at {}: {error}; {advice}", self.address);
                    failure = Failure::new(FailureKind::Unavailable, message);
                    continue;
                }
            };
            let driver = self.drive(opened.driver, listener.clone());
            let last = index + 1 == servers.len();
            match self.read_server_info(&opened.client).await {
                Ok(server_info) if last || !server_info.in_recovery => {
                    return Ok(RawConnection { client: opened.client, driver, socket: Some(opened.socket) });
                }
                Ok(_) => {}
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    async fn read_server_info(&self, client: &Client) -> Result<ServerInfo, Failure> {
        client
            .query_typed(self.text(Statement::ServerInfo), &[])
            .await
            .map_err(|error| self.cannot_connect(&error))
            .and_then(|rows| decode::server_info(&rows))
    }

    /// The version of the schema, for a connection that may be the first; `None` if it cannot be read.
    async fn read_version(&self, client: &Client, is_wanted: bool) -> Option<InstalledVersion> {
        if !is_wanted {
            return None;
        }
        let rows = client.query_typed(self.text(Statement::Version), &[]).await.ok()?;
        decode::installed_version(&rows).ok()
    }

    fn cannot_connect(&self, error: &tokio_postgres::Error) -> Failure {
        Failure::connecting(&self.address, &self.options, error)
    }

    fn text(&self, statement: Statement) -> &str {
        &self.texts[statement as usize]
    }
}
