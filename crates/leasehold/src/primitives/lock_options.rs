//! The options that every primitive shares, and the calls that use them.

use std::{any::type_name, fmt, time::Duration};

use crate::{
    Error, Leasehold, Result,
    backend::Backoff,
    engine::{AcquireOptions, Attempt, Guard, Lease, Wait},
    lease::{Busy, Claim, Grant, Holder, LeaseHandle, Lifetime, Metadata, Outcome, Released, Resource, Ttl},
};

/// A lease that is neither renewed nor released automatically.
///
/// It ends when its ttl runs out.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DetachedLease {
    /// The lease as this process knows it. If the lease is evicted, or renewed or released by its handle, in this
    /// process or another, this view does not change until the next [`renew`](Lease::renew).
    pub lease: Lease,
    /// The handle to find, renew or release the lease, in this process or another.
    pub handle: LeaseHandle,
    /// The fence of the lease, and when it was granted.
    pub grant: Grant,
    /// How long the caller waited for the lease.
    pub waited: Duration,
}

impl DetachedLease {
    /// Releases the lease and records how the work ended.
    ///
    /// # Errors
    /// As for [`Guard::release`].
    pub async fn release_as(self, outcome: Outcome) -> Result<Released> {
        self.lease.release_as(outcome).await
    }
}

/// A resource, and the options for locking it.
#[derive(Clone, Debug)]
pub(crate) struct LockOptions {
    pub(crate) locks: Leasehold,
    /// Checked when it is used.
    pub(crate) resource: Resource,
    pub(crate) ttl: Duration,
    pub(crate) wait: Wait,
    pub(crate) max_waiters: Option<u32>,
    pub(crate) shown: ShownToOthers,
    pub(crate) shared_by_holder: bool,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) polling: Polling,
}

/// What others see of a lease.
#[derive(Clone, Debug, Default)]
pub(crate) struct ShownToOthers {
    /// The label of the holder; `None` for the instance's own.
    pub(crate) holder: Option<Holder>,
    pub(crate) note: Option<String>,
    pub(crate) metadata: Metadata,
}

/// When to ask again on a backend that cannot notify waiters.
#[derive(Clone, Debug)]
pub(crate) struct Polling {
    pub(crate) backoff: Backoff,
    pub(crate) max_tries: Option<u32>,
}

impl LockOptions {
    /// The defaults: those of the instance, and 100 ms to 10 s between two requests where nothing pushes.
    pub(crate) fn new(locks: &Leasehold, name: &str) -> Self {
        let defaults = locks.defaults();
        Self {
            locks: locks.clone(),
            resource: Resource::unchecked(name),
            ttl: defaults.ttl,
            wait: defaults.wait,
            max_waiters: None,
            shown: ShownToOthers::default(),
            shared_by_holder: false,
            max_hold: None,
            polling: Polling {
                backoff: Backoff::new(Duration::from_millis(100), Duration::from_secs(10)),
                max_tries: None,
            },
        }
    }

