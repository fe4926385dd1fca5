//! An instance of the library that connects when it is first used.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use leasehold::{
    Fence, Holder, Leasehold, Outcome, Resource, Result,
    clock::ManualClock,
    lease::{Evicted, HistoryFilter, ListFilter, Names, Timestamp},
};
use pyo3::prelude::*;
use tokio::sync::OnceCell;

use crate::{
    call::{Call, Value},
    errors,
    of_process::OfProcess,
    records,
    watch::Watch,
};

/// How long to wait for a lock.
#[derive(Clone, Copy, Default)]
pub(crate) enum Wait {
    #[default]
    ByDefault,
    Forever,
    For(Duration),
}

/// The settings of a connection, as the caller gave them.
struct Settings {
    url: String,
    namespace: Option<String>,
    holder: Option<Holder>,
    ttl: Option<Duration>,
    wait: Wait,
    clock: Option<ManualClock>,
}

/// The instance, connected or not.
///
/// A forked child whose parent had not connected connects by itself. What the parent has opened stays the parent's: every
/// call on it fails in the child.
pub(crate) struct Connection {
    settings: Settings,
    first: PerProcess,
}

/// The instance of one process.
struct PerProcess {
    generation: u32,
    open: OnceCell<OfProcess<Leasehold>>,
    /// For a child that was forked before, or while, its parent connected.
    next: OnceLock<Box<PerProcess>>,
}

impl PerProcess {
    fn new() -> Self {
        Self { generation: leasehold_fork::generation(), open: OnceCell::new(), next: OnceLock::new() }
    }
}

impl Connection {
    /// The open instance; the first call connects.
    pub(crate) async fn open(&self) -> Result<&Leasehold> {
        let process = self.of_process();
        let open = process.open.get_or_try_init(|| async { self.settings.connect().await.map(OfProcess::new) });
        Ok(open.await?.peek())
    }

    /// The instance that this process or a parent of it has opened.
    fn if_open(&self) -> Option<&Leasehold> {
        self.of_process().open.get().map(OfProcess::peek)
    }

    fn of_process(&self) -> &PerProcess {
        let mut process = &self.first;
        while process.generation != leasehold_fork::generation() && !process.open.initialized() {
            process = process.next.get_or_init(|| Box::new(PerProcess::new()));
        }
        process
    }
}

impl Settings {
    async fn connect(&self) -> Result<Leasehold> {
        let mut builder = Leasehold::builder();
        if let Some(namespace) = &self.namespace {
            builder = builder.namespace(namespace);
        }
        if let Some(holder) = &self.holder {
            builder = builder.holder(holder.clone());
        }
        if let Some(ttl) = self.ttl {
            builder = builder.ttl(ttl);
        }
        match self.wait {
            Wait::ByDefault => {}
            Wait::Forever => builder = builder.wait_forever(),
            Wait::For(wait) => builder = builder.wait(wait),
        }
        if let Some(clock) = &self.clock {
            builder = builder.clock(Arc::new(clock.clone()));
        }
        builder.connect(&self.url).await
    }
}

/// A length of time from Python's seconds.
pub(crate) fn seconds(what: &str, seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| errors::invalid(format!("{what} of {seconds} cannot be used: give seconds, zero or more")))
}

/// How the work under a lease ended, from a kind and details of its failure.
pub(crate) fn outcome(failure: Option<(String, String)>) -> Outcome {
    failure.map_or(Outcome::Completed, |(kind, details)| Outcome::failed(kind, details))
}

/// A clock for tests, which moves only when a test advances it.
#[pyclass(frozen, module = "leasehold._native")]
pub(crate) struct Clock(ManualClock);

#[pymethods]
impl Clock {
    #[new]
    fn new() -> Self {
        Self(ManualClock::new())
    }

    /// Goes on by this many seconds.
    fn advance(&self, py: Python<'_>, length: f64) -> PyResult<()> {
        let length = seconds("a length", length)?;
        py.detach(|| self.0.advance(length));
        Ok(())
    }
}

