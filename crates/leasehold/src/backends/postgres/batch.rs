//! Calls that wait, and which of them go together.

use std::collections::VecDeque;

use tokio::sync::oneshot;

use super::failure::Failure;
use crate::{
    Result,
    lease::{Answer, Decision, LeaseKey, Outcome, Released, Request, Resource},
};

/// So many calls share a statement at most.
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

    /// The connection that what is asked for would live by.
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

/// What waits, up to a batch; one that goes alone goes alone.
pub(super) fn take(queue: &mut VecDeque<Queued>) -> Vec<Queued> {
    if queue.front().is_some_and(|first| first.alone) {
        return queue.pop_front().into_iter().collect();
    }
    // A batch names one session for all that live by one.
    // 1. An ask waits. 2. The connection it would live by dies, and another takes its place. 3. The next ask comes.
    // Together, the second would be stored as living by a connection that is dead.
    let mut named = None;
    let fits = |queued: &&Queued| {
        let session = queued.item.session();
        named = named.or(session);
        !queued.alone && (session.is_none() || session == named)
    };
    let together = queue.iter().take(BATCH).take_while(fits).count();
    queue.drain(..together).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::{Claim, Holder, LeaseId, Lifetime, Metadata, Patience, Ttl};

    fn ask(session: Option<i32>) -> Queued {
        let key = LeaseKey { resource: Resource::new("x").unwrap(), id: LeaseId::from_u128(1) };
        let request = Request {
            key,
            claim: Claim::EXCLUSIVE,
            ttl: Ttl::MIN,
            patience: Patience::Queue,
            lifetime: if session.is_some() { Lifetime::Attached } else { Lifetime::Detached },
            holder: Holder::new("h").unwrap(),
            note: None,
            metadata: Metadata::new(),
            fence_floor: None,
        };
        Queued { item: Item::Acquire { request, session, answer: oneshot::channel().0 }, alone: false, tries: 0 }
    }

    fn release() -> Queued {
        let key = LeaseKey { resource: Resource::new("x").unwrap(), id: LeaseId::from_u128(1) };
        let item = Item::Release { key, outcome: Outcome::Completed, answer: oneshot::channel().0 };
        Queued { item, alone: false, tries: 0 }
    }

    fn sessions(batch: &[Queued]) -> Vec<Option<i32>> {
        batch.iter().map(|queued| queued.item.session()).collect()
    }

    #[test]
    fn asks_in_the_name_of_two_connections_do_not_go_together() {
        let asked = [None, Some(5), None, Some(5), Some(6), None, Some(6), Some(5)];
        let mut queue: VecDeque<Queued> = asked.into_iter().map(ask).collect();
        queue.insert(2, release());
        assert_eq!(sessions(&take(&mut queue)), [None, Some(5), None, None, Some(5)]);
        assert_eq!(sessions(&take(&mut queue)), [Some(6), None, Some(6)]);
        assert_eq!(sessions(&take(&mut queue)), [Some(5)]);
        assert!(take(&mut queue).is_empty());
    }

    #[test]
    fn a_batch_has_an_end_and_what_goes_alone_goes_alone() {
        let mut queue: VecDeque<Queued> = (0..BATCH + 3).map(|_| ask(Some(5))).collect();
        queue[BATCH + 1].alone = true;
        assert_eq!([0; 4].map(|_| take(&mut queue).len()), [BATCH, 1, 1, 1]);
    }
}
