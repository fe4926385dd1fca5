//! `postgres://`, many machines: leases in a database that is there already.
//!
//! The rule is ported to functions in the schema `leasehold`, which any SQL
//! client may call: see [`install`]. One round trip per operation; calls that
//! come together share one and its commit. A release hands the lease to the
//! next in line, whose instance is told by a notification that carries the
//! grant. Renewals have a connection of their own.

pub mod advisory;
mod calls;
mod connection;
mod credentials;
mod decode;
mod encode;
mod errors;
mod examine;
mod fence_check;
mod inspect;
mod liveness;
mod ops;
mod options;
mod renew;
mod schema;
mod upkeep;

use std::{fmt, os::fd::OwnedFd, sync::Arc, time::Duration};

use async_trait::async_trait;
use tokio::task::AbortHandle;
pub use tokio_postgres::Config;
use uuid::Uuid;

use self::{
    connection::{Connector, Links, Slot},
    errors::{Failure, Kind},
    liveness::{DeathWatch, LateRequests, Listener, Sessions},
    ops::{Caller, Ops},
    options::{Durability, History, Life},
    renew::Renewals,
};
pub use self::{
    fence_check::FenceCheck,
    options::PostgresOptions,
    schema::{Installed, install, sql, sql_since, uninstall_sql},
};
use crate::{
    Error, Result,
    backend::{Backend, Belief, Guarantees, HintSender, Hints, Liveness, OpenOptions, Opening, Reach},
    lease::{Answer, Decision, LeaseKey, Lifetime, Outcome, Released, Renewal, Request, Standing},
};

/// A transaction holds the rows of this many leases for some ten milliseconds.
const RENEW_BATCH: usize = 2000;
/// How long a connection may be silent and still be believed: the server gives it up a second later.
const SILENCE_LIMIT: Duration = Duration::from_secs(10);

/// Leases stored in a Postgres database.
///
/// Opened inside a tokio runtime with io and time, and used while it runs.
pub struct PostgresBackend {
    links: Arc<Links>,
    caller: Caller,
    ops: Arc<Ops>,
    renewals: Renewals,
    /// Absent where a pooler lends connections for a transaction at a time.
    listener: Option<Arc<Listener>>,
    hints: HintSender,
    late: Arc<LateRequests>,
    tasks: Vec<AbortHandle>,
}

impl PostgresBackend {
    /// Connects, checks the version of the schema and detects poolers.
    ///
    /// # Errors
    /// `Unavailable` for a server that cannot be reached or is a standby, `PermissionDenied`,
    /// `InvalidConfig` for a schema that is missing or of another version, `Unsupported` for
    /// `liveness=connection` through a pooler that shares connections.
    pub async fn open(options: PostgresOptions) -> Result<Self> {
        let connector = Connector::new(options)?;
        let (first, notifications) = connector.connect_to_listen().await.map_err(Failure::error)?;
        let lent = connector.is_lent();
        if lent && connector.options.life == Life::Connection {
            return Err(no_sessions(&connector, "liveness=connection", "use liveness=ttl"));
        }
        schema::check(&first, &connector.options).await.map_err(Failure::error)?;
        let channel = format!("lh_{}", Uuid::new_v4().simple());
        let caller = Caller {
            namespace: connector.options.namespace.clone(),
            history: match connector.options.history {
                History::All => b'a',
                History::Problems => b'p',
                History::Off => b'o',
            }
            .cast_signed(),
            channel: (!lent).then(|| channel.clone()),
        };
        let hints = HintSender::new();
        let (listener, renews) = if lent {
            (None, Slot::with(Arc::clone(&connector), first))
        } else {
            let first = Some((first, notifications));
            let listener = Listener::new(Arc::clone(&connector), channel, hints.clone(), first);
            // Listen before the first request: Postgres drops notifications that nobody listens for.
            listener.ensure().await.map_err(Failure::error)?;
            (Some(listener), Slot::new(Arc::clone(&connector)))
        };
        let links = Links::new(&connector, listener.clone(), renews);
        let deaths = Arc::new(DeathWatch::default());
        let looking = Arc::clone(&deaths).look(Arc::clone(&links), caller.clone(), hints.clone());
        let ops = Ops::start(Arc::clone(&links), caller.clone(), hints.clone(), Arc::clone(&deaths));
        let late = LateRequests::new(Arc::clone(&connector.options.clock));
        let mut tasks = vec![
            connector.runtime.spawn(upkeep::keep_up(Arc::clone(&links))).abort_handle(),
            connector.runtime.spawn(looking).abort_handle(),
        ];
        if connector.options.life == Life::Connection {
            let giving_back = Arc::clone(&late).give_back(Arc::clone(&ops));
            tasks.push(connector.runtime.spawn(giving_back).abort_handle());
        }
        let renewals = Renewals::new(Arc::clone(&links), caller.clone(), hints.clone(), deaths);
        Ok(Self { links, caller, ops, renewals, listener, hints, late, tasks })
    }

