//! `postgres://`: leases in an existing database, shared by many machines.
//!
//! The [model](crate::backend::model) is ported to SQL functions in the schema
//! `leasehold`, which any SQL client may call; [`install`] creates them. An operation
//! takes one round trip, and concurrent operations share a round trip and its commit.
//! A release hands the lease to the next waiter and notifies its instance; the
//! notification contains the grant. While leases are held or waited for, a call that may
//! be slow or wait for a row lock does not use the connection that renews them.

pub mod advisory;
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
mod statements;
mod upkeep;

use std::{fmt, os::fd::OwnedFd, sync::Arc, time::Duration};

use async_trait::async_trait;
pub use rustls::ClientConfig;
use tokio::task::AbortHandle;
pub use tokio_postgres::Config;
use uuid::Uuid;

use self::{
    connection::{ConnectionRouter, Connector, LazyConnection},
    errors::{Failure, FailureKind},
    liveness::{DeadHolderPoller, LateRequests, Listener, Sessions},
    ops::{InstanceParams, WorkerPool},
    options::{Durability, History, LivenessOption},
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

/// Renewing this many leases locks their rows for about 10 ms.
const RENEW_BATCH: usize = 2000;
/// How long to rely on a silent connection. The server drops one after 11 s: see `PostgresOptions::start_options`.
const SILENCE_LIMIT: Duration = Duration::from_secs(10);

/// A backend that stores leases in a Postgres database.
///
/// Open it inside a Tokio runtime with I/O and time enabled; it works only while that runtime runs.
pub struct PostgresBackend {
    router: Arc<ConnectionRouter>,
    instance: InstanceParams,
    workers: Arc<WorkerPool>,
    renewals: Renewals,
    /// `None` behind a transaction pooler.
    listener: Option<Arc<Listener>>,
    hints: HintSender,
    late: Arc<LateRequests>,
    tasks: Vec<AbortHandle>,
}

impl PostgresBackend {
    /// Connects, checks the version of the schema and detects poolers.
    ///
    /// # Errors
    /// `Unavailable` if the server cannot be reached or is a standby; `PermissionDenied` if it refuses access;
    /// `InvalidConfig` if the schema is missing or has an unsuitable version; `Unsupported` for `liveness=connection`
    /// if a pooler in between shares connections.
    pub async fn open(options: PostgresOptions) -> Result<Self> {
        let connector = Connector::new(options)?;
        let (first, notifications) = connector.connect_to_listen().await.map_err(Failure::error)?;
        let transaction_pooled = connector.is_transaction_pooled();
        if transaction_pooled && connector.options.liveness == LivenessOption::Connection {
            return Err(no_sessions(&connector, "liveness=connection", "use liveness=ttl"));
        }
        schema::check_or_install(&first, &connector.options).await.map_err(Failure::error)?;
        let channel = format!("lh_{}", Uuid::new_v4().simple());
        let instance = InstanceParams {
            namespace: connector.options.namespace.clone(),
            history: match connector.options.history {
                History::All => b'a',
                History::Problems => b'p',
                History::Off => b'o',
            }
            .cast_signed(),
            channel: (!transaction_pooled).then(|| channel.clone()),
        };
        let hints = HintSender::new();
        let (listener, separate_main) = if transaction_pooled {
            (None, LazyConnection::with(Arc::clone(&connector), first))
        } else {
            let first = Some((first, notifications));
            let listener = Listener::new(Arc::clone(&connector), channel, hints.clone(), first);
            // Listen before the first request: Postgres drops notifications that nobody listens for.
            listener.ensure_listening().await.map_err(Failure::error)?;
            (Some(listener), LazyConnection::new(Arc::clone(&connector)))
        };
        let router = ConnectionRouter::new(&connector, listener.clone(), separate_main);
        let poller = Arc::new(DeadHolderPoller::default());
        let polling = Arc::clone(&poller).run(Arc::clone(&router), instance.clone(), hints.clone());
        let workers = WorkerPool::start(Arc::clone(&router), instance.clone(), hints.clone(), Arc::clone(&poller));
        let late = LateRequests::new(Arc::clone(&connector.options.clock));
        let mut tasks = vec![
            connector.runtime.spawn(upkeep::run(Arc::clone(&router))).abort_handle(),
            connector.runtime.spawn(polling).abort_handle(),
        ];
        if connector.options.liveness == LivenessOption::Connection {
            let releasing_late = Arc::clone(&late).release_late(Arc::clone(&workers));
            tasks.push(connector.runtime.spawn(releasing_late).abort_handle());
        }
        let renewals = Renewals::new(Arc::clone(&router), instance.clone(), hints.clone(), poller);
        Ok(Self { router, instance, workers, renewals, listener, hints, late, tasks })
    }

    /// The session id for a new lease; `None` if it ends by ttl.
    async fn session(&self, lifetime: Lifetime) -> Result<Option<i32>, Failure> {
        match (self.router.connector.options.liveness, lifetime, &self.listener) {
            (LivenessOption::Connection, Lifetime::Attached, Some(listener)) => listener.ensure_listening().await,
            _ => Ok(None),
        }
    }

    fn sessions(&self) -> Sessions {
        self.listener.as_ref().map_or_else(Sessions::default, |listener| listener.sessions())
    }

    /// How long to rely on answers to requests sent from now on.
    fn belief(&self) -> Belief {
        self.listener.as_ref().map_or(Belief::Ttl, |listener| listener.belief())
    }
}

/// The error for what needs a session of its own, behind a transaction pooler.
fn no_sessions(connector: &Connector, what: &str, instead: &str) -> Error {
    let message = format!(
        "{what} does not work through the pooler at {}, which lends connections for a transaction at a time; connect to the \
         server itself, or {instead}; where there is no such pooler, connect with ?pooler=none or ?pooler=session",
        connector.address
    );
    Failure::new(FailureKind::Unsupported, message).error()
}

impl Drop for PostgresBackend {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
        if let Some(listener) = &self.listener {
            listener.close();
        }
        self.workers.close();
    }
}

