//! One instance of the backend under trial, with answers taken apart.

use std::{future::poll_fn, sync::Arc, time::Duration};

use leasehold::{
    Fence, Holder, Resource, Ttl,
    backend::{Backend, Decision, EventStream, Hint, Hints, Missed, Patience, Renewal, Request},
    lease::{
        Busy, Claim, EndedLease, Event, Evicted, Grant, HistoryFilter, LeaseId, LeaseKey, LeaseRecord, ListFilter,
        Names, Outcome, QueuePosition, Released, Standing,
    },
};
use tokio::{sync::Mutex, time};

/// Longer than any test takes: only what is meant to expire does.
pub(crate) const LONG: Duration = Duration::from_secs(3600);

/// What must come, comes within this; generous, for machines with better things to do.
pub(crate) const SOON: Duration = Duration::from_secs(10);

/// What must not come is waited for so long.
pub(crate) const MOMENT: Duration = Duration::from_millis(60);

/// A resource of this name.
pub(crate) fn resource(name: &str) -> Resource {
    Resource::new(name).expect("trials use good names")
}

/// A ttl of this length.
pub(crate) fn ttl(length: Duration) -> Ttl {
    Ttl::new(length).expect("trials use good ttls")
}

/// Permits of a semaphore.
pub(crate) fn permits(units: u32, limit: u32) -> Claim {
    Claim::permits(units, limit).expect("trials use good claims")
}

/// A request under a new id that joins the queue.
pub(crate) fn ask(name: &str, claim: Claim) -> Request {
    let id = LeaseId::random();
    let holder = Holder::new(format!("holder-{}", &id.to_string()[..8])).expect("a good label");
    Request::new(LeaseKey::new(resource(name), id), claim, holder).ttl(ttl(LONG))
}

/// An ask under a new id that leaves at once when it is busy.
pub(crate) fn attempt(name: &str, claim: Claim) -> Request {
    ask(name, claim).patience(Patience::Try)
}

/// A renewal of this ask that changes nothing else.
pub(crate) fn renewal(request: &Request) -> Renewal {
    Renewal::new(request.key.clone(), request.ttl)
}

/// An instance and its hints.
#[derive(Debug)]
pub(crate) struct Instance {
    pub(crate) backend: Arc<dyn Backend>,
    hints: Mutex<Hints>,
}

impl Instance {
    pub(crate) fn new(backend: Arc<dyn Backend>) -> Self {
        let hints = Mutex::new(backend.hints());
        Self { backend, hints }
    }

    /// Asks again while the outcome is unknown, as the engine does: on a busy machine, a server may answer too late.
    pub(crate) async fn acquire(&self, request: &Request) -> Decision {
        for _ in 0..20 {
            match self.backend.acquire(request).await {
                Err(error) if error.outcome_unknown() => time::sleep(Duration::from_millis(50)).await,
                answer => return answer.expect("acquire must be answered").value,
            }
        }
        panic!("acquire must be answered");
    }

    pub(crate) async fn granted(&self, request: &Request) -> Grant {
        match self.acquire(request).await {
            Decision::Granted(grant) => grant,
            other => panic!("{} should be granted to {}: {other:?}", request.key.resource, request.holder),
        }
    }

    pub(crate) async fn queued(&self, request: &Request) -> QueuePosition {
        match self.acquire(request).await {
            Decision::Queued(position) => position,
            other => panic!("{} should wait for {}: {other:?}", request.holder, request.key.resource),
        }
    }

    pub(crate) async fn busy(&self, request: &Request) -> Busy {
        match self.acquire(request).await {
            Decision::Busy(busy) => busy,
            other => panic!("{} should be busy for {}: {other:?}", request.key.resource, request.holder),
        }
    }

    pub(crate) async fn renew(&self, renewal: Renewal) -> Standing {
        let standings = self.renew_all(&[renewal]).await;
        *standings.first().expect("one renewal, one standing")
    }

