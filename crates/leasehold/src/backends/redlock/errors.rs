//! Errors that name the nodes which kept a majority from being reached.

use std::{fmt::Write as _, time::Duration};

use super::{node::Abstention, nodes::Nodes};
use crate::{
    Error, Result,
    lease::{Brief, Resource},
};

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
        let reason = |at| match (failures.iter().find(|(failed, _)| *failed == at), self.abstains(at)) {
            (Some((_, error)), _) => Some(error.to_string()),
            (None, abstention) => abstention.map(|abstention| abstention.to_string()),
        };
        let reasons: Vec<(&str, String)> =
            self.iter().enumerate().filter_map(|(at, node)| Some((node.name.as_str(), reason(at)?))).collect();
        let say_the_same = reasons.len() == self.len() && reasons.windows(2).all(|pair| pair[0].1 == pair[1].1);
        if say_the_same && let Some((_, why)) = reasons.first() {
            let _infallible = write!(message, ": each of them ({why})");
        } else if !reasons.is_empty() {
            let named: Vec<String> = reasons.iter().map(|(name, why)| format!("{name} ({why})")).collect();
            let _infallible = write!(message, ": {}", named.join(", "));
        }
        let failed: Vec<usize> = failures.iter().map(|(at, _)| *at).collect();
        if let Some(left) = self.time_to_majority(&failed) {
            // Some seconds more than that, since the command counts from its start.
            let enough = (left.as_secs() / 10 + 1) * 10;
            let _infallible = write!(
                message,
                "; ready in {}: try again then, or use --connect-timeout {enough}s (and -w {enough}s or more, if any)",
                Brief(left)
            );
        }
        message
    }

    /// When a majority will vote, if nothing but the age of memories is missing.
    pub(super) fn time_to_majority(&self, failed: &[usize]) -> Option<Duration> {
        let answered = (0..self.len()).filter(|at| !failed.contains(at));
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
