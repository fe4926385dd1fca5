//! `Leasehold`: one connection to one backend, and what can be locked on it.

use std::{env, fmt, future::Future, sync::Arc, time::Duration};

use leasehold_fork::PerProcess;
use tokio::sync::Mutex;

use crate::{
    Error, Result,
    backend::{Backend, EventStream, Finding, Guarantees, OpenOptions},
    backends,
    clock::{Clock, SystemClock},
    engine::{Engine, Lease, Loss, Reentries, Wait, telemetry::CallKind},
    lease::{
        EndedLease, Evicted, Fence, HistoryFilter, HistoryPage, Holder, LeaseHandle, LeasePage, LeaseRecord,
        ListFilter, Names, Outcome, Released, Renewal, Resource, RunRecord, RunReport, Standing, Ttl, rounded,
    },
    setters_macro::setters,
    threads,
};

/// A connection to one backend; create locks and elections from it. Cheap to clone.
///
/// Every call can be awaited on any executor. The library renews leases and watches
/// their deadlines on its own threads, so a blocked runtime cannot delay them.
///
/// ```
/// use std::time::Duration;
/// use leasehold::Leasehold;
///
/// # async fn example() -> leasehold::Result<()> {
/// let locks = Leasehold::connect("memory:").await?; // or file:, with nothing installed
/// let guard = locks.mutex("order:42").wait(Duration::from_secs(10)).acquire().await?;
/// // … write, sending guard.fence() along …
/// guard.release().await?;
/// # Ok(()) }
/// # leasehold::blocking::wait(example()).unwrap();
/// ```
#[derive(Clone)]
pub struct Leasehold(Arc<LeaseholdInner>);

struct LeaseholdInner {
    engine: Arc<Engine>,
    defaults: LockDefaults,
    reentries: Reentries,
}

/// The defaults of locks.
#[derive(Clone, Debug)]
pub(crate) struct LockDefaults {
    pub(crate) ttl: Duration,
    pub(crate) wait: Wait,
    pub(crate) holder: Holder,
}

impl Leasehold {
    /// Connects to the backend of this URL.
    ///
    /// The URL may be `memory:`, `file:`, `redis://HOST`, `postgres://HOST/DATABASE` or [another](crate::backends).
    ///
    /// # Errors
    /// `InvalidConfig` if the URL cannot be used, `Unavailable` if the backend cannot be reached, `PermissionDenied`
    /// if it refuses access.
    pub async fn connect(url: &str) -> Result<Self> {
        Self::builder().connect(url).await
    }

    /// Returns a builder that sets the namespace, the holder and the defaults.
    pub fn builder() -> Builder {
        Builder {
            namespace: None,
            holder: None,
            ttl: Ttl::DEFAULT.get(),
            wait: Wait::For(Duration::from_secs(10)),
            connect_limit: Duration::from_secs(3),
            clock: Arc::new(SystemClock),
        }
    }

    /// Returns the instance that the whole process shares.
    ///
    /// The environment variable `LEASEHOLD_URL` names its backend (`file:` if unset) and `LEASEHOLD_NAMESPACE` its
    /// namespace (`default` if unset). The first call connects; if that fails or the instance is closed, the next call
    /// connects again.
    ///
    /// # Errors
    /// As for [`connect`](Self::connect).
    pub async fn global() -> Result<Self> {
        // One for each process: a thread of the parent may have locked its own, to connect, when it forked.
        static GLOBAL: PerProcess<Mutex<Option<Leasehold>>> = PerProcess::new();
        threads::of_process()?;
        let mut global = GLOBAL.get_or_insert_with(Mutex::default).lock().await;
        if let Some(open) = global.as_ref().filter(|locks| locks.0.engine.check_usable().is_ok()) {
            return Ok(open.clone());
        }
        let url = env::var("LEASEHOLD_URL").unwrap_or_else(|_| String::from("file:"));
        let namespace = env::var("LEASEHOLD_NAMESPACE").unwrap_or_else(|_| String::from("default"));
        let locks = Self::builder().namespace(namespace).connect(&url).await?;
        Ok(global.insert(locks).clone())
    }

