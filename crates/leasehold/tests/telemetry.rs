//! What an operator sees: a span and a count for everything that happens to a lock, and no names in labels.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::float_cmp, reason = "counts are whole numbers")]

use std::{
    collections::BTreeMap,
    fmt::Debug,
    sync::{Arc, LazyLock, Mutex, MutexGuard},
    time::Duration,
};

use leasehold::{Error, Leasehold, Loss, backends::memory::MemoryBackend, clock::SystemClock};
use leasehold_conformance::{BackendCall, Faulty};
use metrics_util::{
    MetricKind,
    debugging::{DebugValue, DebuggingRecorder, Snapshotter},
};
use tokio::task::JoinSet;
use tracing::{
    Event, Instrument, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
};
use tracing_subscriber::{
    Layer,
    layer::{Context, SubscriberExt},
    registry::LookupSpan,
};

const MOMENT: Duration = Duration::from_millis(10);

/// Both tests read what the whole process reports.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// An instance on a store of its own that can be made to fail.
fn locks() -> (Leasehold, Arc<Faulty>) {
    let faulty = Faulty::new(Arc::new(MemoryBackend::private(Arc::new(SystemClock))));
    (Leasehold::builder().open(faulty.clone()).unwrap(), faulty)
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    for _ in 0..3000 {
        if condition() {
            return;
        }
        tokio::time::sleep(MOMENT).await;
    }
    panic!("{what} did not come to pass");
}

// Spans.

#[derive(Clone, Debug)]
struct Seen {
    id: u64,
    name: &'static str,
    target: String,
    parent: Option<u64>,
    fields: BTreeMap<String, String>,
    closed: bool,
}

impl Visit for Seen {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.fields.insert(field.name().to_owned(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.fields.insert(field.name().to_owned(), value.to_owned());
    }
}

/// Every span of the process.
#[derive(Clone, Default)]
struct Spans(Arc<Mutex<Vec<Seen>>>);

static SPANS: LazyLock<Spans> = LazyLock::new(|| {
    let spans = Spans::default();
    tracing::subscriber::set_global_default(tracing_subscriber::registry().with(spans.clone())).unwrap();
    spans
});

impl Spans {
    fn all(&self) -> MutexGuard<'_, Vec<Seen>> {
        self.0.lock().unwrap()
    }

    /// The last span of this name whose field has this value.
    fn find(&self, name: &str, field: &str, value: &str) -> Option<Seen> {
        let fits = |span: &&Seen| span.name == name && span.fields.get(field).is_some_and(|found| found == value);
        self.all().iter().rev().find(fits).cloned()
    }

    fn of_lock(&self, name: &str, lock: &str) -> Seen {
        self.find(name, "leasehold.lock.name", lock).unwrap_or_else(|| panic!("no span {name:?} of {lock}"))
    }

    fn children(&self, parent: &Seen, name: &str) -> Vec<Seen> {
        self.all().iter().filter(|span| span.parent == Some(parent.id) && span.name == name).cloned().collect()
    }

    /// Ids are used again: only the last span of an id is alive.
    fn change(&self, id: &Id, change: impl FnOnce(&mut Seen)) {
        if let Some(span) = self.all().iter_mut().rev().find(|span| span.id == id.into_u64()) {
            change(span);
        }
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Spans {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let parent = context.span(id).and_then(|span| Some(span.parent()?.id().into_u64()));
        let metadata = attributes.metadata();
        let mut span = Seen {
            id: id.into_u64(),
            name: metadata.name(),
            target: metadata.target().to_owned(),
            parent,
            fields: BTreeMap::new(),
            closed: false,
        };
        attributes.record(&mut span);
        self.all().push(span);
    }

    /// Records an event like a span, with its level as the name.
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let metadata = event.metadata();
        let mut seen = Seen {
            id: 0,
            name: metadata.level().as_str(),
            target: metadata.target().to_owned(),
            parent: None,
            fields: BTreeMap::new(),
            closed: true,
        };
        event.record(&mut seen);
        self.all().push(seen);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, _: Context<'_, S>) {
        self.change(id, |span| values.record(span));
    }

    fn on_close(&self, id: Id, _: Context<'_, S>) {
        self.change(&id, |span| span.closed = true);
    }
}

