//! The metrics of an instance: their names and labels, and how they reach the `metrics` facade.
//!
//! Every key is created once for an instance, so that counting allocates nothing
//! and a recorder may be installed at any time. The name of a resource is
//! never a label: there may be millions.

use std::{sync::Arc, time::Duration};

use metrics::{Key, KeyName, Label, Level, Metadata, Recorder, Unit, with_recorder};

use super::Series;

pub(super) const ENABLED: bool = true;

const METADATA: Metadata<'_> = Metadata::new("leasehold", Level::INFO, Some(module_path!()));

const MODES: Dimension = Dimension { label: "mode", values: &["exclusive", "shared", "permit", "leader"] };

/// What a metric is called, what it means and which labels it has beside `backend`.
struct Description {
    series: Series,
    name: &'static str,
    kind: MetricKind,
    dimensions: &'static [Dimension],
    help: &'static str,
}

enum MetricKind {
    Counter,
    Gauge,
    Seconds,
}

struct Dimension {
    label: &'static str,
    values: &'static [&'static str],
}

const ACQUIRE_OUTCOMES: Dimension =
    Dimension { label: "outcome", values: &["acquired", "busy", "gave_up", "cancelled", "error"] };

/// In the order of [`Series`].
static SERIES: &[Description] = &[
    Description {
        series: Series::Acquire,
        name: "leasehold_acquire_total",
        kind: MetricKind::Counter,
        dimensions: &[MODES, ACQUIRE_OUTCOMES],
        help: "Attempts to get a lease.",
    },
    Description {
        series: Series::AcquireWait,
        name: "leasehold_acquire_wait_seconds",
        kind: MetricKind::Seconds,
        dimensions: &[MODES, ACQUIRE_OUTCOMES],
        help: "Time from the request to its outcome.",
    },
    Description {
        series: Series::Hold,
        name: "leasehold_hold_seconds",
        kind: MetricKind::Seconds,
        dimensions: &[
            MODES,
            Dimension { label: "end", values: &["released", "lost", "expired", "evicted", "max_hold"] },
        ],
        help: "Time that leases were held.",
    },
    Description {
        series: Series::Lost,
        name: "leasehold_lost_total",
        kind: MetricKind::Counter,
        dimensions: &[MODES, Dimension { label: "reason", values: &["renew_timeout", "evicted", "gone"] }],
        help: "Leases that were lost while they were held.",
    },
    Description {
        series: Series::Renew,
        name: "leasehold_renew_total",
        kind: MetricKind::Counter,
        dimensions: &[MODES, Dimension { label: "outcome", values: &["ok", "retried", "failed"] }],
        help: "Renewals of held leases; outcome \"retried\" means success after a failure.",
    },
    Description {
        series: Series::RenewSlack,
        name: "leasehold_renew_slack_seconds",
        kind: MetricKind::Seconds,
        dimensions: &[MODES],
        help: "Time that was left when a renewal was answered.",
    },
    Description {
        series: Series::Release,
        name: "leasehold_release_total",
        kind: MetricKind::Counter,
        dimensions: &[MODES, Dimension { label: "outcome", values: &["ok", "not_holder", "failed"] }],
        help: "Releases of leases.",
    },
    Description {
        series: Series::Evict,
        name: "leasehold_evict_total",
        kind: MetricKind::Counter,
        dimensions: &[],
        help: "Leases that this process took away from their holders.",
    },
    Description {
        series: Series::Held,
        name: "leasehold_locks_held",
        kind: MetricKind::Gauge,
        dimensions: &[MODES],
        help: "Leases that this process holds.",
    },
    Description {
        series: Series::Waiters,
        name: "leasehold_waiters",
        kind: MetricKind::Gauge,
        dimensions: &[MODES],
        help: "Callers in this process that wait for a lease.",
    },
    Description {
        series: Series::Leader,
        name: "leasehold_leader",
        kind: MetricKind::Gauge,
        dimensions: &[],
        help: "Elections that this process leads.",
    },
    Description {
        series: Series::LeaderTransitions,
        name: "leasehold_leader_transitions_total",
        kind: MetricKind::Counter,
        dimensions: &[],
        help: "How often this process became a leader.",
    },
    Description {
        series: Series::Request,
        name: "leasehold_backend_request_seconds",
        kind: MetricKind::Seconds,
        dimensions: &[
            Dimension { label: "op", values: &["acquire", "renew", "release", "read", "watch", "evict"] },
            Dimension { label: "outcome", values: &["ok", "error"] },
        ],
        help: "Time that the backend took to answer.",
    },
];

