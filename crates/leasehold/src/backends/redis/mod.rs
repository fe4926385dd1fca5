//! `redis:`, machines that reach one server: scripts port the rule, the server's clock decides.
//!
//! One connection for each instance carries its commands and, by RESP3, its
//! pushes. An uncontended lock costs two commands: one to acquire, one to
//! release. A release hands the lock to the next in line and pushes to that
//! one's process only. Works with Redis 6.2 or newer and with Valkey, alone,
//! behind sentinels or as a cluster.
//!
//! What Redis forgets is forgotten: see `GUARANTEES.md` about failover.

mod client;
mod cluster;
mod connection;
mod durability;
mod examine;
mod failure;
mod finder;
mod hints;
mod history;
mod keys;
mod link;
mod listing;
mod options;
mod renewing;
mod reply;
mod scripts;
mod upkeep;

use std::{
    fmt,
    sync::{Arc, Weak},
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::{runtime::Handle, task::AbortHandle, time};
use uuid::Uuid;

pub use self::options::{Address, Durability, Identity, RedisOptions, Remember, Tls, Topology};
use self::{
    connection::{Answered, Connection},
    durability::Durable,
    hints::Told,
    keys::{Keys, Partition},
    link::Channel,
    scripts::Call,
};
use crate::{
    Error, Result,
    backend::{Backend, EventStream, Finding, Guarantees, Hints, Inspect, Liveness, OpenOptions, Opening, Reach},
    lease::{
        Answer, Decision, EndedLease, Evicted, Fence, HistoryFilter, Incarnation, LeaseKey, ListFilter, Names, Outcome,
        Page, Patience, Problem, Released, Renewal, Request, Resource, Standing, micros,
    },
};

/// Renewals in one call: a few milliseconds of the server's time.
const RENEW_BATCH: usize = 500;
/// Ended leases kept on one server, about.
const HISTORY: usize = 10_000;
/// Ended leases kept in each partition of a cluster, about.
const HISTORY_OF_PARTITION: usize = 1000;
/// Keys that nobody touches are forgotten by Redis so long after their lease has ended.
const KEPT: Duration = Duration::from_secs(24 * 3600);

/// Leases kept by a Redis server, a cluster, or whatever server the sentinels name.
///
/// Opened inside a tokio runtime with io and time, and used while it runs.
pub struct RedisBackend {
    options: Arc<RedisOptions>,
    keys: Keys,
    instance: String,
    /// What every script is told: how to push, and what to remember.
    settings: String,
    connection: Connection,
    durable: Option<Durable>,
    told: Arc<Told>,
    runtime: Handle,
    watching: tokio::sync::Mutex<()>,
    tasks: Mutex<Vec<AbortHandle>>,
    this: Weak<Self>,
}

impl RedisBackend {
    /// Connects, within the connect limit.
    ///
    /// # Errors
    /// `Unavailable` when nobody answers, `PermissionDenied` when the server refuses user or password,
    /// `Unsupported` for a server that is too old.
    pub async fn open(options: RedisOptions) -> Result<Arc<Self>> {
        let options = Arc::new(options);
        let keys = match options.topology {
            Topology::Cluster => Keys::in_cluster(&options.namespace),
            Topology::Single | Topology::Sentinel { .. } => Keys::on_one_server(&options.namespace),
        };
        let instance = Uuid::new_v4().simple().to_string();
        let durable = Durable::open(&options).await?;
        let told = Told::new(keys.events(), durable.is_some());
        let connection = Connection::open(&options, &keys, &instance, Arc::clone(&told) as _).await?;
        let runtime = Handle::current();
        let settings = settings(&connection, options.history);
        let backend = Arc::new_cyclic(|this| Self {
            options,
            keys,
            instance,
            settings,
            connection,
            durable,
            told,
            runtime,
            watching: tokio::sync::Mutex::new(()),
            tasks: Mutex::default(),
            this: Weak::clone(this),
        });
        backend.start(upkeep::keep_tidy(Weak::clone(&backend.this)));
        Ok(backend)
    }

    fn start(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.tasks.lock();
        tasks.retain(|task| !task.is_finished());
        tasks.push(self.runtime.spawn(task).abort_handle());
    }

    async fn run(&self, partition: &Partition, call: &Call) -> Result<Answered> {
        self.connection.run(partition, call, &self.options).await
    }

    fn answer<T>(&self, value: T, answered: &Answered) -> Answer<T> {
        Answer::new(value, self.incarnation(answered))
    }

    fn incarnation(&self, answered: &Answered) -> Incarnation {
        match &self.connection {
            Connection::One(_) => answered.live.server.incarnation,
            // Each server lives a life of its own; any break in what we hear begins another.
            Connection::Cluster(_) => Incarnation(self.told.misses()),
        }
    }
}

impl fmt::Debug for RedisBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisBackend").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Drop for RedisBackend {
    fn drop(&mut self) {
        self.tasks.lock().iter().for_each(AbortHandle::abort);
    }
}

#[async_trait]
impl Backend for RedisBackend {
    fn guarantees(&self) -> Guarantees {
        // A lease survives a restart only as far as the server persists it, which it does not promise.
        Guarantees::new("redis", Reach::Network, Liveness::Ttl).renew_batch(RENEW_BATCH)
    }

    fn age(&self) -> Option<Duration> {
        let lives = self.connection.links().into_iter().map(|link| link.current()?.server.age());
        lives.min().flatten()
    }