    /// Lists live leases and queue positions.
    pub async fn list(&self, filter: &ListFilter) -> Result<LeasePage> {
        let filter = filter.clone();
        self.call_backend(CallKind::Read, async move |backend| backend.list(&filter).await).await
    }

    /// Returns ended leases, newest first.
    pub async fn history(&self, filter: &HistoryFilter) -> Result<Vec<EndedLease>> {
        let filter = filter.clone();
        self.call_backend(CallKind::Read, async move |backend| backend.history(&filter).await).await
    }

    /// Returns ended leases, newest first, and whether the limit left some out.
    pub async fn history_page(&self, filter: &HistoryFilter) -> Result<HistoryPage> {
        let limit = filter.limit;
        let one_more = filter.clone().limit(limit.saturating_add(1));
        Ok(HistoryPage::new(self.history(&one_more).await?, limit))
    }

    /// Records that runs of a job succeeded, or were skipped because the lock was busy.
    ///
    /// A scheduler calls this, so that the records show whether its jobs still run. Only this call writes them: a
    /// [`try_acquire`](crate::Lock::try_acquire) that finds the lock busy leaves no record. Batch the reports of many
    /// runs, so that a process writes at most once a second.
    ///
    /// ```
    /// # #[cfg(feature = "memory")]
    /// # leasehold::blocking::wait(async {
    /// use leasehold::{Attempt, Leasehold, Resource, lease::{Names, RunReport}};
    ///
    /// let locks = Leasehold::connect("memory:reports").await?;
    /// let job = Resource::new("daily-report")?;
    /// match locks.mutex(job.as_str()).try_acquire_or_busy().await? {
    ///     Attempt::Acquired(guard) => {
    ///         // The work goes here.
    ///         guard.release().await?;
    ///         locks.record_runs(&[RunReport::succeeded(job.clone())]).await?;
    ///     }
    ///     Attempt::Busy(busy) => {
    ///         let holder = busy.holders.first().map(|held| held.holder.clone());
    ///         locks.record_runs(&[RunReport::skipped(job.clone(), holder)]).await?;
    ///     }
    /// }
    /// let runs = locks.runs(&Names::Exactly(job)).await?;
    /// assert!(runs[0].last_success.is_some() && runs[0].skips == 0);
    /// # Ok::<(), leasehold::Error>(())
    /// # })?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    /// `Unsupported` if [`Guarantees::records_runs`](field@crate::backend::Guarantees::records_runs) is `false`.
    pub async fn record_runs(&self, reports: &[RunReport]) -> Result<()> {
        let reports = reports.to_vec();
        self.call_backend(CallKind::Read, async move |backend| backend.record_runs(&reports).await).await
    }

    /// Returns, for each of these locks, how often its job was skipped and when it last succeeded; sorted by name.
    ///
    /// A record is deleted 40 days after its last report.
    ///
    /// # Errors
    /// `Unsupported` if [`Guarantees::records_runs`](field@crate::backend::Guarantees::records_runs) is `false`.
    pub async fn runs(&self, names: &Names) -> Result<Vec<RunRecord>> {
        let names = names.clone();
        self.call_backend(CallKind::Read, async move |backend| backend.runs(&names).await).await
    }

    /// Streams events about these resources as they happen, whichever process causes them.
    pub async fn watch(&self, names: Names) -> Result<EventStream> {
        self.call_backend(CallKind::Watch, async move |backend| backend.watch(names).await).await
    }

    /// Takes the lease with this fence away from its holder.
    ///
    /// The holder is notified but may keep working until it notices; a store that checks the fence refuses its writes.
    pub async fn evict(&self, resource: &Resource, expected: Fence, reason: &str) -> Result<Evicted> {
        let (resource, reason) = (resource.clone(), reason.to_owned());
        let answer = self
            .call_backend(CallKind::Evict, async move |backend| backend.evict(&resource, expected, &reason).await)
            .await;
        self.0.engine.telemetry.record_eviction(&answer);
        answer
    }

    /// Checks the backend for settings and conditions that endanger locks.
    pub async fn examine(&self) -> Result<Vec<Finding>> {
        self.call_backend(CallKind::Read, async move |backend| backend.examine().await).await
    }

