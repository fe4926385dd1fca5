//! One leader among candidates.

use std::{
    env, fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::terms::Terms;
use crate::{
    Error, Leasehold, Result,
    backend::EventStream,
    engine::{Backoff, Guard, Lease, Wait},
    lease::{Claim, Fence, Holder, LeaseState, ListFilter, Metadata, Names, Released, Resource, Timestamp, Ttl},
};

type OnElected = Arc<dyn Fn(&Lease) + Send + Sync>;
type OnLost = Arc<dyn Fn() + Send + Sync>;

/// Where the published value stands in the metadata.
const VALUE: &str = "value";

/// An election: one of the candidates leads, the others wait their turn.
///
/// The fence of a leader is its term: it rises with every change.
///
/// # Fairness
/// First come, first served; a leader who resigns goes to the end of the queue.
///
/// # Examples
/// ```
/// # use leasehold::Leasehold;
/// # async fn example() -> leasehold::Result<()> {
/// let locks = Leasehold::connect("memory:").await?;
/// let candidate = locks
///     .election("leader:scheduler")
///     .value("10.0.0.5:8080")
///     .on_elected(|lease| println!("leading, term {}", lease.fence()))
///     .on_lost(|| println!("not leading any more"))
///     .start()
///     .await?;
///
/// let term = candidate.elected().await?;
/// assert!(term.check().is_ok());
/// // … run the scheduler, asking candidate.is_leader() before each step …
/// candidate.stop().await?;
/// # Ok(()) }
/// # leasehold::blocking::wait(example()).unwrap();
/// ```
#[derive(Clone)]
#[must_use = "nothing happens until it is started or campaigned in"]
pub struct Election {
    terms: Terms,
    value: Option<String>,
    on_elected: Option<OnElected>,
    on_lost: Option<OnLost>,
}

impl Election {
    pub(crate) fn new(locks: &Leasehold, name: &str) -> Self {
        let mut terms = Terms::new(locks, name);
        terms.ttl = Ttl::ELECTION.get();
        terms.wait = Wait::Forever;
        if let Some(pod) = env::var("POD_NAME").ok().and_then(|name| Holder::new(name).ok()) {
            terms.holder = pod;
        }
        Self { terms, value: None, on_elected: None, on_lost: None }
    }

    /// How long leadership outlives a leader that is gone; 10 s by default.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.terms.ttl = ttl;
        self
    }

    /// How long [`campaign`](Self::campaign) waits; for ever by default.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.terms.wait = Wait::For(wait);
        self
    }

    /// The candidate's id; `POD_NAME`, else the instance's holder, by default.
    pub fn id(mut self, id: Holder) -> Self {
        self.terms.holder = id;
        self
    }

    /// What the leader publishes, such as its address; nothing by default.
    pub fn value(mut self, value: impl Into<String>) -> Self {
        self.value = Some(value.into());
        self
    }

    /// One line for people, shown to others; none by default.
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.terms.note = Some(note.into());
        self
    }

    /// A JSON object for programs, shown to others; empty by default.
    pub fn metadata(mut self, metadata: Metadata) -> Self {
        self.terms.metadata = metadata;
        self
    }

    /// Called each time this candidate wins. It must not block.
    pub fn on_elected(mut self, call: impl Fn(&Lease) + Send + Sync + 'static) -> Self {
        self.on_elected = Some(Arc::new(call));
        self
    }

    /// Called each time this candidate no longer leads, whatever the reason. It must not block.
    pub fn on_lost(mut self, call: impl Fn() + Send + Sync + 'static) -> Self {
        self.on_lost = Some(Arc::new(call));
        self
    }

    /// Waits to lead, once. Releasing the guard resigns.
    ///
    /// # Cancel safety
    /// Dropping the future withdraws the candidate.
    pub async fn campaign(&self) -> Result<Guard> {
        self.published().acquire(Claim::LEADER).await
    }

    /// Leads if nobody does and nobody waits; `None` otherwise.
    pub async fn try_campaign(&self) -> Result<Option<Guard>> {
        self.published().try_acquire(Claim::LEADER).await
    }

    /// Takes part in the background, again after each loss, until stopped.
    ///
    /// # Errors
    /// A name, a ttl or a backend that cannot be used; one that goes away later is tried again.
    pub async fn start(self) -> Result<Candidate> {
        Ttl::new(self.terms.ttl)?;
        self.leader().await?;
        let seat = Arc::new(Seat::default());
        let task = run_candidate(self.clone(), Arc::clone(&seat));
        self.terms.locks.engine().hand_over(Box::pin(task));
        Ok(Candidate { election: self, seat })
    }

    /// Who leads now.
    pub async fn leader(&self) -> Result<Option<Leader>> {
        let filter = ListFilter::new(Names::Exactly(self.terms.resource()?));
        let page = self.terms.locks.list(&filter).await?;
        Ok(page.leases.into_iter().find_map(|record| match record.state {
            LeaseState::Holding { fence, acquired_at, held_for } => Some(Leader {
                holder: record.holder,
                value: record.metadata.get(VALUE).and_then(|value| value.as_str()).map(str::to_owned),
                fence,
                since: acquired_at,
                led_for: held_for,
            }),
            LeaseState::Waiting { .. } => None,
        }))
    }

    /// Follows who leads, beginning with who leads now.
    pub async fn observe(&self) -> Result<Observer> {
        let resource = self.terms.resource()?;
        let events = self.terms.locks.watch(Names::Exactly(resource)).await?;
        Ok(Observer { election: self.clone(), events, begun: false, term: None })
    }

    /// Takes leadership away from whoever has it; `None` if nobody has.
    ///
    /// # Errors
    /// Those of [`Leasehold::evict`](crate::Leasehold::evict).
    pub async fn depose(&self, reason: &str) -> Result<Option<Leader>> {
        let Some(leader) = self.leader().await? else { return Ok(None) };
        let resource: Resource = self.terms.resource()?;
        self.terms.locks.evict(&resource, leader.fence, reason).await?;
        Ok(Some(leader))
    }

    fn published(&self) -> Terms {
        let mut terms = self.terms.clone();
        if let Some(value) = &self.value {
            terms.metadata.insert(String::from(VALUE), value.as_str().into());
        }
        terms
    }
}

