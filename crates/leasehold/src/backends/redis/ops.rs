//! Acquires and releases leases: the common cases by the fast script, many in one call; the rest by the full script.

use std::{
    collections::HashSet,
    sync::{Arc, atomic::AtomicBool},
};

use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::runtime::Handle;

use super::{
    connection::Router,
    decode::{FastAnswer, ScriptDecision},
    durable::Durable,
    encode::{AcquireArguments, ReleaseArguments, TailCache},
    keys::Keys,
    notifications::Notifications,
    options::RedisOptions,
};
use crate::{
    Error, Result,
    backend::{Coalescer, Operation, Performed},
    lease::{Answer, Decision, Released, Resource},
};

/// Calls in one batch.
pub(super) const MAX_CALLS: usize = 64;
/// Batches in flight at once.
const IN_FLIGHT: usize = 2;
/// Calls in one batch that waits for durability acknowledgements: more, so that they share one wait.
const MAX_DURABLE_CALLS: usize = 256;
/// The most names that are remembered as needing the full script; one more, and all are forgotten.
const MAX_FULL_SCRIPT_NAMES: usize = 4096;

/// What every call of an instance needs.
pub(super) struct Shared {
    pub(super) options: Arc<RedisOptions>,
    pub(super) keys: Keys,
    pub(super) router: Router,
    pub(super) notifications: Arc<Notifications>,
    pub(super) durable: Option<Durable>,
    pub(super) runtime: Handle,
    /// Names that the fast script last answered `slow` for: they go straight to the full script.
    full_script_names: Mutex<HashSet<Resource>>,
    /// Whether a sweep is under way.
    pub(super) sweeping: AtomicBool,
}

/// Batches the calls to one partition.
pub(super) struct PartitionBatcher {
    fast: Coalescer<ScriptRequest, FastAnswer<Answer<ScriptDecision>>>,
    /// Requests whose grants wait for durability acknowledgements; releases do not.
    durable: Option<Coalescer<ScriptRequest, FastAnswer<Answer<ScriptDecision>>>>,
    full: Coalescer<ScriptRequest, Answer<ScriptDecision>>,
}

/// An acquire or a release.
#[derive(Clone)]
pub(super) enum ScriptRequest {
    Acquire(Arc<AcquireArguments>),
    Release(Arc<ReleaseArguments>),
}

impl ScriptRequest {
    pub(super) fn resource(&self) -> &Resource {
        match self {
            Self::Acquire(request) => &request.resource,
            Self::Release(release) => &release.resource,
        }
    }
}

impl PartitionBatcher {
    pub(super) fn new(shared: &Arc<Shared>, partition: usize) -> Self {
        let max_calls = if shared.durable.is_some() { MAX_DURABLE_CALLS } else { MAX_CALLS };
        let fast = |max_calls| {
            let shared = Arc::clone(shared);
            let coalescer = Coalescer::new(shared.runtime.clone(), max_calls, IN_FLIGHT, move |calls| {
                Arc::clone(&shared).decide_fast(partition, calls)
            });
            coalescer.calls_again_if(|answer| match answer {
                FastAnswer::Decided(answer) => {
                    !matches!(answer.value, ScriptDecision::Acquire(Decision::Queued { .. }))
                }
                FastAnswer::NeedsFullScript => false,
            })
        };
        let deciding = Arc::clone(shared);
        Self {
            fast: fast(MAX_CALLS),
            durable: shared.durable.as_ref().map(|_| fast(max_calls)),
            full: Coalescer::new(shared.runtime.clone(), max_calls, IN_FLIGHT, move |calls| {
                Arc::clone(&deciding).decide(partition, calls)
            }),
        }
    }

    /// Asks for a lease.
    pub(super) async fn acquire(&self, shared: &Shared, request: AcquireArguments) -> Result<Answer<Decision>> {
        if request.patience == 'q' {
            shared.router.listen_in(shared.keys.of(&request.resource)).await?;
        }
        let fast = self.durable.as_ref().unwrap_or(&self.fast);
        let answer = self.call_fast_then_full(shared, fast, ScriptRequest::Acquire(Arc::new(request))).await?;
        match answer.value {
            ScriptDecision::Acquire(decision) => Ok(Answer::new(decision, answer.incarnation)),
            ScriptDecision::Release(_) => Err(Error::unanswered("redis replied to a different request")),
        }
    }

