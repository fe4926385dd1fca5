//! The nouns: plain data that every layer shares. No behaviour beyond validation.

mod claim;
mod fence;
mod grant;
mod holder;
mod key;
mod outcome;
mod record;
mod request;
mod resource;
mod time;

pub use claim::{Claim, Family, Mode, Shape};
pub use fence::Fence;
pub(crate) use grant::Brief;
pub use grant::{Answer, Busy, Decision, Evicted, Grant, HeldBy, Incarnation, Place, Released, Standing};
pub use holder::Holder;
pub use key::{LeaseHandle, LeaseId, LeaseKey};
pub use outcome::{Ending, Outcome, Problem};
pub use record::{EndedLease, Event, EventKind, HistoryFilter, LeaseRecord, LeaseState, ListFilter, Names, Page};
pub use request::{Lifetime, Metadata, Patience, Renewal, Request};
pub use resource::Resource;
pub(crate) use time::micros;
pub use time::{Moment, Timestamp, Ttl};