impl Description {
    /// Returns a key for every combination of labels; the last dimension varies fastest.
    fn keys(&self, backend: &'static str) -> Vec<Key> {
        let mut rows = vec![vec![Label::from_static_parts("backend", backend)]];
        for Dimension { label, values } in self.dimensions {
            let with = |row: &Vec<Label>, value| [&row[..], &[Label::from_static_parts(label, value)]].concat();
            rows = rows.iter().flat_map(|row| values.iter().map(move |value| with(row, value))).collect();
        }
        rows.into_iter().map(|labels| Key::from_parts(self.name, labels)).collect()
    }

    /// The index in `keys` of the key with these labels.
    fn position(&self, labels: &[&'static str]) -> Option<usize> {
        let mut dimensions = self.dimensions.iter().zip(labels);
        dimensions.try_fold(0, |index, (Dimension { values, .. }, label)| {
            Some(index * values.len() + values.iter().position(|value| value == label)?)
        })
    }

    fn describe(&self, recorder: &dyn Recorder) {
        let (name, help) = (KeyName::from_const_str(self.name), self.help.into());
        match self.kind {
            MetricKind::Counter => recorder.describe_counter(name, None, help),
            MetricKind::Gauge => recorder.describe_gauge(name, None, help),
            MetricKind::Seconds => recorder.describe_histogram(name, Some(Unit::Seconds), help),
        }
    }
}

/// The keys of one instance's metrics.
#[derive(Clone, Debug)]
pub(super) struct Meters(Arc<[Vec<Key>]>);

impl Meters {
    pub(super) fn new(backend: &'static str) -> Self {
        with_recorder(|recorder| SERIES.iter().for_each(|series| series.describe(recorder)));
        Self(SERIES.iter().map(|series| series.keys(backend)).collect())
    }

    pub(super) fn count(&self, series: Series, labels: &[&'static str]) {
        if let Some(key) = self.key(series, labels) {
            with_recorder(|recorder| recorder.register_counter(key, &METADATA).increment(1));
        }
    }

    pub(super) fn add(&self, series: Series, labels: &[&'static str], change: f64) {
        if let Some(key) = self.key(series, labels) {
            with_recorder(|recorder| recorder.register_gauge(key, &METADATA).increment(change));
        }
    }

    pub(super) fn observe(&self, series: Series, labels: &[&'static str], length: Duration) {
        if let Some(key) = self.key(series, labels) {
            with_recorder(|recorder| recorder.register_histogram(key, &METADATA).record(length.as_secs_f64()));
        }
    }

    fn key(&self, series: Series, labels: &[&'static str]) -> Option<&Key> {
        let description = &SERIES[series as usize];
        debug_assert_eq!(description.series as usize, series as usize, "{} is out of order", description.name);
        let position = description.position(labels);
        debug_assert!(position.is_some(), "{} has no labels {labels:?}", description.name);
        self.0[series as usize].get(position?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_series_is_described_at_its_place_and_finds_its_keys() {
        let meters = Meters::new("memory");
        for (index, Description { series, name, dimensions, .. }) in SERIES.iter().enumerate() {
            assert_eq!(*series as usize, index, "{name}");
            let last: Vec<&str> =
                dimensions.iter().map(|dimension| dimension.values[dimension.values.len() - 1]).collect();
            let key = meters.key(*series, &last).unwrap();
            assert_eq!(key.name(), *name);
            let found: Vec<&str> = key.labels().skip(1).map(Label::value).collect();
            assert_eq!(found, last, "{name}");
        }
    }
}