    pub(crate) async fn renew_all(&self, renewals: &[Renewal]) -> Vec<Standing> {
        let standings = self.backend.renew(renewals).await.expect("renew must be answered").value;
        assert_eq!(standings.len(), renewals.len(), "as many standings as renewals");
        standings
    }

    pub(crate) async fn standing(&self, request: &Request) -> Standing {
        self.renew(renewal(request)).await
    }

    /// The grant of a lease that holds.
    pub(crate) async fn holding(&self, request: &Request) -> Grant {
        match self.standing(request).await {
            Standing::Holding(grant) => grant,
            other => panic!("{} should hold {}: {other:?}", request.holder, request.key.resource),
        }
    }

    pub(crate) async fn release(&self, request: &Request) -> Released {
        self.release_as(request, &Outcome::Completed).await
    }

    pub(crate) async fn release_as(&self, request: &Request, outcome: &Outcome) -> Released {
        self.backend.release(&request.key, outcome).await.expect("release must be answered").value
    }

    pub(crate) async fn free(&self, request: &Request) {
        assert_eq!(self.release(request).await, Released::Freed, "{} should have held", request.holder);
    }

    pub(crate) async fn evict(&self, name: &str, fence: Fence, reason: &str) -> Evicted {
        self.backend.evict(&resource(name), fence, reason).await.expect("evict must be answered")
    }

    pub(crate) async fn list(&self, name: &str) -> Vec<LeaseRecord> {
        let filter = ListFilter::new(Names::Exactly(resource(name)));
        self.backend.list(&filter).await.expect("list must be answered").leases
    }

    pub(crate) async fn history(&self, name: &str) -> Vec<EndedLease> {
        let filter = HistoryFilter::new(Names::Exactly(resource(name)));
        self.backend.history(&filter).await.expect("history must be answered")
    }

    pub(crate) async fn watch(&self, names: Names) -> EventReader {
        EventReader(self.backend.watch(names).await.expect("watch must be answered"))
    }

    /// The next hint, if one comes in time.
    pub(crate) async fn hint(&self, within: Duration) -> Option<Hint> {
        time::timeout(within, async { self.hints.lock().await.next().await }).await.ok().flatten()
    }

    /// Waits until this instance is told that the lease was granted.
    pub(crate) async fn told_granted(&self, request: &Request) -> Fence {
        loop {
            match self.hint(SOON).await {
                Some(Hint::Granted { id, fence, .. }) if id == request.key.id => return fence,
                Some(Hint::Granted { id, .. }) => panic!("told of {id:?}, twice or before its turn"),
                Some(_) => {}
                None => panic!("{} was not told that it holds {}", request.holder, request.key.resource),
            }
        }
    }

    /// Waits until this instance is told that the lease was taken away.
    pub(crate) async fn told_evicted(&self, request: &Request) {
        loop {
            match self.hint(SOON).await {
                Some(Hint::Evicted { id }) if id == request.key.id => return,
                Some(_) => {}
                None => panic!("{} was not told that it was evicted", request.holder),
            }
        }
    }

    /// Nothing about grants comes for a while.
    pub(crate) async fn told_nothing(&self) {
        while let Some(hint) = self.hint(MOMENT).await {
            assert!(matches!(hint, Hint::Changed { .. }), "a hint that concerns nobody here: {hint:?}");
        }
    }
}

/// Events, one by one.
pub(crate) struct EventReader(EventStream);

impl EventReader {
    pub(crate) async fn next(&mut self) -> Event {
        self.next_or_missed().await.expect("none is missed")
    }

    pub(crate) async fn next_or_missed(&mut self) -> Result<Event, Missed> {
        let next = poll_fn(|cx| self.0.as_mut().poll_next(cx));
        time::timeout(SOON, next).await.expect("an event should have come").expect("the stream goes on")
    }

    pub(crate) async fn nothing(&mut self) {
        let next = poll_fn(|cx| self.0.as_mut().poll_next(cx));
        if let Ok(event) = time::timeout(MOMENT, next).await {
            panic!("an event that did not happen: {event:?}");
        }
    }
}