impl fmt::Debug for Election {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Election").field("name", &self.terms.name).finish_non_exhaustive()
    }
}

/// Who leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leader {
    /// The candidate.
    pub holder: Holder,
    /// What it publishes.
    pub value: Option<String>,
    /// Its term.
    pub fence: Fence,
    /// Since when, by the backend's wall clock.
    pub since: Timestamp,
    /// Since how long.
    pub led_for: Duration,
}

/// Follows who leads.
pub struct Observer {
    election: Election,
    events: EventStream,
    begun: bool,
    term: Option<Fence>,
}

impl Observer {
    /// The next change: who leads now, or that nobody does. `None` when the backend is gone.
    pub async fn next(&mut self) -> Option<Result<Option<Leader>>> {
        loop {
            if self.begun {
                let events = &mut self.events;
                std::future::poll_fn(|context| events.as_mut().poll_next(context)).await?;
            }
            let leader = match self.election.leader().await {
                Ok(leader) => leader,
                Err(error) => return Some(Err(error)),
            };
            let term = leader.as_ref().map(|leader| leader.fence);
            if !self.begun || self.term != term {
                (self.begun, self.term) = (true, term);
                return Some(Ok(leader));
            }
        }
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observer").field("election", &self.election).finish_non_exhaustive()
    }
}

/// A candidate that takes part in the background.
///
/// Dropping it withdraws: it resigns and no longer campaigns.
#[derive(Debug)]
#[must_use = "the candidate withdraws as soon as it is dropped"]
pub struct Candidate {
    election: Election,
    seat: Arc<Seat>,
}

/// What a candidate and its background task share.
#[derive(Debug, Default)]
struct Seat {
    lease: Mutex<Option<Lease>>,
    changed: Notify,
    resign: Notify,
    stopping: AtomicBool,
    stopped: AtomicBool,
}