#[tokio::test]
async fn every_step_of_a_lock_has_a_span() {
    let spans = &*SPANS;
    let _alone = ALONE.lock().await;
    let (locks, faulty) = locks();

    let request = tracing::info_span!("request", request = "first");
    let guard = locks.mutex("traced").acquire().instrument(request.clone()).await.unwrap();
    drop(request);
    let request = spans.find("request", "request", "first").unwrap();
    let acquire = spans.of_lock("acquire lock", "traced");
    assert_eq!((acquire.parent, acquire.target.as_str()), (Some(request.id), "leasehold::acquire"));
    assert_eq!(acquire.fields["leasehold.lock.outcome"], "acquired");
    assert_eq!(acquire.fields["leasehold.lock.mode"], "exclusive");
    assert_eq!(acquire.fields["leasehold.lock.backend"], "memory");
    assert!(acquire.fields.contains_key("leasehold.lock.wait_ms") && acquire.closed);
    let hold = spans.of_lock("hold lock", "traced");
    assert_eq!((hold.parent, hold.closed), (Some(request.id), false));
    assert_eq!(hold.fields["leasehold.lock.fence"], guard.fence().to_string());
    assert_eq!(hold.fields["leasehold.lock.ttl_ms"], "30000");

    assert!(locks.mutex("traced").try_acquire().await.unwrap().is_none());
    assert_eq!(spans.of_lock("acquire lock", "traced").fields["leasehold.lock.outcome"], "busy");
    locks.mutex("traced").wait(MOMENT).acquire().await.unwrap_err();
    let gave_up = spans.of_lock("acquire lock", "traced");
    assert_eq!(gave_up.fields["leasehold.lock.outcome"], "gave_up");
    assert_eq!(gave_up.fields["leasehold.lock.queue_position"], "0");
    assert!(!gave_up.fields.contains_key("otel.status_code"), "busy is no error");

    for _ in 0..20 {
        guard.renew(Duration::from_secs(30)).await.unwrap();
    }
    let renewals = spans.children(&hold, "renew lock");
    assert!((1..20).contains(&renewals.len()) && renewals[0].fields["leasehold.lock.outcome"] == "ok", "{renewals:?}");
    faulty.drop_requests_of(BackendCall::Renew, 1);
    guard.renew(Duration::from_secs(30)).await.unwrap_err();
    let failed = spans.children(&hold, "renew lock").pop().unwrap();
    assert_eq!(failed.fields["leasehold.lock.outcome"], "failed");
    assert_eq!(failed.fields["otel.kind"], "client");

    guard.release().await.unwrap();
    let release = spans.of_lock("release lock", "traced");
    assert_eq!((release.parent, release.fields["leasehold.lock.outcome"].as_str()), (Some(hold.id), "ok"));
    let hold = spans.of_lock("hold lock", "traced");
    assert!(hold.closed && !hold.fields.contains_key("otel.status_code"), "{hold:?}");
    assert_eq!(hold.fields["leasehold.lock.end"], "released");

    let lost = locks.mutex("taken").acquire().await.unwrap();
    locks.evict(lost.resource(), lost.fence(), "it hangs").await.unwrap();
    assert_eq!(lost.lost().await, Loss::Evicted);
    until("the end of the span", || spans.of_lock("hold lock", "taken").closed).await;
    let hold = spans.of_lock("hold lock", "taken");
    assert_eq!(
        (hold.fields["leasehold.lock.end"].as_str(), hold.fields["otel.status_code"].as_str()),
        ("evicted", "ERROR")
    );

    let reported = |lock: &str| {
        let is_loss = |seen: &&Seen| seen.target == "leasehold::lost" && seen.fields["resource"] == lock;
        spans.all().iter().find(is_loss).map(|seen| (seen.name, seen.fields["reason"].clone()))
    };
    assert_eq!(reported("taken"), Some(("ERROR", String::from("evicted"))));
    let limited = locks.mutex("held-long").max_hold(MOMENT).acquire().await.unwrap();
    assert_eq!(limited.lost().await, Loss::MaxHold);
    until("the report", || reported("held-long").is_some()).await;
    assert_eq!(reported("held-long"), Some(("WARN", String::from("max_hold"))), "it is expected");

    let candidate = locks.election("traced-leader").start().await.unwrap();
    let term = candidate.elected().await.unwrap().fence().to_string();
    let lead = || spans.find("lead", "leasehold.election.name", "traced-leader");
    until("the span of the term", || lead().is_some()).await;
    assert_eq!(lead().unwrap().fields["leasehold.election.term"], term);
    let campaign = spans.find("campaign leader", "leasehold.election.term", &term).unwrap();
    assert_eq!(spans.of_lock("acquire lock", "traced-leader").parent, Some(campaign.id));
    candidate.stop().await.unwrap();
    until("the end of the term", || lead().unwrap().closed).await;
    locks.close().await.unwrap();
}

