//! A bounded table of run records, for backends that keep one in memory or in a file.

use std::{collections::BTreeMap, time::Duration};

use crate::lease::{Names, Resource, RunRecord, Timestamp};

/// For each lock: how often its job was skipped, and when it last succeeded.
///
/// It keeps at most 10,000 records, each for 40 days after its last report.
#[derive(Clone, Debug, Default)]
pub struct RunTable {
    records: BTreeMap<Resource, RunRecord>,
}

impl RunTable {
    /// The most names that may have a record.
    pub const MAX_NAMES: usize = 10_000;
    /// How long a record is kept after its last report.
    pub const KEPT: Duration = Duration::from_secs(40 * 24 * 60 * 60);

    /// Adds later reports to the record of their resource, or creates that record.
    pub fn add(&mut self, later: RunRecord) {
        match self.records.get_mut(&later.resource) {
            Some(record) => record.add(later),
            None => drop(self.records.insert(later.resource.clone(), later)),
        }
    }

    /// Removes the records that are too old at `now`. If more than `MAX_NAMES` are left, the oldest of them are
    /// removed, too.
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

    /// Returns the records of these resources, sorted by name. Records that are too old at `now` are left out.
    pub fn select(&self, names: &Names, now: Timestamp) -> Vec<RunRecord> {
        let records = self.records.values().filter(|record| names.include(&record.resource) && is_kept(record, now));
        records.cloned().collect()
    }

    /// Returns all records, sorted by name.
    pub fn into_records(self) -> impl Iterator<Item = RunRecord> {
        self.records.into_values()
    }
}

fn is_kept(record: &RunRecord, now: Timestamp) -> bool {
    record.last_report().is_some_and(|at| at > now.before(RunTable::KEPT))
}
