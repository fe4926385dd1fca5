//! Filters of listings and history: which resources, how many, since when.

use std::{cmp::Reverse, ops::Range};

use super::{EndedLease, Resource, Timestamp};
use crate::setters_macro::setters;

/// Which resources to look at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Names {
    /// All resources.
    #[default]
    All,
    /// Resources whose names begin with this.
    Prefix(String),
    /// This resource.
    Exactly(Resource),
}

impl Names {
    /// Returns whether these names include the resource.
    pub fn include(&self, resource: &Resource) -> bool {
        match self {
            Self::All => true,
            Self::Prefix(prefix) => resource.as_str().starts_with(prefix.as_str()),
            Self::Exactly(one) => one == resource,
        }
    }
}

/// Selects live leases.
///
/// The leases are sorted by name; for each name, holders come first, then waiters in queue order.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListFilter {
    /// The resources to look at.
    pub names: Names,
    /// How many resources to return at most.
    pub limit: usize,
    /// Resources up to and including this name are left out; use the `next` of the previous page.
    pub after: Option<Resource>,
}

impl ListFilter {
    /// Creates a filter for the first thousand of these resources.
    pub fn new(names: Names) -> Self {
        Self { names, limit: 1000, after: None }
    }

    setters! {
        /// Sets how many resources to return at most.
        pub fn limit(mut self, limit: usize) -> Self => limit;

        /// Leaves out the resources up to and including this one.
        pub fn after(mut self, resource: Resource) -> Self => Some(resource);
    }

    /// Selects the names of this page from `names` and sorts them.
    pub fn select(&self, mut names: Vec<Resource>) -> Selection {
        names.retain(|name| self.names.include(name) && self.after.as_ref().is_none_or(|after| name > after));
        names.sort_unstable();
        let more = names.len() > self.limit;
        names.truncate(self.limit);
        Selection { next: names.last().filter(|_| more).cloned(), names }
    }
}

/// The resources of one page.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Selection {
    /// Their names, sorted.
    pub names: Vec<Resource>,
    /// What to pass as `after` for the next page: the last name on this one; `None` if nothing follows.
    pub next: Option<Resource>,
}

/// Selects ended leases, newest first.
///
/// For the next page, call `until` with `ended_at` of the last lease returned. That time is excluded, so
/// leases that ended in the same microsecond as that lease but did not fit on the page are skipped. This can happen to
/// the leases of one process, which end together when it dies.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HistoryFilter {
    /// The resources to look at.
    pub names: Names,
    /// Whether to return only failures; see [`Ending::is_failure`](super::Ending::is_failure).
    pub failures: bool,
    /// When the leases ended; the end of the range is exclusive.
    pub ended: Range<Timestamp>,
    /// How many leases to return at most.
    pub limit: usize,
}

impl HistoryFilter {
    /// Creates a filter for the newest hundred ended leases of these resources.
    pub fn new(names: Names) -> Self {
        Self { names, failures: false, ended: Timestamp::MIN..Timestamp::MAX, limit: 100 }
    }

    setters! {
        /// Sets how many leases to return at most.
        pub fn limit(mut self, limit: usize) -> Self => limit;

        /// Sets whether to return failures only.
        pub fn failures(mut self, failures: bool) -> Self => failures;

    }

    /// Leaves out leases that ended before this time.
    #[must_use]
    pub fn since(mut self, since: Timestamp) -> Self {
        self.ended.start = since;
        self
    }

    /// Leaves out leases that ended at or after this time.
    #[must_use]
    pub fn until(mut self, until: Timestamp) -> Self {
        self.ended.end = until;
        self
    }

    /// Returns whether this lease passes the filter.
    pub fn include(&self, ended: &EndedLease) -> bool {
        self.names.include(&ended.resource)
            && (!self.failures || ended.ending.is_failure())
            && self.ended.contains(&ended.ended_at)
    }

    /// Selects the leases to return, newest first. Leases that ended at the same time keep their order.
    pub fn select(&self, mut ended: Vec<EndedLease>) -> Vec<EndedLease> {
        ended.retain(|ended| self.include(ended));
        ended.sort_by_key(|ended| Reverse(ended.ended_at));
        ended.truncate(self.limit);
        ended
    }
}