// Metrics.

type Labels = Vec<(String, String)>;

/// What was counted so far: reading the recorder empties it.
struct Metrics {
    recorder: Snapshotter,
    totals: BTreeMap<(String, Labels), f64>,
    observed: BTreeMap<(String, Labels), usize>,
}

static RECORDER: LazyLock<Snapshotter> = LazyLock::new(|| {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    recorder.install().unwrap();
    snapshotter
});

impl Metrics {
    fn new() -> Self {
        let recorder = RECORDER.clone();
        recorder.snapshot();
        Self { recorder, totals: BTreeMap::new(), observed: BTreeMap::new() }
    }

    fn read(&mut self) {
        for (key, _, _, value) in self.recorder.snapshot().into_vec() {
            let (kind, key) = key.into_parts();
            let labels = key.labels().map(|label| (label.key().to_owned(), label.value().to_owned())).collect();
            let key = (key.name().to_owned(), labels);
            match value {
                #[allow(clippy::cast_precision_loss, reason = "a test counts no further than that")]
                DebugValue::Counter(count) => *self.totals.entry(key).or_default() += count as f64,
                DebugValue::Gauge(change) => *self.totals.entry(key).or_default() += *change,
                DebugValue::Histogram(values) => *self.observed.entry(key).or_default() += values.len(),
            }
            assert!(matches!(kind, MetricKind::Counter | MetricKind::Gauge | MetricKind::Histogram));
        }
    }

    fn key(name: &str, labels: &[(&str, &str)]) -> (String, Labels) {
        let labels = [("backend", "memory")].iter().chain(labels);
        (name.to_owned(), labels.map(|(label, value)| ((*label).to_owned(), (*value).to_owned())).collect())
    }

    /// A counter or a gauge.
    fn total(&mut self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.read();
        self.totals.get(&Self::key(name, labels)).copied().unwrap_or_default()
    }

    /// How many values a histogram got.
    fn observed(&mut self, name: &str, labels: &[(&str, &str)]) -> usize {
        self.read();
        self.observed.get(&Self::key(name, labels)).copied().unwrap_or_default()
    }

    async fn until(&mut self, name: &str, labels: &[(&str, &str)], wanted: f64) {
        for _ in 0..3000 {
            if self.total(name, labels) == wanted {
                return;
            }
            tokio::time::sleep(MOMENT).await;
        }
        panic!("{name} {labels:?} is {}, not {wanted}", self.total(name, labels));
    }
}

