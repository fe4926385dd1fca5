//! One connection to the server: made, greeted, and asked with a limit on every answer.

use std::{future::poll_fn, os::fd::OwnedFd, sync::Arc, time::Duration};

use tokio::{
    io::{AsyncRead, AsyncWrite},
    runtime::Handle,
    sync::{Mutex, OnceCell, mpsc},
    time::timeout,
};
use tokio_postgres::{
    AsyncMessage, Client, Notification, Row, Statement,
    types::{ToSql, Type},
};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::{
    dial,
    failure::{Failure, Kind},
    options::{By, Durability, PostgresOptions},
    row, schema, tls,
};
use crate::{Result, lease::Incarnation};

/// A call that is not answered within this is given up, and its connection with it: the
/// functions themselves wait for locks far shorter.
const CALL_LIMIT: Duration = Duration::from_secs(5);

/// A parameter and its type: a pooler may forget what was prepared, so types always go along.
pub(super) type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

macro_rules! calls {
    ($($name:ident => $file:literal),+ $(,)?) => {
        /// The statements of this backend.
        #[derive(Clone, Copy, Debug)]
        pub(super) enum Call { $($name),+ }

        const TEXTS: &[&str] = &[$(include_str!(concat!("sql/calls/", $file))),+];
    };
}

calls! {
    Greet => "greet.sql",
    Version => "version.sql",
    AcquireOne => "acquire_one.sql",
    AcquireOneOwned => "acquire_one_owned.sql",
    AcquireMany => "acquire_many.sql",
    ReleaseOne => "release_one.sql",
    ReleaseOneOwned => "release_one_owned.sql",
    ReleaseMany => "release_many.sql",
    Renew => "renew.sql",
    RenewEach => "renew_each.sql",
    SettleDead => "settle_dead.sql",
    Evict => "evict.sql",
    List => "list.sql",
    History => "history.sql",
    Watch => "watch.sql",
    OpenSession => "open_session.sql",
    Maintain => "maintain.sql",
    Worn => "worn.sql",
    Vacuum => "vacuum.sql",
    Examine => "examine.sql",
    AdvisoryTry => "advisory_try.sql",
    AdvisoryUnlock => "advisory_unlock.sql",
}

/// What it takes to connect.
#[derive(Debug)]
pub(super) struct Connector {
    pub(super) options: PostgresOptions,
    pub(super) place: String,
    pub(super) runtime: Handle,
    tls: Tls,
    texts: Vec<String>,
    /// Set once when a pooler that shares connections between transactions was seen.
    pooled: OnceCell<()>,
}

struct Tls(MakeRustlsConnect);

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tls")
    }
}

/// What the server is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Greeting {
    pub(super) pid: i32,
    pub(super) in_recovery: bool,
    pub(super) incarnation: Incarnation,
    pub(super) installed: bool,
    /// Whether the schema is this role's own.
    pub(super) owned: bool,
}

/// One connection.
#[derive(Debug)]
pub(super) struct Connection {
    client: Client,
    connector: Arc<Connector>,
    prepared: Vec<OnceCell<Statement>>,
    pub(super) greeting: Greeting,
    /// Its socket, where a child may inherit it.
    pub(super) socket: Option<Arc<OwnedFd>>,
}

/// A client, and its socket if it is ours.
type Reached = (Client, Option<OwnedFd>);

impl Connector {
    pub(super) fn new(options: PostgresOptions) -> Result<Arc<Self>> {
        let texts = TEXTS.iter().map(|text| schema::named(text, &options.schema)).collect();
        Ok(Arc::new(Self {
            place: options.place(),
            tls: Tls(tls::connector(&options.trust)?),
            runtime: Handle::current(),
            texts,
            pooled: OnceCell::new(),
            options,
        }))
    }

    pub(super) fn is_pooled(&self) -> bool {
        self.pooled.initialized()
    }

    pub(super) fn set_pooled(&self) {
        let _known = self.pooled.set(());
    }

    /// Connects and greets; notices, if wanted, go to `notices` until the connection ends.
    pub(super) async fn connect(
        self: &Arc<Self>,
        notices: Option<mpsc::UnboundedSender<Notification>>,
    ) -> Result<Connection, Failure> {
        let connection = self.connect_as_is(notices).await?;
        if !self.is_pooled() {
            connection.settle_in().await?;
        }
        Ok(connection)
    }

