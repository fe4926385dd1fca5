//! A trial: something a backend must do, which of its guarantees call for it, and what it is run on.

use std::{future::Future, pin::Pin, sync::Arc};

use leasehold::{
    backend::{Guarantees, Liveness},
    clock::ManualClock,
    lease::Claim,
};

use crate::{fixture::Fixture, instance::Instance};

/// Something that a backend must do, tried on fresh storage.
pub(crate) struct Trial {
    pub(crate) name: String,
    pub(crate) time: Time,
    /// Why these guarantees do not call for it, if they do not.
    pub(crate) uncalled_for: fn(&Guarantees) -> Option<&'static str>,
    pub(crate) run: Run,
}

type Run = Box<dyn Fn(TrialContext) -> Pin<Box<dyn Future<Output = ()>>>>;

/// Which clock the backend reads during a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Time {
    Real,
    Manual,
}

impl Trial {
    /// A trial that every backend must pass.
    pub(crate) fn new<F>(name: &str, run: fn(TrialContext) -> F) -> Self
    where
        F: Future<Output = ()> + 'static,
    {
        Self::of(name.to_owned(), run)
    }

    pub(crate) fn of<F>(name: String, run: impl Fn(TrialContext) -> F + 'static) -> Self
    where
        F: Future<Output = ()> + 'static,
    {
        let run: Run = Box::new(move |context| Box::pin(run(context)));
        Self { name, time: Time::Real, uncalled_for: |_| None, run }
    }

    /// The same trial through each claim that holds alone: whatever it is called, it is one lock.
    pub(crate) fn alone<F>(name: &str, run: fn(TrialContext, Claim) -> F) -> Vec<Self>
    where
        F: Future<Output = ()> + 'static,
    {
        let semaphore = |units| Claim::permits(units, units).expect("good claims");
        let ways = [
            ("mutex and write lock", Claim::EXCLUSIVE),
            ("semaphore of 1", semaphore(1)),
            ("semaphore of 3, taken whole", semaphore(3)),
            ("election", Claim::LEADER),
        ];
        let of_way = |(way, claim)| Self::of(format!("{name} [{way}]"), move |context| run(context, claim));
        ways.into_iter().map(of_way).collect()
    }

    pub(crate) fn manual(self) -> Self {
        Self { time: Time::Manual, ..self }
    }

    pub(crate) fn if_fifo(self) -> Self {
        Self { uncalled_for: |promised| (!promised.fifo).then_some("it does not promise order"), ..self }
    }

    pub(crate) fn if_pushes(self) -> Self {
        let uncalled_for = |promised: &Guarantees| match (promised.fifo, promised.pushes) {
            (true, true) => None,
            (false, _) => Some("it does not promise order"),
            (_, false) => Some("it does not push grants"),
        };
        Self { uncalled_for, ..self }
    }

    pub(crate) fn if_fences(self) -> Self {
        Self { uncalled_for: |promised| (!promised.fences).then_some("it does not promise fences"), ..self }
    }

    pub(crate) fn if_ttl(self) -> Self {
        let uncalled_for = |promised: &Guarantees| match promised.liveness {
            Liveness::Ttl => None,
            Liveness::Process => Some("an attached lease lives as long as its process, whatever its ttl"),
            Liveness::Connection => Some("an attached lease lives as long as its connection, whatever its ttl"),
        };
        Self { uncalled_for, ..self }
    }

    pub(crate) fn if_records_runs(self) -> Self {
        let uncalled_for = |promised: &Guarantees| (!promised.records_runs).then_some("it does not remember runs");
        Self { uncalled_for, ..self }
    }

    pub(crate) fn if_death_is_seen(self) -> Self {
        let uncalled_for = |promised: &Guarantees| {
            (promised.liveness == Liveness::Ttl).then_some("it sees no death: the ttl ends a lease")
        };
        Self { uncalled_for, ..self }
    }
}

/// What a trial runs on: a fixture with fresh storage.
#[derive(Clone)]
pub(crate) struct TrialContext {
    pub(crate) fixture: Arc<dyn Fixture>,
    pub(crate) guarantees: Guarantees,
    /// The clock of the backend, for trials that move it.
    pub(crate) clock: ManualClock,
}

impl TrialContext {
    /// Opens another instance on the same storage and subscribes to its hints.
    pub(crate) async fn instance(&self) -> Arc<Instance> {
        Arc::new(Instance::new(self.fixture.instance().await))
    }

    /// Opens two of them.
    pub(crate) async fn two_instances(&self) -> (Arc<Instance>, Arc<Instance>) {
        (self.instance().await, self.instance().await)
    }
}
