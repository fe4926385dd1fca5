//! Backends that are broken on purpose: a suite that passes them proves nothing.

#![allow(clippy::unwrap_used, reason = "to panic is how a test fails")]

use std::{
    collections::HashMap,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use futures_core::Stream;
use leasehold::{
    Fence, Resource, Result, Ttl,
    backend::{
        Answer, Backend, Decision, EventStream, Finding, Guarantees, Hint, HintSender, Hints, Inspect, Lifetime,
        Missed, Patience, Renewal, Request,
    },
    backends::memory::MemoryBackend,
    clock::{Clock, SystemClock},
    lease::{
        Busy, EndedLease, Event, EventKind, Evicted, Grant, HistoryFilter, LeaseId, LeaseKey, LeasePage, LeaseState,
        ListFilter, Names, Outcome, QueuePosition, Released, Standing, Timestamp,
    },
};
use leasehold_conformance::{Fixture, failures};
use parking_lot::Mutex;
use tokio::{task::JoinSet, time};

/// What is wrong with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    GrantsToAll,
    TryTakesAPlace,
    AsksUnderAnotherId,
    ReleasesByName,
    FencesStandStill,
    BendsFloors,
    ShapesAreIgnored,
    RenewingRevives,
    DetachedIsAttached,
    EvictsWhoeverHolds,
    TellsNobody,
    TellsEverybody,
    CountsOneTooMany,
    LosesMetadata,
    LosesOutcomes,
    HistoryOldestFirst,
    PagesBeginAnew,
    EventsWithoutWaiters,
    MissesInSilence,
    DemotesHolders,
    /// The rest concern backends that see the death of a process.
    TrustsIdsOfTheDead,
    ConfirmsByItself,
}

/// Each flaw, and a trial that must notice it.
const FLAWS: &[(Flaw, &str)] = &[
    (Flaw::GrantsToAll, "never two at a time"),
    (Flaw::TryTakesAPlace, "a try leaves nothing behind"),
    (Flaw::AsksUnderAnotherId, "asking twice with one id"),
    (Flaw::ReleasesByName, "releasing another's id"),
    (Flaw::FencesStandStill, "fences rise over a thousand grants"),
    (Flaw::BendsFloors, "a floor on renew"),
    (Flaw::ShapesAreIgnored, "in use as something else"),
    (Flaw::RenewingRevives, "renewing what is gone"),
    (Flaw::DetachedIsAttached, "a detached lease expires"),
    (Flaw::EvictsWhoeverHolds, "evicting under a stale fence"),
    (Flaw::TellsNobody, "each told once [election]"),
    (Flaw::TellsEverybody, "a hint comes after"),
    (Flaw::CountsOneTooMany, "random histories are"),
    (Flaw::LosesMetadata, "holders, notes and metadata"),
    (Flaw::LosesOutcomes, "every ending is recorded"),
    (Flaw::HistoryOldestFirst, "newest first"),
    (Flaw::PagesBeginAnew, "in pages"),
    (Flaw::EventsWithoutWaiters, "a follower sees everything"),
    (Flaw::MissesInSilence, "misses nothing in silence"),
    (Flaw::DemotesHolders, "one call renews many"),
    #[cfg(target_os = "linux")]
    (Flaw::TrustsIdsOfTheDead, "an instance that is gone"),
    #[cfg(target_os = "linux")]
    (Flaw::ConfirmsByItself, "does not confirm its turn"),
];

#[test]
fn every_flaw_is_noticed() {
    for &(flaw, trial) in FLAWS {
        let failed = failures(trial, async |clock| BrokenFixture {
            store: match flaw {
                #[cfg(target_os = "linux")]
                Flaw::TrustsIdsOfTheDead | Flaw::ConfirmsByItself => {
                    Store::Files(tempfile::TempDir::new().unwrap(), clock)
                }
                _ => Store::Memory(MemoryBackend::private(clock)),
            },
            flaw,
            all_hints: HintSender::new(),
            last: Arc::default(),
        });
        assert!(!failed.is_empty(), "{flaw:?} passed {trial:?}");
    }
}

