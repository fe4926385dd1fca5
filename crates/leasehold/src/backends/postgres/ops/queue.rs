//! Calls that wait, and which of them go together.

use std::collections::{HashSet, VecDeque};

use tokio::sync::oneshot;

use crate::{
    Result,
    backends::postgres::errors::Failure,
    lease::{Answer, Decision, LeaseId, LeaseKey, Outcome, Released, Request, Resource},
};

/// How many calls share a statement at most.
const BATCH: usize = 64;

/// An acquire or a release, and where its answer goes.
pub(super) enum Item {
    Acquire { request: Request, session: Option<i32>, answer: oneshot::Sender<Result<Answer<Decision>, Failure>> },
    Release { key: LeaseKey, outcome: Outcome, answer: oneshot::Sender<Result<Answer<Released>, Failure>> },
}

impl Item {
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

    /// The connection that the lease would end with.
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

/// One of them, on its way.
pub(super) struct Queued {
    pub(super) item: Item,
    /// It shares its statement with no other.
    pub(super) alone: bool,
    pub(super) tries: u32,
}

impl Queued {
    /// Returns whether it must not be sent: its caller dropped the acquire, or it is a release that was tried before and
    /// that nobody awaits.
    pub(super) fn is_given_up(&self) -> bool {
        match &self.item {
            Item::Acquire { answer, .. } => answer.is_closed(),
            Item::Release { answer, .. } => answer.is_closed() && self.tries > 0,
        }
    }
}

/// The calls that wait for a worker.
#[derive(Default)]
pub(super) struct CallQueue {
    calls: VecDeque<Queued>,
    /// Names of which one call goes alone just now. It may take long, and another one for the same would take as long.
    alone: HashSet<Resource>,
}

impl CallQueue {
    pub(super) fn len(&self) -> usize {
        self.calls.len()
    }

    pub(super) fn push(&mut self, queued: Queued) {
        self.calls.push_back(queued);
    }

    /// Before all that wait.
    pub(super) fn push_again(&mut self, again: Vec<Queued>) {
        for queued in again.into_iter().rev() {
            self.calls.push_front(queued);
        }
    }

    /// Whether there is nothing to take.
    pub(super) fn is_empty(&self) -> bool {
        self.calls.iter().all(|queued| self.must_wait(queued))
    }

    fn must_wait(&self, queued: &Queued) -> bool {
        queued.alone && self.alone.contains(queued.item.resource())
    }

    /// Takes up to a batch of what waits. An isolated job is taken by itself; [`ended`](Self::ended) is called after it.
    pub(super) fn take(&mut self) -> Vec<Queued> {
        let (mut taken, mut must_wait) = (Vec::new(), Vec::new());
        // A batch names one session for all that end with one.
        // 1. A request waits. 2. The connection it would end with dies, and another takes its place. 3. The next request comes.
        // Together, the second would be stored as ending with a connection that is dead.
        let mut named = None;
        while let Some(queued) = self.calls.pop_front() {
            let session = queued.item.session();
            if self.must_wait(&queued) {
                must_wait.push(queued);
            } else if queued.alone && taken.is_empty() {
                self.alone.insert(queued.item.resource().clone());
                taken.push(queued);
                break;
            } else if queued.alone || taken.len() == BATCH || (session.is_some() && session != named.or(session)) {
                self.calls.push_front(queued);
                break;
            } else {
                named = named.or(session);
                taken.push(queued);
            }
        }
        self.push_again(must_wait);
        taken
    }

    /// The call of this name that went alone has ended.
    pub(super) fn ended(&mut self, resource: &Resource) {
        self.alone.remove(resource);
    }

    /// All asks for this name that would go alone.
    pub(super) fn take_asks_for(&mut self, resource: &Resource) -> Vec<Queued> {
        let is_such = |queued: &Queued| {
            queued.alone && matches!(queued.item, Item::Acquire { .. }) && queued.item.resource() == resource
        };
        let (such, others) = self.calls.drain(..).partition(is_such);
        self.calls = others;
        VecDeque::into(such)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::{Claim, Holder, LeaseId, Lifetime, Ttl};

    fn ask(session: Option<i32>) -> Queued {
        let key = LeaseKey::new(Resource::new("x").unwrap(), LeaseId::from_u128(1));
        let request = Request::new(key, Claim::EXCLUSIVE, Holder::new("h").unwrap())
            .ttl(Ttl::MIN)
            .lifetime(if session.is_some() { Lifetime::Attached } else { Lifetime::Detached });
        Queued { item: Item::Acquire { request, session, answer: oneshot::channel().0 }, alone: false, tries: 0 }
    }

    fn release() -> Queued {
        let key = LeaseKey::new(Resource::new("x").unwrap(), LeaseId::from_u128(1));
        let item = Item::Release { key, outcome: Outcome::Completed, answer: oneshot::channel().0 };
        Queued { item, alone: false, tries: 0 }
    }

    fn queue(calls: impl Iterator<Item = Queued>) -> CallQueue {
        CallQueue { calls: calls.collect(), alone: HashSet::new() }
    }

    fn sessions(batch: &[Queued]) -> Vec<Option<i32>> {
        batch.iter().map(|queued| queued.item.session()).collect()
    }

    #[test]
    fn asks_in_the_name_of_two_connections_do_not_go_together() {
        let asked = [None, Some(5), None, Some(5), Some(6), None, Some(6), Some(5)];
        let mut queue = queue(asked.into_iter().map(ask));
        queue.calls.insert(2, release());
        assert_eq!(sessions(&queue.take()), [None, Some(5), None, None, Some(5)]);
        assert_eq!(sessions(&queue.take()), [Some(6), None, Some(6)]);
        assert_eq!(sessions(&queue.take()), [Some(5)]);
        assert!(queue.take().is_empty());
    }

    #[test]
    fn a_batch_has_an_end_and_what_goes_alone_goes_alone() {
        let mut queue = queue((0..BATCH + 3).map(|_| ask(Some(5))));
        queue.calls[BATCH + 1].alone = true;
        assert_eq!([0; 4].map(|_| queue.take().len()), [BATCH, 1, 1, 1]);
    }

    #[test]
    fn one_of_a_name_goes_alone_and_others_of_it_wait_and_keep_nobody() {
        let mut queue = queue((0..5).map(|_| ask(None)));
        for at in [0, 1, 4] {
            queue.calls[at].alone = true;
        }
        let first = queue.take();
        assert_eq!([first.len(), queue.take().len(), queue.take().len(), queue.len()], [1, 2, 0, 2]);
        assert!(queue.is_empty(), "nothing can be taken");
        queue.ended(first[0].item.resource());
        assert_eq!([queue.take().len(), queue.take().len()], [1, 0]);
        assert_eq!(queue.take_asks_for(first[0].item.resource()).len(), 1);
        assert_eq!(queue.len(), 0);
    }
}
