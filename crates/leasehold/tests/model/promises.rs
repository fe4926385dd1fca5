//! What must be true after every step, said without looking at how the rule works.

use std::collections::BTreeSet;

use leasehold::{
    Fence,
    backend::{
        Decision, Patience, Renewal,
        model::{Entry, EntryState, Expiry, FENCE_LEAD, Granted, Presence, State},
    },
    lease::{Ending, Evicted, LeaseId, Moment, Released, Standing, Timestamp},
};

use crate::{
    hand_offs,
    world::{Asked, Said, Step},
};

pub(crate) fn check(step: &Step) {
    units_fit_and_shapes_agree(&step.after);
    nothing_lives_past_its_end(step);
    endings_are_told_and_true(step);
    the_queue_keeps_its_order(step);
    nobody_overtakes_and_nobody_waits_in_vain(step);
    grants_are_told(step);
    fences_rise(step);
    hand_off_changes_only_the_state(step);
    hand_offs::check(step);
    answers_say_what_is_so(step);
    asking_twice_changes_nothing(step);
}

fn units_fit_and_shapes_agree(state: &State) {
    let Some(first) = state.entries.first() else { return };
    assert!(used(state) <= u64::from(first.claim.capacity()), "more units are held than there are: {state:#?}");
    assert!(state.entries.iter().all(|entry| entry.claim.shape() == first.claim.shape()), "two shapes: {state:#?}");
}

fn nothing_lives_past_its_end(step: &Step) {
    for entry in &step.after.entries {
        assert!(end_of(entry) > step.now, "an expired entry is still there: {entry:#?}");
        assert_ne!(step.presence(entry), Presence::Dead, "a dead entry is still there: {entry:#?}");
    }
}

/// Who left is told once, with the ending that is true; who was told to have ended is not there any more.
fn endings_are_told_and_true(step: &Step) {
    let left: Vec<LeaseId> = ids(&step.before).filter(|id| !stayed(step).any(|entry| entry.id == *id)).collect();
    let told: Vec<LeaseId> = step.effects.ended.iter().map(|ended| ended.entry.id).collect();
    assert_eq!(left.iter().collect::<BTreeSet<_>>(), told.iter().collect(), "who left and who is told to: {step:#?}");
    assert_eq!(left.len(), told.len(), "an ending is told twice: {step:#?}");

    for ended in &step.effects.ended {
        let entry = find(&step.before, ended.entry.id).expect("who left was there");
        let true_ending = if end_of(entry) <= step.now {
            assert_eq!(ended.ended_at, step.wall.before(step.now.since(end_of(entry))), "an expiry is dated wrong");
            Ending::Expired
        } else if step.presence(entry) == Presence::Dead {
            Ending::Disconnected
        } else {
            match &step.asked {
                Asked::Evict(fence) => {
                    assert_eq!(ended.entry.held().map(|held| held.fence), Some(*fence), "another was evicted");
                    Ending::Evicted
                }
                Asked::Release(key, outcome) => {
                    assert_eq!(key.id, entry.id, "another's lease was released: {step:#?}");
                    match outcome.ending() {
                        Ending::Released if ended.entry.is_waiting() => Ending::Cancelled,
                        ending => ending,
                    }
                }
                _ => panic!("{:?} left for no reason: {step:#?}", entry.id),
            }
        };
        assert_eq!(ended.ending, true_ending, "a wrong ending: {step:#?}");
        assert_eq!(ended.problem.is_some(), matches!(true_ending, Ending::Failed | Ending::Evicted));
    }
}

/// Also for the absent: they keep their place. Only a client may come, and only at the end.
fn the_queue_keeps_its_order(step: &Step) {
    let stayed: Vec<LeaseId> = stayed(step).map(|entry| entry.id).collect();
    let mut there: Vec<LeaseId> = ids(&step.after).collect();
    if there.last().is_some_and(|last| !stayed.contains(last)) {
        assert!(matches!(step.asked, Asked::Acquire(..)), "someone came without asking: {step:#?}");
        assert_eq!(there.pop(), step.caller());
    }
    assert_eq!(there, stayed, "places were exchanged: {step:#?}");
}

