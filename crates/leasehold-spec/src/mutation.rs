//! Known bugs of lock libraries, each of which the checker must find.

/// A deliberate bug. The number is that of the engine's rule which it breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mutation {
    /// Rule 1: belief in an answer counts from its receipt instead of from the sending of its request.
    AnswerCountsFromReceipt,
    /// Rule 1: belief in a pushed grant counts from its receipt instead of from the last answered request.
    PushCountsFromReceipt,
    /// Rule 1: belief lasts for the whole ttl, without the margin that covers the drift of two clocks.
    NoMargin,
    /// Rule 3: a renewal answered after the deadline revives the lease.
    LateAnswerRevives,
    /// Rule 5: a cancelled acquire forgets to release what it may have got.
    CancelLeavesTheLease,
    /// Rule 8: the backend releases whatever holds the name, whoever asks.
    ReleaseByName,
    /// Rule 8: a pushed grant is accepted although its fence was seen before.
    StaleHintAccepted,
    /// Rule 12: a pushed grant is believed before the holder has confirmed it.
    HandOffBelievedUnconfirmed,
    /// Rule 13: an explicit renewal has a handler of its own, which ignores "gone" and "waiting".
    ExplicitRenewalIgnoresGone,
}
