//! `redis://`: leases on a Redis or Valkey server, shared by many machines.
//!
//! The [model](crate::backend::model) is ported to Lua scripts; the server's clock
//! decides expiry. Each instance sends its commands over one connection and, thanks to
//! RESP3, receives notifications over the same one; in a cluster, notifications have
//! connections of their own. Most requests go to a fast script, many in one call;
//! requests that it cannot handle go to the full script. A release hands the lock to the
//! next waiter and notifies only the process of that waiter. The backend works with Redis
//! 6.2 or newer and with Valkey: a single server, a server behind sentinels, or a cluster.
//!
//! A failover may lose leases: see [the guarantees](crate::_docs::guarantees).

mod batches;
mod connection;
mod decode;
mod durable;
mod encode;
mod errors;
mod examine;
mod inspect;
mod keys;
mod notifications;
mod ops;
mod options;
mod record;
mod renew;
mod runs;
mod scripts;
mod upkeep;
mod url;

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use tokio::{sync::Mutex, time};
use uuid::Uuid;

pub use self::options::{
    Address, ClientCertificate, Credentials, Durability, HistoryLevel, RedisOptions, Tls, Topology,
};
use self::{
    connection::Router,
    durable::Durable,
    encode::{AcquireArguments, ReleaseArguments, TailCache},
    keys::Keys,
    notifications::Notifications,
    ops::{PartitionBatcher, Shared},
    upkeep::WatchUpkeep,
};
use crate::{
    Result,
    backend::{
        self, Backend, EventStream, Finding, Guarantees, Hints, Inspect, Liveness, OpenOptions, Opening, Operation,
        Performed, Reach,
    },
    lease::{
        Answer, Decision, EndedLease, Evicted, Fence, HistoryFilter, Incarnation, LeaseKey, LeasePage, ListFilter,
        Names, Outcome, Released, Renewal, Request, Resource, RunRecord, RunReport, Standing,
    },
};

/// Renewals in one call: a few milliseconds of the server's time.
const RENEW_BATCH: usize = 500;

/// A backend that keeps leases on a Redis server or in a cluster.
///
/// With sentinels, it uses the server that they report as the master.
///
/// Open it inside a Tokio runtime with I/O and time enabled; it works only while that runtime runs.
pub struct RedisBackend {
    shared: Arc<Shared>,
    /// One for each partition.
    batchers: Vec<PartitionBatcher>,
    tail_cache: TailCache,
    watch_setup_lock: Arc<Mutex<WatchUpkeep>>,
}

impl RedisBackend {
    /// Connects to the server; takes at most the connect limit.
    ///
    /// # Errors
    /// `Unavailable` if no server answers; `PermissionDenied` if the server rejects the user or the password;
    /// `Unsupported` if the server is too old, or if its locks were written by an incompatible version of leasehold.
    pub async fn open(options: RedisOptions) -> Result<Arc<Self>> {
        let options = Arc::new(options);
        let keys = match options.topology {
            Topology::Cluster => Keys::in_cluster(&options.prefix, &options.namespace),
            Topology::Single | Topology::Sentinel { .. } => {
                Keys::on_one_server(&options.prefix, &options.namespace, options.database)
            }
        };
        let instance = Uuid::new_v4().simple().to_string()[..16].to_owned();
        let is_durable = options.durability != Durability::None;
        let notifications = Notifications::new(&keys, is_durable);
        let router = Router::open(&options, &keys, &instance, Arc::clone(&notifications) as _).await?;
        let durable = Durable::open(&options, &keys).await?;
        let shared = Arc::new(Shared::new(options, keys, router, notifications, durable));
        let batchers =
            (0..shared.keys.all().len()).map(|partition| PartitionBatcher::new(&shared, partition)).collect();
        Ok(Arc::new(Self { shared, batchers, tail_cache: TailCache::new(instance), watch_setup_lock: Arc::default() }))
    }

    fn batcher(&self, resource: &Resource) -> &PartitionBatcher {
        &self.batchers[usize::from(self.shared.keys.of(resource).number)]
    }
}

impl fmt::Debug for RedisBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisBackend").field("options", &self.shared.options).finish_non_exhaustive()
    }
}

#[async_trait]
impl Backend for RedisBackend {
    fn guarantees(&self) -> Guarantees {
        // A lease survives a restart only as far as the server persists it, which it does not promise.
        Guarantees::new("redis", Reach::Network, Liveness::Ttl).renew_batch(RENEW_BATCH).records_runs(true)
    }

    /// Returns how long the server has kept its data without a loss; `None` in a cluster, or if the user may not call
    /// `INFO`.
    fn age(&self) -> Option<Duration> {
        self.shared.router.connection()?.current()?.epoch.get()?.age()
    }

    fn hints(&self) -> Hints {
        self.shared.notifications.hints.subscribe()
    }

    async fn acquire(&self, request: &Request) -> Result<Answer<Decision>> {
        let arguments = AcquireArguments::new(request, &self.tail_cache);
        self.batcher(&request.key.resource).acquire(&self.shared, arguments).await
    }

    async fn renew(&self, renewals: &[Renewal]) -> Result<Answer<Vec<Standing>>> {
        match (self.shared.keys.all(), renewals) {
            (_, []) => Ok(Answer::new(Vec::new(), Incarnation::default())),
            ([only], _) => self.shared.renew_in(only, renewals).await,
            _ => self.shared.renew_in_partitions(renewals).await,
        }
    }

    async fn perform(&self, operations: Vec<Operation>) -> Vec<Result<Answer<Performed>>> {
        match self.batchers.as_slice() {
            [only] => only.perform(&self.shared, operations, &self.tail_cache).await,
            _ => backend::perform_each(self, operations).await,
        }
    }

    async fn release(&self, key: &LeaseKey, outcome: &Outcome) -> Result<Answer<Released>> {
        let arguments = ReleaseArguments::new(key.resource.clone(), key.id, outcome);
        self.batcher(&key.resource).release(&self.shared, arguments).await
    }
}

#[async_trait]
impl Inspect for RedisBackend {
    async fn evict(&self, resource: &Resource, expected: Fence, reason: &str) -> Result<Evicted> {
        self.shared.evict(resource, expected, reason).await
    }

    async fn list(&self, filter: &ListFilter) -> Result<LeasePage> {
        self.shared.page(filter).await
    }

    async fn history(&self, filter: &HistoryFilter) -> Result<Vec<EndedLease>> {
        self.shared.ended(filter).await
    }

    async fn record_runs(&self, reports: &[RunReport]) -> Result<()> {
        self.shared.record_runs(reports).await
    }

    async fn runs(&self, names: &Names) -> Result<Vec<RunRecord>> {
        self.shared.runs(names).await
    }

    async fn watch(&self, names: Names) -> Result<EventStream> {
        self.shared.watch(names, &self.watch_setup_lock).await
    }

    async fn examine(&self) -> Result<Vec<Finding>> {
        self.findings().await
    }
}

/// Opens the server or servers that the URL names.
pub(crate) fn open(url: &str, options: &OpenOptions) -> Opening {
    let chosen = RedisOptions::from_url(url, &options.namespace);
    // A little less than the caller allows, so that the error says what could not be reached.
    let limit = options.connect_limit / 10 * 9;
    Box::pin(async move {
        let mut chosen = chosen?;
        chosen.connect_limit = limit;
        let too_slow = errors::too_slow(&chosen, limit);
        match time::timeout(limit, RedisBackend::open(chosen)).await {
            Ok(opened) => Ok(opened? as Arc<dyn Backend>),
            Err(_) => Err(too_slow),
        }
    })
}
