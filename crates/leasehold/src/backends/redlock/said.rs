//! What nodes say in a round, and how a round ends.

use crate::{
    Error, Result,
    lease::{Busy, Decision, Fence, Grant, Patience, QueuePosition, Shape, Standing},
};

/// What a node said.
#[derive(Debug)]
pub(super) enum Said {
    /// Nothing yet.
    Pending,
    /// It was left alone: it hung a moment ago.
    Unasked,
    Granted(Grant),
    Queued(QueuePosition),
    Busy(Busy),
    WrongShape(Shape),
    /// The lease is not there, or no longer.
    Gone,
    Failed(Error),
}

impl Said {
    pub(super) fn decided(answer: Result<Decision>) -> Self {
        match answer {
            Ok(Decision::Granted(grant)) => Self::Granted(grant),
            Ok(Decision::Queued(place)) => Self::Queued(place),
            Ok(Decision::Busy(busy)) => Self::Busy(busy),
            Ok(Decision::WrongShape { in_force }) => Self::WrongShape(in_force),
            Err(error) => Self::Failed(error),
        }
    }

    pub(super) fn stands(answer: Result<Vec<Standing>>) -> Self {
        match answer.map(|standings| standings.first().copied()) {
            Ok(Some(Standing::Holding(grant))) => Self::Granted(grant),
            Ok(Some(Standing::Waiting(place))) => Self::Queued(place),
            Ok(Some(Standing::Gone)) => Self::Gone,
            Ok(Some(Standing::Unknown) | None) => Self::Failed(Error::unanswered("could not tell")),
            Err(error) => Self::Failed(error),
        }
    }
}

/// How the gate is asked.
#[derive(Clone, Copy, Debug)]
pub(super) enum Entry {
    /// For a lease, queueing or not.
    Ask(Patience),
    /// It holds already, under this fence.
    Held(Fence),
}

/// How a round ended.
#[derive(Debug)]
pub(super) enum End {
    /// A majority holds, under one fence.
    Granted(Grant),
    /// The gate has a place for it.
    Queued(QueuePosition),
    /// The gate is busy and was not asked for a place: the one before it in the list failed meanwhile.
    NoPlace,
    Busy(Busy),
    WrongShape(Shape),
    /// The gate no longer knows it.
    Gone,
    /// The gate would let it in, others do not.
    Short(Busy),
    /// Too few nodes can be counted on.
    Unreachable(Error),
}

/// What is to become of the answers that come after the end.
#[derive(Clone, Copy, Debug)]
pub(super) enum Tail {
    /// The lease holds under this fence: latecomers join.
    Keep(Fence),
    /// Only its place at the gate is kept.
    KeepPlace,
    /// Nothing is kept; the caller was told.
    GiveBack,
    /// Nothing is kept; that it is over is remembered until the caller asks.
    Lose,
}

/// The fence that most have, the lowest of several, and how many have it.
pub(super) fn most_common(fences: &[Fence]) -> Option<(Fence, usize)> {
    let count = |fence: Fence| fences.iter().filter(|other| **other == fence).count();
    fences.iter().map(|fence| (*fence, count(*fence))).max_by_key(|(fence, count)| (*count, std::cmp::Reverse(*fence)))
}