/// What the instances of a fixture share.
enum Store {
    Memory(MemoryBackend),
    #[cfg(target_os = "linux")]
    Files(tempfile::TempDir, Arc<dyn Clock>),
}

struct BrokenFixture {
    store: Store,
    flaw: Flaw,
    all_hints: HintSender,
    last: Arc<Mutex<HashMap<Resource, LeaseId>>>,
}

#[async_trait::async_trait]
impl Fixture for BrokenFixture {
    async fn instance(&self) -> Arc<dyn Backend> {
        let (flaw, last, silent) = (self.flaw, Arc::clone(&self.last), HintSender::new());
        let all_hints = self.all_hints.clone();
        let sound: Arc<dyn Backend> = match &self.store {
            Store::Memory(memory) => Arc::new(memory.sibling()),
            #[cfg(target_os = "linux")]
            Store::Files(root, clock) => {
                use leasehold::backends::file::{FileBackend, FileOptions};

                let url = format!("file://{}", root.path().display());
                let options = FileOptions::from_url(&url, "suite", Arc::clone(clock)).unwrap();
                Arc::new(FileBackend::open(options).await.unwrap())
            }
        };
        Arc::new(Broken { sound, flaw, silent, all_hints, last, confirming: Mutex::default() })
    }
}

#[derive(Debug)]
struct Broken {
    sound: Arc<dyn Backend>,
    flaw: Flaw,
    silent: HintSender,
    all_hints: HintSender,
    last: Arc<Mutex<HashMap<Resource, LeaseId>>>,
    /// Tasks that confirm turns while nobody asks them to.
    confirming: Mutex<JoinSet<()>>,
}

impl Broken {
    fn bend(&self, decision: Decision) -> Decision {
        let grant = |fence: u64| Decision::Granted(Grant::new(Fence::new(fence), Timestamp::default()));
        match (self.flaw, decision) {
            (Flaw::GrantsToAll, Decision::Queued(position)) => grant(position.last_fence.get() + 1),
            (Flaw::FencesStandStill, Decision::Granted(_)) => grant(7),
            (Flaw::ShapesAreIgnored, Decision::WrongShape { .. }) => Decision::Busy(Busy::default()),
            (Flaw::CountsOneTooMany, Decision::Queued(mut position)) => {
                position.ahead += 1;
                Decision::Queued(position)
            }
            (_, decision) => decision,
        }
    }
}

#[async_trait::async_trait]
impl Backend for Broken {
    fn guarantees(&self) -> Guarantees {
        self.sound.guarantees()
    }

    fn hints(&self) -> Hints {
        match self.flaw {
            Flaw::TellsNobody => self.silent.subscribe(),
            Flaw::TellsEverybody => self.all_hints.subscribe(),
            _ => self.sound.hints(),
        }
    }

    async fn acquire(&self, request: &Request) -> Result<Answer<Decision>> {
        let mut request = request.clone();
        let resource = request.key.resource.clone();
        if self.flaw == Flaw::TryTakesAPlace {
            request.patience = Patience::Queue;
        }
        if self.flaw == Flaw::AsksUnderAnotherId {
            request.key.id = LeaseId::random();
        }
        if self.flaw == Flaw::DetachedIsAttached && request.lifetime == Lifetime::Detached {
            request.ttl = Ttl::MAX;
        }
        let answer = self.sound.acquire(&request).await?;
        if matches!(answer.value, Decision::Granted(_)) {
            self.last.lock().insert(resource, request.key.id);
        }
        if self.flaw == Flaw::ConfirmsByItself && matches!(answer.value, Decision::Queued(_)) {
            let (sound, renewal) = (Arc::clone(&self.sound), Renewal::new(request.key.clone(), request.ttl));
            self.confirming.lock().spawn(async move {
                while sound.renew(std::slice::from_ref(&renewal)).await.is_ok() {
                    time::sleep(Duration::from_millis(10)).await;
                }
            });
        }
        Ok(answer.map(|decision| self.bend(decision)))
    }