fn nobody_overtakes_and_nobody_waits_in_vain(step: &Step) {
    let mut first_waiting = None;
    for entry in &step.after.entries {
        if !entry.is_waiting() {
            let new = step.effects.granted.iter().any(|granted| granted.id == entry.id);
            assert!(!new || first_waiting.is_none(), "{:?} overtook {first_waiting:?}: {step:#?}", entry.id);
        } else if step.presence(entry) != Presence::Absent {
            first_waiting.get_or_insert(entry.id);
        }
    }
    if let Some(head) = first_waiting.and_then(|id| find(&step.after, id)) {
        let wanted = used(&step.after) + u64::from(head.claim.units());
        assert!(wanted > u64::from(head.claim.capacity()), "the head waits although its units fit: {step:#?}");
    }
    for entry in &step.after.entries {
        let held_before = stayed(step).any(|was| was.id == entry.id && !was.is_waiting());
        let may_hold = held_before || step.presence(entry) != Presence::Absent;
        assert!(entry.is_waiting() || may_hold, "an absent one was granted: {step:#?}");
    }
}

/// Who began to hold is told, also when the same operation ended it again.
fn grants_are_told(step: &Step) {
    let held_before = |id: LeaseId| stayed(step).any(|was| was.id == id && !was.is_waiting());
    let new = step.after.entries.iter().filter(|entry| !held_before(entry.id)).filter_map(|entry| {
        let provisional = matches!(entry.state, EntryState::Provisional { .. });
        Some(Granted { id: entry.id, fence: entry.held()?.fence, provisional })
    });
    let told = step.effects.granted.iter().copied().filter(|granted| find(&step.after, granted.id).is_some());
    assert_eq!(new.collect::<Vec<_>>(), told.collect::<Vec<_>>(), "who began to hold and who is told to: {step:#?}");
}

/// Each is the lowest that the rule allows, and so above all before; a floor on renew is stored exactly or not at all.
fn fences_rise(step: &Step) {
    let raised = match &step.asked {
        Asked::Renew(Renewal { key, fence_floor: Some(floor), .. }) => find(&step.after, key.id)
            .and_then(|entry| Some((entry.id, entry.held()?.fence)))
            .filter(|(_, fence)| fence == floor),
        _ => None,
    };
    let mut last = step.before.last_fence;
    for entry in granted(step) {
        let fence = entry.held().expect("a granted entry holds").fence;
        assert!(fence > step.newest_fence, "fence {fence} is not above {}: {step:#?}", step.newest_fence);
        if raised.is_none() {
            assert_eq!(fence, lowest_fence(last, step.wall, entry.fence_floor), "not the lowest fence: {step:#?}");
            last = fence;
        }
    }
    let all: Vec<Fence> = holding(&step.after).collect();
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len(), "a fence was given twice: {step:#?}");
    assert!(all.iter().all(|fence| *fence <= step.after.last_fence), "the newest fence was not kept: {step:#?}");
    assert!(step.after.last_fence >= step.before.last_fence, "the newest fence fell: {step:#?}");

    if let Asked::Renew(Renewal { key, fence_floor: Some(floor), .. }) = &step.asked
        && let Some(held) = find(&step.before, key.id).and_then(Entry::held)
        && let Some(now_held) = find(&step.after, key.id).and_then(Entry::held)
        && step.effects.granted.is_empty()
    {
        let may_rise = *floor > step.before.last_fence && *floor <= lead(step.wall);
        assert_eq!(now_held.fence, if may_rise { *floor } else { held.fence }, "a floor was bent: {step:#?}");
    }
}

/// A position and a lease share one life: nothing but the state tells them apart.
fn hand_off_changes_only_the_state(step: &Step) {
    for was in stayed(step) {
        let is = find(&step.after, was.id).expect("it stayed");
        if let Some(held) = was.held()
            && !matches!(&step.asked, Asked::Renew(Renewal { fence_floor: Some(_), .. }))
        {
            assert_eq!(is.held(), Some(held), "a grant was changed: {step:#?}");
        }
        if step.caller() == Some(was.id) {
            caller_is_prolonged(step, was, is);
        } else {
            let waiting = |entry: &Entry| Entry { state: EntryState::Waiting, ..entry.clone() };
            assert_eq!(waiting(was), waiting(is), "{step:#?}");
        }
    }
}

