//! One leader among candidates: how to become it, and how to see who leads.

use std::{env, fmt, pin::Pin, sync::Arc, time::Duration};

use tracing::Instrument;

use super::{
    candidate::Candidate,
    lock_options::{LockOptions, lock_options},
};
use crate::{
    Error, Leasehold, Result,
    backend::{Backoff, EventStream},
    engine::{Guard, Lease, Wait, telemetry},
    lease::{Claim, Fence, Holder, LeaseState, Lifetime, ListFilter, Moment, Names, Resource, Timestamp, Ttl},
};

impl Leasehold {
    /// Returns an election of one leader.
    pub fn election(&self, name: impl AsRef<str>) -> Election {
        Election::new(self, name.as_ref())
    }
}

type ElectedCallback = Arc<dyn Fn(&Lease) + Send + Sync>;
type LostCallback = Arc<dyn Fn() + Send + Sync>;

/// The key of the published value in the metadata.
const VALUE: &str = "value";

/// An election: one of the candidates leads, the others wait their turn.
///
/// The fence of a leader is the number of its term, which rises with every new leader.
///
/// # Fairness
/// Candidates are served in order, except on `redlock:`; a leader that resigns goes to the end of the queue.
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
    pub(crate) options: LockOptions,
    value: Option<String>,
    pub(super) on_elected: Option<ElectedCallback>,
    pub(super) on_lost: Option<LostCallback>,
}

impl Election {
    pub(crate) fn new(locks: &Leasehold, name: &str) -> Self {
        let mut options = LockOptions::new(locks, name);
        options.ttl = Ttl::ELECTION.get();
        options.wait = Wait::Forever;
        if let Some(pod) = env::var("POD_NAME").ok().and_then(|name| Holder::new(name).ok()) {
            options.shown.holder = Some(pod);
        }
        Self { options, value: None, on_elected: None, on_lost: None }
    }

    lock_options!(self => self.options);

    /// Sets the value that the leader publishes, such as its address; none by default.
    pub fn value(mut self, value: impl Into<String>) -> Self {
        self.value = Some(value.into());
        self
    }

    /// Sets a callback that runs each time this candidate wins; it may block.
    pub fn on_elected(mut self, call: impl Fn(&Lease) + Send + Sync + 'static) -> Self {
        self.on_elected = Some(Arc::new(call));
        self
    }

    /// Sets a callback that runs each time this candidate stops leading; it may block.
    ///
    /// It runs for every loss, whatever the reason, after `on_elected` has returned. If `on_elected` runs long, this
    /// callback comes late; [`Lease::lost`] and [`Candidate::is_leader`] report the loss at once.
    pub fn on_lost(mut self, call: impl Fn() + Send + Sync + 'static) -> Self {
        self.on_lost = Some(Arc::new(call));
        self
    }

    /// Waits until elected and returns the guard of the term. Release the guard to resign.
    ///
    /// # Cancel safety
    /// Dropping the future withdraws the candidate.
    pub async fn campaign(&self) -> Result<Guard> {
        let span = telemetry::campaign_span(&self.options.resource);
        let guard = self.published().acquire(Claim::LEADER).instrument(span.clone()).await?;
        span.record("leasehold.election.term", guard.fence().get());
        Ok(guard)
    }

    /// Becomes the leader if nobody leads or waits; returns `None` otherwise.
    pub async fn try_campaign(&self) -> Result<Option<Guard>> {
        self.published().try_acquire(Claim::LEADER).await
    }

    /// Starts a candidate that campaigns in the background until it is stopped.
    ///
    /// The candidate campaigns again after each loss.
    ///
    /// # Errors
    /// Fails if the name, the ttl or the backend cannot be used; `InvalidConfig` if `wait` or `max_tries` is set. Later
    /// failures are retried.
    pub async fn start(self) -> Result<Candidate> {
        if self.options.wait != Wait::Forever || self.options.polling.max_tries.is_some() {
            return Err(Error::invalid_config(
                "a started candidate waits until it is stopped; leave out wait and max_tries, or campaign",
            ));
        }
        self.published().acquire_options(Claim::LEADER, Wait::Forever, Lifetime::Attached)?;
        self.leader().await?;
        Ok(Candidate::start(self))
    }

    /// Returns the current leader; `None` if nobody leads.
    ///
    /// # Errors
    /// `ShapeMismatch` if the name is in use as another kind of lock.
    pub async fn leader(&self) -> Result<Option<Leader>> {
        Ok(self.look().await?.leader)
    }

    fn checked_resource(&self) -> Result<Resource> {
        self.options.resource.check()?;
        Ok(self.options.resource.clone())
    }

    async fn look(&self) -> Result<ElectionView> {
        let resource = self.checked_resource()?;
        let page = self.options.locks.list(&ListFilter::new(Names::Exactly(resource.clone()))).await?;
        let Some(first) = page.leases.into_iter().next() else { return Ok(ElectionView::default()) };
        let (asked, in_force) = (Claim::LEADER.shape(), first.claim.shape());
        if asked != in_force {
            return Err(Error::wrong_shape(&resource, self.options.locks.engine().backend_kind, asked, in_force));
        }
        let LeaseState::Holding { fence, acquired_at, held_for } = first.state else {
            return Ok(ElectionView::default());
        };
        let leader = Leader {
            holder: first.holder,
            value: first.metadata.get(VALUE).and_then(|value| value.as_str()).map(str::to_owned),
            fence,
            since: acquired_at,
            led_for: held_for,
        };
        Ok(ElectionView { leader: Some(leader), expires_in: first.expires_in })
    }