    async fn renew(&self, renewals: &[Renewal]) -> Result<Answer<Vec<Standing>>> {
        let mut renewals = renewals.to_vec();
        if self.flaw == Flaw::BendsFloors {
            for renewal in &mut renewals {
                let limit = SystemClock.wall().after(Duration::from_secs(9));
                renewal.fence_floor = renewal.fence_floor.map(|floor| floor.min(Fence::new(limit.as_micros())));
            }
        }
        let mut answer = self.sound.renew(&renewals).await?;
        if self.flaw == Flaw::DemotesHolders {
            let waiting = Standing::Waiting(QueuePosition::new(0, Fence::default(), None));
            answer
                .value
                .iter_mut()
                .filter(|standing| matches!(standing, Standing::Holding(_)))
                .for_each(|s| *s = waiting);
        }
        if matches!(self.flaw, Flaw::RenewingRevives | Flaw::TrustsIdsOfTheDead) {
            for standing in &mut answer.value {
                if *standing == Standing::Gone {
                    let grant = Grant::new(Fence::new(7), Timestamp::default());
                    *standing = Standing::Holding(grant);
                }
            }
        }
        Ok(answer)
    }

    async fn release(&self, key: &LeaseKey, outcome: &Outcome) -> Result<Answer<Released>> {
        let mut key = key.clone();
        if self.flaw == Flaw::ReleasesByName
            && let Some(id) = self.last.lock().get(&key.resource)
        {
            key.id = *id;
        }
        let outcome = if self.flaw == Flaw::LosesOutcomes { &Outcome::Completed } else { outcome };
        let answer = self.sound.release(&key, outcome).await?;
        for record in self.sound.list(&ListFilter::new(Names::Exactly(key.resource.clone()))).await?.leases {
            if let LeaseState::Holding { fence, .. } = record.state {
                self.all_hints.send(Hint::granted(key.id, fence));
            }
        }
        Ok(answer)
    }
}

#[async_trait::async_trait]
impl Inspect for Broken {
    async fn evict(&self, resource: &Resource, expected: Fence, reason: &str) -> Result<Evicted> {
        match self.sound.evict(resource, expected, reason).await? {
            Evicted::NoSuchFence { current } if self.flaw == Flaw::EvictsWhoeverHolds && !current.is_empty() => {
                self.sound.evict(resource, current[0], reason).await
            }
            evicted => Ok(evicted),
        }
    }

    async fn list(&self, filter: &ListFilter) -> Result<LeasePage> {
        let mut filter = filter.clone();
        if self.flaw == Flaw::PagesBeginAnew {
            filter.after = None;
        }
        let mut page = self.sound.list(&filter).await?;
        if self.flaw == Flaw::LosesMetadata {
            page.leases.iter_mut().for_each(|lease| lease.metadata.clear());
        }
        Ok(page)
    }

    async fn history(&self, filter: &HistoryFilter) -> Result<Vec<EndedLease>> {
        let mut history = self.sound.history(filter).await?;
        if self.flaw == Flaw::HistoryOldestFirst {
            history.reverse();
        }
        Ok(history)
    }

    async fn watch(&self, names: Names) -> Result<EventStream> {
        let events = self.sound.watch(names).await?;
        let left_out: fn(&Result<Event, Missed>) -> bool = match self.flaw {
            Flaw::EventsWithoutWaiters => |event| matches!(event, Ok(event) if event.kind == EventKind::Waiting),
            Flaw::MissesInSilence => |event| event.is_err(),
            _ => return Ok(events),
        };
        Ok(Box::pin(LeavingOut(events, left_out)))
    }

    async fn examine(&self) -> Result<Vec<Finding>> {
        self.sound.examine().await
    }
}

struct LeavingOut(EventStream, fn(&Result<Event, Missed>) -> bool);

impl Stream for LeavingOut {
    type Item = Result<Event, Missed>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            let event = ready!(self.0.as_mut().poll_next(cx));
            if !event.as_ref().is_some_and(self.1) {
                return Poll::Ready(event);
            }
        }
    }
}
