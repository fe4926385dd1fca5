//! Answers operators' questions: which resources have a record, who holds or waits for each, and which events happen.

use std::path::{Path, PathBuf};

use super::{
    decode,
    directory::list_files,
    errors::cannot,
    file_names::{self, FileName},
    latch::{self, LatchWait},
    ops::{FileInstance, IfRemoved, OperationScope},
    record::{self, Record, Times},
    safe_open,
};
use crate::{
    Error, Result,
    backend::EventStream,
    lease::{LeasePage, LeaseRecord, ListFilter, Names, Resource},
    model::{Context, Presence},
};

impl FileInstance {
    /// A stream of what happens to these resources from now on.
    pub(super) fn watch(&self, names: Names) -> Result<EventStream> {
        if self.is_removed() {
            // No other instance could send it an event.
            return Err(self.own_presence.removed_error());
        }
        self.watchers.watch(names)
    }

    /// One page of live leases. Each resource is settled first, which ends the leases of dead processes.
    pub(super) fn page(&self, filter: &ListFilter) -> Result<LeasePage> {
        if self.is_removed() {
            return Err(self.own_presence.removed_error());
        }
        let mut page = LeasePage::default();
        let mut listed = 0;
        let mut last = None;
        for resource in self.resources(filter)? {
            if listed >= filter.limit {
                page.next = last;
                break;
            }
            let leases = match self.settled(&resource) {
                Err(error) if matches!(filter.names, Names::Exactly(_)) => return Err(error),
                Err(error) => self.unsettled(&resource, &error),
                Ok(leases) => leases,
            };
            if !leases.is_empty() {
                page.leases.extend(leases);
                listed += 1;
                last = Some(resource);
            }
        }
        Ok(page)
    }

    fn settled(&self, resource: &Resource) -> Result<Vec<LeaseRecord>> {
        let scope =
            OperationScope { resource, lease_ids: &[], wait: LatchWait::Bounded, if_removed: IfRemoved::Refuse };
        let leases = self.operate(&scope, |state, context, effects| {
            state.settle(context, effects);
            state.records(resource, context)
        })?;
        Ok(leases.unwrap_or_default())
    }

    /// Lists a resource from its record alone, because it cannot be settled. A stopped process that holds the latch
    /// blocks everybody, and an operator who lists all locks must see who holds them. Returns nothing if the record
    /// cannot be read either.
    fn unsettled(&self, resource: &Resource, why: &Error) -> Vec<LeaseRecord> {
        let times = self.times();
        let path = self.directory.record(resource);
        let read = safe_open::read(&path).map_err(|error| cannot("read", &path, error));
        let Ok((_, record)) = read.and_then(|bytes| decode::record(&bytes, &path, &times, Record::default())) else {
            tracing::warn!(%resource, error = %why, "a resource is missing from the list");
            return Vec::new();
        };
        tracing::warn!(%resource, error = %why, "a resource is listed from its record, which may be out of date");
        // A listing never checks who is present.
        let context = Context { now: times.now, wall: times.wall, presence: &|_| Presence::Present };
        record.state.records(resource, &context)
    }

    /// The names that the filter wants, sorted.
    fn resources(&self, filter: &ListFilter) -> Result<Vec<Resource>> {
        let mut found = match &filter.names {
            Names::Exactly(one) => vec![one.clone()],
            _ => self.stored_resources()?,
        };
        found.retain(|resource| {
            filter.names.include(resource) && filter.after.as_ref().is_none_or(|after| resource > after)
        });
        found.sort();
        Ok(found)
    }

    /// Reads which resource a record is of; `None` when it has just been removed.
    pub(super) fn resource_of(&self, path: &Path, latch: u8, times: &Times<'_>) -> Result<Option<Resource>> {
        // If the latch stays stuck (the error is ignored), its holder is stopped, so nobody writes while we read.
        let _unless_stuck = self.latches.take(latch, LatchWait::Bounded);
        record::resource_of(path, times)
    }

    fn stored_resources(&self) -> Result<Vec<Resource>> {
        let times = self.times();
        let resource = |(name, path): (String, PathBuf)| match file_names::parse(&name) {
            FileName::Of(resource) => Some(resource),
            FileName::Other => None,
            FileName::Hashed(first) => {
                self.resource_of(&path, latch::number_by_hash(first), &times).unwrap_or_else(|error| {
                    tracing::warn!(error = format_args!("{error:#}"), "a resource is missing from the list");
                    None
                })
            }
        };
        Ok(list_files(&self.directory.records())?.into_iter().filter_map(resource).collect())
    }
}
