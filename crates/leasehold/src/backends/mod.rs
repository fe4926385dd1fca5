//! The places that keep leases, one folder each.
