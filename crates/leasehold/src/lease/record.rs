//! What people look at: live leases, ended ones, and events.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Claim, Ending, Fence, Holder, Metadata, Problem, Resource, Timestamp, Ttl};

/// A live lease or a place in the queue, as others may see it: no lease id.
#[derive(Clone, Debug, PartialEq)]
pub struct LeaseRecord {
    /// What is locked.
    pub resource: Resource,
    /// Who asked.
    pub holder: Holder,
    /// How much.
    pub claim: Claim,
    /// Whether it holds or waits.
    pub state: LeaseState,
    /// When it was asked for, by the backend's wall clock.
    pub asked_at: Timestamp,
    /// How long ago it was last asked for or renewed.
    pub renewed_ago: Duration,
    /// Its length.
    pub ttl: Ttl,
    /// When it ends without a renewal; `None` where it lives as long as its process or connection.
    pub expires_in: Option<Duration>,
    /// One line for people.
    pub note: Option<String>,
    /// More for programs.
    pub metadata: Metadata,
}

/// Whether a lease holds or waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseState {
    /// It holds.
    Holding {
        /// The number of the grant.
        fence: Fence,
        /// When it was granted, by the backend's wall clock.
        acquired_at: Timestamp,
        /// Since how long.
        held_for: Duration,
    },
    /// It waits.
    Waiting {
        /// How many wait before it.
        ahead: u32,
        /// Since how long.
        waiting_for: Duration,
    },
}

/// A lease, or a wait for one, that ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EndedLease {
    /// What was locked.
    pub resource: Resource,
    /// Who asked.
    pub holder: Holder,
    /// How much.
    pub claim: Claim,
    /// The number of the grant; `None` for a wait that never held.
    pub fence: Option<Fence>,
    /// When it was asked for.
    pub asked_at: Timestamp,
    /// When it was granted; `None` for a wait that never held.
    pub acquired_at: Option<Timestamp>,
    /// When it ended.
    pub ended_at: Timestamp,
    /// How it ended.
    pub ending: Ending,
    /// What went wrong, or the reason of an eviction.
    pub problem: Option<Problem>,
    /// One line for people.
    pub note: Option<String>,
    /// More for programs.
    #[serde(default)]
    pub metadata: Metadata,
}

/// Which resources to look at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Names {
    /// All of them.
    #[default]
    All,
    /// Those that start so.
    Prefix(String),
    /// This one.
    Exactly(Resource),
}

impl Names {
    /// Whether the resource is one of them.
    pub fn include(&self, resource: &Resource) -> bool {
        match self {
            Self::All => true,
            Self::Prefix(prefix) => resource.as_str().starts_with(prefix.as_str()),
            Self::Exactly(one) => one == resource,
        }
    }
}

/// Which live leases to list: by name, then in the order of the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListFilter {
    /// Of which resources.
    pub names: Names,
    /// At most so many resources.
    pub limit: usize,
    /// Only resources after this name: the `next` of the page before.
    pub after: Option<Resource>,
}

impl ListFilter {
    /// The first thousand of these resources.
    pub fn new(names: Names) -> Self {
        Self { names, limit: 1000, after: None }
    }
}

/// Which ended leases to tell, newest first. The next page is `until` the oldest told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryFilter {
    /// Of which resources.
    pub names: Names,
    /// Only endings someone may want to look into.
    pub failures: bool,
    /// Only those that ended at or after this time.
    pub since: Option<Timestamp>,
    /// Only those that ended before this time.
    pub until: Option<Timestamp>,
    /// At most so many.
    pub limit: usize,
}

impl HistoryFilter {
    /// The newest hundred of these resources.
    pub fn new(names: Names) -> Self {
        Self { names, failures: false, since: None, until: None, limit: 100 }
    }

    /// Whether this one is wanted.
    pub fn include(&self, ended: &EndedLease) -> bool {
        self.names.include(&ended.resource)
            && (!self.failures || ended.ending.is_failure())
            && self.since.is_none_or(|since| ended.ended_at >= since)
            && self.until.is_none_or(|until| ended.ended_at < until)
    }
}

/// Some of the live leases.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Page {
    /// What was found.
    pub leases: Vec<LeaseRecord>,
    /// The last resource told, if more follow: the `after` of the next page.
    pub next: Option<Resource>,
}

/// Something that happened to a resource.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// When, by the backend's wall clock.
    pub at: Timestamp,
    /// To which resource.
    pub resource: Resource,
    /// Whose lease.
    pub holder: Holder,
    /// How much of it.
    pub claim: Claim,
    /// What.
    #[serde(flatten)]
    pub kind: EventKind,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[non_exhaustive]
pub enum EventKind {
    /// Someone queued.
    Waiting,
    /// Someone holds.
    Acquired {
        /// The number of the grant.
        fence: Fence,
    },
    /// A lease or a wait ended.
    Ended {
        /// How.
        ending: Ending,
        /// The number of the grant; `None` for a wait that never held.
        fence: Option<Fence>,
    },
}
