//! One leader among candidates: how to stand, and how to see who leads.

use std::{env, fmt, sync::Arc, time::Duration};

use super::{candidate::Candidate, terms::Terms};
use crate::{
    Error, Leasehold, Result,
    backend::EventStream,
    engine::{Guard, Lease, Wait},
    lease::{
        Claim, Fence, Holder, LeaseState, Lifetime, ListFilter, Metadata, Moment, Names, Resource, Timestamp, Ttl,
    },
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
    pub(super) terms: Terms,
    value: Option<String>,
    pub(super) on_elected: Option<OnElected>,
    pub(super) on_lost: Option<OnLost>,
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
        self.published().ask(Claim::LEADER, Wait::Forever, Lifetime::Attached)?;
        self.leader().await?;
        Ok(Candidate::start(self))
    }

    /// Who leads now.
    ///
    /// # Errors
    /// `ShapeMismatch` when the name is in use as something else.
    pub async fn leader(&self) -> Result<Option<Leader>> {
        Ok(self.look().await?.leader)
    }

    async fn look(&self) -> Result<Sight> {
        let resource = self.terms.resource()?;
        let page = self.terms.locks.list(&ListFilter::new(Names::Exactly(resource.clone()))).await?;
        let Some(first) = page.leases.into_iter().next() else { return Ok(Sight::default()) };
        let (asked, in_force) = (Claim::LEADER.shape(), first.claim.shape());
        if asked != in_force {
            return Err(Error::wrong_shape(&resource, self.terms.locks.engine().kind, asked, in_force));
        }
        let LeaseState::Holding { fence, acquired_at, held_for } = first.state else { return Ok(Sight::default()) };
        let leader = Leader {
            holder: first.holder,
            value: first.metadata.get(VALUE).and_then(|value| value.as_str()).map(str::to_owned),
            fence,
            since: acquired_at,
            led_for: held_for,
        };
        Ok(Sight { leader: Some(leader), runs_out_in: first.expires_in })
    }

    /// Follows who leads, beginning with who leads now.
    pub async fn observe(&self) -> Result<Observer> {
        let resource = self.terms.resource()?;
        let events = self.terms.locks.watch(Names::Exactly(resource)).await?;
        Ok(Observer { election: self.clone(), events, told: Told::Nothing, look_now: true, look_at: Moment::NEVER })
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

/// What a look at an election shows.
#[derive(Default)]
struct Sight {
    leader: Option<Leader>,
    runs_out_in: Option<Duration>,
}

/// Follows who leads.
pub struct Observer {
    election: Election,
    events: EventStream,
    told: Told,
    /// Something happened that was not looked at yet.
    look_now: bool,
    /// When to look though nothing was heard: nobody may be there to notice that the leader is gone.
    look_at: Moment,
}

#[derive(PartialEq, Eq)]
enum Told {
    Nothing,
    Term(Option<Fence>),
}

impl Observer {
    /// The next change: who leads now, or that nobody does. `None` when the backend is gone.
    ///
    /// # Cancel safety
    /// May be dropped and called again: a change is never missed.
    pub async fn next(&mut self) -> Option<Result<Option<Leader>>> {
        loop {
            if !self.look_now {
                self.hear().await?;
                self.look_now = true;
            }
            let sight = match self.election.look().await {
                Ok(sight) => sight,
                Err(error) => return Some(Err(error)),
            };
            self.look_now = false;
            self.look_at = self.next_look(&sight);
            let term = Told::Term(sight.leader.as_ref().map(|leader| leader.fence));
            if self.told != term {
                self.told = term;
                return Some(Ok(sight.leader));
            }
        }
    }

    /// Ends when something happened or it is time to look; `None` when nothing will happen any more.
    async fn hear(&mut self) -> Option<()> {
        let engine = Arc::clone(self.election.terms.locks.engine());
        let events = &mut self.events;
        tokio::select! {
            event = std::future::poll_fn(|context| events.as_mut().poll_next(context)) => event.map(drop),
            () = engine.sleep_until(self.look_at), if self.look_at != Moment::NEVER => Some(()),
        }
    }

    fn next_look(&self, sight: &Sight) -> Moment {
        if sight.leader.is_none() {
            return Moment::NEVER;
        }
        let now = self.election.terms.locks.engine().clock.now();
        // Where no clock ends a leader, its death is seen by whoever looks.
        let pause = sight.runs_out_in.unwrap_or(self.election.terms.ttl / 3);
        now.after(pause.max(Duration::from_millis(50)))
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observer").field("election", &self.election).finish_non_exhaustive()
    }
}
