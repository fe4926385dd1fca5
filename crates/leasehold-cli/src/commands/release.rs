//! `leasehold release`: a lease that was handed to us, given back.

use leasehold::{Outcome, lease::Released};
use serde_json::json;

use super::{Context, given};
use crate::{
    args::LeaseArgs,
    exit::{self, Result},
    json,
    say::Line,
};

/// Ends the lease; exit 1 if it had ended before.
pub(crate) async fn run(context: &Context<'_>, args: &LeaseArgs) -> Result<u8> {
    let handle = given::lease(args)?;
    let resource = handle.key().resource.clone();
    let locks = context.connect_patiently().await?;
    let gone = match locks.release(&handle, Outcome::Completed).await? {
        Released::Gone => Some(given::Gone::find_out(&locks, &resource).await),
        Released::Freed | Released::LeftQueue | Released::Shared => None,
    };
    if context.say.looks().json {
        json::print(
            json!({
                "v": 1,
                "lock": resource.as_str(),
                "released": gone.is_none(),
                "ended_at": gone.as_ref().and_then(given::Gone::ended_at),
                "ending": gone.as_ref().and_then(given::Gone::ending),
                "holders": gone.as_ref().map(given::Gone::holders),
            })
            .to_string(),
        )?;
    }
    match gone {
        None => {
            context.say.say(Line::detail("released", format!("released {resource}")));
            Ok(exit::OK)
        }
        Some(gone) => {
            context.say.say(Line::new("gone", format!("nothing to release on {resource}: {}", gone.words())));
            Ok(exit::NO)
        }
    }
}
