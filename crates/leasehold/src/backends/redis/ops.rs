//! Acquiring, renewing and releasing: plain ones by fast scripts, many in one call; the rest by full scripts.

use std::{
    collections::{BTreeMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::Mutex;
use redis::Cmd;
use tokio::runtime::Handle;

use super::{
    connection::{Reply, Router},
    decode::{self, Decided, DecidedAs, Fast},
    durable::Durable,
    encode::{self, AcquireArguments, ReleaseArguments},
    errors,
    keys::{Keys, Partition},
    notifications::Notifications,
    options::RedisOptions,
    scripts::{self, Call},
};
use crate::{
    Error, Result,
    backend::Coalescer,
    lease::{Answer, Decision, Fence, Outcome, Released, Renewal, Resource, Standing, micros},
};

/// Calls in one batch, and batches on their way at once.
const MOST_CALLS: usize = 32;
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
    durable: Option<Durable>,
    runtime: Handle,
    /// Names that had a queue when they were last asked about: fast scripts are spared them.
    slow: Mutex<HashSet<Resource>>,
    sweeping: AtomicBool,
}

/// The calls of one partition, gathered.
pub(super) struct Lane {
    acquires: Coalescer<Arc<AcquireArguments>, Fast<Answer<Decision>>>,
    releases: Coalescer<Arc<ReleaseArguments>, Fast<Answer<Released>>>,
    questions: Coalescer<Question, Answer<DecidedAs>>,
}

/// What the full script is asked.
#[derive(Clone)]
enum Question {
    Acquire(Arc<AcquireArguments>),
    Release(Arc<ReleaseArguments>),
}

impl Question {
    fn resource(&self) -> &Resource {
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

    fn is_slow(&self, resource: &Resource) -> bool {
        let slow = self.slow.lock();
        !slow.is_empty() && slow.contains(resource)
    }

    fn set_slow(&self, resource: &Resource, is_slow: bool) {
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

    async fn acquire_fast(
        self: Arc<Self>,
        partition: usize,
        requests: Vec<Arc<AcquireArguments>>,
    ) -> Vec<Result<Fast<Answer<Decision>>>> {
        let partition = &self.keys.all()[partition];
        let (requests, slow) = each_name_once(requests, |request| &request.resource);
        let patience: String = requests.iter().map(|request| request.patience).collect();
        let call = Call::new(&scripts::FAST_ACQUIRE, &[&partition.leases], |command| {
            command.arg(&partition.events).arg(&patience);
            for request in &requests {
                command.arg(request.resource.as_str()).arg(&request.head).arg(&request.tail);
            }
        });
        let answered = match self.run_durably(partition, &call).await {
            Ok((reply, copies)) => decode::fast_decisions(&reply.value, requests.len()).map(|read| (read, reply, copies)),
            Err(error) => Err(error),
        };
        let ((decisions, sweep_is_due), reply, copies) = match answered {
            Ok(answered) => answered,
            Err(error) => return same_for_all(&error, requests.len() + slow.len()),
        };
        if sweep_is_due {
            self.sweep(partition.number);
        }
        let mut answers = Vec::with_capacity(requests.len());
        for (request, decision) in requests.iter().zip(decisions) {
            answers.push(match decision {
                Ok(Fast::Decided(Decision::Granted(_))) if copies.is_err() => {
                    Err(self.give_back(partition, request, &copies).await)
                }
                Ok(Fast::Decided(decision)) => Ok(Fast::Decided(Answer::new(decision, reply.incarnation))),
                Ok(Fast::Slow) => Ok(Fast::Slow),
                Err(error) => Err(error),
            });
        }
        with_slow(answers, &slow)
    }

    async fn release_fast(
        self: Arc<Self>,
        partition: usize,
        releases: Vec<Arc<ReleaseArguments>>,
    ) -> Vec<Result<Fast<Answer<Released>>>> {
        let partition = &self.keys.all()[partition];
        let (releases, slow) = each_name_once(releases, |release| &release.resource);
        let call = Call::new(&scripts::FAST_RELEASE, &[&partition.leases, &partition.history], |command| {
            command.arg(&partition.events);
            for release in &releases {
                command.arg(release.resource.as_str()).arg(&release.head).arg(&release.ending);
            }
        });
        let answered = self.router.run(partition, &call, None).await;
        let answered = answered.and_then(|reply| Ok((decode::fast_releases(&reply.value)?, reply)));
        match answered {
            Err(error) => same_for_all(&error, releases.len() + slow.len()),
            Ok((answers, reply)) => {
                let with_incarnation = |answer: Fast<Released>| match answer {
                    Fast::Decided(released) => Fast::Decided(Answer::new(released, reply.incarnation)),
                    Fast::Slow => Fast::Slow,
                };
                with_slow(answers.into_iter().map(|answer| answer.map(with_incarnation)).collect(), &slow)
            }
        }
    }

    /// Has the full script decide, in the order of the questions.
    async fn decide(self: Arc<Self>, partition: usize, questions: Vec<Question>) -> Vec<Result<Answer<DecidedAs>>> {
        let partition = &self.keys.all()[partition];
        let (resources, numbers) = numbered(questions.iter().map(Question::resource));
        let call = Call::on(&scripts::DECIDE, partition, &resources, |command| {
            for (question, number) in questions.iter().zip(&numbers) {
                command.arg(number);
                match question {
                    Question::Acquire(request) => {
                        let most = request.max_waiters.map(|most| most.to_string()).unwrap_or_default();
                        command.arg("a").arg(&request.head).arg(&request.tail);
                        command.arg(request.patience.to_string()).arg(most);
                    }
                    Question::Release(release) => {
                        let (ending, problem) = release.ending_and_problem();
                        command.arg("r").arg(&release.head[1..]).arg(ending).arg(problem).arg("");
                    }
                }
            }
        });
        let place = self.options.place();
        let answered = match self.run_durably(partition, &call).await {
            Ok((reply, copies)) => {
                decode::decided(&reply.value, questions.len(), &place).map(|read| (read, reply, copies))
            }
            Err(error) => Err(error),
        };
        let ((decisions, work_is_left), reply, copies) = match answered {
            Ok(answered) => answered,
            Err(error) => return same_for_all(&error, questions.len()),
        };
        if work_is_left {
            self.settle(partition.number, resources.clone());
        }
        let mut answers = Vec::with_capacity(questions.len());
        for (question, decided) in questions.iter().zip(decisions) {
            answers.push(match (decided, question) {
                (Ok(Decided { answer: DecidedAs::Acquire(Decision::Granted(_)), .. }), Question::Acquire(request))
                    if copies.is_err() =>
                {
                    Err(self.give_back(partition, request, &copies).await)
                }
                (Ok(Decided { answer, is_plain }), question) => {
                    if is_plain {
                        self.set_slow(question.resource(), false);
                    }
                    Ok(Answer::new(answer, reply.incarnation))
                }
                (Err(error), question) => Err(error.about(question.resource())),
            });
        }
        answers
    }

    /// Runs a script that grants; where copies are asked for, waits for them and says whether they were made.
    async fn run_durably(&self, partition: &Partition, call: &Call<'_>) -> Result<(Reply, Result<()>)> {
        match &self.durable {
            None => Ok((self.router.run(partition, call, None).await?, Ok(()))),
            Some(durable) => durable.acquire(partition, call, &self.options).await,
        }
    }

    /// Ends a lease whose copies are missing; the error that its asker gets.
    async fn give_back(&self, partition: &Partition, request: &AcquireArguments, copies: &Result<()>) -> Error {
        let missing = match copies {
            Err(missing) => errors::again(missing).about(&request.resource),
            Ok(()) => return Error::unavailable("nothing is missing"),
        };
        let resources = [request.resource.clone()];
        let call = Call::on(&scripts::DECIDE, partition, &resources, |command| {
            let cancelled = Outcome::Cancelled.ending().as_str();
            command.arg(1).arg("r").arg(&request.head[1..]).arg(cancelled).arg("").arg("");
        });
        match self.router.run(partition, &call, None).await {
            Ok(_) => missing,
            Err(error) => error.about(&request.resource),
        }
    }

    /// Renews leases that stand in one partition; each has its own standing.
    pub(super) async fn renew_in(&self, partition: &Partition, renewals: &[Renewal]) -> Result<Answer<Vec<Standing>>> {
        let is_fast = |renewal: &&Renewal| encode::is_plain(renewal) && !self.is_slow(&renewal.key.resource);
        let fast: Vec<&Renewal> = renewals.iter().filter(is_fast).collect();
        let mut standings: Vec<Option<Standing>> = vec![None; renewals.len()];
        let mut incarnation = None;
        if !fast.is_empty() {
            let call = Call::new(&scripts::FAST_RENEW, &[&partition.leases], |command| {
                for renewal in &fast {
                    command.arg(renewal.key.resource.as_str()).arg(encode::plain_renewal(renewal));
                }
            });
            let reply = self.run_renewal(partition, &call).await?;
            let answers = decode::fast_standings(&reply.value)?;
            let places = (0..renewals.len()).filter(|at| is_fast(&&renewals[*at]));
            for (at, answer) in places.zip(answers) {
                match answer {
                    Fast::Decided(standing) => standings[at] = Some(standing),
                    Fast::Slow => {}
                }
            }
            incarnation = Some(reply.incarnation);
        }
        let rest: Vec<usize> = (0..renewals.len()).filter(|at| standings[*at].is_none()).collect();
        if !rest.is_empty() {
            let (resources, numbers) = numbered(rest.iter().map(|at| &renewals[*at].key.resource));
            let call = Call::on(&scripts::RENEW, partition, &resources, |command| {
                for (at, number) in rest.iter().zip(&numbers) {
                    add_renewal(command, *number, &renewals[*at]);
                }
            });
            let reply = self.run_renewal(partition, &call).await?;
            for (at, standing) in rest.iter().zip(decode::standings(&reply.value, &self.options.place())?) {
                standings[*at] = Some(standing);
            }
            incarnation = Some(reply.incarnation);
        }
        let standings = standings.into_iter().map(|standing| standing.unwrap_or(Standing::Unknown)).collect();
        incarnation.map(|incarnation| Answer::new(standings, incarnation)).ok_or_else(|| Error::unavailable("no renewal"))
    }

    async fn run_renewal(&self, partition: &Partition, call: &Call<'_>) -> Result<Reply> {
        match &self.durable {
            None => self.router.run(partition, call, None).await,
            Some(durable) => durable.renew(partition, call, &self.options).await,
        }
    }

    /// Ends what has expired and that nobody asks about, in the background.
    fn sweep(self: &Arc<Self>, partition: u16) {
        if self.sweeping.swap(true, Ordering::SeqCst) {
            return;
        }
        let shared = Arc::clone(self);
        self.runtime.spawn(async move {
            if let Err(error) = shared.sweep_once(partition).await {
                tracing::debug!(%error, "cannot look for expired leases");
            }
            shared.sweeping.store(false, Ordering::SeqCst);
        });
    }

    async fn sweep_once(&self, partition: u16) -> Result<()> {
        let partition = &self.keys.all()[usize::from(partition)];
        let call = Call::new(&scripts::SWEEP, &[&partition.leases, &partition.history], |command| {
            command.arg(&partition.events);
        });
        let reply = self.router.run(partition, &call, None).await?;
        let queues = decode::resources(decode::array(&reply.value)?)?;
        self.settle_once(partition, &queues).await.map(drop)
    }

    /// Finishes what one call left undone, in the background.
    fn settle(self: &Arc<Self>, partition: u16, resources: Vec<Resource>) {
        let shared = Arc::clone(self);
        self.runtime.spawn(async move {
            let partition = &shared.keys.all()[usize::from(partition)];
            while shared.settle_once(partition, &resources).await.unwrap_or(false) {}
        });
    }

    /// Settles these resources; returns whether work is left.
    pub(super) async fn settle_once(&self, partition: &Partition, resources: &[Resource]) -> Result<bool> {
        let mut work_is_left = false;
        for some in resources.chunks(MOST_CALLS) {
            let call = Call::on(&scripts::LIST, partition, some, |command| {
                some.iter().for_each(|_| {
                    command.arg(-1);
                });
            });
            let reply = self.router.run(partition, &call, None).await?;
            work_is_left |= decode::array(&reply.value)?.len() > some.len() + 1;
        }
        Ok(work_is_left)
    }
}

/// Calls about distinct names, and where those stood that name one again: the fast scripts take a name once.
fn each_name_once<T>(calls: Vec<Arc<T>>, name: impl Fn(&T) -> &Resource) -> (Vec<Arc<T>>, Vec<usize>) {
    let mut again = Vec::new();
    if calls.len() > 1 {
        let mut names = HashSet::with_capacity(calls.len());
        again = (0..calls.len()).filter(|at| !names.insert(name(&calls[*at]))).collect();
    }
    if again.is_empty() {
        return (calls, again);
    }
    let once = calls.into_iter().enumerate().filter(|(at, _)| !again.contains(at)).map(|(_, call)| call).collect();
    (once, again)
}

/// The answers, with those in between that the full script has to decide.
fn with_slow<T>(mut answers: Vec<Result<Fast<T>>>, slow: &[usize]) -> Vec<Result<Fast<T>>> {
    for at in slow {
        answers.insert(*at, Ok(Fast::Slow));
    }
    answers
}

/// Each resource once, and the number of that of each question, from 1.
fn numbered<'a>(resources: impl Iterator<Item = &'a Resource>) -> (Vec<Resource>, Vec<usize>) {
    let mut known: BTreeMap<&Resource, usize> = BTreeMap::new();
    let mut distinct = Vec::new();
    let mut number = |resource: &'a Resource| {
        *known.entry(resource).or_insert_with(|| {
            distinct.push(resource.clone());
            distinct.len()
        })
    };
    let numbers = resources.map(&mut number).collect();
    (distinct, numbers)
}

fn add_renewal(command: &mut Cmd, number: usize, renewal: &Renewal) {
    command
        .arg(number)
        .arg(renewal.key.id.to_string())
        .arg(format!("{:013}", micros(renewal.ttl.get())))
        .arg(format!("{:016}", renewal.fence_floor.map_or(0, Fence::get)))
        .arg(renewal.downgrade.map(encode::claim).unwrap_or_default())
        .arg(renewal.metadata.as_ref().map(encode::metadata).unwrap_or_default());
}

fn same_for_all<T>(error: &Error, calls: usize) -> Vec<Result<T>> {
    (0..calls).map(|_| Err(errors::again(error))).collect()
}
