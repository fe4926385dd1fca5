//! The specification of a quorum whose nodes may lose their memory.
//!
//! A node that lost its memory may have forgotten a lease that is still believed. It does not vote until its memory is
//! as old as the longest ttl: by then every lease that it may have forgotten has ended.
//!
//! Three nodes run the real rule. A call to one node is one step, so a request that arrives after its client gave up is
//! not modelled: it could only take a vote away from others. Nor are renewals, which count from their sending like a new
//! grant. Clients and nodes share a clock.

use leasehold::{
    backend::{
        Patience,
        model::{Expiry, Presence},
    },
    lease::Claim,
};
use stateright::{Model, Property};

use crate::{
    client::Tick,
    server::{Id, ServerModel, ServerOperation, ServerVerdict, Terms, id_of},
};

const NODES: usize = 3;
const MAJORITY: usize = 2;
const MARGIN: Tick = 1;

/// The ttl of each client, in ticks. The longest bounds how long a forgotten lease may be believed.
const TTLS: [Tick; 2] = [4, 2];
const LONGEST_TTL: Tick = 4;

/// How long a node that lost its memory stays without a vote.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Quarantine {
    /// Until its memory is as old as the longest ttl.
    LongestTtl,
    /// A bug: until its memory is as old as the ttl of who asks.
    AskersTtl,
    /// A bug: it votes at once.
    None,
}

/// A quorum within bounds.
#[derive(Clone, Copy, Debug)]
pub struct RedlockSpec {
    /// How long a node that lost its memory stays without a vote.
    pub quarantine: Quarantine,
    /// How often nodes may lose their memory.
    pub wipes: u8,
    /// How many ticks to look ahead.
    pub horizon: Tick,
}

/// The nodes and the clients at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct QuorumModel {
    now: Tick,
    nodes: Vec<NodeModel>,
    clients: Vec<Voter>,
    wipes: u8,
    /// Whether a node voted after it had lost its memory.
    voted_again: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct NodeModel {
    server: ServerModel,
    /// When its memory began.
    born: Tick,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Voter {
    has_asked: bool,
    stage: ClientStage,
}

/// How far a client has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum ClientStage {
    Idle,
    Asking { id: Id, sent: Tick, asked: [bool; NODES], votes: usize },
    Held { id: Id, deadline: Tick },
}

/// Something that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// A client begins to ask; it does so once.
    Begin(usize),
    /// A client asks a node.
    Ask(usize, usize),
    /// A client believes its majority.
    Believe(usize),
    /// A client releases on every node.
    Release(usize),
    /// A node loses its memory.
    Wipe(usize),
    /// Time passes.
    Tick,
}

impl RedlockSpec {
    fn terms(client: usize) -> Terms {
        Terms {
            claim: Claim::EXCLUSIVE,
            expiry: Expiry::ByClock,
            ttl: TTLS[client],
            patience: Patience::Try,
            max_waiters: None,
        }
    }

    fn votes(self, node: &NodeModel, client: usize, now: Tick) -> bool {
        let quarantine = match self.quarantine {
            Quarantine::LongestTtl => LONGEST_TTL,
            Quarantine::AskersTtl => TTLS[client],
            Quarantine::None => 0,
        };
        now - node.born >= quarantine
    }