    /// Renews a lease by its handle, even if another process acquired it.
    ///
    /// A lease that this instance holds is renewed as by [`Lease::renew`]: later renewals use `ttl`, too.
    ///
    /// # Errors
    /// As for [`Lease::renew`], but `Lost` only if this instance held the lease.
    pub async fn renew(&self, handle: &LeaseHandle, ttl: Duration) -> Result<Standing> {
        let renewal = Renewal::new(handle.key().clone(), Ttl::new(ttl)?);
        if let Some(lease) = Lease::held(&self.0.engine, handle.key())? {
            let standing = lease.send_renewal(renewal).await?;
            if matches!(standing, Standing::Holding(_)) {
                lease.check()?;
            }
            return Ok(standing);
        }
        let answer = self.call_backend(CallKind::Renew, async move |backend| backend.renew(&[renewal]).await).await?;
        Ok(answer.value.first().copied().unwrap_or(Standing::Unknown))
    }

    /// Finds the lease of a handle, even if another process acquired it.
    ///
    /// Returns `None` if the lease is no longer held. This does not renew the lease. Before you rely on it, call
    /// [`renew`](Self::renew), whose answer [`Standing::Holding`] proves that it is held. On `redlock:` with
    /// unreachable nodes, `find` may fail with `Unavailable`, because the other nodes alone cannot decide whether the
    /// lease is held.
    ///
    /// ```
    /// # #[cfg(feature = "memory")]
    /// # leasehold::blocking::wait(async {
    /// use leasehold::{Leasehold, Outcome};
    ///
    /// let locks = Leasehold::connect("memory:find").await?;
    /// let handle = locks.mutex("upload").acquire_detached().await?.handle;
    /// if let Some(lease) = locks.find(&handle).await? {
    ///     println!("held by {} for {:?} more", lease.holder, lease.expires_in);
    /// }
    /// locks.release(&handle, Outcome::Completed).await?;
    /// assert!(locks.find(&handle).await?.is_none());
    /// # Ok::<(), leasehold::Error>(())
    /// # })?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub async fn find(&self, handle: &LeaseHandle) -> Result<Option<LeaseRecord>> {
        let handle = handle.clone();
        self.call_backend(CallKind::Read, async move |backend| backend.find(handle.key(), handle.fence()).await).await
    }

    /// Releases a lease by its handle, even if another process acquired it.
    pub async fn release(&self, handle: &LeaseHandle, outcome: Outcome) -> Result<Released> {
        if let Some(lease) = Lease::held(&self.0.engine, handle.key())? {
            let released = lease.release_as(outcome.clone()).await;
            // Lost here, it may still be held at the backend, which was not asked.
            if !(matches!(released, Ok(Released::Gone)) && lease.loss() == Some(Loss::RenewTimeout)) {
                return released;
            }
        }
        let key = handle.key().clone();
        let answer =
            self.call_backend(CallKind::Release, async move |backend| backend.release(&key, &outcome).await).await?;
        Ok(answer.value)
    }

    /// Returns what the backend guarantees.
    pub fn guarantees(&self) -> Guarantees {
        self.0.engine.backend.guarantees()
    }

    /// Returns the backend itself.
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.0.engine.backend
    }

    /// Returns the holder name that others see.
    pub fn holder(&self) -> &Holder {
        &self.0.defaults.holder
    }

    /// Releases all leases that this instance holds and returns how many it released.
    ///
    /// # Errors
    /// The last failure; the other leases are still released.
    pub async fn release_all(&self) -> Result<usize> {
        self.0.engine.release_all().await
    }

    /// Shuts down gracefully: ends every wait and releases every lease.
    ///
    /// Completes when nothing is left to do.
    ///
    /// # Errors
    /// Fails if a lease could not be released. That lease still ends when its ttl runs out or this instance is gone.
    pub async fn close(&self) -> Result<()> {
        self.0.engine.close().await
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.0.engine
    }

    pub(crate) fn defaults(&self) -> &LockDefaults {
        &self.0.defaults
    }

    pub(crate) fn reentries(&self) -> &Reentries {
        &self.0.reentries
    }

    /// Runs a call to the backend on the I/O thread, where its connections are.
    async fn call_backend<T: Send + 'static, F>(
        &self,
        kind: CallKind,
        call: impl FnOnce(Arc<dyn Backend>) -> F,
    ) -> Result<T>
    where
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let engine = &self.0.engine;
        engine.check_not_inherited()?;
        let sent_at = engine.clock.now();
        let answer = on_io_thread(call(Arc::clone(&engine.backend))).await;
        engine.telemetry.record_answer(kind, &answer, sent_at, || engine.clock.now());
        answer
    }
}

