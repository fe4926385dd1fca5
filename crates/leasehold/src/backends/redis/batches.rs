//! Batches of requests and releases: one call of a script for each, and an answer for each caller.

use std::{collections::BTreeMap, sync::Arc};

use redis::Cmd;

use super::{
    connection::Reply,
    decode::{self, Decided, FastAnswer, FastAnswers, ScriptDecision},
    encode::{AcquireArguments, ReleaseArguments},
    errors,
    keys::Partition,
    ops::{ScriptRequest, Shared},
    scripts::{self, ScriptCall},
};
use crate::{
    Error, Result,
    lease::{Answer, Decision, Outcome, Resource},
};

impl Shared {
    /// Asks the fast script; what it cannot decide comes back as [`FastAnswer::NeedsFullScript`].
    pub(super) async fn decide_fast(
        self: Arc<Self>,
        partition: usize,
        script_requests: Vec<ScriptRequest>,
    ) -> Vec<Result<FastAnswer<Answer<ScriptDecision>>>> {
        let partition = &self.keys.all()[partition];
        let batch = FastBatch::of(&script_requests);
        let call = ScriptCall::new(&scripts::FAST, &[&partition.names.leases, &partition.names.history], |command| {
            command.arg(&partition.names.events);
            batch.write(command);
        });
        // Releases alone need no durability acknowledgements.
        let answered = if batch.requests.is_empty() {
            self.router.run(partition, &call, None).await.map(|reply| (reply, Ok(())))
        } else {
            self.run_durably(partition, &call).await
        };
        let (reply, acknowledged) = match answered {
            Ok(answered) => answered,
            Err(error) => return same_for_all(&error, script_requests.len()),
        };
        let mut read = match FastAnswers::read(&reply.value) {
            Ok(read) => read,
            Err(error) => return same_for_all(&error, script_requests.len()),
        };
        if read.sweep_is_due {
            self.sweep(partition.number);
        }
        let mut answers: Vec<_> = script_requests.iter().map(|_| Ok(FastAnswer::NeedsFullScript)).collect();
        for (at, _) in &batch.releases {
            answers[*at] = read.release().map(|answer| answer.with_incarnation(reply.incarnation));
        }
        for (at, request) in batch.requests.iter().flat_map(|(_, requests)| requests) {
            answers[*at] = match (read.request(), &acknowledged) {
                (Ok(FastAnswer::Decided(ScriptDecision::Acquire(Decision::Granted(_)))), Err(missing)) => {
                    Err(self.release_unacknowledged(partition, request, missing).await)
                }
                (answer, _) => answer.map(|answer| answer.with_incarnation(reply.incarnation)),
            };
        }
        answers
    }

    /// Has the full script decide, in the order of the requests.
    pub(super) async fn decide(
        self: Arc<Self>,
        partition: usize,
        script_requests: Vec<ScriptRequest>,
    ) -> Vec<Result<Answer<ScriptDecision>>> {
        let partition = &self.keys.all()[partition];
        let (resources, numbers) = numbered(script_requests.iter().map(ScriptRequest::resource));
        let call = ScriptCall::for_resources(&scripts::DECIDE, partition, &resources, |command| {
            for (script_request, number) in script_requests.iter().zip(&numbers) {
                command.arg(number);
                match script_request {
                    ScriptRequest::Acquire(request) => {
                        let max_waiters =
                            request.max_waiters.map(|max_waiters| max_waiters.to_string()).unwrap_or_default();
                        command.arg("a").arg(&request.record.head).arg(&*request.record.tail);
                        command.arg(request.patience.to_string()).arg(max_waiters);
                    }
                    ScriptRequest::Release(release) => {
                        let (ending, problem) = release.ending_and_problem();
                        command.arg("r").arg(&release.head[1..]).arg(ending).arg(problem).arg("");
                    }
                }
            }
        });
        let answered = match self.run_durably(partition, &call).await {
            Ok((reply, acknowledged)) => decode::decided(&reply.value, script_requests.len(), &self.options)
                .map(|read| (read, reply, acknowledged)),
            Err(error) => Err(error),
        };
        let ((decisions, work_is_left), reply, acknowledged) = match answered {
            Ok(answered) => answered,
            Err(error) => return same_for_all(&error, script_requests.len()),
        };
        if work_is_left {
            self.settle(partition.number, resources.clone());
        }
        let mut answers = Vec::with_capacity(script_requests.len());
        for (script_request, decided) in script_requests.iter().zip(decisions) {
            answers.push(match (decided, script_request, &acknowledged) {
                (
                    Ok(Decided { answer: ScriptDecision::Acquire(Decision::Granted(_)), .. }),
                    ScriptRequest::Acquire(request),
                    Err(missing),
                ) => Err(self.release_unacknowledged(partition, request, missing).await),
                (Ok(Decided { answer, fast_can_handle }), script_request, _) => {
                    self.set_needs_full_script(script_request.resource(), !fast_can_handle);
                    Ok(Answer::new(answer, reply.incarnation))
                }
                (Err(error), script_request, _) => Err(error.about(script_request.resource())),
            });
        }
        answers
    }

