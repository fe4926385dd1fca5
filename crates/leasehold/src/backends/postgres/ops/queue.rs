//! Jobs that wait, and which of them go together.

use std::collections::{HashSet, VecDeque};

use tokio::sync::oneshot;

use crate::{
    Result,
    backends::postgres::errors::Failure,
    lease::{Answer, Decision, LeaseId, LeaseKey, Outcome, Released, Request, Resource},
};

/// How many jobs share a statement at most.
const BATCH: usize = 64;

/// An acquire or a release, and where its answer goes.
pub(super) enum Job {
    Acquire { request: Request, session: Option<i32>, answer: oneshot::Sender<Result<Answer<Decision>, Failure>> },
    Release { key: LeaseKey, outcome: Outcome, answer: oneshot::Sender<Result<Answer<Released>, Failure>> },
}

impl Job {
    pub(super) fn resource(&self) -> &Resource {
        match self {
            Self::Acquire { request, .. } => &request.key.resource,
            Self::Release { key, .. } => &key.resource,
        }
    }

    pub(super) fn id(&self) -> LeaseId {
        match self {
            Self::Acquire { request, .. } => request.key.id,
            Self::Release { key, .. } => key.id,
        }
    }

    /// The session that the lease would be bound to.
    fn session(&self) -> Option<i32> {
        match self {
            Self::Acquire { session, .. } => *session,
            Self::Release { .. } => None,
        }
    }

    pub(super) fn fail(self, failure: &Failure) {
        match self {
            Self::Acquire { answer, .. } => drop(answer.send(Err(failure.clone()))),
            Self::Release { answer, .. } => drop(answer.send(Err(failure.clone()))),
        }
    }
}

/// A job in the queue.
pub(super) struct QueuedJob {
    pub(super) job: Job,
    /// Whether it is sent alone.
    pub(super) isolated: bool,
    pub(super) tries: u32,
}

impl QueuedJob {
    /// Returns whether it must not be sent: its caller dropped the acquire, or it is a release that was tried before
    /// and that nobody awaits.
    pub(super) fn is_abandoned(&self) -> bool {
        match &self.job {
            Job::Acquire { answer, .. } => answer.is_closed(),
            Job::Release { answer, .. } => answer.is_closed() && self.tries > 0,
        }
    }
}

/// The jobs that wait for a worker.
#[derive(Default)]
pub(super) struct JobQueue {
    jobs: VecDeque<QueuedJob>,
    /// Names whose isolated job is running; other isolated jobs for the name must wait.
    isolated_in_flight: HashSet<Resource>,
}

impl JobQueue {
    pub(super) fn len(&self) -> usize {
        self.jobs.len()
    }

    pub(super) fn push(&mut self, queued: QueuedJob) {
        self.jobs.push_back(queued);
    }

    /// Puts jobs back at the front.
    pub(super) fn push_again(&mut self, again: Vec<QueuedJob>) {
        for queued in again.into_iter().rev() {
            self.jobs.push_front(queued);
        }
    }

    /// Whether [`take`](Self::take) would take nothing: the queue is empty, or every job in it must wait.
    pub(super) fn has_nothing_ready(&self) -> bool {
        self.jobs.iter().all(|queued| self.must_wait(queued))
    }

    fn must_wait(&self, queued: &QueuedJob) -> bool {
        queued.isolated && self.isolated_in_flight.contains(queued.job.resource())
    }

    /// Takes up to a batch of jobs. An isolated job is taken by itself; [`ended`](Self::ended) is called after it.
    pub(super) fn take(&mut self) -> Vec<QueuedJob> {
        let (mut taken, mut must_wait) = (Vec::new(), Vec::new());
        // All session-bound requests of a batch share one session.
        // 1. A request waits. 2. Its session dies, and another replaces it. 3. The next request comes.
        // In one batch, one of them would be bound to the wrong session.
        let mut batch_session = None;
        while let Some(queued) = self.jobs.pop_front() {
            let session = queued.job.session();
            if self.must_wait(&queued) {
                must_wait.push(queued);
            } else if queued.isolated && taken.is_empty() {
                self.isolated_in_flight.insert(queued.job.resource().clone());
                taken.push(queued);
                break;
            } else if queued.isolated
                || taken.len() == BATCH
                || (session.is_some() && session != batch_session.or(session))
            {
                self.jobs.push_front(queued);
                break;
            } else {
                batch_session = batch_session.or(session);
                taken.push(queued);
            }
        }
        self.push_again(must_wait);
        taken
    }

