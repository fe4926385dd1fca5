//! What the child finds in its environment.

use std::ffi::OsString;

use leasehold::Lease;

use super::nested::AncestorLock;
use crate::duration::millis;

/// Everything the child is told; these override what it would inherit.
///
/// The first lease is the one that was named first.
pub(crate) fn variables(
    leases: &[Lease],
    backend: &str,
    outer: &[AncestorLock],
    settings: &[(&'static str, OsString)],
) -> Vec<(OsString, OsString)> {
    let mut variables: Vec<(OsString, OsString)> =
        settings.iter().map(|(name, value)| (OsString::from(name), value.clone())).collect();
    let Some(lease) = leases.first() else {
        return variables;
    };
    let stack: Vec<AncestorLock> = outer.iter().cloned().chain(leases.iter().rev().map(AncestorLock::of)).collect();
    let own: [(&str, String); 9] = [
        ("LEASEHOLD_HELD", String::from("1")),
        ("LEASEHOLD_LOCK", lease.resource().to_string()),
        ("LEASEHOLD_LOCK_STACK", AncestorLock::stack(&stack)),
        ("LEASEHOLD_MODE", lease.mode().to_string()),
        ("LEASEHOLD_FENCE", lease.fence().to_string()),
        ("LEASEHOLD_HOLDER", lease.holder().to_string()),
        ("LEASEHOLD_LEASE", lease.handle().to_string()),
        ("LEASEHOLD_TTL_MS", millis(lease.ttl()).to_string()),
        ("LEASEHOLD_BACKEND", backend.to_owned()),
    ];
    variables.extend(own.into_iter().map(|(name, value)| (name.into(), value.into())));
    variables
}
