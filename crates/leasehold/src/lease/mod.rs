//! Data types that users and backends share, with no behaviour beyond validation.

mod belief;
mod claim;
pub(crate) mod error;
mod fence;
mod filter;
mod grant;
mod holder;
mod key;
mod outcome;
mod random;
mod record;
mod request;
mod resource;
mod runs;
mod time;

pub use belief::{Belief, Session};
pub use claim::{Claim, Family, Mode, Shape};
pub use fence::Fence;
pub use filter::{HistoryFilter, ListFilter, Names, Selection};
pub(crate) use grant::Brief;
pub use grant::{Answer, Busy, Decision, Evicted, Grant, HeldBy, Incarnation, QueuePosition, Released, Standing};
pub use holder::Holder;
pub use key::{LeaseHandle, LeaseId, LeaseKey};
pub use outcome::{Ending, Outcome, Problem};
pub(crate) use random::random_u64;
pub use record::{EndedLease, Event, EventKind, HistoryPage, LeaseRecord, LeaseState, Page};
pub use request::{Lifetime, Metadata, Patience, Renewal, Request};
pub use resource::Resource;
pub use runs::{RunRecord, RunReport};
pub(crate) use time::micros;
pub use time::{Moment, Timestamp, Ttl};
