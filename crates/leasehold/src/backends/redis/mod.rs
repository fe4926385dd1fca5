//! `redis:`, machines that reach one server: scripts port the rule, the server's clock decides.
//!
//! One connection for each instance carries its commands and, by RESP3, its
//! pushes. Plain requests, those for names that nobody has, go to a fast
//! script, many in one call; whatever has a queue is decided by a full one. A
//! release hands the lock to the next in line and pushes to that one's process
//! only. Works with Redis 6.2 or newer and with Valkey, alone, behind
//! sentinels or as a cluster.
//!
//! What Redis forgets is forgotten: see `GUARANTEES.md` about failover.

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
mod scripts;
mod upkeep;
mod url;

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use tokio::{runtime::Handle, sync::Mutex, task::JoinSet, time};
use uuid::Uuid;

pub use self::options::{Address, Credentials, Durability, Identity, RedisOptions, Remember, Tls, Topology};
use self::{
    connection::Router,
    durable::Durable,
    encode::{AcquireArguments, ReleaseArguments},
    keys::Keys,
    notifications::Notifications,
    ops::{Lane, Shared},
};
use crate::{
    Error, Result,
    backend::{Backend, EventStream, Finding, Guarantees, Hints, Inspect, Liveness, OpenOptions, Opening, Reach},
    lease::{
        Answer, Decision, EndedLease, Evicted, Fence, HistoryFilter, Incarnation, LeaseKey, ListFilter, Names, Outcome,
        Page, Released, Renewal, Request, Resource, Standing,
    },
};

/// Renewals in one call: a few milliseconds of the server's time.
const RENEW_BATCH: usize = 500;
/// When some partitions have answered, the next answer is waited for at most this part of the limit: leases whose
/// server answers must not run out because that of another hangs.
const FOR_LATECOMERS: u32 = 4;

/// Leases kept by a Redis server, a cluster, or whatever server the sentinels name.
///
/// Opened inside a tokio runtime with io and time, and used while it runs.
pub struct RedisBackend {
    shared: Arc<Shared>,
    /// One for each partition.
    lanes: Vec<Lane>,
    /// Names this instance among the receivers of pushes.
    instance: String,
    runtime: Handle,
    watching: Arc<Mutex<()>>,
}

impl RedisBackend {
    /// Connects, within the connect limit.
    ///
    /// # Errors
    /// `Unavailable` when nobody answers, `PermissionDenied` when the server refuses user or password,
    /// `Unsupported` for a server that is too old, or whose locks another version of leasehold wrote.
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
        let lanes = (0..shared.keys.all().len()).map(|partition| Lane::new(&shared, partition)).collect();
        Ok(Arc::new(Self { shared, lanes, instance, runtime: Handle::current(), watching: Arc::default() }))
    }

    fn lane(&self, resource: &Resource) -> &Lane {
        &self.lanes[usize::from(self.shared.keys.of(resource).number)]
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
        Guarantees::new("redis", Reach::Network, Liveness::Ttl).renew_batch(RENEW_BATCH)
    }

    /// Since when the server remembers what it was given; unknown in a cluster, and where it may not be asked for INFO.
    fn age(&self) -> Option<Duration> {
        self.shared.router.connection()?.current()?.memory.get()?.age()
    }

    fn hints(&self) -> Hints {
        self.shared.notifications.hints.subscribe()
    }

    async fn acquire(&self, request: &Request) -> Result<Answer<Decision>> {
        let arguments = AcquireArguments::new(request, &self.instance);
        self.lane(&request.key.resource).acquire(&self.shared, arguments).await
    }

    async fn renew(&self, renewals: &[Renewal]) -> Result<Answer<Vec<Standing>>> {
        match (self.shared.keys.all(), renewals) {
            ([_], []) | (_, []) => Ok(Answer::new(Vec::new(), Incarnation::default())),
            ([only], _) => self.shared.renew_in(only, renewals).await,
            _ => self.renew_in_partitions(renewals).await,
        }
    }

    async fn release(&self, key: &LeaseKey, outcome: &Outcome) -> Result<Answer<Released>> {
        let arguments = ReleaseArguments::new(key.resource.clone(), key.id, outcome);
        self.lane(&key.resource).release(&self.shared, arguments).await
    }
}

/// Renewals of one partition, and where they stood in the call.
#[derive(Default)]
struct Share {
    places: Vec<usize>,
    renewals: Vec<Renewal>,
}

impl RedisBackend {
    /// Renews in each partition by itself, so that no lease waits for the server of another.
    async fn renew_in_partitions(&self, renewals: &[Renewal]) -> Result<Answer<Vec<Standing>>> {
        let mut shares: BTreeMap<u16, Share> = BTreeMap::new();
        for (at, renewal) in renewals.iter().enumerate() {
            let share = shares.entry(self.shared.keys.of(&renewal.key.resource).number).or_default();
            share.places.push(at);
            share.renewals.push(renewal.clone());
        }
        let mut asking = JoinSet::new();
        for (number, Share { places, renewals }) in shares {
            let shared = Arc::clone(&self.shared);
            let ask = async move {
                let partition = &shared.keys.all()[usize::from(number)];
                (places, shared.renew_in(partition, &renewals).await)
            };
            asking.spawn_on(ask, &self.runtime);
        }
        let mut standings = vec![Standing::Unknown; renewals.len()];
        let (mut incarnation, mut failed) = (None, None);
        loop {
            let limit = match incarnation {
                None => Duration::MAX,
                Some(_) => self.shared.options.answer_limit / FOR_LATECOMERS,
            };
            let Ok(next) = time::timeout(limit, asking.join_next()).await else {
                failed = Some(Error::unanswered("some servers of the cluster did not answer in time"));
                break;
            };
            match next {
                Some(Ok((places, Ok(answer)))) => {
                    incarnation = Some(answer.incarnation);
                    places.iter().zip(answer.value).for_each(|(at, standing)| standings[*at] = standing);
                }
                Some(Ok((_, Err(error)))) => failed = Some(error),
                Some(Err(_)) => failed = Some(Error::unavailable("the runtime ends")),
                None => break,
            }
        }
        // Left to run to their limit: a late answer does no harm.
        asking.detach_all();
        match (incarnation, failed) {
            (Some(incarnation), failed) => {
                if let Some(error) = failed {
                    tracing::warn!(%error, "some leases were not renewed");
                }
                Ok(Answer::new(standings, incarnation))
            }
            (None, failed) => Err(failed.unwrap_or_else(|| Error::unavailable("no partition answered"))),
        }
    }
}

#[async_trait]
impl Inspect for RedisBackend {
    async fn evict(&self, resource: &Resource, expected: Fence, reason: &str) -> Result<Evicted> {
        self.shared.evict(resource, expected, reason).await
    }

    async fn list(&self, filter: &ListFilter) -> Result<Page> {
        self.shared.page(filter).await
    }

    async fn history(&self, filter: &HistoryFilter) -> Result<Vec<EndedLease>> {
        self.shared.ended(filter).await
    }

    async fn watch(&self, names: Names) -> Result<EventStream> {
        self.shared.watch(names, &self.watching).await
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
        let place = chosen.place();
        match time::timeout(limit, RedisBackend::open(chosen)).await {
            Ok(opened) => Ok(opened? as Arc<dyn Backend>),
            Err(_) => Err(Error::unavailable(format!("{place} did not answer within {limit:?}"))),
        }
    })
}