    /// Watches the leader, starting with the current one.
    pub async fn observe(&self) -> Result<Observer> {
        let resource = self.checked_resource()?;
        let events = self.options.locks.watch(Names::Exactly(resource)).await?;
        Ok(Observer {
            election: self.clone(),
            events,
            reported: Reported::Nothing,
            look_now: true,
            looking: None,
            look_at: Moment::NEVER,
            retry: Backoff::new(Duration::from_millis(50), Duration::from_secs(5)),
        })
    }

    /// Deposes the current leader and returns who it was; `None` if nobody leads.
    ///
    /// # Errors
    /// As for [`leader`](Self::leader) and [`Leasehold::evict`](crate::Leasehold::evict).
    pub async fn depose(&self, reason: &str) -> Result<Option<Leader>> {
        let Some(leader) = self.leader().await? else { return Ok(None) };
        let resource = self.checked_resource()?;
        self.options.locks.evict(&resource, leader.fence, reason).await?;
        Ok(Some(leader))
    }

    fn published(&self) -> LockOptions {
        let mut options = self.options.clone();
        if let Some(value) = &self.value {
            options.shown.metadata.insert(String::from(VALUE), value.as_str().into());
        }
        options
    }
}

impl fmt::Debug for Election {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Election").field("name", &self.options.resource).finish_non_exhaustive()
    }
}

/// The leader of an election.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leader {
    /// The name of the candidate that leads.
    pub holder: Holder,
    /// The value that it publishes.
    pub value: Option<String>,
    /// The fence of its term.
    pub fence: Fence,
    /// When it was elected, by the backend's wall clock.
    pub since: Timestamp,
    /// How long it has led.
    pub led_for: Duration,
}

/// What a look at an election shows.
#[derive(Default)]
struct ElectionView {
    leader: Option<Leader>,
    /// How long until the leader's lease expires; `None` if no clock ends it.
    expires_in: Option<Duration>,
}

/// A look at the election whose answer has not arrived yet.
type PendingLook = Pin<Box<dyn Future<Output = Result<ElectionView>> + Send>>;

/// A stream of leader changes, read with [`next`](Self::next).
pub struct Observer {
    election: Election,
    events: EventStream,
    reported: Reported,
    /// Something happened since the last look.
    look_now: bool,
    looking: Option<PendingLook>,
    /// When to look even if no event has come: events may be lost, and there may be nobody to notice that the leader
    /// is gone.
    look_at: Moment,
    retry: Backoff,
}

/// What `next` returned last.
#[derive(PartialEq, Eq)]
enum Reported {
    Nothing,
    Term(Option<Fence>),
}

impl Observer {
    /// Waits for the next change and returns the new leader.
    ///
    /// Returns `Some(Ok(None))` if nobody leads now, and `None` once the backend's stream of events has ended. An
    /// unreachable server is an error. After an error, the next call pauses before it tries again, so a loop that only
    /// logs errors does not spin.
    ///
    /// # Cancel safety
    /// May be dropped and called again: a change is never missed.
    pub async fn next(&mut self) -> Option<Result<Option<Leader>>> {
        if let Err(error) = self.election.options.locks.engine().check_not_inherited() {
            return Some(Err(error));
        }
        loop {
            if !self.look_now {
                self.wait_for_change().await?;
                self.look_now = true;
            }
            // A pending look survives when `next` is dropped: a reader that drops it often still gets an answer.
            let election = &self.election;
            let looking = self.looking.get_or_insert_with(|| {
                let election = election.clone();
                Box::pin(async move { election.look().await })
            });
            let seen = looking.as_mut().await;
            self.looking = None;
            self.look_now = false;
            let now = self.election.options.locks.engine().clock.now();
            let view = match seen {
                Ok(view) => view,
                Err(error) => {
                    self.look_at = now.after(self.retry.pause().max(Duration::from_millis(50)));
                    return Some(Err(error));
                }
            };
            self.retry.reset();
            // If no clock ends the leader's lease, only a look notices that the leader died.
            let pause = view.expires_in.unwrap_or(self.election.options.ttl / 3);
            self.look_at = now.after(pause.max(Duration::from_millis(50)));
            let term = view.leader.as_ref().map(|leader| leader.fence);
            if self.reported != Reported::Term(term) {
                self.reported = Reported::Term(term);
                return Some(Ok(view.leader));
            }
        }
    }

    /// Completes when something happened, when events were missed, or when it is time to look. Returns `None` if the
    /// backend is gone.
    async fn wait_for_change(&mut self) -> Option<()> {
        let engine = Arc::clone(self.election.options.locks.engine());
        let events = &mut self.events;
        tokio::select! {
            event = std::future::poll_fn(|context| events.as_mut().poll_next(context)) => event.map(|_look_again| ()),
            () = engine.sleep_until(self.look_at) => Some(()),
        }
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observer").field("election", &self.election).finish_non_exhaustive()
    }
}
