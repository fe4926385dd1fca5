//! What the engine asks of a backend.

use super::{Claim, Fence, Holder, LeaseKey, Ttl};
use crate::setters_macro::setters;

/// A JSON object that travels with a lease and is shown to others.
pub type Metadata = serde_json::Map<String, serde_json::Value>;

/// One request for a lease. Sending it again with the same key is safe.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Request {
    /// The resource, and the id that the lease will have.
    pub key: LeaseKey,
    /// How many units of the resource to take.
    pub claim: Claim,
    /// How long the lease lives without a renewal; 30 s by default.
    pub ttl: Ttl,
    /// What to do if the resource is busy; by default, the request queues.
    pub patience: Patience,
    /// How many waiters may be ahead in the queue; if there are more, the answer is `Busy`. No limit by default.
    pub max_waiters: Option<u32>,
    /// What ends the lease if nobody renews or releases it; `Attached` by default.
    pub lifetime: Lifetime,
    /// The holder name that others see.
    pub holder: Holder,
    /// A one-line note from the holder.
    pub note: Option<String>,
    /// A JSON object from the holder.
    pub metadata: Metadata,
    /// The lowest fence that the grant may have. New fences are at least the backend's wall clock in microseconds; a
    /// floor more than 10 s ahead of that clock is lowered to 10 s ahead.
    pub fence_floor: Option<Fence>,
}

impl Request {
    /// Creates a request that queues, for an attached lease of 30 s.
    pub fn new(key: LeaseKey, claim: Claim, holder: Holder) -> Self {
        Self {
            key,
            claim,
            ttl: Ttl::DEFAULT,
            patience: Patience::Queue,
            max_waiters: None,
            lifetime: Lifetime::Attached,
            holder,
            note: None,
            metadata: Metadata::new(),
            fence_floor: None,
        }
    }

    setters! {
        /// Sets the ttl.
        pub fn ttl(mut self, ttl: Ttl) -> Self => ttl;

        /// Sets the holder.
        pub fn holder(mut self, holder: Holder) -> Self => holder;

        /// Sets the note.
        pub fn note(mut self, note: impl Into<String>) -> Self => Some(note.into());

        /// Sets the metadata.
        pub fn metadata(mut self, metadata: Metadata) -> Self => metadata;

        /// Sets the lowest fence that the grant may have.
        pub fn fence_floor(mut self, floor: Fence) -> Self => Some(floor);

        /// Sets how many waiters may be ahead in the queue. If there are more, the answer is `Busy`.
        pub fn max_waiters(mut self, most: u32) -> Self => Some(most);

        /// Sets what to do if the resource is busy.
        pub fn patience(mut self, patience: Patience) -> Self => patience;

        /// Sets what ends the lease.
        pub fn lifetime(mut self, lifetime: Lifetime) -> Self => lifetime;
    }
}

/// What to do if the resource is busy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// Give up at once.
    Try,
    /// Join the queue.
    Queue,
}

/// What ends a lease that nobody renews or releases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifetime {
    /// The end of its process or connection, where the backend can see that; otherwise its ttl.
    Attached,
    /// Only its ttl: the process may exit and hand the lease on.
    Detached,
}

/// A request to renew one lease. Extends the lease to `ttl` from now; never shortens it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Renewal {
    /// The lease.
    pub key: LeaseKey,
    /// How long the lease lives from now on without another renewal.
    pub ttl: Ttl,
    /// The value to raise the fence to. A value that is too low or too high is ignored; the answer contains the fence.
    pub fence_floor: Option<Fence>,
    /// The smaller claim to keep: a write lock becomes a read lock, or permits are given back.
    pub downgrade: Option<Claim>,
    /// The new metadata; `None` to keep the old.
    pub metadata: Option<Metadata>,
    /// Whether the lease becomes a detached one, which ends `ttl` from now unless it is renewed. Only for a lease that
    /// holds, and only by the instance that requested it, which must no longer rely on the lease's old lifetime.
    pub detach: bool,
}

impl Renewal {
    /// Creates a renewal that extends the lease and changes nothing else.
    pub fn new(key: LeaseKey, ttl: Ttl) -> Self {
        Self { key, ttl, fence_floor: None, downgrade: None, metadata: None, detach: false }
    }

    setters! {
        /// Asks to raise the fence of the lease to this value, so that the nodes of `redlock:` agree on one.
        pub fn fence_floor(mut self, floor: Fence) -> Self => Some(floor);

        /// Sets the smaller claim to keep.
        pub fn downgrade(mut self, claim: Claim) -> Self => Some(claim);

        /// Sets the new metadata.
        pub fn metadata(mut self, metadata: Metadata) -> Self => Some(metadata);

        /// Sets whether the lease becomes a detached one.
        pub fn detach(mut self, detach: bool) -> Self => detach;

        /// Sets the ttl.
        pub fn ttl(mut self, ttl: Ttl) -> Self => ttl;
    }
}
