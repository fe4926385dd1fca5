//! What is to happen to the calls of a faulty backend.

use std::{collections::HashMap, time::Duration};

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::dice::Dice;

/// The kinds of calls a backend has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BackendCall {
    /// `acquire`.
    Acquire,
    /// `renew`.
    Renew,
    /// `release`.
    Release,
    /// `evict`.
    Evict,
    /// `list`.
    List,
    /// `history`.
    History,
    /// `watch`.
    Watch,
    /// `examine`.
    Examine,
}

/// How many of a hundred calls meet each fate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Odds {
    /// The request is lost.
    pub drop_request: u32,
    /// The reply is lost.
    pub drop_reply: u32,
    /// The request is done twice.
    pub double: u32,
    /// The request takes up to this long.
    pub delay: Duration,
}

/// Holds calls back until it is opened or dropped.
#[derive(Debug)]
#[must_use = "the gate opens when it is dropped"]
pub struct Gate(watch::Sender<bool>);

impl Gate {
    /// Lets everyone pass, now and later.
    pub fn open(self) {}
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.0.send_replace(true);
    }
}

/// A call that waits at a closed gate.
#[derive(Clone, Debug)]
pub(super) struct HeldAtGate(watch::Receiver<bool>);

impl HeldAtGate {
    pub(super) async fn opened(mut self) {
        let _gone = self.0.wait_for(|open| *open).await;
    }

    fn is_open(&self) -> bool {
        *self.0.borrow()
    }
}

/// What happens to one call.
#[derive(Debug, Default)]
pub(super) struct Fate {
    pub(super) delay: Option<Duration>,
    pub(super) held_before: Option<HeldAtGate>,
    pub(super) drop_request: bool,
    pub(super) double: bool,
    pub(super) held_after: Option<HeldAtGate>,
    pub(super) drop_reply: bool,
}

/// What is to happen to calls.
#[derive(Debug, Default)]
pub(super) struct Plan(Mutex<Orders>);

#[derive(Debug, Default)]
struct Orders {
    cut: bool,
    delay: Option<Duration>,
    chance: Option<(Dice, Odds)>,
    any: Losses,
    of: HashMap<BackendCall, Losses>,
    counts: HashMap<BackendCall, usize>,
}

/// What is still to be lost, doubled or held back.
#[derive(Debug, Default)]
struct Losses {
    requests: usize,
    replies: usize,
    doubles: usize,
    held_before: Option<HeldAtGate>,
    held_after: Option<HeldAtGate>,
}

impl Plan {
    pub(super) fn cut(&self) {
        self.0.lock().cut = true;
    }

    pub(super) fn heal(&self) {
        self.0.lock().cut = false;
    }

    pub(super) fn is_cut(&self) -> bool {
        self.0.lock().cut
    }

    pub(super) fn count(&self, call: BackendCall) -> usize {
        self.0.lock().counts.get(&call).copied().unwrap_or_default()
    }

    pub(super) fn delay(&self, length: Duration) {
        self.0.lock().delay = Some(length);
    }

    pub(super) fn by_chance(&self, seed: u64, odds: Odds) {
        self.0.lock().chance = Some((Dice::new(seed), odds));
    }

    pub(super) fn drop_requests(&self, call: Option<BackendCall>, count: usize) {
        self.0.lock().losses(call).requests += count;
    }

    pub(super) fn drop_replies(&self, call: Option<BackendCall>, count: usize) {
        self.0.lock().losses(call).replies += count;
    }

    pub(super) fn double_requests(&self, call: BackendCall, count: usize) {
        self.0.lock().losses(Some(call)).doubles += count;
    }

    pub(super) fn hold_requests(&self, call: BackendCall) -> Gate {
        let (gate, held) = gate();
        self.0.lock().losses(Some(call)).held_before = Some(held);
        gate
    }

    pub(super) fn hold_replies(&self, call: BackendCall) -> Gate {
        let (gate, held) = gate();
        self.0.lock().losses(Some(call)).held_after = Some(held);
        gate
    }

    /// Decides what happens to a call that is being made.
    pub(super) fn fate(&self, call: BackendCall) -> Fate {
        let mut orders = self.0.lock();
        *orders.counts.entry(call).or_default() += 1;
        let mut fate = Fate { delay: orders.delay, ..Fate::default() };
        if let Some((dice, odds)) = &mut orders.chance {
            fate.drop_request = dice.percent(odds.drop_request);
            fate.drop_reply = dice.percent(odds.drop_reply);
            fate.double = dice.percent(odds.double);
            let delay = odds.delay * dice.below(100) / 100;
            fate.delay = fate.delay.or(Some(delay).filter(|delay| !delay.is_zero()));
        }
        for losses in [Some(call), None] {
            orders.losses(losses).befall(&mut fate);
        }
        fate
    }
}

impl Orders {
    fn losses(&mut self, call: Option<BackendCall>) -> &mut Losses {
        match call {
            Some(call) => self.of.entry(call).or_default(),
            None => &mut self.any,
        }
    }
}

impl Losses {
    fn befall(&mut self, fate: &mut Fate) {
        let one_less = |left: &mut usize| {
            let any = *left > 0;
            *left -= usize::from(any);
            any
        };
        fate.drop_request |= one_less(&mut self.requests);
        // A lost request has no reply to lose.
        fate.drop_reply |= !fate.drop_request && one_less(&mut self.replies);
        fate.double |= !fate.drop_request && one_less(&mut self.doubles);
        fate.held_before = fate.held_before.take().or(self.held_before.clone().filter(|held| !held.is_open()));
        fate.held_after = fate.held_after.take().or(self.held_after.clone().filter(|held| !held.is_open()));
    }
}

fn gate() -> (Gate, HeldAtGate) {
    let (sender, receiver) = watch::channel(false);
    (Gate(sender), HeldAtGate(receiver))
}
