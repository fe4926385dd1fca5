//! What may be asked next.

use std::time::Duration;

use leasehold::{
    Holder, Ttl,
    backend::{Lifetime, Patience, Renewal, Request},
    lease::{Claim, LeaseKey, Metadata, Outcome},
};

use super::Tempo;
use crate::{
    dice::Dice,
    instance::{LONG, permits, resource, ttl},
};

pub(super) const NAMES: u32 = 3;

/// Something that happens next. The name is a number; `instance` is any number.
#[derive(Debug)]
pub(super) enum Move {
    Acquire { name: usize, instance: usize, request: Request },
    Renew { name: usize, instance: usize, renewal: Renewal },
    Release { name: usize, instance: usize, key: LeaseKey, outcome: Outcome },
    Evict { name: usize, instance: usize, aim: Aim },
    Pass(Duration),
}

/// Whom an eviction is meant for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Aim {
    Holder(usize),
    Nobody,
}

/// A source of moves: the same seed gives the same ones.
pub(super) struct Moves {
    dice: Dice,
    seed: u64,
    tempo: Tempo,
    families: Vec<Vec<Claim>>,
    asked: Vec<Vec<Request>>,
}

impl Moves {
    pub(super) fn new(seed: u64, tempo: Tempo) -> Self {
        let mut dice = Dice::new(seed);
        let families = (0..NAMES).map(|_| dice.choose(&families()).clone()).collect();
        let asked = (0..NAMES).map(|_| Vec::new()).collect();
        Self { dice, seed, tempo, families, asked }
    }

    pub(super) fn next(&mut self) -> Move {
        let name = self.dice.below(NAMES) as usize;
        let instance = self.dice.below(3) as usize;
        match self.dice.below(100) {
            0..45 => Move::Acquire { name, instance, request: self.request(name) },
            45..65 => match self.known(name) {
                Some(request) => Move::Renew { name, instance, renewal: self.renewal(name, request) },
                None => self.next(),
            },
            65..88 => match self.known(name) {
                Some(request) => Move::Release { name, instance, key: request.key, outcome: self.outcome() },
                None => self.next(),
            },
            88..94 => {
                let holder = Aim::Holder(self.dice.below(4) as usize);
                let aim = if self.dice.percent(70) { holder } else { Aim::Nobody };
                Move::Evict { name, instance, aim }
            }
            _ if self.tempo == Tempo::Still => self.next(),
            _ => Move::Pass(Duration::from_millis(u64::from(self.dice.below(8)) * 500)),
        }
    }

    /// Mostly someone new, now and then someone who asked before, in the same words.
    fn request(&mut self, name: usize) -> Request {
        if self.dice.percent(25)
            && let Some(again) = self.known(name)
        {
            return again;
        }
        let id = self.dice.id();
        let holder = Holder::new(format!("holder-{}", &id.to_string()[..8])).expect("a good label");
        let key = LeaseKey::new(resource(&name_of(self.seed, name)), id);
        let mut request = Request::new(key, self.claim(name), holder).ttl(self.ttl());
        request.patience = if self.dice.percent(30) { Patience::Try } else { Patience::Queue };
        request.lifetime = if self.dice.percent(30) { Lifetime::Detached } else { Lifetime::Attached };
        request.max_waiters = self.dice.percent(20).then(|| self.dice.below(3));
        request.note = self.dice.percent(30).then(|| format!("note of {id}"));
        request.metadata = self.metadata();
        self.asked[name].push(request.clone());
        request
    }

    fn renewal(&mut self, name: usize, request: Request) -> Renewal {
        let mut renewal = Renewal::new(request.key, self.ttl());
        renewal.downgrade = self.dice.percent(40).then(|| self.claim(name));
        renewal.metadata = self.dice.percent(20).then(|| self.metadata());
        renewal.detach = self.dice.percent(10);
        renewal
    }

    fn outcome(&mut self) -> Outcome {
        match self.dice.below(8) {
            0 => Outcome::failed("Timeout", "no answer"),
            1 => Outcome::MaxHold,
            2 => Outcome::GaveUp,
            3 => Outcome::Cancelled,
            _ => Outcome::Completed,
        }
    }

    fn metadata(&mut self) -> Metadata {
        match self.dice.below(3) {
            0 => Metadata::from_iter([(String::from("n"), self.dice.below(1000).into())]),
            _ => Metadata::new(),
        }
    }

    /// Mostly of the name's family, now and then of another.
    fn claim(&mut self, name: usize) -> Claim {
        if self.dice.percent(6) {
            let family = self.dice.choose(&families()).clone();
            return *self.dice.choose(&family);
        }
        *self.dice.choose(&self.families[name])
    }

    fn ttl(&mut self) -> Ttl {
        match self.tempo {
            Tempo::Still => ttl(LONG),
            Tempo::Moving => ttl(Duration::from_millis(500) * (1 + self.dice.below(12))),
        }
    }

    /// One of the last few who asked for this name.
    fn known(&mut self, name: usize) -> Option<Request> {
        let asked = &self.asked[name];
        let recent = &asked[asked.len().saturating_sub(8)..];
        (!recent.is_empty()).then(|| self.dice.choose(recent).clone())
    }
}

pub(super) fn name_of(seed: u64, name: usize) -> String {
    format!("history:{seed}:{name}")
}

fn families() -> [Vec<Claim>; 4] {
    [
        vec![Claim::EXCLUSIVE, Claim::SHARED, Claim::SHARED],
        vec![permits(1, 4), permits(2, 4), permits(4, 4)],
        vec![Claim::LEADER],
        vec![Claim::EXCLUSIVE],
    ]
}