    /// The same without changing any setting: what is behind it is not known yet.
    async fn connect_as_is(
        self: &Arc<Self>,
        notices: Option<mpsc::UnboundedSender<Notification>>,
    ) -> Result<Connection, Failure> {
        let limit = self.options.connect_limit;
        timeout(limit, self.connect_unlimited(notices)).await.unwrap_or_else(|_| {
            Err(Failure::new(Kind::Unavailable, format!("postgres at {} did not answer within {limit:?}", self.place)))
        })
    }

    /// The first two connections. Between them they find out whether a pooler lends server
    /// connections for a transaction at a time: it gives the one just used to the next who
    /// asks, or another one each time. Without one, each keeps a process of its own.
    pub(super) async fn connect_pair(self: &Arc<Self>) -> Result<[Connection; 2], Failure> {
        let one = self.connect_as_is(None).await?;
        let two = self.connect_as_is(None).await?;
        let mut lent = one.greeting.pid == two.greeting.pid;
        for connection in [&two, &one] {
            lent = lent || connection.pid().await? != connection.greeting.pid;
        }
        if lent {
            self.set_pooled();
        } else {
            tokio::try_join!(one.settle_in(), two.settle_in())?;
        }
        Ok([one, two])
    }

    async fn connect_unlimited(
        self: &Arc<Self>,
        notices: Option<mpsc::UnboundedSender<Notification>>,
    ) -> Result<Connection, Failure> {
        let (client, socket) = if notices.is_some() && self.options.by == By::Connection {
            self.reach_by_own_socket(notices).await?
        } else {
            let reached = self.options.config.connect(self.tls.0.clone()).await;
            let (client, driver) = reached.map_err(|error| Failure::connecting(&self.place, &error))?;
            self.drive(driver, notices);
            (client, None)
        };
        let greeting = self.greet(&client).await?;
        if greeting.in_recovery {
            return Err(Failure::new(
                Kind::Unavailable,
                format!("postgres at {} is a standby, which cannot grant; connect to the primary", self.place),
            ));
        }
        let prepared = (0..TEXTS.len()).map(|_| OnceCell::new()).collect();
        Ok(Connection { client, connector: Arc::clone(self), prepared, greeting, socket: socket.map(Arc::new) })
    }

