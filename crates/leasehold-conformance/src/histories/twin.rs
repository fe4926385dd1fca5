//! One resource kept twice, by the backend and by the model, and compared after each step.

use std::{cmp::Reverse, collections::BTreeMap, fmt, sync::Arc, time::Duration};

use leasehold::{
    Fence, Resource, Result,
    backend::{
        Backend, Decision, Lifetime, Liveness, Request,
        model::{Context, Effects, Entry, Expiry, Presence, State},
    },
    clock::Clock,
    lease::{
        Busy, EndedLease, Evicted, HistoryFilter, LeaseId, LeaseRecord, LeaseState, ListFilter, Moment, Names,
        QueuePosition, Standing, Timestamp,
    },
};

use super::{
    Tempo,
    moves::{Aim, Move, NAMES, name_of},
};
use crate::{instance::resource, trial::TrialContext};

/// The backend and the model, side by side.
pub(super) struct Twin<'a> {
    instances: &'a [Arc<dyn Backend>],
    context: &'a TrialContext,
    seed: u64,
    tempo: Tempo,
    sides: Vec<Side>,
    steps: Vec<String>,
}

/// The model's side of one resource.
struct Side {
    resource: Resource,
    state: State,
    ended: Vec<EndedLease>,
    /// What the backend calls each fence of the model.
    fences: BTreeMap<Fence, Fence>,
    /// What each called the newest fence when someone waited.
    newest: Vec<(Fence, Fence)>,
    /// Which instance asked for each lease.
    owners: BTreeMap<LeaseId, usize>,
}

impl<'a> Twin<'a> {
    pub(super) fn new(instances: &'a [Arc<dyn Backend>], context: &'a TrialContext, seed: u64, tempo: Tempo) -> Self {
        let side = |name: u32| Side {
            resource: resource(&name_of(seed, name as usize)),
            state: State::default(),
            ended: Vec::new(),
            fences: BTreeMap::new(),
            newest: Vec::new(),
            owners: BTreeMap::new(),
        };
        Self { instances, context, seed, tempo, sides: (0..NAMES).map(side).collect(), steps: Vec::new() }
    }

    pub(super) async fn step(&mut self, next: Move) {
        self.steps.push(format!("{next:?}"));
        match next {
            Move::Acquire { name, instance, request } => {
                let expiry = self.expiry(&request);
                let Side { state, owners, .. } = &mut self.sides[name];
                if !state.entries.iter().any(|entry| entry.id == request.key.id) {
                    owners.insert(request.key.id, instance);
                }
                let decision = self
                    .apply(name, instance, |state, context, effects| state.acquire(&request, expiry, context, effects));
                let answer = self.told(self.instances[instance].acquire(&request).await).value;
                self.same_decision(name, &decision, &answer);
                self.same_listing(name, instance).await;
            }
            Move::Renew { name, instance, renewal } => {
                let standing =
                    self.apply(name, instance, |state, context, effects| state.renew(&renewal, context, effects));
                let answers = self.told(self.instances[instance].renew(&[renewal]).await).value;
                self.same("how many standings", &1, &answers.len());
                self.same_standing(name, &standing, &answers[0]);
                self.same_listing(name, instance).await;
            }
            Move::Release { name, instance, key, outcome } => {
                let released = self
                    .apply(name, instance, |state, context, effects| state.release(key.id, &outcome, context, effects));
                let answer = self.told(self.instances[instance].release(&key, &outcome).await).value;
                self.same("what a release did", &released, &answer);
                self.same_listing(name, instance).await;
            }
            Move::Evict { name, instance, aim } => self.evict(name, instance, aim).await,
            Move::Pass(length) => {
                self.context.clock.advance(length);
                for name in 0..self.sides.len() {
                    self.same_listing(name, 0).await;
                }
            }
        }
    }

    /// All that ended, ended alike.
    pub(super) async fn end(mut self) {
        for name in 0..self.sides.len() {
            let filter = HistoryFilter::new(Names::Exactly(self.sides[name].resource.clone())).limit(1000);
            let mut history = self.told(self.instances[0].history(&filter).await);
            let mut expected = std::mem::take(&mut self.sides[name].ended);
            expected.reverse();
            if self.tempo == Tempo::Moving {
                self.same(
                    "that history is newest first",
                    &true,
                    &history.is_sorted_by_key(|ended| Reverse(ended.ended_at)),
                );
                // What ended at the same moment may be told in any order.
                history.sort_by_key(|ended| (ended.ended_at, ended.holder.clone(), ended.fence));
                expected.sort_by_key(|ended| (ended.ended_at, ended.holder.clone(), ended.fence));
            }
            self.same("how many ended", &expected.len(), &history.len());
            for (model, backend) in expected.iter().zip(&history) {
                self.same_ending(name, model, backend);
            }
        }
    }

