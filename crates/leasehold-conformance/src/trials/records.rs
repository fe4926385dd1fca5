//! What people see: who holds, who waits, and what became of the rest.

use std::{sync::Arc, time::Duration};

use leasehold::{
    Holder, Leasehold, Resource,
    backend::Lifetime,
    lease::{Claim, EndedLease, Ending, HistoryFilter, LeaseState, ListFilter, Metadata, Names, Outcome},
};

use super::TrialContext;
use crate::instance::{LONG, SOON, ask, attempt, renewal};

pub(super) async fn listing(context: TrialContext) {
    let (one, two) = context.two_instances().await;
    let holding = ask("x", Claim::EXCLUSIVE).note("deploy");
    let waiting = ask("x", Claim::SHARED).lifetime(Lifetime::Detached);
    let grant = one.granted(&holding).await;
    one.queued(&waiting).await;
    let records = two.list("x").await;
    let [first, second] = records.as_slice() else { panic!("one holds and one waits: {records:?}") };
    let LeaseState::Holding { fence, acquired_at, held_for } = first.state else { panic!("{first:?}") };
    assert_eq!((fence, acquired_at), (grant.fence, grant.acquired_at));
    assert!(held_for < SOON && first.renewed_ago < SOON);
    assert_eq!((&first.holder, first.claim, first.ttl), (&holding.holder, holding.claim, holding.ttl));
    assert_eq!(first.note.as_deref(), Some("deploy"));
    let LeaseState::Waiting { ahead, waiting_for } = second.state else { panic!("{second:?}") };
    assert!(ahead == 0 && waiting_for < SOON);
    assert_eq!((&second.holder, second.claim, second.note.as_ref()), (&waiting.holder, waiting.claim, None));
    let expires_in = second.expires_in.expect("what is detached has an end");
    assert!(expires_in <= LONG && expires_in + SOON > LONG);
}

pub(super) async fn listing_order(context: TrialContext) {
    let one = context.instance().await;
    let names = ["b", "a", "c"];
    for name in names {
        one.granted(&ask(name, Claim::SHARED)).await;
        one.granted(&ask(name, Claim::SHARED)).await;
        one.queued(&ask(name, Claim::EXCLUSIVE)).await;
        one.queued(&ask(name, Claim::SHARED)).await;
    }
    let page = one.backend.list(&ListFilter::new(Names::All)).await.expect("a listing");
    let listed: Vec<String> = page
        .leases
        .iter()
        .map(|lease| match lease.state {
            LeaseState::Holding { .. } => format!("{} holds", lease.resource),
            LeaseState::Waiting { ahead, .. } => format!("{} waits after {ahead}", lease.resource),
        })
        .collect();
    let of_name = |name| ["holds", "holds", "waits after 0", "waits after 1"].map(|how| format!("{name} {how}"));
    assert_eq!(listed, ["a", "b", "c"].into_iter().flat_map(of_name).collect::<Vec<_>>());
    assert_eq!(page.next, None);
}

pub(super) async fn listing_pages(context: TrialContext) {
    let one = context.instance().await;
    let mut names: Vec<String> = (0..25).map(|at| format!("page:{at}")).collect();
    for name in names.iter().map(String::as_str).chain(["other", "pag", "page"]) {
        one.granted(&attempt(name, Claim::EXCLUSIVE)).await;
    }
    names.sort_unstable();
    let mut listed = Vec::new();
    let mut filter = ListFilter::new(Names::Prefix(String::from("page:"))).limit(10);
    for size in [10, 10, 5] {
        let page = one.backend.list(&filter).await.expect("a page");
        assert_eq!(page.leases.len(), size);
        listed.extend(page.leases.iter().map(|lease| lease.resource.as_str().to_owned()));
        assert_eq!(page.next.as_ref().map(Resource::as_str), (size == 10).then(|| listed[listed.len() - 1].as_str()));
        filter.after = page.next;
    }
    assert_eq!(listed, names);
}

pub(super) async fn any_name(context: TrialContext) {
    let (one, two) = context.two_instances().await;
    let long = "n".repeat(Resource::MAX_BYTES);
    let long_unicode = "ü".repeat(Resource::MAX_BYTES / 2);
    let names = [
        "a",
        " ",
        "..",
        "/",
        "a/../b",
        "naïve ☕ 名前",
        "\u{1f512}:42",
        "%2e%2e",
        "~",
        "a\u{301}",
        "á",
        "\"quoted\"",
        "it's",
        "-rf",
        "$HOME",
        "a*b?",
        "NUL",
        "\u{fffd}",
        &long,
        &long_unicode,
    ];
    for name in names {
        let request = ask(name, Claim::EXCLUSIVE);
        one.granted(&request).await;
        two.busy(&attempt(name, Claim::EXCLUSIVE)).await;
        assert_eq!(two.list(name).await[0].resource.as_str(), name);
        two.free(&request).await;
        assert_eq!(one.history(name).await[0].resource.as_str(), name);
    }
    assert!(one.backend.list(&ListFilter::new(Names::All)).await.expect("a listing").leases.is_empty());
}