fn caller_is_prolonged(step: &Step, was: &Entry, is: &Entry) {
    let (ttl, renewal) = match &step.asked {
        Asked::Acquire(request, _) => (request.ttl, None),
        Asked::Renew(renewal) => (renewal.ttl, Some(renewal)),
        _ => panic!("only those who ask or renew stay: {step:#?}"),
    };
    let end = step.now.after(ttl.get());
    let mut expected = was.clone();
    expected.renewed_at = step.wall;
    expected.state = is.state;
    if end > was.expires_at {
        (expected.expires_at, expected.ttl) = (end, ttl);
    }
    if let Some(metadata) = renewal.and_then(|renewal| renewal.metadata.clone()) {
        expected.metadata = metadata;
    }
    if let Some(less) = renewal.and_then(|renewal| renewal.downgrade)
        && less.shape() == was.claim.shape()
        && less.units() <= was.claim.units()
    {
        expected.claim = less;
    }
    assert_eq!(*is, expected, "{step:#?}");
}

fn answers_say_what_is_so(step: &Step) {
    match (&step.asked, &step.said) {
        (Asked::Acquire(request, expiry), Said::Decision(decision)) => {
            let entry = find(&step.after, request.key.id);
            match decision {
                Decision::Granted(grant) => {
                    assert_eq!(entry.and_then(Entry::held).map(|held| held.fence), Some(grant.fence));
                }
                Decision::Queued(_) => assert!(entry.is_some_and(Entry::is_waiting)),
                Decision::Busy(busy) => {
                    let too_many_wait = request.max_waiters.is_some_and(|most| busy.waiting > most);
                    let is_dead = step.presence_of(request.key.id) == Presence::Dead;
                    assert!(
                        request.patience == Patience::Try || too_many_wait || is_dead,
                        "one who would wait was sent away: {step:#?}"
                    );
                    assert!(entry.is_none(), "a busy answer left something behind: {step:#?}");
                    assert_eq!(busy.holders.iter().map(|held| held.fence).collect::<Vec<_>>(), fences(&step.after));
                }
                Decision::WrongShape { in_force } => {
                    assert!(entry.is_none(), "a refusal left something behind: {step:#?}");
                    assert_eq!(Some(*in_force), step.after.entries.first().map(|first| first.claim.shape()));
                    assert_ne!(*in_force, request.claim.shape());
                }
            }
            let new = !stayed(step).any(|entry| entry.id == request.key.id);
            if let (Some(entry), true) = (entry, new) {
                assert_eq!(entry.expiry, *expiry);
                assert_eq!(entry.expires_at == Moment::NEVER, *expiry == Expiry::ByPresence);
            }
            if let (Decision::Queued(place), Some(most), true) = (decision, request.max_waiters, new) {
                assert!(place.ahead <= most, "more wait ahead than it accepts: {step:#?}");
            }
            let queues = new && matches!(decision, Decision::Queued(_));
            assert_eq!(step.effects.queued, queues.then_some(request.key.id), "{step:#?}");
        }
        (Asked::Renew(renewal), Said::Standing(standing)) => match (find(&step.after, renewal.key.id), standing) {
            (None, Standing::Gone) => only_settled(step),
            (Some(entry), Standing::Holding(grant)) => {
                assert_eq!(entry.held().map(|held| held.fence), Some(grant.fence));
            }
            (Some(entry), Standing::Waiting(_)) if entry.is_waiting() => {}
            _ => panic!("a renewal told something else: {step:#?}"),
        },
        (Asked::Release(key, _), Said::Released(released)) => {
            assert!(find(&step.after, key.id).is_none(), "released and still there: {step:#?}");
            let before_it = [Ending::Expired, Ending::Disconnected];
            let mut ended = step.effects.ended.iter();
            let left = ended.find(|ended| ended.entry.id == key.id && !before_it.contains(&ended.ending));
            let truth = left.map_or(Released::Gone, |ended| match ended.entry.held() {
                Some(_) => Released::Freed,
                None => Released::LeftQueue,
            });
            assert_eq!(*released, truth, "{step:#?}");
            if truth == Released::Gone {
                only_settled(step);
            }
        }
        (Asked::Evict(expected), Said::Evicted(Evicted::NoSuchFence { current })) => {
            assert!(!current.contains(expected), "{step:#?}");
            only_settled(step);
        }
        _ => {}
    }
    place_is_counted(step);
}

