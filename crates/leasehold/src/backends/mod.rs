//! The places that keep leases, one folder each.

#[cfg(feature = "file")]
pub mod file;
