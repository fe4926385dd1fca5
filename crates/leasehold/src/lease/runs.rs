//! How the runs of a scheduled job went: how many were skipped, who held the lock then, and when one succeeded.

use serde::{Deserialize, Serialize};

use super::{Holder, Resource, Timestamp};

/// How often a job was skipped under one lock, and when it last succeeded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RunRecord {
    /// The lock under which the job runs.
    pub resource: Resource,
    /// How many runs were skipped because the lock was busy.
    pub skips: u64,
    /// When a run was last skipped, by the backend's wall clock.
    pub last_skip: Option<Timestamp>,
    /// Who held the lock when a run was last skipped.
    pub held_by: Option<Holder>,
    /// When a run last succeeded, by the backend's wall clock.
    pub last_success: Option<Timestamp>,
}

impl RunRecord {
    /// Creates a record without any runs; set the fields you know.
    pub const fn new(resource: Resource) -> Self {
        Self { resource, skips: 0, last_skip: None, held_by: None, last_success: None }
    }

    /// Returns when the last run was reported.
    pub fn last_report(&self) -> Option<Timestamp> {
        self.last_skip.max(self.last_success)
    }

    /// Adds the reports in `later`, a newer record of the same resource.
    pub fn add(&mut self, later: Self) {
        self.skips = self.skips.saturating_add(later.skips);
        self.take_newest(later);
    }

    /// Merges another copy of this record, keeping the newer values.
    pub fn merge(&mut self, copy: Self) {
        self.skips = self.skips.max(copy.skips);
        self.take_newest(copy);
    }

    fn take_newest(&mut self, other: Self) {
        if other.last_skip > self.last_skip {
            (self.last_skip, self.held_by) = (other.last_skip, other.held_by);
        }
        self.last_success = self.last_success.max(other.last_success);
    }
}

/// A report about runs of a job under one lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RunReport {
    /// The lock under which the job runs.
    pub resource: Resource,
    /// How many runs were skipped since the last report.
    pub skips: u64,
    /// Who held the lock when the last of these runs was skipped, if that is known.
    pub held_by: Option<Holder>,
    /// Whether a run succeeded since the last report.
    pub success: bool,
}

impl RunReport {
    /// Creates the report of a skipped run; `held_by` names who held the lock.
    pub const fn skipped(resource: Resource, held_by: Option<Holder>) -> Self {
        Self { resource, skips: 1, held_by, success: false }
    }

    /// Creates the report of a successful run.
    pub const fn succeeded(resource: Resource) -> Self {
        Self { resource, skips: 0, held_by: None, success: true }
    }

    /// Sets how many runs were skipped, to report several of them at once.
    #[must_use]
    pub const fn skips(mut self, count: u64) -> Self {
        self.skips = count;
        self
    }

    /// Returns a record that contains only this report, received at `now`.
    pub fn record(&self, now: Timestamp) -> RunRecord {
        let skipped = self.skips > 0;
        RunRecord {
            resource: self.resource.clone(),
            skips: self.skips,
            last_skip: skipped.then_some(now),
            held_by: self.held_by.clone().filter(|_| skipped),
            last_success: self.success.then_some(now),
        }
    }
}
