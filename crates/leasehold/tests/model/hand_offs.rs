//! What must be true of provisional hand-offs after every step.

use leasehold::{
    backend::model::{CONFIRM_WITHIN, Entry, EntryState, Expiry, Presence},
    lease::LeaseId,
};

use crate::{
    promises::{find, stayed},
    world::{Asked, Said, Step},
};

pub(crate) fn check(step: &Step) {
    for entry in &step.after.entries {
        let was = stayed(step).find(|was| was.id == entry.id);
        match was.map(|was| was.state) {
            None | Some(EntryState::Waiting) => a_new_hold_is_provisional_where_it_must_be(step, entry),
            Some(before) => only_its_own_process_confirms(step, entry, before),
        }
    }
    its_own_process_is_never_left_in_doubt(step);
}

/// Only an entry that ends with another process needs a confirmation, and has the shorter of its ttl and five seconds.
fn a_new_hold_is_provisional_where_it_must_be(step: &Step, entry: &Entry) {
    let confirmed = entry.expiry == Expiry::ByClock || step.presence(entry) == Presence::Own;
    match entry.state {
        EntryState::Waiting => {}
        EntryState::Holding(_) => assert!(confirmed, "believed without a confirmation: {step:#?}"),
        EntryState::Provisional { ends_at, .. } => {
            assert!(!confirmed, "nobody will confirm it: {step:#?}");
            assert_eq!(ends_at, step.now.after(entry.ttl.get().min(CONFIRM_WITHIN)), "{step:#?}");
        }
    }
}

fn only_its_own_process_confirms(step: &Step, entry: &Entry, before: EntryState) {
    let by_its_own = confirmer(step) == Some(entry.id) && step.presence(entry) == Presence::Own;
    match (before, entry.state) {
        (EntryState::Holding(_), EntryState::Holding(_)) => {}
        (EntryState::Provisional { .. }, EntryState::Holding(_)) => {
            assert!(by_its_own, "confirmed by another: {step:#?}");
        }
        (EntryState::Provisional { ends_at: was, .. }, EntryState::Provisional { ends_at, .. }) => {
            assert!(!by_its_own, "a confirmation was not noticed: {step:#?}");
            assert_eq!(ends_at, was, "another prolonged it: {step:#?}");
        }
        _ => panic!("no entry goes back to waiting, or to a hand-off: {step:#?}"),
    }
}

/// Who hears that it holds, from its own process, holds.
fn its_own_process_is_never_left_in_doubt(step: &Step) {
    if let Some(entry) = confirmer(step).and_then(|id| find(&step.after, id))
        && step.presence(entry) == Presence::Own
        && !matches!(step.said, Said::Nothing)
    {
        assert!(!matches!(entry.state, EntryState::Provisional { .. }), "{step:#?}");
    }
}

fn confirmer(step: &Step) -> Option<LeaseId> {
    match &step.asked {
        Asked::Acquire(request, _) => Some(request.key.id),
        Asked::Renew(renewal) => Some(renewal.key.id),
        Asked::Release(..) | Asked::Evict(_) | Asked::Settle => None,
    }
}
