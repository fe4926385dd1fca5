//! What listings, history and event streams show.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Claim, Ending, Fence, Holder, Metadata, Problem, Resource, Timestamp, Ttl};

/// A live lease or a queue position, without the lease id, which is secret.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct LeaseRecord {
    /// What is locked.
    pub resource: Resource,
    /// Who holds it or waits for it.
    pub holder: Holder,
    /// How many units of the resource it takes.
    pub claim: Claim,
    /// Whether it is held or queued.
    pub state: LeaseState,
    /// When it was requested, by the backend's wall clock.
    pub asked_at: Timestamp,
    /// How long ago it was last requested or renewed.
    pub renewed_ago: Duration,
    /// How long it lives without a renewal.
    pub ttl: Ttl,
    /// How long until it expires without a renewal; `None` if it lasts as long as its process or connection.
    pub expires_in: Option<Duration>,
    /// A one-line note from the holder.
    pub note: Option<String>,
    /// A JSON object from the holder.
    pub metadata: Metadata,
}

impl LeaseRecord {
    /// Creates a record without times, note or metadata; set the fields you know.
    pub fn new(resource: Resource, holder: Holder, claim: Claim, state: LeaseState) -> Self {
        Self {
            resource,
            holder,
            claim,
            state,
            asked_at: Timestamp::default(),
            renewed_ago: Duration::ZERO,
            ttl: Ttl::DEFAULT,
            expires_in: None,
            note: None,
            metadata: Metadata::new(),
        }
    }

    /// Returns the fence of the grant; `None` while it waits.
    pub const fn fence(&self) -> Option<Fence> {
        match self.state {
            LeaseState::Holding { fence, .. } => Some(fence),
            LeaseState::Waiting { .. } => None,
        }
    }
}

/// Whether a lease is held or queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseState {
    /// The lease is held.
    Holding {
        /// The fence of the grant.
        fence: Fence,
        /// When it was granted, by the backend's wall clock.
        acquired_at: Timestamp,
        /// How long it has been held.
        held_for: Duration,
    },
    /// The lease is queued.
    Waiting {
        /// How many waiters are ahead.
        ahead: u32,
        /// How long it has waited.
        waiting_for: Duration,
    },
}

/// The history record of an ended lease or an ended wait.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct EndedLease {
    /// What was locked.
    pub resource: Resource,
    /// Who held it or waited for it.
    pub holder: Holder,
    /// How many units of the resource it took.
    pub claim: Claim,
    /// The fence of the grant; `None` for a wait that was never granted.
    pub fence: Option<Fence>,
    /// When it was requested.
    pub asked_at: Timestamp,
    /// When it was granted; `None` for a wait that was never granted.
    pub acquired_at: Option<Timestamp>,
    /// When it ended.
    pub ended_at: Timestamp,
    /// How it ended.
    pub ending: Ending,
    /// What went wrong, or the reason for an eviction.
    pub problem: Option<Problem>,
    /// A one-line note from the holder.
    pub note: Option<String>,
    /// A JSON object from the holder.
    #[serde(default)]
    pub metadata: Metadata,
}

impl EndedLease {
    /// Creates the record of a wait that ended without a grant. For a lease that was held, set the other fields.
    pub fn new(resource: Resource, holder: Holder, claim: Claim, ended_at: Timestamp, ending: Ending) -> Self {
        Self {
            resource,
            holder,
            claim,
            fence: None,
            asked_at: ended_at,
            acquired_at: None,
            ended_at,
            ending,
            problem: None,
            note: None,
            metadata: Metadata::new(),
        }
    }
}

/// A page of ended leases, newest first.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct HistoryPage {
    /// The leases that were found.
    pub leases: Vec<EndedLease>,
    /// Whether the filter's limit left out some leases.
    pub is_truncated: bool,
}

impl HistoryPage {
    /// Creates a page of at most `limit` of these leases.
    pub fn new(mut leases: Vec<EndedLease>, limit: usize) -> Self {
        let is_truncated = leases.len() > limit;
        leases.truncate(limit);
        Self { leases, is_truncated }
    }
}

/// A page of live leases.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct LeasePage {
    /// The leases that were found.
    pub leases: Vec<LeaseRecord>,
    /// The last resource on this page, if more follow. Use it as the `after` of the next page.
    pub next: Option<Resource>,
}

impl LeasePage {
    /// Creates a page of these leases. `next` is the last resource on it, if more follow.
    pub const fn new(leases: Vec<LeaseRecord>, next: Option<Resource>) -> Self {
        Self { leases, next }
    }
}

/// Something that happened to a resource.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Event {
    /// When it happened, by the backend's wall clock.
    pub at: Timestamp,
    /// The resource.
    pub resource: Resource,
    /// Who holds the lease or waits for it.
    pub holder: Holder,
    /// How many units of the resource it takes.
    pub claim: Claim,
    /// What happened.
    #[serde(flatten)]
    pub kind: EventKind,
}

impl Event {
    /// Creates an event about this holder's claim on the resource.
    pub const fn new(at: Timestamp, resource: Resource, holder: Holder, claim: Claim, kind: EventKind) -> Self {
        Self { at, resource, holder, claim, kind }
    }
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[non_exhaustive]
pub enum EventKind {
    /// A request joined the queue.
    Waiting,
    /// A lease was granted.
    Acquired {
        /// The fence of the grant.
        fence: Fence,
    },
    /// A lease or a wait ended.
    Ended {
        /// How it ended.
        ending: Ending,
        /// The fence of the grant; `None` for a wait that was never granted.
        fence: Option<Fence>,
    },
}
