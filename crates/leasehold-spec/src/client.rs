//! What a process believes: the engine's rules as one state machine.

use std::collections::BTreeSet;

use leasehold::backend::model::Expiry;

use crate::{
    mutation::Mutation,
    server::{Id, ServerVerdict, Terms},
};

/// A reading of a client's own clock, in ticks.
pub type Tick = u8;

/// One process and its view of the lease.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Client {
    /// Whether it runs.
    pub process: ProcessState,
    /// Its own clock, which may lag behind the backend's.
    pub clock: Tick,
    /// How many ids it has used.
    pub attempts: u8,
    /// How many requests it has sent for the current id.
    pub calls: u8,
    /// Its lease, as far as it knows.
    pub lease: ClientLease,
    /// The ids that it must release until the backend has answered.
    pub owed: BTreeSet<Id>,
}

/// Whether a process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProcessState {
    /// It acts and receives.
    Running,
    /// It does neither, while the clocks go on; it may continue.
    Stopped,
    /// It is gone for good.
    Dead,
}

/// A lease as its client sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ClientLease {
    /// It wants none.
    None,
    /// It asked and has not heard that it holds.
    Asking {
        /// The id it asked with.
        id: Id,
        /// When the newest answered request was sent.
        answered: Option<Tick>,
        /// The newest fence that an answer named.
        last_fence: u64,
        /// The fence of a pushed grant that waits for an answer or a confirmation.
        hint: Option<u64>,
    },
    /// It believes that it holds.
    Held {
        /// The id it holds with.
        id: Id,
        /// The fence it was given.
        fence: u64,
        /// The end of belief by its own clock; `None` where its process is the life of the lease.
        deadline: Option<Tick>,
    },
    /// Belief ran out.
    Lost {
        /// The id it held with.
        id: Id,
        /// The fence it had.
        fence: u64,
    },
}

impl ClientLease {
    /// The id that it was asked for with.
    pub(crate) const fn id(self) -> Option<Id> {
        match self {
            Self::None => None,
            Self::Asking { id, .. } | Self::Held { id, .. } | Self::Lost { id, .. } => Some(id),
        }
    }
}

/// The terms of the leases, the margin, and the bug to look for.
#[derive(Clone, Copy, Debug)]
pub struct ClientRules {
    /// What every request has in common.
    pub terms: Terms,
    /// How much earlier than the ttl belief ends.
    pub margin: Tick,
    /// A deliberate bug.
    pub mutation: Option<Mutation>,
}

impl ClientRules {
    pub(crate) fn has(&self, mutation: Mutation) -> bool {
        self.mutation == Some(mutation)
    }

    /// The end of belief in what a request sent at `from` proved.
    fn deadline(&self, from: Tick) -> Option<Tick> {
        let margin = if self.has(Mutation::NoMargin) { 0 } else { self.margin };
        match self.terms.expiry {
            Expiry::ByClock => Some(from + self.terms.ttl - margin),
            Expiry::ByPresence => None,
        }
    }
}

impl Client {
    pub(crate) fn new() -> Self {
        let owed = BTreeSet::new();
        Self { process: ProcessState::Running, clock: 0, attempts: 0, calls: 0, lease: ClientLease::None, owed }
    }

    pub(crate) fn runs(&self) -> bool {
        self.process == ProcessState::Running
    }

    /// The id and fence that this process believes to hold with.
    pub(crate) fn belief(&self) -> Option<(Id, u64)> {
        match self.lease {
            ClientLease::Held { id, fence, .. } if self.process != ProcessState::Dead => Some((id, fence)),
            _ => None,
        }
    }

    /// Whether the process still waits for or believes in this id.
    pub(crate) fn wants(&self, wanted: Id) -> bool {
        matches!(self.lease, ClientLease::Asking { id, .. } | ClientLease::Held { id, .. } if id == wanted)
    }

    /// Lets a tick pass; validity is a comparison with the clock, so a loss needs no event.
    pub(crate) fn tick(&mut self) {
        self.clock += 1;
        if let ClientLease::Held { id, fence, deadline: Some(deadline) } = self.lease
            && self.clock >= deadline
        {
            self.lease = ClientLease::Lost { id, fence };
        }
    }

    /// Gives up an id: the backend must be asked to release it until it answers.
    pub(crate) fn give_up(&mut self, id: Id) {
        self.lease = ClientLease::None;
        self.owed.insert(id);
    }

