//! `leasehold renew`: more time for a lease that was handed to us.

use leasehold::{Ttl, lease::Standing};
use serde_json::json;

use super::{Context, given};
use crate::{
    args::RenewArgs,
    duration::{Brief, millis},
    exit::{self, Failure, Result},
    json,
    say::Line,
};

/// Moves the lease's end; exit 1 if it is gone.
pub(crate) async fn run(context: &Context<'_>, args: &RenewArgs) -> Result<u8> {
    let handle = given::lease(&args.lease)?;
    let ttl = Ttl::new(args.ttl).map_err(|error| Failure::by_flag("--ttl", error))?;
    let resource = handle.key().resource.clone();
    let locks = context.connect_patiently().await?;
    let (fence, gone) = match locks.renew(&handle, ttl.get()).await? {
        Standing::Holding(grant) => (Some(grant.fence.get()), None),
        Standing::Unknown => return Err(Failure::unavailable(format!("{resource}: the renewal was not answered"))),
        Standing::Waiting(_) | Standing::Gone => (None, Some(given::Gone::find_out(&locks, &resource).await)),
    };
    if context.say.looks().json {
        json::print(
            json!({
                "v": 1,
                "lock": resource.as_str(),
                "renewed": fence.is_some(),
                "fence": fence,
                "ttl_ms": millis(ttl.get()),
                "ended_at": gone.as_ref().and_then(given::Gone::ended_at),
                "ending": gone.as_ref().and_then(given::Gone::ending),
                "holders": gone.as_ref().map(given::Gone::holders),
            })
            .to_string(),
        )?;
    }
    match gone {
        None => {
            context.say.say(Line::detail("renewed", format!("{resource} is held for {} from now", Brief(ttl.get()))));
            Ok(exit::OK)
        }
        Some(gone) => {
            context.say.say(Line::new("gone", format!("cannot renew {resource}: {}", gone.words())));
            Ok(exit::NO)
        }
    }
}
