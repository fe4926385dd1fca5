//! `leasehold renew`: more time for a lease that was handed to us.

use std::time::Duration;

use leasehold::{LeaseHandle, Leasehold, Ttl, lease::Standing};
use serde_json::json;

use super::{CommandContext, lease_handle};
use crate::{
    args::RenewArgs,
    duration::{Brief, millis},
    error::{CommandError, Result},
    output::Line,
};

/// How long the lease still lasts, if that is longer than this ttl: a renewal never shortens it.
async fn longer_end(locks: &Leasehold, handle: &LeaseHandle, ttl: Ttl) -> Option<Duration> {
    let left = locks.find(handle).await.ok()??.expires_in?;
    (left > ttl.get()).then_some(left)
}

/// Moves the lease's end; exit 1 if it is gone.
pub(crate) async fn run(context: &CommandContext<'_>, args: &RenewArgs) -> Result<u8> {
    let handle = lease_handle::read(&args.lease)?;
    let asked = args.ttl.map(Ttl::new).transpose().map_err(|error| CommandError::by_flag("--ttl", error))?;
    let resource = handle.key().resource.clone();
    let locks = context.connect_patiently().await?;
    let ttl = match asked {
        Some(ttl) => ttl,
        // Of one that is gone, the renewal says so.
        None => locks.find(&handle).await?.map_or(Ttl::DEFAULT, |lease| lease.ttl),
    };
    let (fence, gone) = match locks.renew(&handle, ttl.get()).await? {
        Standing::Holding(grant) => (Some(grant.fence.get()), None),
        Standing::Unknown => {
            return Err(CommandError::unavailable(format!("{resource}: the renewal was not answered")));
        }
        Standing::Waiting(_) | Standing::Gone => (None, Some(lease_handle::Gone::find_out(&locks, &handle).await)),
    };
    let fields = json!({"renewed": fence.is_some(), "fence": fence, "ttl_ms": millis(ttl.get())});
    let renewed = match longer_end(&locks, &handle, ttl).await {
        // Not what was asked for, so it is said without -v.
        Some(left) if fence.is_some() => Line::new(
            "renewed",
            format!("{resource} is held for {} from now, as before: {} would be less", Brief(left), Brief(ttl.get())),
        ),
        _ => Line::detail("renewed", format!("{resource} is held for {} from now", Brief(ttl.get()))),
    };
    let gone = gone.map(|gone| (format!("cannot renew {resource}"), gone));
    lease_handle::report(context, &resource, fields, renewed, gone)
}
