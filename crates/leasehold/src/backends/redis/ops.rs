//! Acquiring and releasing: plain ones by fast scripts, many in one call; the rest by the full script.

use std::{
    collections::HashSet,
    sync::{Arc, atomic::AtomicBool},
};

use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::runtime::Handle;

use super::{
    connection::Router,
    decode::{DecidedAs, Fast},
    durable::Durable,
    encode::{AcquireArguments, ReleaseArguments, Tails},
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
/// Calls in one batch that waits for copies: more, so that they share one wait.
const MAX_DURABLE_CALLS: usize = 256;
/// Names that are remembered as slow.
const MAX_SLOW_NAMES: usize = 4096;

/// What every call of an instance needs.
pub(super) struct Shared {
    pub(super) options: Arc<RedisOptions>,
    pub(super) keys: Keys,
    pub(super) router: Router,
    pub(super) notifications: Arc<Notifications>,
    pub(super) durable: Option<Durable>,
    pub(super) runtime: Handle,
    /// Names that the fast script last answered `slow` for: they go straight to the full script.
    slow: Mutex<HashSet<Resource>>,
    pub(super) sweeping: AtomicBool,
}

/// The calls of one partition, gathered.
pub(super) struct Lane {
    fast: Coalescer<Question, Fast<Answer<DecidedAs>>>,
    /// Requests whose grants wait for copies, which releases do not.
    durable: Option<Coalescer<Question, Fast<Answer<DecidedAs>>>>,
    full: Coalescer<Question, Answer<DecidedAs>>,
}

/// What a script is asked.
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
        let most = if shared.durable.is_some() { MAX_DURABLE_CALLS } else { MAX_CALLS };
        let fast = |most| {
            let shared = Arc::clone(shared);
            Coalescer::new(shared.runtime.clone(), most, IN_FLIGHT, move |calls| {
                Arc::clone(&shared).decide_fast(partition, calls)
            })
        };
        let deciding = Arc::clone(shared);
        Self {
            fast: fast(MAX_CALLS),
            durable: shared.durable.as_ref().map(|_| fast(most)),
            full: Coalescer::new(shared.runtime.clone(), most, IN_FLIGHT, move |calls| {
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
        let answer = self.ask(shared, fast, Question::Acquire(Arc::new(request))).await?;
        match answer.value {
            DecidedAs::Acquire(decision) => Ok(Answer::new(decision, answer.incarnation)),
            DecidedAs::Release(_) => Err(Error::unanswered("redis answered another question")),
        }
    }

    /// Ends a lease.
    pub(super) async fn release(&self, shared: &Shared, release: ReleaseArguments) -> Result<Answer<Released>> {
        let answer = self.ask(shared, &self.fast, Question::Release(Arc::new(release))).await?;
        match answer.value {
            DecidedAs::Release(released) => Ok(Answer::new(released, answer.incarnation)),
            DecidedAs::Acquire(_) => Err(Error::unanswered("redis answered another question")),
        }
    }

    /// Asks the fast script, unless the name is known to have a queue, and then the full one.
    async fn ask(
        &self,
        shared: &Shared,
        fast: &Coalescer<Question, Fast<Answer<DecidedAs>>>,
        question: Question,
    ) -> Result<Answer<DecidedAs>> {
        if !shared.is_slow(question.resource()) {
            if let Fast::Decided(answer) = fast.call(question.clone()).await? {
                return Ok(answer);
            }
            shared.set_slow(question.resource(), true);
        }
        self.full.call(question).await
    }

    /// Makes several calls that the caller has gathered: one call of the fast script, and of the full one what is left.
    pub(super) async fn perform(
        &self,
        shared: &Arc<Shared>,
        operations: Vec<Operation>,
        tails: &Tails,
    ) -> Vec<Result<Answer<Performed>>> {
        let question = |operation| match operation {
            Operation::Acquire(request) => Question::Acquire(Arc::new(AcquireArguments::new(&request, tails))),
            Operation::Release(key, outcome) => {
                Question::Release(Arc::new(ReleaseArguments::new(key.resource, key.id, &outcome)))
            }
        };
        let questions: Vec<Question> = operations.into_iter().map(question).collect();
        let (mut plain, mut rest): (Vec<usize>, Vec<usize>) =
            (0..questions.len()).partition(|at| !shared.is_slow(questions[*at].resource()));
        let mut answers: Vec<Result<Answer<DecidedAs>>> =
            questions.iter().map(|_| Err(Error::unanswered("redis did not answer this"))).collect();
        if !plain.is_empty() {
            let asked = plain.iter().map(|at| questions[*at].clone()).collect();
            for (at, answer) in plain.drain(..).zip(Arc::clone(shared).decide_fast(0, asked).await) {
                match answer {
                    Ok(Fast::Decided(answer)) => answers[at] = Ok(answer),
                    Ok(Fast::Slow) => {
                        shared.set_slow(questions[at].resource(), true);
                        rest.push(at);
                    }
                    Err(error) => answers[at] = Err(error),
                }
            }
        }
        let by_full_script = rest.into_iter().map(async |at| (at, self.full.call(questions[at].clone()).await));
        for (at, answer) in join_all(by_full_script).await {
            answers[at] = answer;
        }
        let performed = |decided| match decided {
            DecidedAs::Acquire(decision) => Performed::Acquired(decision),
            DecidedAs::Release(released) => Performed::Released(released),
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
        if slow.contains(resource) {
            return;
        }
        if slow.len() >= MAX_SLOW_NAMES {
            slow.clear();
        }
        slow.insert(resource.clone());
    }
}
