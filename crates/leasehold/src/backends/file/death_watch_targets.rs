//! Decides which instances each waiter watches.
//!
//! The first waiter watches every holder, each other waiter the one before it.
//! That is enough: if several die together, the first survivor notices. And
//! each death wakes only one waiter.

use std::collections::{BTreeSet, HashSet};

use uuid::Uuid;

use super::{encode::EntryText, record::Record};
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
    let mut before = record.lines.iter().filter(|line| line.waiting);
    let mut ahead_before: Option<&EntryText> = None;
    let mut ahead: Option<&Entry> = None;
    let mut found = Vec::new();
    for entry in record.state.entries.iter().filter(|entry| entry.is_waiting()) {
        // The lines skipped here are of waiters that have left. An entry without a line is new, like all after it.
        let known_ahead = loop {
            match before.next() {
                Some(line) if line.id == entry.id => break ahead_before.replace(line),
                Some(line) => ahead_before = Some(line),
                None => return found,
            }
        };
        let knows = match (ahead, known_ahead) {
            (Some(waiter), Some(known)) => record.bound_to(waiter).is_none_or(|id| known.bound_to == Some(id)),
            (Some(_), None) => false,
            (None, Some(known)) => holders(record).all(|id| known.bound_to == Some(id)),
            (None, None) => {
                let holding = record.lines.iter().filter(|line| !line.waiting);
                let known: HashSet<Uuid> = holding.filter_map(|line| line.bound_to).collect();
                holders(record).all(|id| known.contains(&id))
            }
        };
        if !knows {
            found.push(entry.id);
        }
        ahead = Some(entry);
    }
    found
}

fn holders(record: &Record) -> impl Iterator<Item = Uuid> {
    record.state.entries.iter().filter(|entry| !entry.is_waiting()).filter_map(|entry| record.bound_to(entry))
}
