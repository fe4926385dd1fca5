//! Nothing is left: no lease or queue position when all workers are idle, and no file of theirs when they are gone.
//!
//! `probe.rs` lists the leases and positions, `leftovers.rs` the files.

use super::{Promises, Violation};
use crate::history::RunHistory;

pub(super) fn check(history: &RunHistory, _rules: Promises) -> Vec<Violation> {
    if history.leftovers.is_empty() {
        return Vec::new();
    }
    let what = format!("{} leases, positions or files are left at the end", history.leftovers.len());
    vec![Violation::new("leaks", what, history.leftovers.clone())]
}