    async fn evict(&mut self, name: usize, instance: usize, aim: Aim) {
        let holding: Vec<Fence> =
            self.sides[name].state.entries.iter().filter_map(|entry| Some(entry.held()?.fence)).collect();
        let (of_model, of_backend) = match aim {
            Aim::Holder(at) if !holding.is_empty() => {
                let fence = holding[at % holding.len()];
                (fence, self.sides[name].fences.get(&fence).copied().unwrap_or_default())
            }
            _ => (Fence::new(1), Fence::new(1)),
        };
        let evicted =
            self.apply(name, instance, |state, context, effects| state.evict(of_model, "stuck", context, effects));
        let resource = self.sides[name].resource.clone();
        let answer = self.told(self.instances[instance].evict(&resource, of_backend, "stuck").await);
        match (&evicted, &answer) {
            (Evicted::NoSuchFence { current: model }, Evicted::NoSuchFence { current: backend }) => {
                self.same("how many hold", &model.len(), &backend.len());
                for (model, backend) in model.iter().zip(backend) {
                    self.same_fence(name, *model, *backend);
                }
            }
            _ => self.same("what an eviction did", &evicted, &answer),
        }
        self.same_listing(name, instance).await;
    }

    /// Runs the model on its side of a resource, as this instance does.
    fn apply<T>(
        &mut self,
        name: usize,
        instance: usize,
        rule: impl FnOnce(&mut State, &Context<'_>, &mut Effects) -> T,
    ) -> T {
        let (now, wall) = self.time();
        let hands_over_provisionally = self.context.guarantees.liveness != Liveness::Ttl;
        let Side { state, owners, .. } = &mut self.sides[name];
        let presence = |entry: &Entry| match owners.get(&entry.id) {
            Some(owner) if *owner != instance && hands_over_provisionally => Presence::Present,
            _ => Presence::Own,
        };
        let mut effects = Effects::default();
        let done = rule(state, &Context { now, wall, presence: &presence }, &mut effects);
        let side = &mut self.sides[name];
        let records = effects.ended.into_iter().map(|ended| ended.into_record(side.resource.clone()));
        side.ended.extend(records);
        done
    }

    /// The backend's own clock where it is known, else one that passes with the steps.
    fn time(&self) -> (Moment, Timestamp) {
        match self.tempo {
            Tempo::Moving => (self.context.clock.now(), self.context.clock.wall()),
            Tempo::Still => {
                let steps = Duration::from_micros(10) * u32::try_from(self.steps.len()).expect("few steps");
                (Moment::from_micros(1_000_000).after(steps), Timestamp::from_micros(1_000_000).after(steps))
            }
        }
    }

    fn expiry(&self, request: &Request) -> Expiry {
        match (self.context.guarantees.liveness, request.lifetime) {
            (Liveness::Ttl, _) | (_, Lifetime::Detached) => Expiry::ByClock,
            (Liveness::Process | Liveness::Connection, Lifetime::Attached) => Expiry::ByPresence,
        }
    }

    fn same_decision(&mut self, name: usize, model: &Decision, backend: &Decision) {
        match (model, backend) {
            (Decision::Granted(model), Decision::Granted(backend)) => {
                self.same_fence(name, model.fence, backend.fence);
            }
            (Decision::Queued(model), Decision::Queued(backend)) => {
                // Whoever joins a queue may be told to ask again early; the answer to that says exactly when.
                let mut backend = *backend;
                if backend.ask_again_in.is_some_and(|early| Some(early) < model.ask_again_in) {
                    backend.ask_again_in = model.ask_again_in;
                }
                self.same_place(name, model, &backend);
            }
            (Decision::Busy(model), Decision::Busy(backend)) => self.same_busy(name, model, backend),
            _ => self.same("a decision", model, backend),
        }
    }

    fn same_standing(&mut self, name: usize, model: &Standing, backend: &Standing) {
        match (model, backend) {
            (Standing::Holding(model), Standing::Holding(backend)) => {
                self.same_fence(name, model.fence, backend.fence);
            }
            (Standing::Waiting(model), Standing::Waiting(backend)) => self.same_place(name, model, backend),
            _ => self.same("a standing", model, backend),
        }
    }

    fn same_place(&mut self, name: usize, model: &QueuePosition, backend: &QueuePosition) {
        self.same("how many are ahead", &model.ahead, &backend.ahead);
        self.sides[name].newest.push((model.last_fence, backend.last_fence));
        self.newest_parts_old_from_new(name);
        match self.tempo {
            Tempo::Moving => self.same("when to ask again", &model.ask_again_in, &backend.ask_again_in),
            Tempo::Still => {
                self.same("whether to ask again", &model.ask_again_in.is_some(), &backend.ask_again_in.is_some());
            }
        }
    }

    fn same_busy(&mut self, name: usize, model: &Busy, backend: &Busy) {
        self.same("how many wait", &model.waiting, &backend.waiting);
        self.same("how many hold", &model.holders.len(), &backend.holders.len());
        for (model, backend) in model.holders.iter().zip(&backend.holders) {
            self.same(
                "who holds",
                &(&model.holder, &model.note, model.mode),
                &(&backend.holder, &backend.note, backend.mode),
            );
            self.same_fence(name, model.fence, backend.fence);
        }
    }

    async fn same_listing(&mut self, name: usize, instance: usize) {
        let resource = self.sides[name].resource.clone();
        let instance = (instance + 1) % self.instances.len();
        let model = self.apply(name, instance, |state, context, effects| {
            state.settle(context, effects);
            state.records(&resource, context)
        });
        let filter = ListFilter::new(Names::Exactly(resource));
        let backend = self.told(self.instances[instance].list(&filter).await).leases;
        self.same("how many are listed", &model.len(), &backend.len());
        for (model, backend) in model.iter().zip(&backend) {
            self.same_record(name, model, backend);
        }
    }

    fn same_record(&mut self, name: usize, model: &LeaseRecord, backend: &LeaseRecord) {
        let words = |record: &LeaseRecord| (record.holder.clone(), record.claim, record.ttl, record.note.clone());
        self.same("a record", &words(model), &words(backend));
        self.same("metadata", &model.metadata, &backend.metadata);
        match (model.state, backend.state) {
            (LeaseState::Holding { fence, .. }, LeaseState::Holding { fence: other, .. }) => {
                self.same_fence(name, fence, other);
            }
            (LeaseState::Waiting { ahead, .. }, LeaseState::Waiting { ahead: other, .. }) => {
                self.same("a queue position", &ahead, &other);
            }
            _ => self.same("whether it holds", &model.state, &backend.state),
        }
        match self.tempo {
            Tempo::Moving => self.same("when it ends", &model.expires_in, &backend.expires_in),
            Tempo::Still => self.same("whether it ends", &model.expires_in.is_some(), &backend.expires_in.is_some()),
        }
    }

    fn same_ending(&mut self, name: usize, model: &EndedLease, backend: &EndedLease) {
        let words = |ended: &EndedLease| (ended.holder.clone(), ended.claim, ended.ending, ended.problem.clone());
        self.same("an ending", &words(model), &words(backend));
        self.same("what ended", &(&model.note, &model.metadata), &(&backend.note, &backend.metadata));
        if self.tempo == Tempo::Moving {
            let times = |ended: &EndedLease| (ended.asked_at, ended.acquired_at, ended.ended_at);
            self.same("when it ended", &times(model), &times(backend));
        }
        match (model.fence, backend.fence) {
            (Some(model), Some(backend)) => self.same_fence(name, model, backend),
            (model, backend) => self.same("whether it had held", &model.is_some(), &backend.is_some()),
        }
    }

    /// The same grant always has the same fence, and fences come in the same order.
    fn same_fence(&mut self, name: usize, model: Fence, backend: Fence) {
        let known = *self.sides[name].fences.entry(model).or_insert(backend);
        self.same("a fence", &known, &backend);
        let fences = &self.sides[name].fences;
        let rising = fences.values().is_sorted_by(|lower, higher| lower < higher);
        self.same("that fences rise in the order of the grants", &true, &rising);
        self.newest_parts_old_from_new(name);
    }

    /// What a waiter was told to be the newest fence is not below any grant before, and below all after.
    fn newest_parts_old_from_new(&self, name: usize) {
        let side = &self.sides[name];
        for (newest, told) in &side.newest {
            for (model, backend) in &side.fences {
                self.same("whether a fence is new to who was told", &(model > newest), &(backend > told));
            }
        }
    }

    fn same<T: PartialEq + fmt::Debug + ?Sized>(&self, what: &str, model: &T, backend: &T) {
        assert!(
            model == backend,
            "{what}: the model says {model:?}, the backend {backend:?}\nin history LEASEHOLD_SEED={} after\n  {}",
            self.seed,
            self.steps.join("\n  ")
        );
    }

    fn told<T>(&self, answer: Result<T>) -> T {
        answer.unwrap_or_else(|error| {
            panic!("{error:#}\nin history LEASEHOLD_SEED={} after\n  {}", self.seed, self.steps.join("\n  "))
        })
    }
}
