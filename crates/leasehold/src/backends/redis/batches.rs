//! Batches of requests and releases: one call of a script for each, and an answer for each caller.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
};

use super::{
    connection::Reply,
    decode::{self, Decided, DecidedAs, Fast},
    encode::{AcquireArguments, ReleaseArguments},
    errors,
    keys::Partition,
    ops::{Question, Shared},
    scripts::{self, Call},
};
use crate::{
    Error, Result,
    lease::{Answer, Decision, Outcome, Released, Resource},
};

impl Shared {
    /// Grants what is plain.
    pub(super) async fn acquire_fast(
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

    /// Ends what is plain.
    pub(super) async fn release_fast(
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
                    Fast::Decided(done) => Fast::Decided(Answer::new(done, reply.incarnation)),
                    Fast::Slow => Fast::Slow,
                };
                with_slow(answers.into_iter().map(|answer| answer.map(with_incarnation)).collect(), &slow)
            }
        }
    }

    /// Has the full script decide, in the order of the questions.
    pub(super) async fn decide(self: Arc<Self>, partition: usize, questions: Vec<Question>) -> Vec<Result<Answer<DecidedAs>>> {
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

    /// Runs a script that grants leases. With `durability=` it waits for the copies; the second result says whether they
    /// were made.
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
    (0..calls).map(|_| Err(errors::again(error))).collect()
}
