//! What the engine asks of a backend.

use super::{Claim, Fence, Holder, LeaseKey, Ttl};

/// A JSON object that travels with a lease and is shown to others.
pub type Metadata = serde_json::Map<String, serde_json::Value>;

/// One ask for a lease. Asking again with the same key is safe.
#[derive(Clone, Debug)]
pub struct Request {
    /// The resource, and the id the lease will have.
    pub key: LeaseKey,
    /// How much of it.
    pub claim: Claim,
    /// How long the lease lives without a renewal.
    pub ttl: Ttl,
    /// Whether to queue when it is busy.
    pub patience: Patience,
    /// How many waiters it accepts ahead of it; beyond that it is busy at once. `None` accepts any number.
    pub max_waiters: Option<u32>,
    /// What the lease lives by.
    pub lifetime: Lifetime,
    /// Who asks.
    pub holder: Holder,
    /// One line for people.
    pub note: Option<String>,
    /// More for programs.
    pub metadata: Metadata,
    /// The fence should not be below this (clamped to 10 s ahead of the backend's wall clock).
    pub fence_floor: Option<Fence>,
}

/// What to do when the resource is busy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// Leave at once.
    Try,
    /// Take a place in the queue.
    Queue,
}

/// What a lease lives by, where the backend can see its asker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifetime {
    /// The asker: where a backend sees processes or connections die, the lease
    /// ends with them; elsewhere with its ttl.
    Attached,
    /// The ttl alone, on every backend: the asker may exit and hand the lease on.
    Detached,
}

/// One lease to renew: its end becomes now + ttl, never earlier than it was.
#[derive(Clone, Debug)]
pub struct Renewal {
    /// Which lease.
    pub key: LeaseKey,
    /// How long it lives from now.
    pub ttl: Ttl,
    /// Raise the fence to exactly this, or leave it: the answer tells which.
    pub fence_floor: Option<Fence>,
    /// Keep less: a write lock becomes a read lock, permits are given back.
    pub downgrade: Option<Claim>,
    /// Replace the metadata.
    pub metadata: Option<Metadata>,
}

impl Renewal {
    /// Renews and changes nothing else.
    pub fn new(key: LeaseKey, ttl: Ttl) -> Self {
        Self { key, ttl, fence_floor: None, downgrade: None, metadata: None }
    }
}
