//! Decides which instances each waiter watches.
//!
//! The first waiter watches every holder, each other waiter the one before it.
//! That is enough: if several die together, the first survivor notices. And
//! each death wakes only one waiter.

use std::collections::{BTreeSet, HashSet};

use uuid::Uuid;

use super::{encode::EncodedEntry, record::Record};
use crate::{lease::LeaseId, model::Entry};

/// The instances that `own` should watch for its entries that wait.
pub(super) fn watched_by(own: Uuid, record: &Record) -> BTreeSet<Uuid> {
    let mut watched = BTreeSet::new();
    let mut ahead = None;
    for entry in record.state.entries.iter().filter(|entry| entry.is_waiting()) {
        let bound_to = record.bound_to(entry);
        if bound_to == Some(own) {
            match ahead {
                Some(waiter) => watched.extend(waiter),
                None => watched.extend(holders(record)),
            }
        }
        ahead = Some(bound_to);
    }
    watched.remove(&own);
    watched
}

/// The waiters whose watch targets changed since the record was written; they must be notified.
pub(super) fn with_new_watch_targets(record: &Record) -> Vec<LeaseId> {
    let mut in_file = record.lines.iter().filter(|line| line.waiting);
    let mut last_in_file: Option<&EncodedEntry> = None;
    let mut ahead_now: Option<&Entry> = None;
    let mut found = Vec::new();
    for entry in record.state.entries.iter().filter(|entry| entry.is_waiting()) {
        // The lines skipped here are of waiters that have left. An entry without a line is new, like all after it.
        let ahead_in_file = loop {
            match in_file.next() {
                Some(line) if line.id == entry.id => break last_in_file.replace(line),
                Some(line) => last_in_file = Some(line),
                None => return found,
            }
        };
        let already_watches = match (ahead_now, ahead_in_file) {
            // Still behind a waiter.
            (Some(now), Some(before)) => record.bound_to(now).is_none_or(|id| before.bound_to == Some(id)),
            // Was first, is no longer.
            (Some(_), None) => false,
            // Has become the first.
            (None, Some(before)) => holders(record).all(|id| before.bound_to == Some(id)),
            // Still the first.
            (None, None) => {
                let holding = record.lines.iter().filter(|line| !line.waiting);
                let watched: HashSet<Uuid> = holding.filter_map(|line| line.bound_to).collect();
                holders(record).all(|id| watched.contains(&id))
            }
        };
        if !already_watches {
            found.push(entry.id);
        }
        ahead_now = Some(entry);
    }
    found
}

fn holders(record: &Record) -> impl Iterator<Item = Uuid> {
    record.state.entries.iter().filter(|entry| !entry.is_waiting()).filter_map(|entry| record.bound_to(entry))
}
