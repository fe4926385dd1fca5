//! The data types that users and backends share. The held lease itself is a [`Lease`](crate::Lease).
//!
//! The types that only backends use, such as requests and decisions, are exported by [`backend`](crate::backend).

pub(crate) mod belief;
mod claim;
pub(crate) mod error;
mod fence;
pub(crate) mod filter;
pub(crate) mod grant;
pub(crate) mod holder;
mod key;
mod outcome;
mod random;
mod record;
pub(crate) mod request;
mod resource;
mod runs;
mod text;
mod time;

pub(crate) use belief::Belief;
pub use claim::{Claim, Family, Mode, Shape};
pub use fence::Fence;
pub use filter::{HistoryFilter, ListFilter, Names};
pub(crate) use grant::{Answer, Brief, Decision, Incarnation};
pub use grant::{Busy, Evicted, Grant, HeldBy, QueuePosition, Released, Standing};
pub use holder::Holder;
pub use key::{LeaseHandle, LeaseId, LeaseKey};
pub use outcome::{Ending, Outcome, Problem};
pub(crate) use random::random_u64;
pub use record::{EndedLease, Event, EventKind, HistoryPage, LeasePage, LeaseRecord, LeaseState};
pub use request::Metadata;
pub(crate) use request::{Lifetime, Patience, Renewal, Request};
pub use resource::Resource;
pub use runs::{RunRecord, RunReport, SkippedRun};
pub use time::{Moment, Timestamp, Ttl};
pub(crate) use time::{micros, rounded};
