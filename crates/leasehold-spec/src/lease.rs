//! The specification of one lease: what may happen, and what must stay true.

use leasehold::backend::model::{EntryState, Expiry};
use stateright::{Model, Property};

use crate::{
    client::{ClientLease, ClientRules, ProcessState, Tick},
    mutation::Mutation,
    server::{Id, client_of, id_of},
    world::{Broken, Message, Troubles, World},
};

/// A bounded world. Within its bounds every order of events is explored.
#[derive(Clone, Copy, Debug)]
pub struct LeaseSpec {
    /// The rules the clients follow.
    pub rules: ClientRules,
    /// How many clients there are.
    pub clients: usize,
    /// How many ids each client may use.
    pub attempts: u8,
    /// How many requests each client may send for one id, not counting releases and confirmations.
    pub calls: u8,
    /// The last tick.
    pub horizon: Tick,
    /// How far the first client's clock may lag behind the backend's.
    pub drift: Tick,
    /// Whether clients also renew because their users ask for it.
    pub explicit_renewals: bool,
    /// How much trouble may strike.
    pub troubles: Troubles,
}

/// Something that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// A client asks with a new id.
    Acquire(usize),
    /// A client that was not answered asks again with the same id.
    AskAgain(usize),
    /// The renewer of a client renews.
    Renew(usize),
    /// The user of a client renews.
    RenewExplicitly(usize),
    /// A client sends the renewal that confirms a hand-off.
    Confirm(usize),
    /// A client drops its acquire.
    Cancel(usize),
    /// A client releases what it holds.
    Release(usize),
    /// A client sends a release again that was not answered.
    ReleaseAgain(usize, Id),
    /// A message arrives.
    Deliver(Message),
    /// A message arrives, and will arrive again.
    Repeat(Message),
    /// Time passes, on all clocks or on all but the first client's.
    Tick {
        /// The client whose clock stands still.
        drifts: Option<usize>,
    },
    /// The backend drops what has expired.
    Sweep,
    /// A process dies.
    Crash(usize),
    /// A process is stopped.
    Stop(usize),
    /// A stopped process continues.
    Continue(usize),
    /// An operator evicts the holder.
    Evict,
    /// The backend restarts, keeps its memory, and loses what was on its way.
    Restart,
    /// The backend restarts and has forgotten everything.
    Forget,
}

impl LeaseSpec {
    fn client_actions(&self, world: &World, at: usize, actions: &mut Vec<Action>) {
        let client = &world.clients[at];
        let may_call = client.calls < self.calls;
        match client.lease {
            ClientLease::None | ClientLease::Lost { .. } => {
                // Clients are alike until they ask, so the order of their first asks is the order of their numbers;
                // only the first one's clock drifts, which makes a difference.
                let is_next = self.drift > 0 || client.attempts > 0 || at == 0 || world.clients[at - 1].attempts > 0;
                if client.attempts < self.attempts && is_next {
                    actions.push(Action::Acquire(at));
                }
            }
            ClientLease::Asking { answered, hint, .. } => {
                actions.push(Action::Cancel(at));
                if may_call {
                    actions.push(if answered.is_none() { Action::AskAgain(at) } else { Action::Renew(at) });
                }
                if hint.is_some() && answered.is_some() && self.rules.terms.expiry == Expiry::ByPresence {
                    actions.push(Action::Confirm(at));
                }
            }
            ClientLease::Held { .. } => {
                actions.push(Action::Release(at));
                if may_call {
                    actions.push(Action::Renew(at));
                    if self.explicit_renewals {
                        actions.push(Action::RenewExplicitly(at));
                    }
                }
            }
        }
        if self.troubles.restarts > 0 {
            let unsent = client.owed.iter().filter(|id| !world.network.contains(&Message::Release(**id)));
            actions.extend(unsent.map(|id| Action::ReleaseAgain(at, *id)));
        }
        if world.troubles.crashes < self.troubles.crashes && client.lease != ClientLease::None {
            actions.push(Action::Crash(at));
        }
        if world.troubles.stops < self.troubles.stops && client.lease != ClientLease::None {
            actions.push(Action::Stop(at));
        }
    }

    fn renew(&self, world: &mut World, at: usize, explicit: bool) -> Option<()> {
        let client = &mut world.clients[at];
        let (ClientLease::Asking { id, .. } | ClientLease::Held { id, .. }) = client.lease else { return None };
        client.calls += 1;
        let renewal = Message::Renew { id, sent: client.clock, explicit };
        world.send(renewal, &self.rules);
        Some(())
    }

