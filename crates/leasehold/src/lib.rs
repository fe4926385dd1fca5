//! One lock, many machines.

pub mod backend;
pub mod backends;
pub mod clock;
mod error;
pub mod lease;
pub mod model;

pub use error::{Error, ErrorKind, Result};
pub use lease::{Fence, Holder, Resource, Ttl};
