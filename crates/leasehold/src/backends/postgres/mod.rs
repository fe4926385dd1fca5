//! `postgres://`, many machines: leases in a database that is there already.
//!
//! The rule is ported to functions in the schema `leasehold`, which any SQL
//! client may call: see [`install`]. One round trip per operation; calls that
//! come together share one and its commit. A release hands the lease to the
//! next in line, whose instance is told by a notification that carries the
//! grant. Renewals have a connection of their own.

pub mod advisory;
mod batch;
mod columns;
mod connection;
mod deaths;
mod dial;
mod examine;
mod failure;
mod late;
mod listener;
mod options;
mod renewals;
mod row;
mod schema;
mod tls;
mod upkeep;
mod work;

use std::{fmt, os::fd::OwnedFd, sync::Arc, time::Duration};

use async_trait::async_trait;
use tokio::task::AbortHandle;
use tokio_postgres::types::Type;
use uuid::Uuid;

use self::{
    columns::long,
    connection::{Call, Connector, Slot},
    deaths::Deaths,
    failure::{Failure, Kind},
    late::Late,
    listener::Listener,
    options::{By, Durability, Recorded},
    renewals::Renewals,
    work::{Caller, Work},
};
pub use self::{
    options::PostgresOptions,
    schema::{Installed, install, sql},
};
use crate::{
    Error, Result,
    backend::{
        Backend, EventStream, Finding, Guarantees, HintSender, Hints, Inspect, Liveness, OpenOptions, Opening,
        Reach,
    },
    lease::{
        Answer, Decision, EndedLease, Evicted, Fence, HistoryFilter, LeaseKey, Lifetime, ListFilter, Names,
        Outcome, Page, Released, Renewal, Request, Resource, Standing,
    },
};

/// A transaction holds the rows of so many leases for some ten milliseconds.
const RENEW_BATCH: usize = 2000;
/// How long a connection may be silent and still be believed: the server gives it up a second later.
const SILENCE_LIMIT: Duration = Duration::from_secs(10);

/// Leases kept in a Postgres database.
///
/// Opened inside a tokio runtime with io and time, and used while it runs.
pub struct PostgresBackend {
    connector: Arc<Connector>,
    caller: Caller,
    work: Arc<Work>,
    renewals: Renewals,
    /// For what may have to wait for a lock.
    aside: Arc<Slot>,
    /// For what may take a while, and which no lease waits for.
    looks: Arc<Slot>,
    listener: Arc<Listener>,
    hints: HintSender,
    late: Arc<Late>,
    tasks: Vec<AbortHandle>,
}

impl PostgresBackend {
    /// Connects, and sees whether the schema is there and what lies in between.
    ///
    /// # Errors
    /// `Unavailable` for a server that cannot be reached or is a standby, `PermissionDenied`,
    /// `InvalidConfig` for a schema that is missing or of another version, `Unsupported` for
    /// `liveness=connection` through a pooler that shares connections.
    pub async fn open(options: PostgresOptions) -> Result<Self> {
        let connector = Connector::new(options)?;
        let [first, second] = connector.connect_pair().await.map_err(Failure::error)?;
        schema::check(&first, &connector.options).await.map_err(Failure::error)?;
        let pooled = connector.is_pooled();
        if pooled && connector.options.by == By::Connection {
            return Err(Failure::new(
                Kind::Unsupported,
                format!(
                    "liveness=connection does not work through the pooler at {}, which lends connections for a \
                     transaction at a time; connect to the server itself, or use liveness=ttl",
                    connector.place
                ),
            )
            .error());
        }
        let channel = format!("lh_{}", Uuid::new_v4().simple());
        let caller = Caller {
            namespace: connector.options.namespace.clone(),
            history: match connector.options.recorded {
                Recorded::All => b'a',
                Recorded::Problems => b'p',
                Recorded::Off => b'o',
            }
            .cast_signed(),
            channel: (!pooled).then(|| channel.clone()),
        };
        let hints = HintSender::new();
        let listener = Listener::new(Arc::clone(&connector), channel, hints.clone());
        if !pooled {
            // Before anything is asked for: what is heard while nobody listens is lost.
            listener.ensure().await.map_err(Failure::error)?;
        }
        let [aside, looks] = [(), ()].map(|()| Arc::new(Slot::new(Arc::clone(&connector))));
        let deaths = Arc::new(Deaths::default());
        let looking = Arc::clone(&deaths).look(Arc::clone(&aside), caller.clone(), hints.clone());
        let work = Work::start(Arc::clone(&connector), first, caller.clone(), hints.clone(), Arc::clone(&deaths));
        let late = Late::new(Arc::clone(&connector.options.clock));
        let mut tasks = vec![
            connector.runtime.spawn(upkeep::keep_up(Arc::clone(&looks))).abort_handle(),
            connector.runtime.spawn(looking).abort_handle(),
        ];
        if connector.options.by == By::Connection {
            let giving_back = Arc::clone(&late).give_back(Arc::clone(&work));
            tasks.push(connector.runtime.spawn(giving_back).abort_handle());
        }
        Ok(Self {
            work,
            renewals: Renewals::new(
                Slot::with(Arc::clone(&connector), second),
                Arc::clone(&aside),
                caller.clone(),
                hints.clone(),
                Arc::clone(&deaths),
                connector.runtime.clone(),
            ),
            aside,
            looks,
            connector,
            caller,
            listener,
            hints,
            late,
            tasks,
        })
    }