impl fmt::Debug for PostgresBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresBackend").field("address", &self.router.connector.address).finish_non_exhaustive()
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
        let options = &self.router.connector.options;
        let (liveness, silence_limit) = match options.liveness {
            LivenessOption::Ttl => (Liveness::Ttl, None),
            LivenessOption::Connection => (Liveness::Connection, Some(SILENCE_LIMIT)),
        };
        Guarantees::new("postgres", Reach::Network, liveness)
            .pushes(self.listener.is_some())
            .survives_restart(options.liveness == LivenessOption::Ttl && options.durability != Durability::Unlogged)
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
        let in_flight = session.map(|_| self.late.in_flight(&request.key));
        let answer = self.workers.acquire(request, session).await;
        if let Some(in_flight) = in_flight
            && !answer.as_ref().is_err_and(|failure| failure.kind == FailureKind::Unanswered)
        {
            in_flight.mark_answered();
        }
        let answer = answer.map_err(Failure::error)?;
        if matches!(answer.value, Decision::Busy(_) | Decision::WrongShape { .. }) {
            // An unanswered earlier try may still run: release it later.
            self.late.release_repeatedly(&request.key);
        }
        // 1. Requested for session A. 2. A dies. 3. Granted to A: the lease is already dead.
        if session.is_some() && self.listener.as_ref().and_then(|listener| listener.session()) != session {
            let message = "the connection that the lease would end with was lost meanwhile";
            return Err(Failure::new(FailureKind::Unanswered, message).error());
        }
        Ok(answer.believed(belief))
    }

    async fn renew(&self, renewals: &[Renewal]) -> Result<Answer<Vec<Standing>>> {
        let belief = self.belief();
        let answer = self.renewals.renew(renewals, self.sessions()).await.map_err(Failure::error)?;
        Ok(answer.believed(belief))
    }

    async fn release(&self, key: &LeaseKey, outcome: &Outcome) -> Result<Answer<Released>> {
        let answer = self.workers.release(key, outcome).await.map_err(Failure::error)?;
        self.late.release_repeatedly(key);
        Ok(answer)
    }

    fn inheritable(&self) -> Option<OwnedFd> {
        self.listener.as_ref()?.inheritable_socket()
    }
}