    fn apply(self, quorum: &mut QuorumModel, action: Action) -> Option<()> {
        let now = quorum.now;
        let at = ServerOperation { now, presence: &|_| Presence::Present };
        match action {
            Action::Begin(client) => {
                let voter = &mut quorum.clients[client];
                voter.has_asked = true;
                let id = id_of(client, 1);
                voter.stage = ClientStage::Asking { id, sent: now, asked: [false; NODES], votes: 0 };
            }
            Action::Ask(client, which) => {
                let ClientStage::Asking { id, asked, votes, .. } = &mut quorum.clients[client].stage else {
                    return None;
                };
                let node = &mut quorum.nodes[which];
                asked[which] = true;
                let (verdict, _) = node.server.acquire(*id, &Self::terms(client), &at);
                if matches!(verdict, ServerVerdict::Holding(_)) && self.votes(node, client, now) {
                    *votes += 1;
                    quorum.voted_again |= node.born > 0;
                }
            }
            Action::Believe(client) => {
                let ClientStage::Asking { id, sent, .. } = quorum.clients[client].stage else { return None };
                quorum.clients[client].stage = ClientStage::Held { id, deadline: sent + TTLS[client] - MARGIN };
            }
            Action::Release(client) => {
                let (ClientStage::Asking { id, .. } | ClientStage::Held { id, .. }) = quorum.clients[client].stage
                else {
                    return None;
                };
                for node in &mut quorum.nodes {
                    node.server.release(id, &at);
                }
                quorum.clients[client].stage = ClientStage::Idle;
            }
            Action::Wipe(which) => {
                quorum.wipes += 1;
                let node = &mut quorum.nodes[which];
                node.server.forget();
                node.born = now;
            }
            Action::Tick => {
                quorum.now += 1;
                for voter in &mut quorum.clients {
                    if matches!(voter.stage, ClientStage::Held { deadline, .. } if deadline <= quorum.now) {
                        voter.stage = ClientStage::Idle;
                    }
                }
            }
        }
        Some(())
    }
}

impl Model for RedlockSpec {
    type State = QuorumModel;
    type Action = Action;

    /// The nodes are older than any quarantine.
    fn init_states(&self) -> Vec<QuorumModel> {
        let clients = vec![Voter { has_asked: false, stage: ClientStage::Idle }; TTLS.len()];
        let nodes = vec![NodeModel { server: ServerModel::default(), born: 0 }; NODES];
        vec![QuorumModel { now: LONGEST_TTL, nodes, clients, wipes: 0, voted_again: false }]
    }

    fn actions(&self, quorum: &QuorumModel, actions: &mut Vec<Action>) {
        for (client, voter) in quorum.clients.iter().enumerate() {
            match voter.stage {
                ClientStage::Idle if !voter.has_asked => actions.push(Action::Begin(client)),
                ClientStage::Idle => {}
                ClientStage::Asking { sent, asked, votes, .. } => {
                    let mut unasked = (0..NODES).filter(|which| !asked[*which]);
                    // Nodes are alike until someone asks, so they are numbered in the order in which the first
                    // client asks them.
                    if client == 0 {
                        actions.extend(unasked.next().map(|which| Action::Ask(client, which)));
                    } else {
                        actions.extend(unasked.map(|which| Action::Ask(client, which)));
                    }
                    if votes >= MAJORITY && quorum.now < sent + TTLS[client] - MARGIN {
                        actions.push(Action::Believe(client));
                    }
                    actions.push(Action::Release(client));
                }
                ClientStage::Held { .. } => actions.push(Action::Release(client)),
            }
        }
        if quorum.wipes < self.wipes {
            actions.extend((0..NODES).map(Action::Wipe));
        }
        if quorum.now < LONGEST_TTL + self.horizon {
            actions.push(Action::Tick);
        }
    }

    fn next_state(&self, before: &QuorumModel, action: Action) -> Option<QuorumModel> {
        let mut quorum = before.clone();
        self.apply(&mut quorum, action)?;
        Some(quorum)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("at most one believes", |_, quorum| believers(quorum) <= 1),
            Property::sometimes("someone believes", |_, quorum| believers(quorum) == 1),
            Property::sometimes("a node that lost its memory votes again", |_, quorum: &QuorumModel| {
                quorum.voted_again
            }),
        ]
    }
}

fn believers(quorum: &QuorumModel) -> usize {
    quorum.clients.iter().filter(|voter| matches!(voter.stage, ClientStage::Held { .. })).count()
}