    /// Moves the messages of a connection until it ends.
    fn drive<S, T>(
        &self,
        mut driver: tokio_postgres::Connection<S, T>,
        notices: Option<mpsc::UnboundedSender<Notification>>,
    ) where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        self.runtime.spawn(async move {
            while let Some(Ok(message)) = poll_fn(|cx| driver.poll_message(cx)).await {
                if let (AsyncMessage::Notification(notice), Some(notices)) = (message, &notices) {
                    let _nobody_listens = notices.send(notice);
                }
            }
        });
    }

    /// The first server of those the URL names that is no standby.
    async fn reach_by_own_socket(
        &self,
        notices: Option<mpsc::UnboundedSender<Notification>>,
    ) -> Result<Reached, Failure> {
        let targets = dial::targets(&self.options.config);
        let limit = self.options.connect_limit / u32::try_from(targets.len()).unwrap_or(1).max(1);
        let mut failure = Failure::new(Kind::Unavailable, format!("{} names no server", self.place));
        for (at, target) in targets.iter().enumerate() {
            let dialled = match dial::dial(&self.options.config, &self.tls.0, target, limit).await {
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
            self.drive(dialled.driver, notices.clone());
            let last = at + 1 == targets.len();
            match self.greet(&dialled.client).await {
                Ok(greeting) if last || !greeting.in_recovery => return Ok((dialled.client, Some(dialled.socket))),
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
            .and_then(|rows| row::greeting(&rows))
    }

    fn text(&self, call: Call) -> &str {
        &self.texts[call as usize]
    }
}

impl Connection {
    /// Sets what must not depend on the role's or the database's defaults. Not done through a
    /// pooler, where it would be set for others.
    async fn settle_in(&self) -> Result<(), Failure> {
        self.execute(include_str!("sql/calls/settle_in.sql")).await?;
        if self.connector.options.durability == Durability::Async {
            self.execute("set synchronous_commit = off").await?;
        }
        // Not every server has these or lets a client choose; then doctor tells.
        for wish in ["set client_connection_check_interval = '2s'", "set idle_session_timeout = 0"] {
            let _refused = self.client.batch_execute(wish).await;
        }
        Ok(())
    }

    pub(super) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// Whether functions may rely on the rights and the settings of this connection.
    pub(super) fn is_owners(&self) -> bool {
        self.greeting.owned && !self.connector.is_pooled()
    }

    /// Asks and waits for the answer, but not for ever.
    pub(super) async fn ask(&self, call: Call, parameters: &[Parameter<'_>]) -> Result<Vec<Row>, Failure> {
        let place = &self.connector.place;
        let answer = timeout(CALL_LIMIT, async {
            if self.connector.is_pooled() {
                return self.client.query_typed(self.connector.text(call), parameters).await;
            }
            let types: Vec<Type> = parameters.iter().map(|(_, kind)| kind.clone()).collect();
            let prepare = || self.client.prepare_typed(self.connector.text(call), &types);
            let statement = self.prepared[call as usize].get_or_try_init(prepare).await?;
            let values: Vec<&(dyn ToSql + Sync)> = parameters.iter().map(|(value, _)| *value).collect();
            self.client.query(statement, &values).await
        });
        match answer.await {
            Ok(Ok(rows)) => Ok(rows),
            Ok(Err(error)) => Err(Failure::calling(place, &error)),
            Err(_) => {
                Err(Failure::new(Kind::Unanswered, format!("postgres at {place} did not answer within {CALL_LIMIT:?}")))
            }
        }
    }

    /// The server process that answers just now.
    async fn pid(&self) -> Result<i32, Failure> {
        let rows = self.client.query_typed(self.connector.text(Call::Greet), &[]).await;
        let rows = rows.map_err(|error| Failure::calling(&self.connector.place, &error))?;
        Ok(row::greeting(&rows)?.pid)
    }

    /// Runs statements that take no parameters.
    pub(super) async fn execute(&self, text: &str) -> Result<(), Failure> {
        match timeout(CALL_LIMIT, self.client.batch_execute(text)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(Failure::calling(&self.connector.place, &error)),
            Err(_) => Err(Failure::new(
                Kind::Unanswered,
                format!("postgres at {} did not answer within {CALL_LIMIT:?}", self.connector.place),
            )),
        }
    }
}

/// A connection that is made when it is needed and made again when it broke.
#[derive(Debug)]
pub(super) struct Slot {
    connector: Arc<Connector>,
    connection: Mutex<Option<Arc<Connection>>>,
}

impl Slot {
    pub(super) fn new(connector: Arc<Connector>) -> Self {
        Self { connector, connection: Mutex::new(None) }
    }

    pub(super) fn with(connector: Arc<Connector>, connection: Connection) -> Self {
        Self { connector, connection: Mutex::new(Some(Arc::new(connection))) }
    }

    pub(super) async fn get(&self) -> Result<Arc<Connection>, Failure> {
        let mut slot = self.connection.lock().await;
        if let Some(known) = slot.as_ref().filter(|known| !known.is_closed()) {
            return Ok(Arc::clone(known));
        }
        let made = Arc::new(self.connector.connect(None).await?);
        *slot = Some(Arc::clone(&made));
        Ok(made)
    }

    /// Asks once; on a connection that had broken before, on a new one.
    pub(super) async fn ask(&self, call: Call, parameters: &[Parameter<'_>]) -> Result<Told, Failure> {
        let connection = self.get().await?;
        let answer = connection.ask(call, parameters).await;
        if matches!(&answer, Err(failure) if failure.kind == Kind::Unanswered) {
            self.forget().await;
        }
        Ok(Told { rows: answer?, incarnation: connection.greeting.incarnation })
    }

    /// Leaves the connection: an answer that comes late must not be taken for another's.
    pub(super) async fn forget(&self) {
        *self.connection.lock().await = None;
    }
}

/// Rows, and which life of the server told them.
#[derive(Debug)]
pub(super) struct Told {
    pub(super) rows: Vec<Row>,
    pub(super) incarnation: Incarnation,
}
