//! `leasehold check`: whether a lease that was handed to us is still held.

use leasehold::lease::Standing;
use serde_json::json;

use super::{Context, given};
use crate::{
    args::LeaseArgs,
    exit::{self, Failure, Result},
    json,
    say::Line,
};

/// Exit 0 if it is held, 1 if not.
pub(crate) async fn run(context: &Context<'_>, args: &LeaseArgs) -> Result<u8> {
    let handle = given::lease(args)?;
    let resource = handle.key().resource.clone();
    let locks = context.connect().await?;
    let (fence, gone) = match locks.check(&handle).await? {
        Standing::Holding(grant) => (Some(grant.fence.get()), None),
        Standing::Unknown => return Err(Failure::unavailable(format!("{resource}: nobody could tell"))),
        Standing::Waiting(_) | Standing::Gone => (None, Some(given::Gone::find_out(&locks, &resource).await)),
    };
    if context.say.looks().json {
        json::print(
            json!({
                "v": 1,
                "lock": resource.as_str(),
                "held": fence.is_some(),
                "fence": fence,
                "ended_at": gone.as_ref().and_then(given::Gone::ended_at),
                "ending": gone.as_ref().and_then(given::Gone::ending),
                "holders": gone.as_ref().map(given::Gone::holders),
            })
            .to_string(),
        )?;
    }
    match gone {
        None => {
            context.say.say(Line::detail("held", format!("{resource} is held under this lease")));
            Ok(exit::OK)
        }
        Some(gone) => {
            context.say.say(Line::new("gone", format!("{resource} is not held under this lease: {}", gone.words())));
            Ok(exit::NO)
        }
    }
}