    /// Whether grants can be pushed to this instance.
    fn pushes(&self) -> bool {
        !self.connector.is_pooled()
    }

    /// The connection that a new lease of this instance lives by, if it does.
    async fn session(&self, lifetime: Lifetime) -> Result<Option<i32>, Failure> {
        match (self.connector.options.by, lifetime) {
            (By::Connection, Lifetime::Attached) => self.listener.ensure().await,
            _ => Ok(None),
        }
    }
}

impl Drop for PostgresBackend {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
        self.listener.close();
        self.work.close();
    }
}

impl fmt::Debug for PostgresBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresBackend").field("place", &self.connector.place).finish_non_exhaustive()
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
        let by = self.connector.options.by;
        let (liveness, silence_limit) = match by {
            By::Ttl => (Liveness::Ttl, None),
            By::Connection => (Liveness::Connection, Some(SILENCE_LIMIT)),
        };
        Guarantees::new("postgres", Reach::Network, liveness)
            .pushes(self.pushes())
            .survives_restart(by == By::Ttl && self.connector.options.durability != Durability::Unlogged)
            .renew_batch(RENEW_BATCH)
            .silence_limit(silence_limit)
    }

    fn hints(&self) -> Hints {
        self.hints.subscribe()
    }

    async fn acquire(&self, request: &Request) -> Result<Answer<Decision>> {
        if request.max_waiters.is_some() {
            let words = "postgres cannot bound the queue of a resource yet; leave max_waiters out";
            return Err(Error::unsupported(words).about(&request.key.resource));
        }
        let session = self.session(request.lifetime).await.map_err(Failure::error)?;
        let belief = self.listener.belief();
        let asking = session.map(|_| self.late.asking(&request.key));
        let answer = self.work.acquire(request, session).await;
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
        if session.is_some() && self.listener.session() != session {
            let words = "the connection that the lease would live by was lost meanwhile";
            return Err(Failure::new(Kind::Unanswered, words).error());
        }
        Ok(answer.believed(belief))
    }

    async fn renew(&self, renewals: &[Renewal]) -> Result<Answer<Vec<Standing>>> {
        let belief = self.listener.belief();
        let answer = self.renewals.renew(renewals, self.listener.sessions()).await.map_err(Failure::error)?;
        Ok(answer.believed(belief))
    }

    async fn release(&self, key: &LeaseKey, outcome: &Outcome) -> Result<Answer<Released>> {
        let answer = self.work.release(key, outcome).await.map_err(Failure::error)?;
        self.late.released(key);
        Ok(answer)
    }

    fn inheritable(&self) -> Option<OwnedFd> {
        self.listener.lend()
    }
}