    /// Checks the options and converts them for the engine.
    pub(crate) fn acquire_options(&self, claim: Claim, wait: Wait, lifetime: Lifetime) -> Result<AcquireOptions<'_>> {
        self.resource.check()?;
        if let Some(note) = &self.shown.note
            && (note.len() > 1024 || note.chars().any(char::is_control))
        {
            return Err(Error::invalid_name("a note is one line of at most 1024 bytes"));
        }
        // The engine counts in microseconds.
        if self.max_hold.is_some_and(|max_hold| max_hold < Duration::from_micros(1)) {
            return Err(Error::invalid_config(
                "max_hold of zero would lose every lease at once; leave it out or raise it",
            ));
        }
        Ok(AcquireOptions {
            resource: &self.resource,
            claim,
            ttl: Ttl::new(self.ttl)?,
            wait: if wait == Wait::For(Duration::ZERO) { Wait::No } else { wait },
            max_waiters: self.max_waiters,
            lifetime,
            holder: self.shown.holder.as_ref().unwrap_or(&self.locks.defaults().holder),
            note: self.shown.note.as_deref(),
            metadata: &self.shown.metadata,
            max_hold: self.max_hold,
            backoff: self.polling.backoff,
            max_tries: self.polling.max_tries,
        })
    }

    async fn get(&self, claim: Claim, wait: Wait) -> Result<Attempt> {
        let options = self.acquire_options(claim, wait, Lifetime::Attached)?;
        if self.shared_by_holder {
            // Boxed, so that the future of an ordinary acquire stays small.
            Box::pin(self.locks.reentries().join_or_acquire(self.locks.engine(), options)).await
        } else {
            self.locks.engine().acquire(&options).await
        }
    }

    pub(crate) async fn acquire(&self, claim: Claim) -> Result<Guard> {
        match self.get(claim, self.wait).await? {
            Attempt::Acquired(guard) => Ok(guard),
            Attempt::Busy(busy) => Err(Error::busy(&self.resource, self.locks.engine().backend_kind, busy)),
        }
    }

    pub(crate) async fn attempt(&self, claim: Claim) -> Result<Attempt> {
        self.get(claim, Wait::No).await
    }

    pub(crate) async fn try_acquire(&self, claim: Claim) -> Result<Option<Guard>> {
        Ok(match self.attempt(claim).await? {
            Attempt::Acquired(guard) => Some(guard),
            Attempt::Busy(_) => None,
        })
    }

    pub(crate) async fn with<T, E>(&self, claim: Claim, work: impl AsyncFnOnce(Lease) -> Result<T, E>) -> Result<T, E>
    where
        E: From<Error> + fmt::Display,
    {
        run_under(self.acquire(claim).await?, work).await
    }

    pub(crate) async fn try_with<T, E>(
        &self,
        claim: Claim,
        work: impl AsyncFnOnce(Lease) -> Result<T, E>,
    ) -> Result<Option<T>, E>
    where
        E: From<Error> + fmt::Display,
    {
        match self.try_acquire(claim).await? {
            Some(guard) => run_under(guard, work).await.map(Some),
            None => Ok(None),
        }
    }

    pub(crate) async fn detached(&self, claim: Claim) -> Result<DetachedLease> {
        match self.get_detached(claim, self.wait).await? {
            Ok(detached) => Ok(detached),
            Err(busy) => Err(Error::busy(&self.resource, self.locks.engine().backend_kind, busy)),
        }
    }

    pub(crate) async fn try_detached(&self, claim: Claim) -> Result<Option<DetachedLease>> {
        Ok(self.get_detached(claim, Wait::No).await?.ok())
    }

    async fn get_detached(&self, claim: Claim, wait: Wait) -> Result<Result<DetachedLease, Busy>> {
        if self.max_hold.is_some() {
            return Err(Error::invalid_config("max_hold does not apply to detached leases; set ttl"));
        }
        let options = self.acquire_options(claim, wait, Lifetime::Detached)?;
        let ttl = options.ttl;
        let guard = match self.locks.engine().acquire(&options).await? {
            Attempt::Acquired(guard) => guard,
            Attempt::Busy(busy) => return Ok(Err(busy)),
        };
        // The grant may be most of a ttl old by now. Whoever gets the handle gets the whole ttl.
        guard.renew(ttl.get()).await?;
        let lease = guard.detach();
        Ok(Ok(DetachedLease {
            handle: lease.handle(),
            grant: Grant::new(lease.fence(), lease.acquired_at()),
            waited: lease.waited(),
            lease,
        }))
    }
}

/// Runs the work while the lease is held, and drops it when the lease is lost.
async fn run_under<T, E>(guard: Guard, work: impl AsyncFnOnce(Lease) -> Result<T, E>) -> Result<T, E>
where
    E: From<Error> + fmt::Display,
{
    let guard = guard.if_dropped(dropped);
    let lease = guard.lease().clone();
    let done = tokio::select! {
        biased;
        _loss = lease.lost() => return Err(lease.lost_error().into()),
        done = work(lease.clone()) => done,
    };
    let released = guard.release_as(outcome_of(&done)).await;
    conclude(done, released, &lease)
}

/// Combines the results of the work and of the release into what the caller gets.
pub(crate) fn conclude<T, E>(done: Result<T, E>, released: Result<Released>, lease: &Lease) -> Result<T, E>
where
    E: From<Error>,
{
    match (done, released) {
        (Ok(_), Ok(Released::Gone)) => Err(lease.lost_error().into()),
        (Ok(_), Err(error)) => Err(error.into()),
        // The caller gets the error of the work; that of the release is logged.
        (Err(problem), Err(error)) => {
            tracing::warn!(resource = %lease.resource(), error = format_args!("{error:#}"), "could not release after a failure");
            Err(problem)
        }
        (done, Ok(_)) => done,
    }
}