    /// Ends a lease.
    pub(super) async fn release(&self, shared: &Shared, release: ReleaseArguments) -> Result<Answer<Released>> {
        let answer = self.call_fast_then_full(shared, &self.fast, ScriptRequest::Release(Arc::new(release))).await?;
        match answer.value {
            ScriptDecision::Release(released) => Ok(Answer::new(released, answer.incarnation)),
            ScriptDecision::Acquire(_) => Err(Error::unanswered("redis replied to a different request")),
        }
    }

    /// Asks the fast script, unless it answered `slow` for this name lately, and then the full one.
    async fn call_fast_then_full(
        &self,
        shared: &Shared,
        fast: &Coalescer<ScriptRequest, FastAnswer<Answer<ScriptDecision>>>,
        script_request: ScriptRequest,
    ) -> Result<Answer<ScriptDecision>> {
        if !shared.needs_full_script(script_request.resource()) {
            if let FastAnswer::Decided(answer) = fast.call(script_request.clone()).await? {
                return Ok(answer);
            }
            shared.set_needs_full_script(script_request.resource(), true);
        }
        self.full.call(script_request).await
    }

    /// Makes several calls that the caller has gathered: one call of the fast script, then calls of the
    /// full script for the rest.
    pub(super) async fn perform(
        &self,
        shared: &Arc<Shared>,
        operations: Vec<Operation>,
        tail_cache: &TailCache,
    ) -> Vec<Result<Answer<Performed>>> {
        let script_request = |operation| match operation {
            Operation::Acquire(request) => {
                ScriptRequest::Acquire(Arc::new(AcquireArguments::new(&request, tail_cache)))
            }
            Operation::Release(key, outcome) => {
                ScriptRequest::Release(Arc::new(ReleaseArguments::new(key.resource, key.id, &outcome)))
            }
        };
        let script_requests: Vec<ScriptRequest> = operations.into_iter().map(script_request).collect();
        let (mut for_fast, mut for_full): (Vec<usize>, Vec<usize>) =
            (0..script_requests.len()).partition(|at| !shared.needs_full_script(script_requests[*at].resource()));
        let mut answers: Vec<Result<Answer<ScriptDecision>>> =
            script_requests.iter().map(|_| Err(Error::unanswered("redis did not answer this"))).collect();
        if !for_fast.is_empty() {
            let asked = for_fast.iter().map(|at| script_requests[*at].clone()).collect();
            for (at, answer) in for_fast.drain(..).zip(Arc::clone(shared).decide_fast(0, asked).await) {
                match answer {
                    Ok(FastAnswer::Decided(answer)) => answers[at] = Ok(answer),
                    Ok(FastAnswer::NeedsFullScript) => {
                        shared.set_needs_full_script(script_requests[at].resource(), true);
                        for_full.push(at);
                    }
                    Err(error) => answers[at] = Err(error),
                }
            }
        }
        let by_full_script =
            for_full.into_iter().map(async |at| (at, self.full.call(script_requests[at].clone()).await));
        for (at, answer) in join_all(by_full_script).await {
            answers[at] = answer;
        }
        let performed = |decided| match decided {
            ScriptDecision::Acquire(decision) => Performed::Acquired(decision),
            ScriptDecision::Release(released) => Performed::Released(released),
        };
        answers.into_iter().map(|answer| Ok(answer?.map(performed))).collect()
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
            full_script_names: Mutex::default(),
            sweeping: AtomicBool::new(false),
        }
    }

    pub(super) fn needs_full_script(&self, resource: &Resource) -> bool {
        let slow = self.full_script_names.lock();
        !slow.is_empty() && slow.contains(resource)
    }

    pub(super) fn set_needs_full_script(&self, resource: &Resource, needs_full_script: bool) {
        let mut slow = self.full_script_names.lock();
        if !needs_full_script {
            slow.remove(resource);
            return;
        }
        if slow.contains(resource) {
            return;
        }
        if slow.len() >= MAX_FULL_SCRIPT_NAMES {
            slow.clear();
        }
        slow.insert(resource.clone());
    }
}