    /// The isolated job for this name has ended.
    pub(super) fn ended(&mut self, resource: &Resource) {
        self.isolated_in_flight.remove(resource);
    }

    /// Takes all isolated acquires of this name.
    pub(super) fn take_acquires_for(&mut self, resource: &Resource) -> Vec<QueuedJob> {
        let is_such = |queued: &QueuedJob| {
            queued.isolated && matches!(queued.job, Job::Acquire { .. }) && queued.job.resource() == resource
        };
        let (such, others) = self.jobs.drain(..).partition(is_such);
        self.jobs = others;
        VecDeque::into(such)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::{Claim, Holder, LeaseId, Lifetime, Ttl};

    fn acquire(session: Option<i32>) -> QueuedJob {
        let key = LeaseKey::new(Resource::new("x").unwrap(), LeaseId::from_u128(1));
        let request = Request::new(key, Claim::EXCLUSIVE, Holder::new("h").unwrap())
            .ttl(Ttl::MIN)
            .lifetime(if session.is_some() { Lifetime::Attached } else { Lifetime::Detached });
        QueuedJob { job: Job::Acquire { request, session, answer: oneshot::channel().0 }, isolated: false, tries: 0 }
    }

    fn release() -> QueuedJob {
        let key = LeaseKey::new(Resource::new("x").unwrap(), LeaseId::from_u128(1));
        let job = Job::Release { key, outcome: Outcome::Completed, answer: oneshot::channel().0 };
        QueuedJob { job, isolated: false, tries: 0 }
    }

    fn queue(jobs: impl Iterator<Item = QueuedJob>) -> JobQueue {
        JobQueue { jobs: jobs.collect(), isolated_in_flight: HashSet::new() }
    }

    fn sessions(batch: &[QueuedJob]) -> Vec<Option<i32>> {
        batch.iter().map(|queued| queued.job.session()).collect()
    }

    #[test]
    fn acquires_for_two_sessions_do_not_share_a_batch() {
        let requested = [None, Some(5), None, Some(5), Some(6), None, Some(6), Some(5)];
        let mut queue = queue(requested.into_iter().map(acquire));
        queue.jobs.insert(2, release());
        assert_eq!(sessions(&queue.take()), [None, Some(5), None, None, Some(5)]);
        assert_eq!(sessions(&queue.take()), [Some(6), None, Some(6)]);
        assert_eq!(sessions(&queue.take()), [Some(5)]);
        assert!(queue.take().is_empty());
    }

    #[test]
    fn a_batch_is_limited_and_an_isolated_job_goes_alone() {
        let mut queue = queue((0..BATCH + 3).map(|_| acquire(Some(5))));
        queue.jobs[BATCH + 1].isolated = true;
        assert_eq!([0; 4].map(|_| queue.take().len()), [BATCH, 1, 1, 1]);
    }

    #[test]
    fn one_isolated_job_of_a_name_goes_and_others_of_it_wait_and_delay_nobody() {
        let mut queue = queue((0..5).map(|_| acquire(None)));
        for index in [0, 1, 4] {
            queue.jobs[index].isolated = true;
        }
        let first = queue.take();
        assert_eq!([first.len(), queue.take().len(), queue.take().len(), queue.len()], [1, 2, 0, 2]);
        assert!(queue.has_nothing_ready(), "nothing can be taken");
        queue.ended(first[0].job.resource());
        assert_eq!([queue.take().len(), queue.take().len()], [1, 0]);
        assert_eq!(queue.take_acquires_for(first[0].job.resource()).len(), 1);
        assert_eq!(queue.len(), 0);
    }
}