impl Seat {
    fn take(&self, lease: Option<Lease>) {
        *self.lease.lock() = lease;
        self.changed.notify_waiters();
    }

    fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.resign.notify_one();
    }
}

impl Candidate {
    /// Whether this candidate leads; false from the deadline on, whatever the network does.
    pub fn is_leader(&self) -> bool {
        self.seat.lease.lock().as_ref().is_some_and(|lease| lease.check().is_ok())
    }

    /// The lease of its term, while it leads.
    pub fn lease(&self) -> Option<Lease> {
        self.seat.lease.lock().clone().filter(|lease| lease.check().is_ok())
    }

    /// Waits until this candidate leads, and gives the lease of its term.
    ///
    /// # Errors
    /// `Closed` when the instance was closed meanwhile.
    ///
    /// # Cancel safety
    /// May be dropped and called again: who leads is told at once.
    pub async fn elected(&self) -> Result<Lease> {
        loop {
            let changed = self.seat.changed.notified();
            if let Some(lease) = self.lease() {
                return Ok(lease);
            }
            if self.seat.stopped.load(Ordering::SeqCst) {
                return Err(Error::closed());
            }
            changed.await;
        }
    }

    /// Who leads now, this candidate or another.
    ///
    /// # Errors
    /// When the backend cannot tell.
    pub async fn leader(&self) -> Result<Option<Leader>> {
        self.election.leader().await
    }

    /// Steps down and goes on campaigning, behind those who wait.
    pub fn resign(&self) {
        if self.is_leader() {
            self.seat.resign.notify_one();
        }
    }

    /// Steps down and takes part no longer; ends when both are done.
    ///
    /// # Errors
    /// None today; a release that could not be made lapses after the ttl.
    pub async fn stop(self) -> Result<()> {
        self.seat.stop();
        loop {
            let changed = self.seat.changed.notified();
            if self.seat.stopped.load(Ordering::SeqCst) {
                return Ok(());
            }
            changed.await;
        }
    }
}

impl Drop for Candidate {
    fn drop(&mut self) {
        self.seat.stop();
    }
}

/// Campaigns and leads in turn until told to stop.
async fn run_candidate(election: Election, seat: Arc<Seat>) {
    let engine = Arc::clone(election.terms.locks.engine());
    let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(5));
    while !seat.stopping.load(Ordering::SeqCst) {
        let won = tokio::select! {
            biased;
            () = seat.resign.notified() => continue,
            won = election.campaign() => won,
        };
        match won {
            Ok(guard) => {
                backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(5));
                lead(&election, &seat, guard).await;
            }
            Err(error) if error.kind() == crate::ErrorKind::Closed => break,
            Err(error) => {
                tracing::warn!(election = election.terms.name, %error, "cannot campaign; trying again");
                tokio::select! {
                    () = seat.resign.notified() => {}
                    () = engine.sleep_until(engine.clock.now().after(backoff.pause())) => {}
                }
            }
        }
    }
    seat.stopped.store(true, Ordering::SeqCst);
    seat.take(None);
}

/// One term, from winning to losing or resigning.
async fn lead(election: &Election, seat: &Seat, guard: Guard) {
    seat.take(Some(guard.lease().clone()));
    if let Some(call) = &election.on_elected {
        guarded(|| call(guard.lease()));
    }
    let resigned = tokio::select! {
        biased;
        _loss = guard.lost() => false,
        () = seat.resign.notified() => true,
        () = election.terms.locks.engine().closed() => true,
    };
    seat.take(None);
    if let Some(call) = &election.on_lost {
        guarded(|| call());
    }
    if resigned {
        let released: Result<Released> = guard.release().await;
        if let Err(error) = released {
            tracing::warn!(election = election.terms.name, %error, "could not resign; leadership will lapse");
        }
    }
}

/// A callback that panics is the caller's loss alone: the candidate goes on.
fn guarded(call: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(call)).is_err() {
        tracing::error!("a callback of an election panicked");
    }
}