/// An instance that connects when it is first used.
#[pyclass(frozen, module = "leasehold._native")]
pub(crate) struct Instance(pub(crate) Arc<Connection>);

impl Instance {
    fn call<F>(&self, ask: impl FnOnce(Arc<Connection>) -> F) -> Call
    where
        F: Future<Output = Result<Value>> + Send + 'static,
    {
        Call::new(ask(Arc::clone(&self.0)))
    }
}

#[pymethods]
impl Instance {
    #[new]
    #[pyo3(signature = (url, namespace=None, holder=None, ttl=None, wait=None, wait_forever=false, clock=None))]
    fn new(
        url: String,
        namespace: Option<String>,
        holder: Option<String>,
        ttl: Option<f64>,
        wait: Option<f64>,
        wait_forever: bool,
        clock: Option<&Clock>,
    ) -> PyResult<Self> {
        let wait = match wait {
            _ if wait_forever => Wait::Forever,
            Some(wait) => Wait::For(seconds("wait", wait)?),
            None => Wait::ByDefault,
        };
        let settings = Settings {
            url,
            namespace,
            holder: holder.map(Holder::new).transpose().map_err(|error| errors::exception(&error))?,
            ttl: ttl.map(|ttl| seconds("ttl", ttl)).transpose()?,
            wait,
            clock: clock.map(|clock| clock.0.clone()),
        };
        Ok(Self(Arc::new(Connection { settings, first: PerProcess::new() })))
    }

    /// Connects now.
    fn connect(&self) -> Call {
        self.call(|connection| async move { connection.open().await.map(|_| Value::Nothing) })
    }

    fn list(&self, name: Option<String>, prefix: Option<String>, limit: usize) -> Call {
        self.call(move |connection| async move {
            let filter = ListFilter::new(names(name, prefix)?).limit(limit);
            Ok(Value::Text(records::leases(&connection.open().await?.list(&filter).await?.leases)))
        })
    }

    #[pyo3(signature = (name, prefix, failures, since, until, limit))]
    fn history(
        &self,
        name: Option<String>,
        prefix: Option<String>,
        failures: bool,
        since: Option<u64>,
        until: Option<u64>,
        limit: usize,
    ) -> Call {
        self.call(move |connection| async move {
            let mut filter = HistoryFilter::new(names(name, prefix)?).failures(failures).limit(limit);
            filter.ended = since.map_or(Timestamp::MIN, Timestamp::from_micros)
                ..until.map_or(Timestamp::MAX, Timestamp::from_micros);
            Ok(Value::Text(records::ended(&connection.open().await?.history(&filter).await?)))
        })
    }

    fn watch(&self, name: Option<String>, prefix: Option<String>) -> Call {
        self.call(move |connection| async move {
            let events = connection.open().await?.watch(names(name, prefix)?).await?;
            Ok(Value::Watch(Watch::new(events)))
        })
    }

    fn evict(&self, name: String, fence: u64, reason: String) -> Call {
        self.call(move |connection| async move {
            let (resource, fence) = (Resource::new(name)?, Fence::new(fence));
            let evicted = connection.open().await?.evict(&resource, fence, &reason).await?;
            Ok(Value::Flag(matches!(evicted, Evicted::Evicted { .. })))
        })
    }

    /// Who leads an election, as JSON.
    fn leader(&self, name: String) -> Call {
        self.call(move |connection| async move {
            let leader = connection.open().await?.election(name).leader().await?;
            Ok(leader.map_or(Value::Nothing, |leader| Value::Text(records::leader(&leader))))
        })
    }

    /// Releases everything; an instance that is not connected has nothing to release.
    fn close(&self) -> Call {
        self.call(|connection| async move {
            if let Some(open) = connection.if_open() {
                open.close().await?;
            }
            Ok(Value::Nothing)
        })
    }
}

fn names(name: Option<String>, prefix: Option<String>) -> Result<Names> {
    Ok(match (name, prefix) {
        (Some(name), _) => Names::Exactly(Resource::new(name)?),
        (None, Some(prefix)) => Names::Prefix(prefix),
        (None, None) => Names::All,
    })
}
