//! `leasehold check`: whether a lease that was handed to us is still held, or a job succeeded lately.

use std::time::Duration;

use leasehold::{
    clock::{Clock, SystemClock},
    lease::{Names, RunRecord},
};
use serde_json::json;

use super::{CommandContext, lease_handle, unknown_lock};
use crate::{
    args::{CheckArgs, LeaseArgs},
    duration::Brief,
    error::Result,
    exit, json,
    output::Line,
    run_command::{lock_request, runs},
};

/// Exit 0 if it is so, 1 if not.
pub(crate) async fn run(context: &CommandContext<'_>, args: &CheckArgs) -> Result<u8> {
    match (&args.name, args.succeeded_within) {
        (Some(name), Some(within)) => succeeded(context, name, within).await,
        _ => held(context, &args.lease).await,
    }
}

/// Whether a run under this lock succeeded within this time.
async fn succeeded(context: &CommandContext<'_>, name: &str, within: Duration) -> Result<u8> {
    let resource = lock_request::resource(name)?;
    let locks = context.connect().await?;
    let found = locks.runs(&Names::Exactly(resource.clone())).await?.pop();
    let is_unknown = found.is_none() && unknown_lock::is_unknown(&locks, &resource).await?;
    let unknown = resource.clone();
    let record = found.unwrap_or_else(|| RunRecord::new(resource));
    let now = SystemClock.wall();
    let is_recent = record.last_success.is_some_and(|at| now.since(at) <= within);
    if context.output.style().json {
        json::print(runs::to_json(&record, Some(is_recent)).to_string())?;
    }
    let words = runs::message(&record, now);
    if is_recent {
        context.output.print(Line::detail("succeeded", format!("{name}: {words}")));
        return Ok(exit::OK);
    }
    let limit = Brief(within);
    if is_unknown {
        let verb = format!("check --succeeded-within {limit}");
        context.output.print(unknown_lock::line(context, &locks, &unknown, &verb).await);
        return Ok(exit::NO);
    }
    context.output.print(Line::new("not_succeeded", format!("{name} has not succeeded within {limit}: {words}")));
    Ok(exit::NO)
}

async fn held(context: &CommandContext<'_>, args: &LeaseArgs) -> Result<u8> {
    let handle = lease_handle::read(args)?;
    let resource = handle.key().resource.clone();
    let locks = context.connect().await?;
    let (fence, gone) = match locks.find(&handle).await? {
        Some(_) => (Some(handle.fence().get()), None),
        None => (None, Some(lease_handle::Gone::find_out(&locks, &handle).await)),
    };
    let fields = json!({"held": fence.is_some(), "fence": fence});
    let held = Line::detail("held", format!("{resource} is held under this lease"));
    let gone = gone.map(|gone| (format!("{resource} is not held under this lease"), gone));
    lease_handle::report(context, &resource, fields, held, gone)
}
