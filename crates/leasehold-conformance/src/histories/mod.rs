//! Random histories through the backend and the model in lock-step.
//!
//! Every decision, standing, listing and ending must be the same. Fences are
//! compared by their order: a backend may leave gaps.

mod moves;
mod twin;

use std::time::Duration;

use leasehold::clock::{Clock, SystemClock};

use self::{moves::Moves, twin::Twin};
use crate::{dice::Dice, trial::TrialContext};

/// How many histories are run, and how many moves each has.
const HISTORIES: u64 = 300;
const LENGTH: usize = 60;

/// On a slow backend fewer histories are run: those that begin within this, and no fewer than fifty.
const BUDGET: Duration = Duration::from_secs(8);
const FEWEST: u64 = 50;

/// A history whose clock stands still ends after this: a hand-off that nobody confirms ends after `CONFIRM_WITHIN`.
const STILL_FOR: Duration = Duration::from_secs(2);

/// Whether the clock is moved between operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tempo {
    /// Leases are too long to expire: only what is asked matters.
    Still,
    /// Leases are short and the clock is moved past their ends.
    Moving,
}

pub(crate) async fn still(context: TrialContext) {
    run(context, Tempo::Still).await;
}

pub(crate) async fn moving(context: TrialContext) {
    run(context, Tempo::Moving).await;
}

async fn run(context: TrialContext, tempo: Tempo) {
    let (first, started) = (Dice::seed(), SystemClock.now());
    let mut instances = Vec::new();
    for _ in 0..3 {
        instances.push(context.fixture.instance().await);
    }
    for count in 0..HISTORIES {
        if count >= FEWEST && SystemClock.now().since(started) > BUDGET {
            println!("{count} histories instead of {HISTORIES}: the backend is slow");
            break;
        }
        let seed = first + count;
        let mut moves = Moves::new(seed, tempo);
        let mut twin = Twin::new(&instances, &context, seed, tempo);
        let begun = SystemClock.now();
        for _ in 0..LENGTH {
            twin.step(moves.next()).await;
            if tempo == Tempo::Still && SystemClock.now().since(begun) > STILL_FOR {
                break;
            }
        }
        twin.end().await;
    }
}