#[tokio::test]
async fn everything_is_counted_once_and_without_names() {
    LazyLock::force(&RECORDER);
    let _alone = ALONE.lock().await;
    let mut metrics = Metrics::new();
    let (locks, faulty) = locks();
    let exclusive = ("mode", "exclusive");

    // Each outcome of an attempt.
    let held = locks.mutex("counted").acquire().await.unwrap();
    assert_eq!(metrics.total("leasehold_locks_held", &[exclusive]), 1.0);
    assert!(locks.mutex("counted").try_acquire().await.unwrap().is_none());
    locks.mutex("counted").wait(MOMENT).acquire().await.unwrap_err();
    let waiting = locks.mutex("counted").wait_forever();
    let dropped = tokio::time::timeout(MOMENT, waiting.acquire()).await;
    assert!(dropped.is_err());
    locks.semaphore("counted", 3).try_acquire().await.unwrap_err();
    for outcome in ["acquired", "busy", "gave_up", "cancelled"] {
        assert_eq!(metrics.total("leasehold_acquire_total", &[exclusive, ("outcome", outcome)]), 1.0, "{outcome}");
        assert_eq!(
            metrics.observed("leasehold_acquire_wait_seconds", &[exclusive, ("outcome", outcome)]),
            1,
            "{outcome}"
        );
    }
    assert_eq!(metrics.total("leasehold_acquire_total", &[("mode", "permit"), ("outcome", "error")]), 1.0);

    // Those who wait.
    let other = waiting.clone();
    let mut waiter = JoinSet::new();
    waiter.spawn(async move { other.acquire().await.unwrap().release().await.unwrap() });
    metrics.until("leasehold_waiters", &[exclusive], 1.0).await;

    // Renewals.
    held.renew(Duration::from_secs(30)).await.unwrap();
    assert_eq!(metrics.total("leasehold_renew_total", &[exclusive, ("outcome", "ok")]), 1.0);
    assert_eq!(metrics.observed("leasehold_renew_slack_seconds", &[exclusive]), 1);
    assert_eq!(metrics.observed("leasehold_backend_request_seconds", &[("op", "renew"), ("outcome", "ok")]), 1);
    faulty.drop_requests_of(BackendCall::Renew, 1);
    held.renew(Duration::from_secs(30)).await.unwrap_err();
    assert_eq!(metrics.total("leasehold_renew_total", &[exclusive, ("outcome", "failed")]), 1.0);
    assert_eq!(metrics.observed("leasehold_backend_request_seconds", &[("op", "renew"), ("outcome", "error")]), 1);
    let shaky = locks.read("shaky").ttl(Duration::from_secs(3)).acquire().await.unwrap();
    faulty.drop_requests_of(BackendCall::Renew, 1);
    metrics.until("leasehold_renew_total", &[("mode", "shared"), ("outcome", "retried")], 1.0).await;
    shaky.release().await.unwrap();

    // Releases.
    held.release().await.unwrap();
    waiter.join_all().await;
    metrics.until("leasehold_waiters", &[exclusive], 0.0).await;
    assert_eq!(metrics.total("leasehold_release_total", &[exclusive, ("outcome", "ok")]), 2.0);
    assert_eq!(metrics.observed("leasehold_hold_seconds", &[exclusive, ("end", "released")]), 2);
    assert_eq!(metrics.total("leasehold_locks_held", &[exclusive]), 0.0);
    let reader = locks.read("counted").acquire().await.unwrap();
    faulty.drop_requests_of(BackendCall::Release, 1);
    let unknown: Error = reader.release().await.unwrap_err();
    assert!(unknown.outcome_unknown());
    assert_eq!(metrics.total("leasehold_release_total", &[("mode", "shared"), ("outcome", "failed")]), 1.0);
    let taken = locks.read("taken").acquire().await.unwrap();
    faulty.drop_hints(true);
    locks.evict(taken.resource(), taken.fence(), "its hint is lost").await.unwrap();
    taken.release().await.unwrap();
    assert_eq!(metrics.total("leasehold_release_total", &[("mode", "shared"), ("outcome", "not_holder")]), 1.0);
    faulty.drop_hints(false);

    // Losses.
    let evicted = locks.mutex("evicted").acquire().await.unwrap();
    locks.evict(evicted.resource(), evicted.fence(), "it hangs").await.unwrap();
    assert_eq!(metrics.total("leasehold_evict_total", &[]), 2.0);
    evicted.lost().await;
    metrics.until("leasehold_lost_total", &[exclusive, ("reason", "evicted")], 1.0).await;
    metrics.until("leasehold_locks_held", &[exclusive], 0.0).await;
    assert_eq!(metrics.observed("leasehold_hold_seconds", &[exclusive, ("end", "evicted")]), 1);
    drop(evicted);

    let permit = locks.semaphore("cut off", 3).ttl(Duration::from_millis(300)).acquire().await.unwrap();
    faulty.cut();
    assert_eq!(permit.lost().await, Loss::RenewTimeout);
    metrics.until("leasehold_lost_total", &[("mode", "permit"), ("reason", "renew_timeout")], 1.0).await;
    faulty.heal();

    let limited = locks.mutex("limited").max_hold(MOMENT).acquire().await.unwrap();
    assert_eq!(limited.lost().await, Loss::MaxHold);
    metrics.until("leasehold_locks_held", &[exclusive], 0.0).await;
    assert_eq!(metrics.observed("leasehold_hold_seconds", &[exclusive, ("end", "max_hold")]), 1);

    // Leaders.
    let candidate = locks.election("counted-leader").start().await.unwrap();
    candidate.elected().await.unwrap();
    metrics.until("leasehold_leader", &[], 1.0).await;
    assert_eq!(metrics.total("leasehold_leader_transitions_total", &[]), 1.0);
    candidate.stop().await.unwrap();
    metrics.until("leasehold_leader", &[], 0.0).await;

    for op in ["acquire", "release", "evict"] {
        assert!(metrics.observed("leasehold_backend_request_seconds", &[("op", op), ("outcome", "ok")]) >= 1, "{op}");
    }
    locks.close().await.unwrap();
    metrics.read();
    let names = ["counted", "evicted", "cut off", "limited", "leader"];
    for (metric, labels) in metrics.totals.keys().chain(metrics.observed.keys()) {
        for (label, value) in labels {
            let is_word = matches!(label.as_str(), "mode" | "end" | "reason");
            assert!(is_word || !names.iter().any(|name| value.contains(name)), "{metric} has {label}={value}");
            assert!(matches!(label.as_str(), "backend" | "mode" | "outcome" | "end" | "reason" | "op"), "{label}");
        }
    }
}
