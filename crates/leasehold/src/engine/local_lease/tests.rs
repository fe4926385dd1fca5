//! The transitions of a lease, one by one: no backend, no thread, no clock.

use super::{
    deadlines::{MAX_RENEW_INTERVAL_FIRST_WAITER, MAX_RENEW_INTERVAL_WAITER},
    *,
};
use crate::{
    backend::Session,
    engine::{LeaseHealth, Wait, margin},
    lease::{Holder, LeaseId, Resource},
};

const TTL: Duration = Duration::from_secs(30);

pub(super) fn at(seconds: u64) -> Moment {
    Moment::default().after(Duration::from_secs(1000 + seconds))
}

fn ttl() -> Ttl {
    Ttl::new(TTL).unwrap()
}

pub(super) fn lease(change: impl FnOnce(&mut AcquireOptions<'_>)) -> LocalLease {
    let (resource, holder, metadata) = (Resource::new("r").unwrap(), Holder::unique(), Metadata::new());
    let mut options = AcquireOptions {
        resource: &resource,
        claim: Claim::EXCLUSIVE,
        ttl: ttl(),
        wait: Wait::Forever,
        max_waiters: None,
        lifetime: Lifetime::Attached,
        holder: &holder,
        note: None,
        metadata: &metadata,
        max_hold: None,
        backoff: Backoff::new(Duration::from_millis(100), Duration::from_secs(10)),
        max_tries: None,
    };
    change(&mut options);
    let key = LeaseKey::new(resource.clone(), LeaseId::random());
    let request = Request::new(key, options.claim, holder.clone()).ttl(options.ttl).lifetime(options.lifetime);
    LocalLease::new(request, &options, true, at(0)).0
}

pub(super) fn grant(fence: u64) -> Grant {
    Grant::new(Fence::new(fence), Timestamp::default())
}

pub(super) fn position(last_fence: u64) -> QueuePosition {
    QueuePosition::new(0, Fence::new(last_fence), None)
}

fn poll(lease: &LocalLease, now: Moment) -> Poll<(RequestResult, FollowUp)> {
    lease.poll_result(&Context::from_waker(Waker::noop()), at(0), now).map(|step| match step {
        CallerStep::Finish(result, follow_up) => (result, follow_up),
        CallerStep::ConfirmGrant => panic!("there is nothing to confirm"),
    })
}

pub(in crate::engine) fn held(change: impl FnOnce(&mut AcquireOptions<'_>), belief: Belief) -> LocalLease {
    let lease = lease(change);
    let call = lease.number_call(at(0));
    assert_eq!(lease.on_decision(Decision::Granted(grant(7)), call, belief, at(0)), FollowUp::Schedule);
    assert!(matches!(poll(&lease, at(0)), Poll::Ready((RequestResult::Held, FollowUp::Schedule))));
    lease
}

fn waiting() -> LocalLease {
    waiting_by(Belief::Ttl)
}

fn waiting_by(belief: Belief) -> LocalLease {
    let lease = lease(|_| {});
    let call = lease.number_call(at(0));
    assert_eq!(lease.on_decision(Decision::Queued(position(7)), call, belief, at(0)), FollowUp::Schedule);
    lease
}

fn apply_standing(lease: &LocalLease, standing: Standing, call: SentCall, now: Moment) -> FollowUp {
    lease.on_standing(standing, &lease.plain_renewal(), call, &Belief::Ttl, now)
}

#[test]
fn an_answer_older_than_the_grant_renews_again_and_a_newer_one_ends_the_lease() {
    let lease = waiting();
    let before = lease.number_call(at(10));
    assert_eq!(lease.on_grant_hint(Fence::new(8), false, at(11), Timestamp::default()), FollowUp::Schedule);
    assert!(matches!(poll(&lease, at(11)), Poll::Ready((RequestResult::Held, _))));
    assert_eq!(apply_standing(&lease, Standing::Waiting(position(7)), before, at(12)), FollowUp::Schedule);
    assert_eq!(lease.renew_at(), at(12), "it is asked again at once");
    assert_eq!(lease.validity.health(at(12)), LeaseHealth::Held);

    let after = lease.number_call(at(12));
    assert_eq!(apply_standing(&lease, Standing::Waiting(position(8)), after, at(13)), FollowUp::Release);
    assert_eq!(lease.validity.loss(), Some(Loss::Gone));
    assert_eq!(lease.renew_at(), Moment::NEVER, "nothing is left to renew");
    assert!(lease.begin_renewal().is_none());
}

#[test]
fn a_renewal_that_was_requested_is_not_put_off_by_the_answer_to_an_older_call() {
    let lease = held(|_| {}, Belief::Ttl);
    let older = lease.number_call(at(1));
    assert_eq!(lease.on_evict_hint(at(2)), FollowUp::Schedule);
    assert_eq!(apply_standing(&lease, Standing::Holding(grant(7)), older, at(3)), FollowUp::Schedule);
    assert_eq!(lease.renew_at(), at(3), "the eviction is looked into at once");
    assert!(lease.begin_renewal().is_some());
    let newer = lease.number_call(at(3));
    assert_eq!(apply_standing(&lease, Standing::Holding(grant(7)), newer, at(4)), FollowUp::Schedule);
    assert!(lease.renew_at() > at(4), "once is enough");
}

#[test]
fn a_lease_that_the_backend_extended_too_late_is_released() {
    let lease = held(|_| {}, Belief::Ttl);
    let late = lease.number_call(at(20));
    assert_eq!(lease.on_deadline(at(30)), FollowUp::Lost);
    assert_eq!(apply_standing(&lease, Standing::Gone, late, at(31)), FollowUp::Nothing);
    assert_eq!(apply_standing(&lease, Standing::Holding(grant(7)), late, at(31)), FollowUp::ReleaseLost);
    assert_eq!(lease.validity.loss(), Some(Loss::RenewTimeout));
}

#[test]
fn a_change_that_is_heard_of_before_the_answer_is_looked_into_after_it() {
    let lease = lease(|_| {});
    let call = lease.number_call(at(0));
    assert!(lease.could_be_waiting());
    assert_eq!(lease.make_renewal_due(at(1)), FollowUp::Schedule);
    let queued = Decision::Queued(position(7));
    assert_eq!(lease.on_decision(queued, call, Belief::Process, at(2)), FollowUp::Schedule);
    assert_eq!(lease.renew_at(), at(2));
}

#[test]
fn a_provisional_grant_is_only_asked_about() {
    let lease = waiting();
    assert_eq!(lease.on_grant_hint(Fence::new(8), true, at(5), Timestamp::default()), FollowUp::Schedule);
    assert!(poll(&lease, at(5)).is_pending());
    assert_eq!(lease.renew_at(), at(5));
    let call = lease.number_call(at(5));
    assert_eq!(apply_standing(&lease, Standing::Holding(grant(8)), call, at(6)), FollowUp::Schedule);
    assert!(matches!(poll(&lease, at(6)), Poll::Ready((RequestResult::Held, _))));
}

#[test]
fn the_caller_may_confirm_a_local_provisional_grant_before_the_renewer() {
    let lease = waiting_by(Belief::Process);
    let poll_once = || lease.poll_result(&Context::from_waker(Waker::noop()), at(0), at(1));
    assert!(poll_once().is_pending());
    assert_eq!(lease.on_grant_hint(Fence::new(8), true, at(1), Timestamp::default()), FollowUp::Schedule);
    assert_eq!(lease.renew_at(), at(1).after(CALLER_CONFIRM_WINDOW), "then the renewer confirms it");
    assert!(matches!(poll_once(), Poll::Ready(CallerStep::ConfirmGrant)));
    assert!(lease.begin_renewal().is_some());
    assert!(poll_once().is_pending(), "one renewal confirms it");

    let stale = waiting_by(Belief::Process);
    assert_eq!(stale.on_grant_hint(Fence::new(7), true, at(1), Timestamp::default()), FollowUp::Schedule);
    assert!(poll(&stale, at(1)).is_pending());
}

#[test]
fn a_provisional_grant_during_a_renewal_is_asked_about_after_it() {
    let lease = waiting();
    assert!(lease.begin_renewal().is_some());
    let call = lease.number_call(at(5));
    let _in_flight = lease.on_grant_hint(Fence::new(8), true, at(6), Timestamp::default());
    assert_eq!(lease.renew_at(), Moment::NEVER, "one renewal at a time");
    assert_eq!(apply_standing(&lease, Standing::Waiting(position(7)), call, at(7)), FollowUp::Schedule);
    assert_eq!(lease.renew_at(), at(7), "the answer may be older than the hint");
}

#[test]
fn a_hint_that_is_not_above_the_last_fence_is_stale() {
    let lease = waiting();
    assert_eq!(lease.on_grant_hint(Fence::new(7), false, at(5), Timestamp::default()), FollowUp::Schedule);
    assert!(poll(&lease, at(5)).is_pending());
}

#[test]
fn a_pushed_grant_is_valid_from_the_last_answered_request() {
    let lease = waiting();
    let _pushed = lease.on_grant_hint(Fence::new(8), false, at(20), Timestamp::default());
    assert!(matches!(poll(&lease, at(20)), Poll::Ready((RequestResult::Held, _))));
    assert_eq!(lease.validity.deadline(), at(30).before(margin(TTL)));

    let late = waiting();
    let _pushed = late.on_grant_hint(Fence::new(8), false, at(30), Timestamp::default());
    assert!(poll(&late, at(30)).is_pending(), "the last answer has run out");
    assert_eq!(late.renew_at(), at(30));
}

#[test]
fn max_hold_releases_and_expiry_does_not() {
    let capped = held(|options| options.max_hold = Some(Duration::from_secs(5)), Belief::Ttl);
    assert_eq!(capped.on_deadline(at(4)), FollowUp::Nothing);
    assert_eq!(capped.on_deadline(at(5)), FollowUp::Release);
    assert_eq!(capped.validity.loss(), Some(Loss::MaxHold));

    let silent = held(|_| {}, Belief::Ttl);
    assert_eq!(silent.on_deadline(at(30)), FollowUp::Lost);
    assert_eq!(silent.validity.loss(), Some(Loss::RenewTimeout));
    assert_eq!(silent.on_deadline(at(31)), FollowUp::Nothing);
}

/// A process that was stopped for longer than the ttl wakes, and its renewal is answered before its timer runs.
#[test]
fn expiry_is_a_renew_timeout_whichever_path_finds_it() {
    let stopped = held(|_| {}, Belief::Ttl);
    let call = stopped.number_call(at(31));
    assert_eq!(apply_standing(&stopped, Standing::Gone, call, at(31)), FollowUp::Lost);
    assert_eq!(stopped.validity.loss(), Some(Loss::RenewTimeout));

    let forgotten = held(|_| {}, Belief::Ttl);
    let call = forgotten.number_call(at(10));
    assert_eq!(apply_standing(&forgotten, Standing::Gone, call, at(11)), FollowUp::Lost);
    assert_eq!(forgotten.validity.loss(), Some(Loss::Gone));
}

/// 1. A renewal is sent. 2. `max_hold` is reached. 3. The answer to the renewal arrives before the timer runs.
#[test]
fn a_lease_at_max_hold_is_released_by_every_path_that_notices() {
    let capped = || held(|options| options.max_hold = Some(Duration::from_secs(5)), Belief::Ttl);
    let finders: [fn(&LocalLease) -> FollowUp; 3] = [
        |lease| {
            let call = lease.number_call(at(4));
            apply_standing(lease, Standing::Holding(grant(7)), call, at(5))
        },
        |lease| lease.on_release(at(5)),
        |lease| lease.check(at(5)).unwrap_err(),
    ];
    for find in finders {
        let lease = capped();
        assert_eq!(find(&lease), FollowUp::Release);
        assert_eq!(lease.validity.loss(), Some(Loss::MaxHold));
    }
}

#[test]
fn a_lease_granted_to_a_caller_that_left_is_released() {
    let lease = lease(|_| {});
    let call = lease.number_call(at(0));
    assert_eq!(lease.on_caller_left(), FollowUp::Nothing, "the request is in flight");
    assert_eq!(lease.on_decision(Decision::Granted(grant(7)), call, Belief::Ttl, at(1)), FollowUp::Release);

    let waiting = waiting();
    assert_eq!(waiting.on_caller_left(), FollowUp::Release);
    let call = waiting.number_call(at(2));
    assert_eq!(apply_standing(&waiting, Standing::Holding(grant(8)), call, at(2)), FollowUp::Nothing);
}

#[test]
fn a_request_with_unknown_outcome_is_released_a_refused_one_forgotten() {
    let unknown = lease(|_| {});
    assert_eq!(unknown.on_request_failed(Error::unanswered("no answer")), FollowUp::Release);
    let refused = lease(|_| {});
    assert_eq!(refused.on_request_failed(Error::unsupported("not here")), FollowUp::Forget);
}

#[test]
fn an_eviction_that_was_hinted_is_named_once_it_is_found() {
    let lease = held(|_| {}, Belief::Ttl);
    assert_eq!(lease.on_evict_hint(at(1)), FollowUp::Schedule);
    assert_eq!(lease.validity.health(at(1)), LeaseHealth::Held, "a hint may be wrong");
    assert_eq!(lease.renew_at(), at(1));
    let call = lease.number_call(at(1));
    assert_eq!(apply_standing(&lease, Standing::Gone, call, at(1)), FollowUp::Lost);
    assert_eq!(lease.validity.loss(), Some(Loss::Evicted));
}

#[test]
fn every_use_notices_the_end_of_a_session() {
    let by = || {
        let session = Session::new(TTL);
        (held(|_| {}, Belief::Session(session.clone())), session)
    };
    let uses: [fn(&LocalLease) -> FollowUp; 4] = [
        |lease| lease.check(at(1)).unwrap_err(),
        |lease| lease.on_hints_missed(at(1)),
        |lease| lease.on_renew_failed(at(1)),
        |lease| lease.on_release(at(1)),
    ];
    for notice in uses {
        let (lease, session) = by();
        assert!(lease.check(at(1)).is_ok());
        session.end();
        assert_eq!(notice(&lease), FollowUp::Lost);
        assert_eq!(lease.validity.loss(), Some(Loss::Gone));
    }
}

#[test]
fn a_lease_of_a_silent_session_is_released_at_its_deadline() {
    let session = Session::new(Duration::from_secs(5));
    let lease = held(|_| {}, Belief::Session(session.clone()));
    assert_eq!(lease.on_deadline(at(5)), FollowUp::Release);
    assert_eq!(lease.validity.loss(), Some(Loss::RenewTimeout));
    let lease = held(|_| {}, Belief::Session(session.clone()));
    session.end();
    assert_eq!(lease.on_deadline(at(5)), FollowUp::Lost, "it ended with its session");
}

#[test]
fn a_detached_lease_outlives_the_session_it_was_granted_by() {
    let session = Session::new(Duration::from_secs(5));
    let lease = lease(|options| options.lifetime = Lifetime::Detached);
    let call = lease.number_call(at(0));
    let _granted = lease.on_decision(Decision::Granted(grant(7)), call, Belief::Session(session.clone()), at(0));
    assert!(matches!(poll(&lease, at(0)), Poll::Ready((RequestResult::Held, FollowUp::Forget))));
    session.end();
    assert!(lease.check(at(29)).is_ok());
    assert!(lease.check(at(30)).is_err());
}

#[test]
fn a_lease_that_lasts_as_long_as_its_process_has_no_deadline() {
    let lease = held(|_| {}, Belief::Process);
    assert_eq!(lease.validity.deadline(), Moment::NEVER);
    assert!(lease.renew_at() <= at(10), "an eviction whose hint was lost is found");
}

#[test]
fn a_late_answer_to_an_older_renewal_changes_no_ttl() {
    let lease = held(|_| {}, Belief::Ttl);
    let renewal = |seconds| {
        let mut renewal = lease.plain_renewal();
        renewal.ttl = Ttl::new(Duration::from_secs(seconds)).unwrap();
        renewal
    };
    let (older, newer) = (lease.number_call(at(1)), lease.number_call(at(2)));
    for (seconds, call) in [(600, newer), (30, older)] {
        lease.on_explicit_renewal(&renewal(seconds), call);
        let _scheduled = lease.on_standing(Standing::Holding(grant(7)), &renewal(seconds), call, &Belief::Ttl, at(3));
    }
    assert_eq!(lease.ttl().get(), Duration::from_secs(600));
}

#[test]
fn a_grant_that_is_pushed_before_its_answer_came_has_the_time_of_the_push() {
    let lease = lease(|_| {});
    let call = lease.number_call(at(0));
    let came = Timestamp::from_micros(1_700_000_000_000_000);
    assert_eq!(lease.on_grant_hint(Fence::new(7), false, at(1), came), FollowUp::Nothing);
    let _granted = lease.on_decision(Decision::Queued(position(6)), call, Belief::Ttl, at(2));
    assert!(matches!(poll(&lease, at(2)), Poll::Ready((RequestResult::Held, _))));
    assert_eq!(lease.hold().unwrap().grant.acquired_at, came);
}

/// A renewal that extends the ttl, and one that sets metadata.
fn longer_and_marked(lease: &LocalLease) -> (Renewal, Renewal) {
    let ttl = Ttl::new(Duration::from_secs(600)).unwrap();
    let metadata = Metadata::from_iter([(String::from("step"), 2.into())]);
    (lease.plain_renewal().ttl(ttl), lease.plain_renewal().metadata(metadata))
}

#[test]
fn explicit_renewals_count_though_a_later_renewal_was_answered_first() {
    let lease = held(|_| {}, Belief::Ttl);
    let (longer, marked) = longer_and_marked(&lease);
    let [first, second, periodic] = [1, 2, 3].map(|second| lease.number_call(at(second)));
    let standing = Standing::Holding(grant(7));
    assert_eq!(lease.on_standing(standing, &lease.plain_renewal(), periodic, &Belief::Ttl, at(3)), FollowUp::Schedule);
    // The one that sets the metadata carries the old ttl.
    for (renewal, call) in [(&marked, second), (&longer, first)] {
        lease.on_explicit_renewal(renewal, call);
        let _nothing_to_schedule = lease.on_standing(standing, renewal, call, &Belief::Ttl, at(4));
    }
    assert_eq!(lease.validity.deadline(), at(1).after(longer.ttl.get()).before(margin(longer.ttl.get())));
    assert_eq!((lease.ttl(), lease.metadata()), (longer.ttl, marked.metadata.unwrap()));
}

#[test]
fn a_change_of_metadata_that_is_answered_late_leaves_the_ttl_alone() {
    let lease = held(|_| {}, Belief::Ttl);
    let (longer, marked) = longer_and_marked(&lease);
    for renewal in [longer.clone(), marked] {
        let call = lease.number_call(at(1));
        lease.on_explicit_renewal(&renewal, call);
    }
    assert_eq!(lease.ttl(), longer.ttl);
}

#[test]
fn an_answer_that_a_later_one_overtook_changes_nothing() {
    let (before, after) = (Session::new(TTL), Session::new(TTL));
    let lease = held(|_| {}, Belief::Session(before.clone()));
    let (older, newer) = (lease.number_call(at(1)), lease.number_call(at(2)));
    let standing = Standing::Holding(grant(7));
    let renewal = lease.plain_renewal();
    assert_eq!(lease.on_standing(standing, &renewal, newer, &Belief::Session(after), at(3)), FollowUp::Schedule);
    before.end();
    assert_eq!(lease.on_standing(standing, &renewal, older, &Belief::Session(before), at(4)), FollowUp::Nothing);
    assert_eq!(lease.check(at(4)), Ok(()));
}

#[test]
fn the_first_waiter_of_a_process_asks_again_within_seconds_and_others_within_a_minute() {
    for (ahead, limit) in [(0, MAX_RENEW_INTERVAL_FIRST_WAITER), (1, MAX_RENEW_INTERVAL_WAITER)] {
        let lease = lease(|options| options.ttl = Ttl::MAX);
        let call = lease.number_call(at(0));
        let position = QueuePosition::new(ahead, Fence::new(7), None);
        let follow_up = lease.on_decision(Decision::Queued(position), call, Belief::Process, at(0));
        assert_eq!(follow_up, FollowUp::Schedule);
        let due = lease.due_at();
        assert!(due > at(0) && due <= at(0).after(limit), "{ahead} ahead: due at {due:?}");
    }
}