    /// Acts on the answer to a request that was sent at `sent`. Every answer comes through here.
    pub(crate) fn on_answer(
        &mut self,
        about: Id,
        sent: Tick,
        verdict: ServerVerdict,
        explicit: bool,
        rules: &ClientRules,
    ) {
        let from = if rules.has(Mutation::AnswerCountsFromReceipt) { self.clock } else { sent };
        let proved = rules.deadline(from);
        let in_time = proved.is_none_or(|deadline| self.clock < deadline);
        match (self.lease, verdict) {
            (ClientLease::Asking { id, .. }, ServerVerdict::Holding(fence)) if id == about => {
                if in_time {
                    self.lease = ClientLease::Held { id, fence, deadline: proved };
                } else {
                    self.give_up(id);
                }
            }
            (ClientLease::Asking { id, answered, last_fence, hint }, ServerVerdict::Waiting(newest)) if id == about => {
                let (answered, last_fence) = (answered.max(Some(sent)), last_fence.max(newest));
                self.lease = ClientLease::Asking { id, answered, last_fence, hint };
                self.consider_hint(rules);
            }
            // 1. An ask is answered: busy. 2. The same id asks again and is queued. 3. The first answer arrives.
            (ClientLease::Asking { id, .. }, ServerVerdict::Busy) if id == about && self.calls > 1 => self.give_up(id),
            (ClientLease::Asking { id, .. }, ServerVerdict::Gone | ServerVerdict::Busy) if id == about => {
                self.lease = ClientLease::None;
            }
            (ClientLease::Held { id, fence, deadline }, ServerVerdict::Holding(same)) if id == about => {
                if same == fence {
                    self.lease = ClientLease::Held { id, fence, deadline: deadline.max(proved) };
                } else {
                    // The backend lost its memory and granted the id again: this hold is not that one.
                    self.give_up(id);
                }
            }
            (ClientLease::Held { id, .. }, ServerVerdict::Gone | ServerVerdict::Waiting(_))
                if id == about && explicit && rules.has(Mutation::ExplicitRenewalIgnoresGone) => {}
            // 1. A renewal is answered: waiting. 2. The lease is granted, and the push arrives. 3. The answer arrives.
            (ClientLease::Held { id, fence, .. }, ServerVerdict::Waiting(newest)) if id == about && newest < fence => {}
            (ClientLease::Held { id, .. }, ServerVerdict::Waiting(_) | ServerVerdict::Busy) if id == about => {
                self.give_up(id);
            }
            (ClientLease::Held { id, .. }, ServerVerdict::Gone) if id == about => self.lease = ClientLease::None,
            (ClientLease::Lost { id, fence }, ServerVerdict::Holding(same))
                if id == about && same == fence && in_time && rules.has(Mutation::LateAnswerRevives) =>
            {
                self.lease = ClientLease::Held { id, fence, deadline: proved };
            }
            _ => {}
        }
    }

    /// Keeps a pushed grant, which may arrive before the answer that it belongs to.
    pub(crate) fn on_granted(&mut self, about: Id, fence: u64, rules: &ClientRules) {
        if let ClientLease::Asking { id, hint, .. } = &mut self.lease
            && *id == about
        {
            *hint = (*hint).max(Some(fence));
            self.consider_hint(rules);
        }
    }

    /// Believes a pushed grant where the ttl bounds it; elsewhere it stays until a renewal has confirmed it.
    fn consider_hint(&mut self, rules: &ClientRules) {
        let ClientLease::Asking { id, answered: Some(answered), last_fence, hint: Some(fence) } = self.lease else {
            return;
        };
        if fence <= last_fence && !rules.has(Mutation::StaleHintAccepted) {
            self.lease = ClientLease::Asking { id, answered: Some(answered), last_fence, hint: None };
            return;
        }
        let from = if rules.has(Mutation::PushCountsFromReceipt) { self.clock } else { answered };
        match rules.deadline(from) {
            None if !rules.has(Mutation::HandOffBelievedUnconfirmed) => {}
            Some(deadline) if self.clock >= deadline => {
                self.lease = ClientLease::Asking { id, answered: Some(answered), last_fence, hint: None };
            }
            deadline => self.lease = ClientLease::Held { id, fence, deadline },
        }
    }
}
