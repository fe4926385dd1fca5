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
    /// The last run that was skipped.
    #[serde(flatten)]
    pub last_skip: Option<SkippedRun>,
    /// When a run last succeeded, by the backend's wall clock.
    pub last_success: Option<Timestamp>,
}

impl RunRecord {
    /// Creates a record without any runs; set the fields you know.
    pub const fn new(resource: Resource) -> Self {
        Self { resource, skips: 0, last_skip: None, last_success: None }
    }

    /// Returns when a run was last skipped.
    pub fn skipped_at(&self) -> Option<Timestamp> {
        self.last_skip.as_ref().map(|skipped| skipped.at)
    }

    /// Returns when the last run was reported.
    pub fn last_report(&self) -> Option<Timestamp> {
        self.skipped_at().max(self.last_success)
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
        if other.skipped_at() > self.skipped_at() {
            self.last_skip = other.last_skip;
        }
        self.last_success = self.last_success.max(other.last_success);
    }
}

/// A run that was skipped because the lock was busy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SkippedRun {
    /// When it was skipped, by the backend's wall clock.
    #[serde(rename = "last_skip")]
    pub at: Timestamp,
    /// Who held the lock then, if that is known.
    pub held_by: Option<Holder>,
}

impl SkippedRun {
    /// Creates the record of a run that was skipped at this time.
    pub const fn new(at: Timestamp, held_by: Option<Holder>) -> Self {
        Self { at, held_by }
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
        RunRecord {
            resource: self.resource.clone(),
            skips: self.skips,
            last_skip: (self.skips > 0).then(|| SkippedRun::new(now, self.held_by.clone())),
            last_success: self.success.then_some(now),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_record_has_its_fields_side_by_side() {
        let resource = Resource::new("job").unwrap();
        let mut record =
            RunReport::skipped(resource.clone(), Some(Holder::new("a").unwrap())).record(Timestamp::from_micros(5));
        let stored = r#"{"resource":"job","skips":1,"last_skip":5,"held_by":"a","last_success":null}"#;
        assert_eq!(serde_json::to_string(&record).unwrap(), stored);
        assert_eq!(serde_json::from_str::<RunRecord>(stored).unwrap(), record);
        let without_skip = r#"{"resource":"job","skips":0,"last_skip":null,"held_by":null,"last_success":7}"#;
        let success = RunReport::succeeded(resource).record(Timestamp::from_micros(7));
        assert_eq!(serde_json::from_str::<RunRecord>(without_skip).unwrap(), success);
        record.add(success);
        assert_eq!(
            (record.skipped_at(), record.last_success),
            (Some(Timestamp::from_micros(5)), Some(Timestamp::from_micros(7)))
        );
    }
}
