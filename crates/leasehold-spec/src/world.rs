//! One backend, its clients, the network between them, and what an onlooker remembers.

use std::collections::{BTreeMap, BTreeSet};

use leasehold::{
    backend::model::{Effects, Expiry, Presence},
    lease::Ending,
};

use crate::{
    client::{Client, ClientLease, ClientRules, ProcessState, Tick},
    mutation::Mutation,
    server::{Id, ServerModel, ServerOperation, ServerVerdict, client_of, small},
};

/// Everything there is at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    /// The backend's clock.
    pub now: Tick,
    /// The resource.
    pub server: ServerModel,
    /// The processes.
    pub clients: Vec<Client>,
    /// What is on its way, in no order. What is lost is never delivered.
    pub network: BTreeSet<Message>,
    /// How often each kind of trouble has struck.
    pub troubles: Troubles,
    /// What the invariants need to know of the past.
    pub past: Past,
}

/// What travels between clients and backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Message {
    /// Asks for a lease; asking again with the same id is safe.
    Ask(Id, Tick),
    /// Renews a lease or a position in the queue.
    Renew {
        /// The lease.
        id: Id,
        /// When it was sent, by the client's clock.
        sent: Tick,
        /// Whether the user asked for it.
        explicit: bool,
    },
    /// Ends a lease or leaves the queue.
    Release(Id),
    /// Answers an ask or a renewal.
    Answer {
        /// The lease.
        id: Id,
        /// When the request was sent.
        sent: Tick,
        /// How the lease stands.
        verdict: ServerVerdict,
        /// Whether the user asked for it.
        explicit: bool,
    },
    /// Answers a release.
    Released(Id),
    /// Pushes a grant, with its fence.
    Granted(Id, u64),
    /// Pushes an eviction.
    Evicted(Id),
}

impl Message {
    pub(crate) const fn is_request(self) -> bool {
        matches!(self, Self::Ask(..) | Self::Renew { .. } | Self::Release(_))
    }

    /// The lease that it is about.
    pub(crate) const fn id(self) -> Id {
        let (Self::Ask(id, _)
        | Self::Renew { id, .. }
        | Self::Release(id)
        | Self::Answer { id, .. }
        | Self::Released(id)
        | Self::Granted(id, _)
        | Self::Evicted(id)) = self;
        id
    }

    /// The client that sent it or that it is for.
    pub(crate) const fn client(self) -> usize {
        client_of(self.id())
    }
}

/// How often each kind of trouble has struck.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Troubles {
    /// Deliveries of a message that stayed on its way.
    pub repeats: u8,
    /// Processes that died.
    pub crashes: u8,
    /// Processes that were stopped.
    pub stops: u8,
    /// Evictions by an operator.
    pub evictions: u8,
    /// Restarts that kept the memory and lost what was on its way.
    pub restarts: u8,
    /// Restarts that lost the memory.
    pub amnesias: u8,
}

/// What the invariants need to know of the past.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Past {
    /// The highest fence issued.
    pub fence: u64,
    /// The ids of which the backend said or was told that they ended. A late ask may still bring one back for a ttl.
    pub closed: BTreeSet<Id>,
    /// The ids in which belief ran out.
    pub lost: BTreeSet<Id>,
    /// The grants that an eviction or a loss of memory took from their holders, by fence, and when.
    pub taken: BTreeMap<u64, Tick>,
    /// The first broken promise that shows in a step rather than in a state.
    pub broken: Option<Broken>,
}

/// A broken promise that shows in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Broken {
    /// A fence is not above the one before.
    FenceFell,
    /// A release ended a lease with another id.
    EndedAnother,
    /// A lease was granted while one that came earlier waits.
    Overtaken,
    /// A process was answered that its lease is gone, and believes on.
    BelievesAfterGone,
}

impl World {
    pub(crate) fn new(clients: usize) -> Self {
        Self {
            now: 0,
            server: ServerModel::default(),
            clients: vec![Client::new(); clients],
            network: BTreeSet::new(),
            troubles: Troubles::default(),
            past: Past::default(),
        }
    }

    /// Sends a request. Where a process is the life of its leases it performs its operations itself, as on `file:`;
    /// only the answers take time.
    pub(crate) fn send(&mut self, request: Message, rules: &ClientRules) {
        match rules.terms.expiry {
            Expiry::ByClock => _ = self.network.insert(request),
            Expiry::ByPresence => self.perform(request, rules),
        }
    }

    /// Performs a request at the backend.
    pub(crate) fn perform(&mut self, request: Message, rules: &ClientRules) {
        let (now, terms, performer) = (self.now, &rules.terms, request.client());
        let presence = self.presence(Some(performer), rules);
        let at = ServerOperation { now, presence: &presence };
        match request {
            Message::Ask(id, sent) => {
                let (verdict, effects) = self.server.acquire(id, terms, &at);
                self.note(id, &effects);
                self.answer(id, sent, verdict, false);
            }
            Message::Renew { id, sent, explicit } => {
                let (verdict, effects) = self.server.renew(id, terms, &at);
                self.note(id, &effects);
                self.answer(id, sent, verdict, explicit);
            }
            Message::Release(id) => {
                let target = if rules.has(Mutation::ReleaseByName) { self.server.first_holder() } else { None };
                let effects = self.server.release(target.unwrap_or(id), &at);
                self.note(id, &effects);
                self.past.closed.insert(id);
                self.network.insert(Message::Released(id));
            }
            _ => {}
        }
    }

