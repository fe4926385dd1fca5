//! Acquiring and releasing: plain ones by fast scripts, many in one call; the rest by the full script.

use std::{
    collections::HashSet,
    sync::{Arc, atomic::AtomicBool},
};

use parking_lot::Mutex;
use tokio::runtime::Handle;

use super::{
    connection::Router,
    decode::{DecidedAs, Fast},
    durable::Durable,
    encode::{AcquireArguments, ReleaseArguments},
    keys::Keys,
    notifications::Notifications,
    options::RedisOptions,
};
use crate::{
    Error, Result,
    backend::Coalescer,
    lease::{Answer, Decision, Released, Resource},
};

/// Calls in one batch, and batches on their way at once.
pub(super) const MOST_CALLS: usize = 32;
const IN_FLIGHT: usize = 2;
/// Where each batch waits for copies, as many as there are go together.
const MOST_DURABLE_CALLS: usize = 256;
/// Names remembered as not plain.
const MOST_SLOW_NAMES: usize = 4096;

/// What every call of an instance needs.
pub(super) struct Shared {
    pub(super) options: Arc<RedisOptions>,
    pub(super) keys: Keys,
    pub(super) router: Router,
    pub(super) notifications: Arc<Notifications>,
    pub(super) durable: Option<Durable>,
    pub(super) runtime: Handle,
    /// Names that had a queue when they were last asked about: fast scripts are spared them.
    slow: Mutex<HashSet<Resource>>,
    pub(super) sweeping: AtomicBool,
}

/// The calls of one partition, gathered.
pub(super) struct Lane {
    acquires: Coalescer<Arc<AcquireArguments>, Fast<Answer<Decision>>>,
    releases: Coalescer<Arc<ReleaseArguments>, Fast<Answer<Released>>>,
    questions: Coalescer<Question, Answer<DecidedAs>>,
}

/// What the full script is asked.
#[derive(Clone)]
pub(super) enum Question {
    Acquire(Arc<AcquireArguments>),
    Release(Arc<ReleaseArguments>),
}

impl Question {
    pub(super) fn resource(&self) -> &Resource {
        match self {
            Self::Acquire(request) => &request.resource,
            Self::Release(release) => &release.resource,
        }
    }
}

impl Lane {
    pub(super) fn new(shared: &Arc<Shared>, partition: usize) -> Self {
        let most = if shared.durable.is_some() { MOST_DURABLE_CALLS } else { MOST_CALLS };
        let runtime = || shared.runtime.clone();
        let (acquiring, releasing, asking) = (Arc::clone(shared), Arc::clone(shared), Arc::clone(shared));
        Self {
            acquires: Coalescer::new(runtime(), most, IN_FLIGHT, move |calls| {
                Arc::clone(&acquiring).acquire_fast(partition, calls)
            }),
            releases: Coalescer::new(runtime(), MOST_CALLS, IN_FLIGHT, move |calls| {
                Arc::clone(&releasing).release_fast(partition, calls)
            }),
            questions: Coalescer::new(runtime(), most, IN_FLIGHT, move |calls| {
                Arc::clone(&asking).decide(partition, calls)
            }),
        }
    }

    /// Asks for a lease: by the fast script unless the name is known to have a queue.
    pub(super) async fn acquire(&self, shared: &Shared, request: AcquireArguments) -> Result<Answer<Decision>> {
        let request = Arc::new(request);
        if request.patience == 'q' {
            shared.router.listen_in(shared.keys.of(&request.resource)).await?;
        }
        if !shared.is_slow(&request.resource) {
            if let Fast::Decided(answer) = self.acquires.call(Arc::clone(&request)).await? {
                return Ok(answer);
            }
            shared.set_slow(&request.resource, true);
        }
        let answer = self.questions.call(Question::Acquire(request)).await?;
        match answer.value {
            DecidedAs::Acquire(decision) => Ok(Answer::new(decision, answer.incarnation)),
            DecidedAs::Release(_) => Err(Error::unanswered("redis answered another question")),
        }
    }

    /// Ends a lease, likewise.
    pub(super) async fn release(&self, shared: &Shared, release: ReleaseArguments) -> Result<Answer<Released>> {
        let release = Arc::new(release);
        if !shared.is_slow(&release.resource) {
            if let Fast::Decided(answer) = self.releases.call(Arc::clone(&release)).await? {
                return Ok(answer);
            }
            shared.set_slow(&release.resource, true);
        }
        let answer = self.questions.call(Question::Release(release)).await?;
        match answer.value {
            DecidedAs::Release(released) => Ok(Answer::new(released, answer.incarnation)),
            DecidedAs::Acquire(_) => Err(Error::unanswered("redis answered another question")),
        }
    }
}

impl Shared {
    pub(super) fn new(
        options: Arc<RedisOptions>,
        keys: Keys,
        router: Router,
        notifications: Arc<Notifications>,
        durable: Option<Durable>,
    ) -> Self {
        Self {
            options,
            keys,
            router,
            notifications,
            durable,
            runtime: Handle::current(),
            slow: Mutex::default(),
            sweeping: AtomicBool::new(false),
        }
    }

    pub(super) fn is_slow(&self, resource: &Resource) -> bool {
        let slow = self.slow.lock();
        !slow.is_empty() && slow.contains(resource)
    }

    pub(super) fn set_slow(&self, resource: &Resource, is_slow: bool) {
        let mut slow = self.slow.lock();
        if !is_slow {
            slow.remove(resource);
            return;
        }
        if slow.len() >= MOST_SLOW_NAMES {
            slow.clear();
        }
        slow.insert(resource.clone());
    }
}