    fn give_up(&self, world: &mut World, at: usize) -> Option<()> {
        let client = &mut world.clients[at];
        let (ClientLease::Asking { id, .. } | ClientLease::Held { id, .. }) = client.lease else { return None };
        if matches!(client.lease, ClientLease::Asking { .. }) && self.rules.has(Mutation::CancelLeavesTheLease) {
            client.lease = ClientLease::None;
            return Some(());
        }
        client.give_up(id);
        world.send(Message::Release(id), &self.rules);
        Some(())
    }

    /// Sends the releases that an answer made necessary.
    fn send_owed(&self, world: &mut World, at: usize, owed_before: &[Id]) {
        let new: Vec<Id> = world.clients[at].owed.iter().filter(|id| !owed_before.contains(id)).copied().collect();
        for id in new {
            world.send(Message::Release(id), &self.rules);
        }
    }

    fn deliver(&self, world: &mut World, message: Message) {
        if message.is_request() {
            world.perform(message, &self.rules);
        } else {
            let at = message.client();
            let owed: Vec<Id> = world.clients[at].owed.iter().copied().collect();
            world.receive(message, &self.rules);
            self.send_owed(world, at, &owed);
        }
    }

    fn crash(world: &mut World, at: usize) {
        world.troubles.crashes += 1;
        let client = &mut world.clients[at];
        client.process = ProcessState::Dead;
        client.lease = ClientLease::None;
        client.owed.clear();
        // Nobody receives what is on its way to it; what it sent may still arrive.
        world.network.retain(|message| message.is_request() || message.client() != at);
    }

    fn apply(&self, world: &mut World, action: Action) -> Option<()> {
        match action {
            Action::Acquire(at) => {
                let client = &mut world.clients[at];
                client.attempts += 1;
                client.calls = 1;
                let id = id_of(at, client.attempts);
                client.lease = ClientLease::Asking { id, answered: None, last_fence: 0, hint: None };
                let ask = Message::Ask(id, client.clock);
                world.send(ask, &self.rules);
            }
            Action::AskAgain(at) => {
                let client = &mut world.clients[at];
                let ClientLease::Asking { id, .. } = client.lease else { return None };
                client.calls += 1;
                let ask = Message::Ask(id, client.clock);
                world.send(ask, &self.rules);
            }
            Action::Renew(at) => self.renew(world, at, false)?,
            Action::RenewExplicitly(at) => self.renew(world, at, true)?,
            Action::Confirm(at) => {
                let client = &mut world.clients[at];
                let ClientLease::Asking { id, answered, last_fence, .. } = client.lease else { return None };
                client.lease = ClientLease::Asking { id, answered, last_fence, hint: None };
                let renewal = Message::Renew { id, sent: client.clock, explicit: false };
                world.send(renewal, &self.rules);
            }
            Action::Cancel(at) | Action::Release(at) => self.give_up(world, at)?,
            Action::ReleaseAgain(_, id) => world.send(Message::Release(id), &self.rules),
            Action::Deliver(message) => {
                world.network.remove(&message);
                self.deliver(world, message);
            }
            Action::Repeat(message) => {
                world.troubles.repeats += 1;
                self.deliver(world, message);
            }
            Action::Tick { drifts } => world.tick(drifts),
            Action::Sweep => world.settle(&self.rules),
            Action::Crash(at) => Self::crash(world, at),
            Action::Stop(at) => {
                world.troubles.stops += 1;
                world.clients[at].process = ProcessState::Stopped;
            }
            Action::Continue(at) => world.clients[at].process = ProcessState::Running,
            Action::Evict => {
                world.troubles.evictions += 1;
                world.evict(&self.rules)?;
            }
            Action::Restart => {
                world.troubles.restarts += 1;
                world.network.clear();
            }
            Action::Forget => {
                world.troubles.amnesias += 1;
                world.forget();
            }
        }
        Some(())
    }
}

