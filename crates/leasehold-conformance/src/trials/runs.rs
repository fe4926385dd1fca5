//! What is remembered about runs that were skipped or succeeded.

use std::time::Duration;

use leasehold::{
    Holder, Resource,
    backend::RunTable,
    lease::{Names, RunRecord, RunReport, Timestamp},
};

use super::TrialContext;
use crate::instance::{Instance, resource};

/// A cluster spreads its names over this many parts, each with a bound of its own, rounded up.
const PARTS: usize = 64;

fn holder(name: &str) -> Holder {
    Holder::new(name).expect("a good label")
}

fn skipped(name: &str, by: &str) -> RunReport {
    RunReport::skipped(resource(name), Some(holder(by)))
}

impl Instance {
    async fn report(&self, reports: &[RunReport]) {
        self.backend.record_runs(reports).await.expect("runs are recorded");
    }

    async fn runs(&self, names: Names) -> Vec<RunRecord> {
        self.backend.runs(&names).await.expect("runs are remembered")
    }

    async fn runs_of(&self, name: &str) -> Option<RunRecord> {
        let mut runs = self.runs(Names::Exactly(resource(name))).await;
        assert!(runs.len() <= 1, "{runs:?}");
        runs.pop()
    }
}

pub(super) async fn counted(context: TrialContext) {
    let (one, two) = context.two_instances().await;
    assert_eq!(one.runs_of("job").await, None);
    one.report(&[skipped("job", "first")]).await;
    let runs = two.runs_of("job").await.expect("another instance sees it");
    let first_skip = runs.last_skip.expect("it was skipped");
    assert_eq!((runs.skips, &first_skip.held_by, runs.last_success), (1, &Some(holder("first")), None));

    two.report(&[RunReport::succeeded(resource("job")), RunReport::skipped(resource("other"), None)]).await;
    let runs = one.runs_of("job").await.expect("it is remembered");
    assert_eq!((runs.skips, &runs.last_skip), (1, &Some(first_skip.clone())), "a success changes no skip: {runs:?}");
    let success = runs.last_success.expect("it succeeded");
    assert!(success >= first_skip.at);

    one.report(&[skipped("job", "a name: with blanks").skips(11)]).await;
    let runs = two.runs_of("job").await.expect("it is remembered");
    let last_skip = runs.last_skip.expect("it was skipped");
    assert_eq!((runs.skips, last_skip.held_by), (12, Some(holder("a name: with blanks"))));
    assert_eq!(runs.last_success, Some(success), "a skip changes no success");
    assert!(last_skip.at >= success);
    let other = one.runs_of("other").await.expect("it is remembered");
    assert_eq!((other.skips, other.last_skip.expect("it was skipped").held_by, other.last_success), (1, None, None));
}

pub(super) async fn found_by_name(context: TrialContext) {
    let one = context.instance().await;
    let reports = ["b:2", "a", "b:1", "c"].map(|name| skipped(name, "x"));
    one.report(&reports).await;
    let names = async |names| -> Vec<String> {
        one.runs(names).await.into_iter().map(|runs| runs.resource.as_str().to_owned()).collect()
    };
    assert_eq!(names(Names::All).await, ["a", "b:1", "b:2", "c"]);
    assert_eq!(names(Names::Prefix(String::from("b:"))).await, ["b:1", "b:2"]);
    assert_eq!(names(Names::Exactly(resource("c"))).await, ["c"]);
    assert!(names(Names::Exactly(resource("d"))).await.is_empty());
}

pub(super) async fn bounded(context: TrialContext) {
    let one = context.instance().await;
    let name = |at: usize| format!("job:{at:05}");
    let count = RunTable::MAX_NAMES + 1000;
    let all: Vec<RunReport> = (0..count).map(|at| skipped(&name(at), "x")).collect();
    for some in all.chunks(1000) {
        one.report(some).await;
    }
    let runs = one.runs(Names::All).await;
    assert!(runs.len() <= RunTable::MAX_NAMES + PARTS, "{} names are remembered", runs.len());
    assert!(runs.len() >= RunTable::MAX_NAMES * 9 / 10, "only {} names are remembered", runs.len());
    let is_there = |at: usize| {
        let wanted: Resource = resource(&name(at));
        runs.binary_search_by(|runs| runs.resource.cmp(&wanted)).is_ok()
    };
    assert!((count - 1000..count).all(is_there), "the newest are remembered");
    let oldest = (0..1000).filter(|at| is_there(*at)).count();
    assert!(oldest < 500, "{oldest} of the oldest thousand are remembered");
}

pub(super) async fn kept_for_forty_days(context: TrialContext) {
    let one = context.instance().await;
    one.report(&[skipped("old", "x"), skipped("used", "x")]).await;
    let began: Option<Timestamp> = one.runs_of("old").await.and_then(|runs| runs.skipped_at());
    context.clock.advance(RunTable::KEPT.saturating_sub(Duration::from_secs(1)));
    one.report(&[RunReport::succeeded(resource("used"))]).await;
    assert_eq!(one.runs_of("old").await.and_then(|runs| runs.skipped_at()), began, "it is not old enough");
    context.clock.advance(Duration::from_secs(1));
    assert_eq!(one.runs_of("old").await, None);
    one.report(&[RunReport::succeeded(resource("new"))]).await;
    let names: Vec<Resource> = one.runs(Names::All).await.into_iter().map(|runs| runs.resource).collect();
    assert_eq!(names, [resource("new"), resource("used")]);
    assert_eq!(one.runs_of("used").await.map(|runs| runs.skips), Some(1), "its last report is what counts");
}