    /// Runs a script that grants leases. With `durability=` it waits for the durability acknowledgements; the second
    /// result says whether they came.
    async fn run_durably(&self, partition: &Partition, call: &ScriptCall<'_>) -> Result<(Reply, Result<()>)> {
        match &self.durable {
            None => Ok((self.router.run(partition, call, None).await?, Ok(()))),
            Some(durable) => durable.run_granting(partition, call, &self.options).await,
        }
    }

    /// Releases a lease whose durability acknowledgements are missing; returns the error for its caller.
    async fn release_unacknowledged(
        &self,
        partition: &Partition,
        request: &AcquireArguments,
        missing: &Error,
    ) -> Error {
        let resources = [request.resource.clone()];
        let call = ScriptCall::for_resources(&scripts::DECIDE, partition, &resources, |command| {
            let cancelled = Outcome::Cancelled.ending().as_str();
            command.arg(1).arg("r").arg(&request.record.head[1..]).arg(cancelled).arg("").arg("");
        });
        let error = match self.router.run(partition, &call, None).await {
            Ok(_) => errors::of_kind(missing.kind(), format!("{missing}; the grant was given back")),
            // Whatever became of the release, the lease was granted.
            Err(error) => error.with_unknown_outcome(),
        };
        error.about(&request.resource)
    }
}

/// Requests and releases in the order in which `fast.lua` takes them, each with its index in the caller's list.
struct FastBatch<'a> {
    releases: Vec<(usize, &'a ReleaseArguments)>,
    /// In the order of the caller's list, which decides their places in the queue. Neighbours with the same tail are
    /// one group, so that the tail is sent once.
    requests: Vec<(&'a str, Vec<(usize, &'a AcquireArguments)>)>,
}

impl<'a> FastBatch<'a> {
    fn of(script_requests: &'a [ScriptRequest]) -> Self {
        let mut batch = Self { releases: Vec::new(), requests: Vec::new() };
        for (at, script_request) in script_requests.iter().enumerate() {
            match script_request {
                ScriptRequest::Release(release) => batch.releases.push((at, release)),
                ScriptRequest::Acquire(request) => match batch.requests.last_mut() {
                    Some((tail, requests)) if *tail == &*request.record.tail => requests.push((at, request)),
                    _ => batch.requests.push((&request.record.tail, vec![(at, request)])),
                },
            }
        }
        batch
    }

    /// Adds the arguments of `fast.lua` from the fourth on.
    fn write(&self, command: &mut Cmd) {
        let releases = self.releases.iter().map(|(_, release)| &release.resource);
        let requests = || self.requests.iter().flat_map(|(_, requests)| requests).map(|(_, request)| request);
        let (names, numbers) = numbered(releases.chain(requests().map(|request| &request.resource)));
        let mut columns = Vec::with_capacity(4);
        let digit = |digit| u8::try_from(digit).map_or(u8::MAX, |digit| b'0' + digit);
        let mut add = |number: usize| columns.extend([number / 64, number % 64].map(digit));
        add(self.releases.len());
        add(numbers.len());
        if names.len() != numbers.len() {
            add(names.len());
            numbers.iter().copied().for_each(add);
        }
        command.arg(columns);
        for name in &names {
            command.arg(name.as_str());
        }
        for (_, release) in &self.releases {
            command.arg(&*release.head_and_ending());
        }
        for request in requests() {
            command.arg(&request.record.head);
        }
        for (tail, requests) in &self.requests {
            // Only the full script checks how many waiters are ahead: `b` has the fast script leave the request to it.
            let patience = |request: &AcquireArguments| request.max_waiters.map_or(request.patience, |_| 'b');
            let patience: String = requests.iter().map(|(_, request)| patience(request)).collect();
            command.arg(*tail).arg(patience);
        }
    }
}

/// The distinct resources, and for each item the number of its resource, from 1.
pub(super) fn numbered<'a>(resources: impl Iterator<Item = &'a Resource>) -> (Vec<Resource>, Vec<usize>) {
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

fn same_for_all<T>(error: &Error, calls: usize) -> Vec<Result<T>> {
    (0..calls).map(|_| Err(errors::copy_of(error))).collect()
}
