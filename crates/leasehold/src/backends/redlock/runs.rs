//! Run records on `redlock:`. Every node counts, and the one that counted most is believed.

use std::collections::BTreeMap;

use super::RedlockShared;
use crate::{
    Result,
    lease::{Names, Resource, RunRecord, RunReport},
};

/// Reports to all nodes; succeeds once a majority has stored it.
pub(super) async fn record(shared: &RedlockShared, reports: &[RunReport]) -> Result<()> {
    let answers = shared.nodes.query_all(|backend| async move { backend.record_runs(reports).await }).await;
    shared.nodes.require_majority("recording runs on redlock", answers).map(drop)
}

/// Merges, by name, the records that a majority of the nodes has. A node that was away has fewer.
pub(super) async fn read(shared: &RedlockShared, names: &Names) -> Result<Vec<RunRecord>> {
    let answers = shared.nodes.query_all(|backend| async move { backend.runs(names).await }).await;
    let mut merged: BTreeMap<Resource, RunRecord> = BTreeMap::new();
    for (_, records) in shared.nodes.require_majority("reading runs on redlock", answers)? {
        for record in records {
            match merged.get_mut(&record.resource) {
                Some(known) => known.merge(record),
                None => drop(merged.insert(record.resource.clone(), record)),
            }
        }
    }
    Ok(merged.into_values().collect())
}