fn place_is_counted(step: &Step) {
    let (Said::Decision(Decision::Queued(place)) | Said::Standing(Standing::Waiting(place))) = &step.said else {
        return;
    };
    let ahead: Vec<&Entry> = step.after.entries.iter().take_while(|entry| Some(entry.id) != step.caller()).collect();
    let holding = step.after.entries.iter().filter(|entry| !entry.is_waiting());
    let first_end = ahead.iter().copied().chain(holding).map(end_of).filter(|end| *end != Moment::NEVER).min();
    assert_eq!(usize::try_from(place.ahead).unwrap(), ahead.iter().filter(|entry| entry.is_waiting()).count());
    assert_eq!(place.last_fence, step.after.last_fence);
    assert_eq!(place.ask_again_in, first_end.map(|end| end.since(step.now)));
}

fn only_settled(step: &Step) {
    let mut settled = step.before.clone();
    step.settle(&mut settled);
    assert_eq!(settled, step.after, "nothing was there to change: {step:#?}");
}

/// The same id asked twice gets the same answer, and nothing moves but what an ask may move.
fn asking_twice_changes_nothing(step: &Step) {
    let mut again = step.after.clone();
    let (said, effects) = step.ask(&mut again);
    match &step.asked {
        Asked::Acquire(..) | Asked::Settle => {
            assert_eq!(said, step.said, "asked again: {step:#?}");
            assert_eq!(again, step.after, "asked again: {step:#?}");
        }
        // Giving units back may have granted it; the floor then finds something to raise the second time.
        Asked::Renew(renewal) if step.effects.granted.iter().any(|granted| granted.id == renewal.key.id) => {}
        Asked::Renew(..) => assert_eq!(again, step.after, "renewed again: {step:#?}"),
        Asked::Release(..) => assert_eq!(said, Said::Released(Released::Gone), "released again: {step:#?}"),
        Asked::Evict(_) => assert!(matches!(said, Said::Evicted(Evicted::NoSuchFence { .. })), "{step:#?}"),
    }
    assert!(effects.is_empty(), "asked again, others were moved: {effects:#?} after {step:#?}");
}

/// When a clock ends an entry.
fn end_of(entry: &Entry) -> Moment {
    match entry.state {
        EntryState::Provisional { ends_at, .. } => ends_at,
        EntryState::Waiting | EntryState::Holding(_) => entry.expires_at,
    }
}

/// Those of before that are still there. An id that expired and is asked for again is not: it came anew.
pub(crate) fn stayed(step: &Step) -> impl Iterator<Item = &Entry> {
    let lives = |entry: &&Entry| end_of(entry) > step.now && find(&step.after, entry.id).is_some();
    step.before.entries.iter().filter(lives)
}

fn granted(step: &Step) -> impl Iterator<Item = &Entry> {
    let ended = || step.effects.ended.iter().map(|ended| &ended.entry);
    step.effects.granted.iter().map(move |granted| {
        let mut entries = step.after.entries.iter().chain(ended());
        entries.find(|entry| entry.id == granted.id).expect("who was granted is there, or ended")
    })
}

fn lowest_fence(last: Fence, wall: Timestamp, floor: Option<Fence>) -> Fence {
    let floor = floor.unwrap_or_default().min(lead(wall));
    Fence::new(last.get() + 1).max(Fence::new(wall.as_micros())).max(floor)
}

fn lead(wall: Timestamp) -> Fence {
    Fence::new(wall.after(FENCE_LEAD).as_micros())
}

pub(crate) fn find(state: &State, id: LeaseId) -> Option<&Entry> {
    state.entries.iter().find(|entry| entry.id == id)
}

fn ids(state: &State) -> impl Iterator<Item = LeaseId> {
    state.entries.iter().map(|entry| entry.id)
}

fn holding(state: &State) -> impl Iterator<Item = Fence> {
    state.entries.iter().filter_map(|entry| Some(entry.held()?.fence))
}

fn fences(state: &State) -> Vec<Fence> {
    holding(state).collect()
}

fn used(state: &State) -> u64 {
    state.entries.iter().filter(|entry| !entry.is_waiting()).map(|entry| u64::from(entry.claim.units())).sum()
}
