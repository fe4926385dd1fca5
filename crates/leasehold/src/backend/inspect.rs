//! What operators call: listings, history, events, eviction and diagnosis.

use async_trait::async_trait;

use super::EventStream;
use crate::{
    Error, Result,
    lease::{
        EndedLease, Evicted, Fence, HistoryFilter, LeaseKey, LeasePage, LeaseRecord, ListFilter, Names, Resource,
        RunRecord, RunReport,
    },
};

/// The operations with which operators inspect a backend and evict leases.
#[async_trait]
pub trait Inspect {
    /// Lists live leases and queue positions, sorted by name. For each name, holders come first, then waiters in queue
    /// order.
    async fn list(&self, filter: &ListFilter) -> Result<LeasePage>;

    /// Returns the lease with this key and fence; `None` if it is not held.
    ///
    /// The default implementation searches the result of [`list`](Self::list) for the fence.
    ///
    /// # Errors
    /// `Unavailable` if the backend cannot find out whether the lease is held.
    async fn find(&self, key: &LeaseKey, fence: Fence) -> Result<Option<LeaseRecord>> {
        let page = self.list(&ListFilter::new(Names::Exactly(key.resource.clone()))).await?;
        Ok(page.leases.into_iter().find(|lease| lease.fence() == Some(fence)))
    }

    /// Returns ended leases, newest first.
    async fn history(&self, filter: &HistoryFilter) -> Result<Vec<EndedLease>>;

    /// Streams events about these resources as they happen, whichever process causes them.
    async fn watch(&self, names: Names) -> Result<EventStream>;

    /// Takes the lease with this fence away from its holder.
    async fn evict(&self, resource: &Resource, expected: Fence, reason: &str) -> Result<Evicted>;

    /// Looks for settings and circumstances that endanger locks.
    async fn examine(&self) -> Result<Vec<Finding>>;

    /// Records that runs of a job succeeded, or were skipped because the lock was busy.
    ///
    /// A backend that supports this says so in its [`guarantees`](super::Backend::guarantees). It keeps the records of
    /// about 10,000 names, each for 40 days after its last report. If there are more names, it drops the oldest
    /// records. Callers should batch their reports, so that one process writes at most once a second.
    ///
    /// # Errors
    /// `Unsupported` by default.
    async fn record_runs(&self, reports: &[RunReport]) -> Result<()> {
        let _unused = reports;
        Err(unsupported())
    }

    /// Returns the run records of these resources, sorted by name.
    ///
    /// # Errors
    /// `Unsupported` by default.
    async fn runs(&self, names: &Names) -> Result<Vec<RunRecord>> {
        let _unused = names;
        Err(unsupported())
    }
}

fn unsupported() -> Error {
    Error::unsupported("this backend does not remember skipped runs")
}

/// A result of [`examine`](Inspect::examine).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// The setting or circumstance, in a word or two.
    pub subject: String,
    /// What was found, and what to do about it.
    pub message: String,
}

impl Finding {
    /// Creates a finding about this subject.
    pub fn new(severity: Severity, subject: impl Into<String>, message: impl Into<String>) -> Self {
        Self { severity, subject: subject.into(), message: message.into() }
    }
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Good to know.
    Info,
    /// The check passed.
    Ok,
    /// It may endanger locks.
    Warning,
    /// It endangers locks, or keeps them from working.
    Failure,
}