    /// The connection that a new lease of this instance ends with, if it does.
    async fn session(&self, lifetime: Lifetime) -> Result<Option<i32>, Failure> {
        match (self.links.connector.options.life, lifetime, &self.listener) {
            (Life::Connection, Lifetime::Attached, Some(listener)) => listener.ensure().await,
            _ => Ok(None),
        }
    }

    fn sessions(&self) -> Sessions {
        self.listener.as_ref().map_or_else(Sessions::default, |listener| listener.sessions())
    }

    /// How long answers to what is sent from now on may be believed.
    fn belief(&self) -> Belief {
        self.listener.as_ref().map_or(Belief::Ttl, |listener| listener.belief())
    }
}

/// Why nothing can end with a connection that a pooler lends for a transaction at a time.
fn no_sessions(connector: &Connector, what: &str, instead: &str) -> Error {
    let words = format!(
        "{what} does not work through the pooler at {}, which lends connections for a transaction at a time; connect to the \
         server itself, or {instead}; where there is no such pooler, connect with ?pooler=none or ?pooler=session",
        connector.place
    );
    Failure::new(Kind::Unsupported, words).error()
}

impl Drop for PostgresBackend {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
        if let Some(listener) = &self.listener {
            listener.close();
        }
        self.ops.close();
    }
}

impl fmt::Debug for PostgresBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresBackend").field("place", &self.links.connector.place).finish_non_exhaustive()
    }
}

/// Opens the database that the URL names.
pub(crate) fn open(url: &str, options: &OpenOptions) -> Opening {
    let (clock, limit) = (Arc::clone(&options.clock), options.connect_limit);
    let options = PostgresOptions::from_url(url, &options.namespace, clock, limit);
    Box::pin(async move { Ok(Arc::new(PostgresBackend::open(options?).await?) as Arc<dyn Backend>) })
}

#[async_trait]
impl Backend for PostgresBackend {
    fn guarantees(&self) -> Guarantees {
        let options = &self.links.connector.options;
        let (liveness, silence_limit) = match options.life {
            Life::Ttl => (Liveness::Ttl, None),
            Life::Connection => (Liveness::Connection, Some(SILENCE_LIMIT)),
        };
        Guarantees::new("postgres", Reach::Network, liveness)
            .pushes(self.listener.is_some())
            .survives_restart(options.life == Life::Ttl && options.durability != Durability::Unlogged)
            .renew_batch(RENEW_BATCH)
            .silence_limit(silence_limit)
            .records_runs(true)
    }

    fn hints(&self) -> Hints {
        self.hints.subscribe()
    }

    async fn acquire(&self, request: &Request) -> Result<Answer<Decision>> {
        let session = self.session(request.lifetime).await.map_err(Failure::error)?;
        let belief = self.belief();
        let asking = session.map(|_| self.late.asking(&request.key));
        let answer = self.ops.acquire(request, session).await;
        if let Some(asking) = asking
            && !answer.as_ref().is_err_and(|failure| failure.kind == Kind::Unanswered)
        {
            asking.answered();
        }
        let answer = answer.map_err(Failure::error)?;
        if matches!(answer.value, Decision::Busy(_) | Decision::WrongShape { .. }) {
            // An earlier ask with this id may still be carried out, and nobody will release it.
            self.late.released(&request.key);
        }
        // 1. It is asked for in the name of a connection. 2. That connection dies. 3. It is granted, and dead to all.
        if session.is_some() && self.listener.as_ref().and_then(|listener| listener.session()) != session {
            let words = "the connection that the lease would end with was lost meanwhile";
            return Err(Failure::new(Kind::Unanswered, words).error());
        }
        Ok(answer.believed(belief))
    }

    async fn renew(&self, renewals: &[Renewal]) -> Result<Answer<Vec<Standing>>> {
        let belief = self.belief();
        let answer = self.renewals.renew(renewals, self.sessions()).await.map_err(Failure::error)?;
        Ok(answer.believed(belief))
    }

    async fn release(&self, key: &LeaseKey, outcome: &Outcome) -> Result<Answer<Released>> {
        let answer = self.ops.release(key, outcome).await.map_err(Failure::error)?;
        self.late.released(key);
        Ok(answer)
    }

    fn inheritable(&self) -> Option<OwnedFd> {
        self.listener.as_ref()?.lend()
    }
}
