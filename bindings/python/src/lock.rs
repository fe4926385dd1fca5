//! A lock with its options, of any kind.

use std::{sync::Arc, time::Duration};

use leasehold::{Holder, Leasehold, Metadata, Result};
use pyo3::{prelude::*, types::PyDict};

use crate::{
    call::{Call, Value, block},
    errors,
    instance::{Connection, Instance, Wait, seconds},
    lease::Lease,
};

/// What is locked.
enum Kind {
    Mutex(String),
    Read(String),
    Write(String),
    Semaphore { name: String, limit: u32, permits: u32 },
    All(Vec<String>),
    Election { name: String, value: Option<String> },
}

#[derive(Default)]
struct Options {
    wait: Wait,
    ttl: Option<Duration>,
    max_hold: Option<Duration>,
    holder: Option<Holder>,
    note: Option<String>,
    metadata: Option<Metadata>,
    max_waiters: Option<u32>,
    is_detached: bool,
}

impl Options {
    fn from_python(given: &Bound<'_, PyDict>) -> PyResult<Self> {
        let mut options = Self::default();
        for (key, value) in given {
            let key: String = key.extract()?;
            match key.as_str() {
                "wait" => {
                    let wait: Option<f64> = value.extract()?;
                    options.wait = wait.map_or(Ok(Wait::Forever), |wait| seconds("wait", wait).map(Wait::For))?;
                }
                "ttl" => options.ttl = Some(seconds("ttl", value.extract()?)?),
                "max_hold" => options.max_hold = Some(seconds("max_hold", value.extract()?)?),
                "holder" => {
                    let label: String = value.extract()?;
                    options.holder = Some(Holder::new(label).map_err(|error| errors::exception(&error))?);
                }
                "note" => options.note = Some(value.extract()?),
                "metadata" => {
                    let text: String = value.extract()?;
                    let parsed = serde_json::from_str(&text);
                    options.metadata = Some(parsed.map_err(|_| errors::invalid("metadata must be a JSON object"))?);
                }
                "max_waiters" => options.max_waiters = Some(value.extract()?),
                "auto_renew" => options.is_detached = !value.extract::<bool>()?,
                other => return Err(errors::invalid(format!("there is no option {other}"))),
            }
        }
        Ok(options)
    }
}

/// Sets the options that were given on a lock of the library.
macro_rules! with_options {
    ($options:expr, $lock:expr) => {{
        let (options, mut lock) = ($options, $lock);
        match options.wait {
            Wait::ByDefault => {}
            Wait::Forever => lock = lock.wait_forever(),
            Wait::For(wait) => lock = lock.wait(wait),
        }
        if let Some(ttl) = options.ttl {
            lock = lock.ttl(ttl);
        }
        if let Some(max_hold) = options.max_hold {
            lock = lock.max_hold(max_hold);
        }
        if let Some(holder) = &options.holder {
            lock = lock.holder(holder.clone());
        }
        if let Some(note) = &options.note {
            lock = lock.note(note);
        }
        if let Some(metadata) = &options.metadata {
            lock = lock.metadata(metadata.clone());
        }
        if let Some(most) = options.max_waiters {
            lock = lock.max_waiters(most);
        }
        lock
    }};
}

struct Description {
    connection: Arc<Connection>,
    kind: Kind,
    options: Options,
}

impl Description {
    /// The lock in the library; `None` for the kinds that are no single lock.
    fn lock(&self, locks: &Leasehold) -> Option<leasehold::Lock> {
        let lock = match &self.kind {
            Kind::Mutex(name) => locks.mutex(name),
            Kind::Read(name) => locks.read(name),
            Kind::Write(name) => locks.write(name),
            Kind::Semaphore { name, limit, permits } => locks.semaphore(name, *limit).permits(*permits),
            Kind::All(_) | Kind::Election { .. } => return None,
        };
        Some(with_options!(&self.options, lock))
    }

    fn election(&self, locks: &Leasehold, name: &str, value: Option<&String>) -> leasehold::Election {
        let election = with_options!(&self.options, locks.election(name));
        if let Some(value) = value { election.value(value) } else { election }
    }

    async fn acquire(&self) -> Result<Lease> {
        let locks = self.connection.open().await?;
        if let Some(lock) = self.lock(locks) {
            if self.options.is_detached {
                return Ok(Lease::detached(lock.acquire_detached().await?));
            }
            return Ok(Lease::one(lock.acquire().await?));
        }
        match &self.kind {
            Kind::Election { name, value } => {
                Ok(Lease::one(self.election(locks, name, value.as_ref()).campaign().await?))
            }
            Kind::All(names) => Ok(Lease::all(with_options!(&self.options, locks.all(names)).acquire().await?)),
            _ => unreachable!("every other kind is a lock"),
        }
    }

    async fn try_acquire(&self) -> Result<Option<Lease>> {
        let locks = self.connection.open().await?;
        if let Some(lock) = self.lock(locks) {
            if self.options.is_detached {
                return Ok(lock.try_acquire_detached().await?.map(Lease::detached));
            }
            return Ok(lock.try_acquire().await?.map(Lease::one));
        }
        match &self.kind {
            Kind::Election { name, value } => {
                Ok(self.election(locks, name, value.as_ref()).try_campaign().await?.map(Lease::one))
            }
            Kind::All(names) => Ok(with_options!(&self.options, locks.all(names)).try_acquire().await?.map(Lease::all)),
            _ => unreachable!("every other kind is a lock"),
        }
    }
}

/// A lock with its options.
#[pyclass(frozen, module = "leasehold._native")]
pub(crate) struct Lock(Arc<Description>);

#[pymethods]
impl Lock {
    #[new]
    #[pyo3(signature = (instance, kind, names, limit=1, permits=1, value=None, options=None))]
    fn new(
        instance: &Instance,
        kind: &str,
        mut names: Vec<String>,
        limit: u32,
        permits: u32,
        value: Option<String>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let mut name = || names.pop().unwrap_or_default();
        let kind = match kind {
            "mutex" => Kind::Mutex(name()),
            "read" => Kind::Read(name()),
            "write" => Kind::Write(name()),
            "semaphore" => Kind::Semaphore { name: name(), limit, permits },
            "election" => Kind::Election { name: name(), value },
            _ => Kind::All(names),
        };
        let options = options.map(Options::from_python).transpose()?.unwrap_or_default();
        let connection = Arc::clone(&instance.0);
        Ok(Self(Arc::new(Description { connection, kind, options })))
    }

    fn acquire(&self) -> Call {
        let description = Arc::clone(&self.0);
        Call::new(async move { description.acquire().await.map(Value::Lease) })
    }

    /// As `acquire`, on this thread.
    fn acquire_sync(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        block(py, async { self.0.acquire().await.map(Value::Lease) })
    }

    /// A call that gives a lease, or nothing if the lock is busy.
    fn try_acquire(&self) -> Call {
        let description = Arc::clone(&self.0);
        Call::new(async move { Ok(description.try_acquire().await?.map_or(Value::Nothing, Value::Lease)) })
    }
}