pub(super) async fn any_text(context: TrialContext) {
    let (one, two) = context.two_instances().await;
    let metadata = serde_json::json!({
        "job": "Rechnung №7 – „geprüft“",
        "nested": {"list": [1, 2.5, -3, true, null, "x\n\t\"y\"\\"], "empty": {}},
        "big": 9_007_199_254_740_991_u64,
        "": "empty key",
        "emoji": "👩‍🔧",
    });
    let serde_json::Value::Object(metadata) = metadata else { unreachable!("an object was written") };
    let request = ask("x", Claim::EXCLUSIVE)
        .holder(Holder::new("Zoë@build-7:42 ☕ 'x' \"y\"").expect("a good label"))
        .note("nächtlicher Lauf; it's \"fine\" — 100 %\\o/")
        .metadata(metadata.clone());
    one.granted(&request).await;
    let record = two.list("x").await.remove(0);
    assert_eq!((&record.holder, &record.note, &record.metadata), (&request.holder, &request.note, &metadata));
    let busy = two.busy(&attempt("x", Claim::EXCLUSIVE)).await;
    assert_eq!((&busy.holders[0].holder, &busy.holders[0].note), (&request.holder, &request.note));
    let outcome = Outcome::failed("IoError", "Gerät nicht bereit\nline two: 'x' \"y\" \\z");
    two.release_as(&request, &outcome).await;
    let ended = one.history("x").await.remove(0);
    assert_eq!((&ended.holder, &ended.note, &ended.metadata), (&request.holder, &request.note, &metadata));
    assert_eq!(ended.problem.map(Outcome::Failed), Some(outcome));
}

pub(super) async fn metadata_replaced(context: TrialContext) {
    let one = context.instance().await;
    let value = |text: &str| Metadata::from_iter([(String::from("value"), text.into())]);
    let request = ask("x", Claim::LEADER).metadata(value("first"));
    one.granted(&request).await;
    one.renew(renewal(&request).metadata(value("second"))).await;
    assert_eq!(one.list("x").await[0].metadata, value("second"));
    one.standing(&request).await;
    assert_eq!(one.list("x").await[0].metadata, value("second"), "a plain renewal leaves it");
    one.renew(renewal(&request).metadata(Metadata::new())).await;
    assert!(one.list("x").await[0].metadata.is_empty());
}

pub(super) async fn endings(context: TrialContext) {
    let (one, two) = context.two_instances().await;
    let held = [
        (Outcome::Completed, Ending::Released),
        (Outcome::failed("Timeout", "no answer"), Ending::Failed),
        (Outcome::MaxHold, Ending::MaxHold),
    ];
    let waited = [
        (Outcome::Completed, Ending::Cancelled),
        (Outcome::Cancelled, Ending::Cancelled),
        (Outcome::GaveUp, Ending::GaveUp),
    ];
    for (outcome, ending) in &held {
        let request = ask("x", Claim::SHARED);
        let grant = one.granted(&request).await;
        two.release_as(&request, outcome).await;
        let ended = one.history("x").await.remove(0);
        assert_eq!((ended.ending, ended.fence, &ended.holder), (*ending, Some(grant.fence), &request.holder));
        assert_eq!((ended.claim, ended.acquired_at), (Claim::SHARED, Some(grant.acquired_at)));
        assert!(ended.asked_at <= grant.acquired_at && ended.ended_at >= grant.acquired_at);
        assert_eq!(ended.problem.is_some(), *ending == Ending::Failed);
    }
    one.granted(&ask("x", Claim::EXCLUSIVE)).await;
    for (outcome, ending) in &waited {
        let request = ask("x", Claim::EXCLUSIVE);
        two.queued(&request).await;
        one.release_as(&request, outcome).await;
        let ended = two.history("x").await.remove(0);
        assert_eq!((ended.ending, ended.fence, ended.acquired_at), (*ending, None, None));
    }
}

pub(super) async fn history_pages(context: TrialContext) {
    let one = context.instance().await;
    for _ in 0..5 {
        let request = attempt("x", Claim::EXCLUSIVE);
        one.granted(&request).await;
        one.backend.release(&request.key, &Outcome::Completed).await.expect("a release");
    }
    let locks = Leasehold::builder().open(Arc::clone(&one.backend)).expect("an instance");
    for (limit, shown, is_truncated) in [(0, 0, true), (4, 4, true), (5, 5, false), (usize::MAX, 5, false)] {
        let filter = HistoryFilter::new(Names::All).limit(limit);
        let page = locks.history_page(&filter).await.expect("a page of history");
        assert_eq!((page.leases.len(), page.is_truncated), (shown, is_truncated), "at most {limit}");
    }
}

pub(super) async fn history_filters(context: TrialContext) {
    let one = context.instance().await;
    for at in 0..6 {
        let request = ask(if at % 2 == 0 { "job:a" } else { "job:b" }, Claim::EXCLUSIVE);
        one.granted(&request).await;
        let outcome = if at < 2 { Outcome::failed("E", at) } else { Outcome::Completed };
        one.release_as(&request, &outcome).await;
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let all = HistoryFilter::new(Names::Prefix(String::from("job:")));
    let history = async |filter: HistoryFilter| one.backend.history(&filter).await.expect("a history");
    let ended = history(all.clone()).await;
    assert_eq!(ended.len(), 6);
    assert!(ended.is_sorted_by_key(|ended| std::cmp::Reverse(ended.ended_at)), "newest first");

    let holders = |leases: &[EndedLease]| leases.iter().map(|lease| lease.holder.clone()).collect::<Vec<_>>();
    let newest = history(all.clone().limit(2)).await;
    assert_eq!(holders(&newest), holders(&ended[..2]));
    let next = history(all.clone().limit(2).until(newest[1].ended_at)).await;
    assert_eq!(holders(&next), holders(&ended[2..4]));
    let since = history(all.clone().since(ended[2].ended_at)).await;
    assert_eq!(holders(&since), holders(&ended[..3]));
    let failures = history(all.failures(true)).await;
    assert_eq!(holders(&failures), holders(&ended[4..]));
    assert_eq!(one.history("job:a").await.len(), 3);
}

pub(super) async fn examination(context: TrialContext) {
    let findings = context.instance().await.backend.examine().await.expect("an examination");
    assert!(!findings.is_empty());
    assert!(findings.iter().all(|finding| !finding.subject.is_empty() && !finding.message.is_empty()));
}
