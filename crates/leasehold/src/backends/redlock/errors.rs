//! Errors that name the nodes which kept a majority from being reached.

use std::fmt::Write as _;

use super::nodes::Nodes;
use crate::{Error, Result, lease::Resource};

impl Nodes {
    /// Returns the successful answers by node; fails without a majority.
    pub(super) fn require_majority<T>(&self, what: &str, answers: Vec<(usize, Result<T>)>) -> Result<Vec<(usize, T)>> {
        let mut found = Vec::new();
        let mut failures = Vec::new();
        for (at, answer) in answers {
            match answer {
                Ok(answer) => found.push((at, answer)),
                Err(error) => failures.push((at, error)),
            }
        }
        if found.len() >= self.majority() { Ok(found) } else { Err(Error::unavailable(self.message(what, &failures))) }
    }

    /// Names the nodes that kept a majority from being reached.
    pub(super) fn too_few(&self, resource: &Resource, failures: &[(usize, Error)]) -> Error {
        Error::unavailable(self.message(&format!("{resource} on redlock"), failures)).about(resource)
    }

    pub(super) fn message(&self, what: &str, failures: &[(usize, Error)]) -> String {
        let mut message =
            format!("{what}: {} of {} nodes are needed and too few can be counted on", self.majority(), self.len());
        let mut separator = ": ";
        for (at, node) in self.iter().enumerate() {
            let why = match (failures.iter().find(|(failed, _)| *failed == at), self.abstains(at)) {
                (Some((_, error)), _) => error.to_string(),
                (None, Some(abstention)) => abstention.to_string(),
                (None, None) => continue,
            };
            let _infallible = write!(message, "{separator}{} ({why})", node.name);
            separator = ", ";
        }
        message
    }
}

/// The error of a node that is left out because it hangs.
pub(super) fn hangs() -> Error {
    Error::unanswered("did not answer a moment ago")
}
