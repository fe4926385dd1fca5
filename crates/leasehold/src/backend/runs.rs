//! A bounded table of run records, for backends that keep one in memory or in a file.

use std::{collections::BTreeMap, time::Duration};

use crate::lease::{Names, Resource, RunRecord, Timestamp};

/// Run records by name. It keeps those of the last 40 days, 10,000 at most, and drops the oldest first.
#[derive(Clone, Debug, Default)]
pub struct RunTable {
    records: BTreeMap<Resource, RunRecord>,
}

impl RunTable {
    /// The most names with a record.
    pub const MAX_NAMES: usize = 10_000;
    /// How long a record is kept after its last report.
    pub const KEPT: Duration = Duration::from_secs(40 * 24 * 60 * 60);

    /// Adds reports to what is known about their resource.
    pub fn add(&mut self, later: RunRecord) {
        match self.records.get_mut(&later.resource) {
            Some(record) => record.add(later),
            None => drop(self.records.insert(later.resource.clone(), later)),
        }
    }

    /// Drops records that are too old at `now`, then the oldest above the limit.
    pub fn trim(&mut self, now: Timestamp) {
        self.records.retain(|_, record| is_kept(record, now));
        let excess = self.records.len().saturating_sub(Self::MAX_NAMES);
        if excess > 0 {
            let by_age = |record: &RunRecord| (record.last_report(), record.resource.clone());
            let mut oldest: Vec<(Option<Timestamp>, Resource)> = self.records.values().map(by_age).collect();
            oldest.sort_unstable();
            for (_, resource) in &oldest[..excess] {
                self.records.remove(resource);
            }
        }
    }

    /// Returns the records of these resources that are not too old at `now`, by name.
    pub fn select(&self, names: &Names, now: Timestamp) -> Vec<RunRecord> {
        let records = self.records.values().filter(|record| names.include(&record.resource) && is_kept(record, now));
        records.cloned().collect()
    }

    /// Returns all of them, by name.
    pub fn into_records(self) -> impl Iterator<Item = RunRecord> {
        self.records.into_values()
    }
}

fn is_kept(record: &RunRecord, now: Timestamp) -> bool {
    record.last_report().is_some_and(|at| at > now.before(RunTable::KEPT))
}