impl Model for LeaseSpec {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(self.clients)]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        for (at, client) in world.clients.iter().enumerate() {
            match client.process {
                ProcessState::Running => self.client_actions(world, at, actions),
                ProcessState::Stopped => actions.push(Action::Continue(at)),
                ProcessState::Dead => {}
            }
        }
        for message in &world.network {
            if message.is_request() || world.clients[message.client()].runs() {
                actions.push(Action::Deliver(*message));
                if world.troubles.repeats < self.troubles.repeats {
                    actions.push(Action::Repeat(*message));
                }
            }
        }
        if world.now < self.horizon {
            actions.push(Action::Tick { drifts: None });
            if world.now - world.clients[0].clock < self.drift {
                actions.push(Action::Tick { drifts: Some(0) });
            }
        }
        if world.server.has_expired(world.now) {
            actions.push(Action::Sweep);
        }
        let holds = world.server.first_holder().is_some();
        if world.troubles.evictions < self.troubles.evictions && holds {
            actions.push(Action::Evict);
        }
        if world.troubles.restarts < self.troubles.restarts && !world.network.is_empty() {
            actions.push(Action::Restart);
        }
        if world.troubles.amnesias < self.troubles.amnesias && holds {
            actions.push(Action::Forget);
        }
    }

    fn next_state(&self, before: &World, action: Action) -> Option<World> {
        let mut world = before.clone();
        self.apply(&mut world, action)?;
        world.tidy();
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("at most capacity believe", at_most_capacity_believe),
            Property::always("a believer is a holder", a_believer_is_a_holder),
            Property::always("belief in what was taken ends within a ttl", belief_in_what_was_taken_ends),
            Property::always("gone ends belief", |_, world| unless(world, Broken::BelievesAfterGone)),
            Property::always("a lost lease is never believed again", a_lost_lease_stays_lost),
            Property::always("fences rise", |_, world| unless(world, Broken::FenceFell)),
            Property::always("nobody ends another's lease", |_, world| unless(world, Broken::EndedAnother)),
            Property::always("first in, first out", |_, world| unless(world, Broken::Overtaken)),
            Property::always("no orphan outlives one ttl", no_orphan),
            Property::always("queues are as short as requested", queues_are_bounded),
            Property::sometimes("someone believes", |_, world| believers(world).next().is_some()),
            Property::sometimes("a waiter gets its turn", |_, world| believers(world).any(|(_, fence)| fence > 1)),
            Property::sometimes("an unconfirmed turn ends", an_unconfirmed_turn_ends),
        ]
    }
}

fn believers(world: &World) -> impl Iterator<Item = (Id, u64)> {
    world.clients.iter().filter_map(crate::client::Client::belief)
}

/// Those who believe, but for the holders whose lease an eviction or a loss of memory took and who cannot know yet.
fn entitled(world: &World) -> impl Iterator<Item = (Id, u64)> {
    believers(world).filter(|(_, fence)| !world.past.taken.contains_key(fence))
}

fn at_most_capacity_believe(spec: &LeaseSpec, world: &World) -> bool {
    let claim = spec.rules.terms.claim;
    entitled(world).map(|_| u64::from(claim.units())).sum::<u64>() <= u64::from(claim.capacity())
}

/// At the backend it holds with the same fence, its end has not come, and nothing has to be confirmed.
fn a_believer_is_a_holder(_: &LeaseSpec, world: &World) -> bool {
    entitled(world).all(|(id, fence)| {
        let holds = |state| matches!(state, EntryState::Holding(held) if held.fence.get() == fence);
        world.server.alive(world.now).any(|(known, state)| known == id && holds(state))
    })
}

/// Where the ttl is the life of a lease, also when every push and every answer is lost.
fn belief_in_what_was_taken_ends(spec: &LeaseSpec, world: &World) -> bool {
    let terms = &spec.rules.terms;
    terms.expiry == Expiry::ByPresence
        || believers(world)
            .filter_map(|(_, fence)| world.past.taken.get(&fence))
            .all(|taken_at| world.now < taken_at + terms.ttl)
}

fn a_lost_lease_stays_lost(_: &LeaseSpec, world: &World) -> bool {
    believers(world).all(|(id, _)| !world.past.lost.contains(&id))
}

/// An entry that its live process does not want is being released; or a clock ends it and nobody renews it.
fn no_orphan(spec: &LeaseSpec, world: &World) -> bool {
    let by_clock = spec.rules.terms.expiry == Expiry::ByClock;
    world.server.alive(world.now).all(|(id, _)| {
        let client = &world.clients[client_of(id)];
        let ends_by_clock = by_clock && (world.past.closed.contains(&id) || world.past.lost.contains(&id));
        client.process == ProcessState::Dead || client.wants(id) || client.owed.contains(&id) || ends_by_clock
    })
}

fn queues_are_bounded(spec: &LeaseSpec, world: &World) -> bool {
    let waiting = world.server.alive(world.now).filter(|(_, state)| *state == EntryState::Waiting).count();
    // The one that accepts `most` ahead of it waits too.
    spec.rules.terms.max_waiters.is_none_or(|most| waiting <= most as usize + 1)
}

/// Someone has the hint of its turn, and the backend has given the turn to another, who believes.
fn an_unconfirmed_turn_ends(_: &LeaseSpec, world: &World) -> bool {
    let missed =
        |lease: ClientLease| matches!(lease, ClientLease::Asking { id, hint: Some(_), .. } if !world.server.knows(id));
    believers(world).next().is_some() && world.clients.iter().any(|client| missed(client.lease))
}

fn unless(world: &World, broken: Broken) -> bool {
    world.past.broken != Some(broken)
}
