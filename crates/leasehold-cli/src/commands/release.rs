//! `leasehold release`: releases a lease by its handle.

use leasehold::{Outcome, lease::Released};
use serde_json::json;

use super::{CommandContext, lease_handle};
use crate::{args::LeaseArgs, error::Result, output::Line};

/// Ends the lease; exit 1 if it had ended before.
pub(crate) async fn run(context: &CommandContext<'_>, args: &LeaseArgs) -> Result<u8> {
    let handle = lease_handle::read(args)?;
    let resource = handle.key().resource.clone();
    let locks = context.connect_patiently().await?;
    let gone = match locks.release(&handle, Outcome::Completed).await? {
        Released::Gone => Some(lease_handle::Gone::find_out(&locks, &handle).await),
        Released::Freed | Released::LeftQueue | Released::Shared => None,
    };
    let fields = json!({"released": gone.is_none()});
    let released = Line::detail("released", format!("released {resource}"));
    let gone = gone.map(|gone| (format!("nothing to release on {resource}"), gone));
    lease_handle::report(context, &resource, fields, released, gone)
}