/// Runs a future on the library's I/O thread, whatever executor the caller has.
async fn on_io_thread<T: Send + 'static>(call: impl Future<Output = Result<T>> + Send + 'static) -> Result<T> {
    let failed = |error| Err(Error::unanswered("the backend failed before it answered").caused_by(error));
    threads::of_process()?.io.spawn(call).await.unwrap_or_else(failed)
}

impl fmt::Debug for Leasehold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leasehold").field("backend", self.backend()).finish_non_exhaustive()
    }
}

/// Configures a [`Leasehold`] before it connects.
#[derive(Clone)]
#[must_use = "nothing happens until it connects"]
pub struct Builder {
    namespace: Option<String>,
    holder: Option<Holder>,
    ttl: Duration,
    wait: Wait,
    connect_limit: Duration,
    clock: Arc<dyn Clock>,
}

impl Builder {
    setters! {
        /// Sets the namespace, which separates applications on one backend. It is `default` by default.
        pub fn namespace(mut self, namespace: impl Into<String>) -> Self => Some(namespace.into());

        /// Sets the holder name that others see; unique for each instance by default.
        pub fn holder(mut self, holder: Holder) -> Self => Some(holder);

        /// Sets the ttl of locks that do not set their own; 30 s by default.
        pub fn ttl(mut self, ttl: Duration) -> Self => ttl;

        /// Sets the wait for locks that do not set their own; 10 s by default.
        pub fn wait(mut self, wait: Duration) -> Self => Wait::For(wait);
    }

    /// Waits without a time limit for locks that do not set their own.
    pub fn wait_forever(mut self) -> Self {
        self.wait = Wait::Forever;
        self
    }

    setters! {
        /// Sets how long connecting may take; 3 s by default.
        pub fn connect_limit(mut self, limit: Duration) -> Self => limit;

        /// Sets the clock; the machine's own by default.
        pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self => clock;
    }

    /// Connects to the backend of this URL.
    ///
    /// # Errors
    /// As for [`Leasehold::connect`].
    pub async fn connect(self, url: &str) -> Result<Leasehold> {
        let mut options = OpenOptions::new();
        if let Some(namespace) = &self.namespace {
            options.namespace.clone_from(namespace);
        }
        options.clock = Arc::clone(&self.clock);
        options.connect_limit = self.connect_limit;
        let (url, limit) = (url.to_owned(), self.connect_limit);
        let opened = on_io_thread(async move {
            // Wait slightly longer: a backend that enforces the limit itself can say which server did not answer.
            let opened = tokio::time::timeout(limit.saturating_add(limit / 8), backends::open(&url, &options)).await;
            opened.unwrap_or_else(|_| {
                Err(Error::unavailable(format!("the backend did not answer within {:?}", rounded(limit))))
            })
        });
        let backend = opened.await?;
        self.build(backend)
    }

    /// Opens an instance on a connected backend, which may be one of your own.
    ///
    /// # Errors
    /// `InvalidConfig` if this builder has a namespace, because an open backend has its own; `Unavailable` if the
    /// library's threads cannot be started.
    pub fn open(self, backend: Arc<dyn Backend>) -> Result<Leasehold> {
        if self.namespace.is_some() {
            return Err(Error::invalid_config(
                "the backend is connected already: set the namespace in its own options",
            ));
        }
        self.build(backend)
    }

    fn build(self, backend: Arc<dyn Backend>) -> Result<Leasehold> {
        let defaults =
            LockDefaults { ttl: self.ttl, wait: self.wait, holder: self.holder.unwrap_or_else(Holder::unique) };
        let engine = Engine::new(backend, self.clock)?;
        Ok(Leasehold(Arc::new(LeaseholdInner { engine, defaults, reentries: Reentries::default() })))
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}
