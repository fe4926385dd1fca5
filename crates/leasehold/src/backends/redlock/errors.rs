//! Errors that name the nodes which kept a majority from being reached.

use std::{fmt::Write as _, time::Duration};

use super::{node::Abstention, nodes::Nodes};
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
        if let Some(left) = self.time_to_majority(failures) {
            // Some seconds more than that, since the command counts from its start.
            let enough = (left.as_secs() / 10 + 1) * 10;
            let advice = "; try again then, or keep trying: the command does with --connect-timeout";
            let _infallible = write!(message, "{advice} {enough}s");
        }
        message
    }

    /// When a majority will vote, if nothing but the age of memories is missing.
    fn time_to_majority(&self, failures: &[(usize, Error)]) -> Option<Duration> {
        let answered = (0..self.len()).filter(|at| failures.iter().all(|(failed, _)| failed != at));
        let mut times: Vec<Duration> = answered
            .filter_map(|at| match self.abstains(at) {
                None => Some(Duration::ZERO),
                Some(Abstention::Young(left)) => Some(left),
                Some(Abstention::Duplicate | Abstention::AgeUnknown) => None,
            })
            .collect();
        times.sort_unstable();
        times.get(self.majority() - 1).copied().filter(|left| !left.is_zero())
    }
}

/// The error of a node that is left out because it hangs.
pub(super) fn hangs() -> Error {
    Error::unanswered("did not answer a moment ago")
}