    fn hints(&self) -> Hints {
        self.told.hints.subscribe()
    }

    async fn acquire(&self, request: &Request) -> Result<Answer<Decision>> {
        if request.max_waiters.is_some() {
            let words = "redis cannot bound the queue of a resource yet; leave max_waiters out";
            return Err(Error::unsupported(words).about(&request.key.resource));
        }
        let resource = &request.key.resource;
        let partition = self.keys.of(resource);
        if request.patience == Patience::Queue {
            self.connection.hear(partition).await?;
        }
        let (claim, ttl) = (request.claim, request.ttl.get());
        let call = scripts::ACQUIRE
            .call(partition, [resource].into_iter())
            .arg(&self.settings)
            .arg(resource.as_str())
            .arg(request.key.id.to_string())
            .arg(format!("{:013}", micros(ttl)))
            .arg(reply::shape(claim.shape()))
            .arg(reply::tail(request, &self.instance))
            .arg(if request.patience == Patience::Try { "try" } else { "queue" })
            .arg(request.fence_floor.map_or(0, Fence::get).to_string())
            .arg(if claim.units() == claim.capacity() { "whole" } else { "part" })
            .arg((ttl + KEPT).as_millis().to_string());
        let Some(durable) = &self.durable else {
            let answered = self.run(partition, &call).await?;
            return Ok(self.answer(reply::decision(&answered.value)?, &answered));
        };
        let copied = durable.run(&call).await?;
        let decision = reply::decision(&copied.answered.value)?;
        if let Decision::Granted(_) = decision
            && let Err(error) = copied.check(&self.options.place())
        {
            self.release(&request.key, &Outcome::Cancelled).await?;
            return Err(error);
        }
        Ok(self.answer(decision, &copied.answered))
    }

    async fn renew(&self, renewals: &[Renewal]) -> Result<Answer<Vec<Standing>>> {
        self.renew_all(renewals).await
    }

    async fn release(&self, key: &LeaseKey, outcome: &Outcome) -> Result<Answer<Released>> {
        let partition = self.keys.of(&key.resource);
        let problem = match outcome {
            Outcome::Failed(problem) => written(problem),
            _ => Vec::new(),
        };
        let call = scripts::RELEASE
            .call(partition, [&key.resource].into_iter())
            .arg(&self.settings)
            .arg(key.resource.as_str())
            .arg(key.id.to_string())
            .arg(outcome.ending().as_str())
            .arg(problem);
        let answered = self.run(partition, &call).await?;
        Ok(self.answer(reply::released(&answered.value)?, &answered))
    }
}

#[async_trait]
impl Inspect for RedisBackend {
    async fn evict(&self, resource: &Resource, expected: Fence, reason: &str) -> Result<Evicted> {
        let partition = self.keys.of(resource);
        let problem = written(&Problem { kind: String::from("evicted"), details: reason.to_owned() });
        let call = scripts::EVICT
            .call(partition, [resource].into_iter())
            .arg(&self.settings)
            .arg(resource.as_str())
            .arg(format!("{:016}", expected.get()))
            .arg(problem);
        let answered = self.run(partition, &call).await?;
        reply::evicted(&answered.value)
    }

    async fn list(&self, filter: &ListFilter) -> Result<Page> {
        self.page(filter).await
    }

    async fn history(&self, filter: &HistoryFilter) -> Result<Vec<EndedLease>> {
        self.ended(filter).await
    }

    async fn watch(&self, names: Names) -> Result<EventStream> {
        let _one_at_a_time = self.watching.lock().await;
        let followed = !self.told.watchers.is_idle();
        let stream = self.told.watchers.watch(names);
        if !followed {
            self.connection.subscribe(Channel::Plain(self.keys.events()), &self.options).await?;
            self.say_watched().await?;
            self.start(upkeep::keep_watching(Weak::clone(&self.this)));
        }
        Ok(stream)
    }

    async fn examine(&self) -> Result<Vec<Finding>> {
        self.findings().await
    }
}

/// What every script is told: how to push, and what to remember.
fn settings(connection: &Connection, history: Remember) -> String {
    let (verb, kept) = match connection {
        Connection::One(_) => ('P', HISTORY),
        Connection::Cluster(cluster) if cluster.is_sharded() => ('S', HISTORY_OF_PARTITION),
        Connection::Cluster(_) => ('B', HISTORY_OF_PARTITION),
    };
    let history = match history {
        Remember::All => 'a',
        Remember::Problems => 'p',
        Remember::Nothing => 'o',
    };
    format!("{verb}{history}{kept}")
}

fn written(problem: &Problem) -> Vec<u8> {
    serde_json::to_vec(problem).unwrap_or_default()
}

/// Opens the server or servers that the URL names.
pub(crate) fn open(url: &str, options: &OpenOptions) -> Opening {
    let chosen = RedisOptions::from_url(url, &options.namespace);
    // A little less than the caller allows, so that the error says what could not be reached.
    let limit = options.connect_limit / 10 * 9;
    Box::pin(async move {
        let mut chosen = chosen?;
        chosen.connect_limit = limit;
        let place = chosen.place();
        match time::timeout(limit, RedisBackend::open(chosen)).await {
            Ok(opened) => Ok(opened? as Arc<dyn Backend>),
            Err(_) => Err(Error::unavailable(format!("{place} did not answer within {limit:?}"))),
        }
    })
}
