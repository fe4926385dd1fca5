//! The places that keep leases, one folder each.

#[cfg(feature = "memory")]
pub mod memory;