#[async_trait]
impl Inspect for PostgresBackend {
    async fn evict(&self, resource: &Resource, expected: Fence, reason: &str) -> Result<Evicted> {
        let told = self
            .aside
            .ask(
                Call::Evict,
                &[
                    (&self.caller.namespace, Type::TEXT),
                    (&self.caller.channel, Type::TEXT),
                    (&self.caller.history, Type::CHAR),
                    (&resource.as_str(), Type::TEXT),
                    (&long(expected.get()), Type::INT8),
                    (&reason, Type::TEXT),
                ],
            )
            .await
            .inspect_err(|failure| failure.hurry([resource].into_iter(), &self.hints))
            .map_err(Failure::error)?;
        let mut answers = told.rows.iter().map(row::answered).collect::<Result<Vec<_>, _>>().map_err(Failure::error)?;
        let Some(answer) = answers.pop() else {
            return Err(Failure::new(Kind::Unanswered, "postgres did not say what it evicted").error());
        };
        for hint in answer.hints {
            self.hints.send(hint);
        }
        answer.said.evicted().map_err(Failure::error)
    }

    async fn list(&self, filter: &ListFilter) -> Result<Page> {
        let (exactly, prefix) = named(&filter.names);
        let limit = i64::try_from(filter.limit).unwrap_or(i64::MAX);
        let told = self
            .looks
            .ask(
                Call::List,
                &[
                    (&self.caller.namespace, Type::TEXT),
                    (&exactly, Type::TEXT),
                    (&prefix, Type::TEXT),
                    (&filter.after.as_ref().map(Resource::as_str), Type::TEXT),
                    (&limit.saturating_add(1), Type::INT8),
                ],
            )
            .await
            .map_err(Failure::error)?;
        let mut leases = row::leases(&told.rows).map_err(Failure::error)?;
        let mut names = 0;
        let mut last = None;
        let kept = leases.iter().position(|lease| {
            if last != Some(&lease.resource) {
                names += 1;
                if names > filter.limit {
                    return true;
                }
                last = Some(&lease.resource);
            }
            false
        });
        let next = kept.and(last.cloned());
        leases.truncate(kept.unwrap_or(leases.len()));
        Ok(Page { leases, next })
    }

    async fn history(&self, filter: &HistoryFilter) -> Result<Vec<EndedLease>> {
        // Leases of the dead that nobody asked for since are not recorded yet.
        if let Err(failure) = self.looks.ask(Call::Maintain, &[]).await {
            tracing::debug!(%failure, "could not tidy up");
        }
        let (exactly, prefix) = named(&filter.names);
        let told = self
            .looks
            .ask(
                Call::History,
                &[
                    (&self.caller.namespace, Type::TEXT),
                    (&exactly, Type::TEXT),
                    (&prefix, Type::TEXT),
                    (&filter.failures, Type::BOOL),
                    (&filter.since.map(|time| long(time.as_micros())), Type::INT8),
                    (&filter.until.map(|time| long(time.as_micros())), Type::INT8),
                    (&i64::try_from(filter.limit).unwrap_or(i64::MAX), Type::INT8),
                ],
            )
            .await
            .map_err(Failure::error)?;
        told.rows.iter().map(row::ended).collect::<Result<_, _>>().map_err(Failure::error)
    }

    async fn watch(&self, names: Names) -> Result<EventStream> {
        if !self.pushes() {
            return Err(Failure::new(
                Kind::Unsupported,
                format!("the pooler at {} lets nobody listen; connect to the server itself", self.connector.place),
            )
            .error());
        }
        self.listener.follow(names).await.map_err(Failure::error)
    }

    async fn examine(&self) -> Result<Vec<Finding>> {
        examine::examine(&self.looks, &self.connector).await.map_err(Failure::error)
    }
}

fn named(names: &Names) -> (Option<&str>, Option<&str>) {
    match names {
        Names::All => (None, None),
        Names::Prefix(prefix) => (None, Some(prefix)),
        Names::Exactly(resource) => (Some(resource.as_str()), None),
    }
}
