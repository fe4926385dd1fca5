//! The trials, by behaviour, and what each of them needs.

mod cancelling;
mod elections;
mod events;
mod eviction;
mod exclusion;
mod fences;
mod lifetime;
mod losses;
mod primitives;
mod program;
mod queue;
mod records;
mod runs;
mod sharing;
mod together;

use crate::histories;
pub(crate) use crate::trial::{Trial, TrialContext};

/// Every trial there is.
pub(crate) fn all() -> Vec<Trial> {
    [
        exclusion::trials(),
        queue::trials(),
        sharing::trials(),
        fences::trials(),
        lifetime::trials(),
        eviction::trials(),
        records::trials(),
        runs::trials(),
        events::trials(),
        histories::trials(),
        primitives::trials(),
        together::trials(),
        elections::trials(),
        cancelling::trials(),
        losses::trials(),
    ]
    .into_iter()
    .flatten()
    .collect()
}
