//! Nothing is left: no lease or queue position when all workers are idle, and no file of theirs when they are gone.

use super::{Rules, Violation};
use crate::history::History;

pub(super) fn check(history: &History, _rules: Rules) -> Vec<Violation> {
    if history.leftovers.is_empty() {
        return Vec::new();
    }
    let what = format!("{} leases, positions or files are left at the end", history.leftovers.len());
    vec![Violation::new("leaks", what, history.leftovers.clone())]
}