pub(crate) fn outcome_of<T, E: fmt::Display>(done: &Result<T, E>) -> Outcome {
    match done {
        Ok(_) => Outcome::Completed,
        Err(problem) => Outcome::failed(kind_of::<E>(), problem),
    }
}

/// The outcome of work that was dropped before its end, by a `timeout` or an aborted task.
pub(crate) fn dropped() -> Outcome {
    Outcome::failed("cancelled", "the work was dropped before it came to its end")
}

/// `Error` for `std::io::Error`; a boxed error of any type is just an `error`.
fn kind_of<E>() -> &'static str {
    let full = type_name::<E>();
    if full.contains("dyn ") {
        return "error";
    }
    let path_end = full.find('<').unwrap_or(full.len());
    full[..path_end].rfind("::").map_or(full, |at| &full[at + 2..])
}

/// The options that every primitive has, as methods; `$options` is where they are stored.
macro_rules! lock_options {
    ($self:ident => $options:expr) => {
        /// Sets how long the lease lives without a renewal. Defaults to [`Builder::ttl`](crate::Builder::ttl), or 10 s
        /// for an election.
        ///
        /// The lease is renewed automatically every third of this time. The ttl limits how long others
        /// wait after a crash, not how long the work may take.
        pub fn ttl(mut $self, ttl: std::time::Duration) -> Self {
            $options.ttl = ttl;
            $self
        }

        /// Sets how long to wait for the lease. Defaults to [`Builder::wait`](crate::Builder::wait); an election waits
        /// without limit. Zero means no waiting.
        pub fn wait(mut $self, wait: std::time::Duration) -> Self {
            $options.wait = $crate::engine::Wait::For(wait);
            $self
        }

        /// Waits for the lease without a time limit.
        pub fn wait_forever(mut $self) -> Self {
            $options.wait = $crate::engine::Wait::Forever;
            $self
        }

        /// Sets how many waiters may be ahead in the queue. If there are more, the call fails with `Busy` instead of
        /// joining the queue. No limit by default. A started [`Candidate`](crate::Candidate) retries after a pause.
        pub fn max_waiters(mut $self, most: u32) -> Self {
            $options.max_waiters = Some(most);
            $self
        }

        /// Sets a one-line note that others see; none by default.
        pub fn note(mut $self, note: impl Into<String>) -> Self {
            $options.shown.note = Some(note.into());
            $self
        }

        /// Sets a JSON object that other programs can read; empty by default.
        pub fn metadata(mut $self, metadata: $crate::lease::Metadata) -> Self {
            $options.shown.metadata = metadata;
            $self
        }

        /// Sets the holder name that others see. Defaults to the holder name of the [`Leasehold`](crate::Leasehold); an
        /// election uses `POD_NAME` if it is set.
        pub fn holder(mut $self, holder: $crate::lease::Holder) -> Self {
            $options.shown.holder = Some(holder);
            $self
        }

        /// Sets how long a guard may hold the lease, however often it is renewed. The lease is lost after that time. No
        /// limit by default.
        pub fn max_hold(mut $self, max_hold: std::time::Duration) -> Self {
            $options.max_hold = Some(max_hold);
            $self
        }

        /// Sets the pauses between requests on a backend that cannot notify waiters.
        ///
        /// Each pause is random, up to a limit that doubles from `first` to `most`. The default is 100 ms to 10 s.
        pub fn backoff(mut $self, first: std::time::Duration, most: std::time::Duration) -> Self {
            $options.polling.backoff = $crate::backend::Backoff::new(first, most);
            $self
        }

        /// Sets how many requests to make on a backend that cannot notify waiters. By default, as many as fit into
        /// `wait`.
        pub fn max_tries(mut $self, tries: u32) -> Self {
            $options.polling.max_tries = Some(tries);
            $self
        }
    };
}
pub(crate) use lock_options;

/// The option of those that can be held by several callers together.
macro_rules! sharing_option {
    ($self:ident => $options:expr) => {
        /// Lets callers with the same holder share one lease; off by default.
        ///
        /// Only callers of one [`Leasehold`](crate::Leasehold) can share a lease. Without this option, two tasks of one
        /// process exclude each other. If both set it, they share one lease and one fence. Every further acquire renews
        /// the lease, and the lease is released with its last guard. A request for more than the shared lease holds,
        /// such as a write lock while it is a read lock, fails with `Unsupported`.
        pub fn shared_by_holder(mut $self) -> Self {
            $options.shared_by_holder = true;
            $self
        }
    };
}
pub(crate) use sharing_option;
