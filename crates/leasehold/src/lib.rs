//! One lock, many machines.

pub mod backend;
pub mod backends;
pub mod blocking;
pub mod clock;
mod engine;
mod error;
pub mod lease;
mod leasehold;
pub mod model;
mod primitives;
mod telemetry;

pub use engine::{Guard, Lease, LeaseHealth, Loss};
pub use error::{Error, ErrorKind, Result};
pub use lease::{Fence, Holder, LeaseHandle, Metadata, Outcome, Resource, Ttl};
pub use leasehold::{Builder, Leasehold};
pub use primitives::{All, Attempt, Candidate, Detached, Election, Guards, Leader, Mutex, Observer, RwLock, Semaphore};