    fn answer(&mut self, id: Id, sent: Tick, verdict: ServerVerdict, explicit: bool) {
        if matches!(verdict, ServerVerdict::Gone | ServerVerdict::Busy) {
            self.past.closed.insert(id);
        }
        self.network.insert(Message::Answer { id, sent, verdict, explicit });
    }

    /// Delivers an answer or a push to its client.
    pub(crate) fn receive(&mut self, message: Message, rules: &ClientRules) {
        let client = &mut self.clients[message.client()];
        let before = client.belief();
        match message {
            Message::Answer { id, sent, verdict, explicit } => {
                client.on_answer(id, sent, verdict, explicit, rules);
                let gone = match (verdict, before) {
                    (ServerVerdict::Gone | ServerVerdict::Busy, Some((held, _))) => held == id,
                    (ServerVerdict::Waiting(newest), Some((held, fence))) => held == id && newest >= fence,
                    _ => false,
                };
                if gone && client.belief().is_some() {
                    self.past.broken.get_or_insert(Broken::BelievesAfterGone);
                }
            }
            Message::Released(id) => _ = client.owed.remove(&id),
            Message::Granted(id, fence) => client.on_granted(id, fence, rules),
            // The holder asks at once; the answer ends its belief.
            Message::Evicted(id) if before.is_some_and(|(held, _)| held == id) => {
                let renewal = Message::Renew { id, sent: client.clock, explicit: false };
                self.send(renewal, rules);
            }
            _ => {}
        }
    }

    pub(crate) fn settle(&mut self, rules: &ClientRules) {
        let (now, presence) = (self.now, self.presence(None, rules));
        let effects = self.server.settle(&ServerOperation { now, presence: &presence });
        self.note(Id::MAX, &effects);
    }

    pub(crate) fn evict(&mut self, rules: &ClientRules) -> Option<()> {
        let (now, presence) = (self.now, self.presence(None, rules));
        let effects = self.server.evict(&ServerOperation { now, presence: &presence })?;
        self.note(Id::MAX, &effects);
        for ended in effects.ended.iter().filter(|ended| ended.ending == Ending::Evicted) {
            self.past.taken.extend(ended.entry.held().map(|held| (held.fence.get(), now)));
            self.network.insert(Message::Evicted(small(ended.entry.id)));
        }
        Some(())
    }

    /// The memory is gone, and with it every lease.
    pub(crate) fn forget(&mut self) {
        let holding = self.server.alive(self.now).filter_map(|(_, state)| state.held());
        self.past.taken.extend(holding.map(|held| (held.fence.get(), self.now)));
        self.server.forget();
    }

    /// Lets a tick pass everywhere but on the clock of the one that drifts.
    pub(crate) fn tick(&mut self, drifts: Option<usize>) {
        self.now += 1;
        for (at, client) in self.clients.iter_mut().enumerate() {
            if drifts != Some(at) && client.process != ProcessState::Dead {
                client.tick();
            }
            if let ClientLease::Lost { id, .. } = client.lease {
                self.past.lost.insert(id);
            }
        }
    }

    /// Pushes what an operation did to others, and checks what shows in a step only.
    fn note(&mut self, caller: Id, effects: &Effects) {
        let mut broken = None;
        for granted in &effects.granted {
            let fence = granted.fence.get();
            if fence <= self.past.fence {
                broken = Some(Broken::FenceFell);
            }
            self.past.fence = self.past.fence.max(fence);
            if small(granted.id) != caller {
                self.network.insert(Message::Granted(small(granted.id), fence));
            }
        }
        for ended in &effects.ended {
            let by_release = matches!(ended.ending, Ending::Released | Ending::Cancelled);
            if by_release && small(ended.entry.id) != caller {
                broken = Some(Broken::EndedAnother);
            }
        }
        if self.server.overtaken_by(effects) {
            broken = Some(Broken::Overtaken);
        }
        self.past.broken = self.past.broken.or(broken);
    }

    /// Drops what can change nothing any more, so that worlds that differ in it alone count as one: answers and pushes
    /// that their client would ignore, and memories of ids that nobody mentions.
    pub(crate) fn tidy(&mut self) {
        let Self { server, clients, network, past, .. } = self;
        network.retain(|message| {
            let client = &clients[message.client()];
            match *message {
                Message::Ask(..) | Message::Renew { .. } | Message::Release(_) => true,
                Message::Answer { id, .. } => client.lease.id() == Some(id),
                Message::Released(id) => client.owed.contains(&id),
                Message::Granted(id, _) | Message::Evicted(id) => client.wants(id),
            }
        });
        let mentioned = |id: &Id| {
            let client = &clients[client_of(*id)];
            let on_its_way = network.iter().any(|message| message.id() == *id);
            on_its_way || server.knows(*id) || client.owed.contains(id) || client.lease.id() == Some(*id)
        };
        past.closed.retain(mentioned);
        past.lost.retain(mentioned);
    }

    /// What the backend knows of each client's process.
    fn presence(&self, performer: Option<usize>, rules: &ClientRules) -> impl Fn(usize) -> Presence + use<> {
        let dead: Vec<bool> = self.clients.iter().map(|client| client.process == ProcessState::Dead).collect();
        let by_clock = rules.terms.expiry == Expiry::ByClock;
        move |client| match client {
            _ if by_clock => Presence::Present,
            client if dead[client] => Presence::Dead,
            client if performer == Some(client) => Presence::Own,
            _ => Presence::Present,
        }
    }
}
