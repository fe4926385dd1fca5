//! Hand-offs to another process, by example.

use std::time::Duration;

use leasehold::{
    backend::{
        Decision, Renewal,
        model::{CONFIRM_WITHIN, Entry, EntryState, Expiry, Granted, Presence, State},
    },
    lease::{Claim, Ending, Evicted, LeaseState, Released, Standing},
};

use crate::examples::{Desk, TTL, key, request, seconds};

/// `a` holds, `b` and `c` wait; each ends with its process.
fn queue_of_processes() -> Desk {
    let mut desk = Desk { expiry: Expiry::ByPresence, ..Desk::new() };
    for who in ['a', 'b', 'c'] {
        by(&mut desk, who).queue(who, Claim::EXCLUSIVE);
    }
    desk
}

/// Lets the process of this client perform what follows.
fn by(desk: &mut Desk, performer: char) -> &mut Desk {
    desk.performer = performer;
    desk
}

fn renew(desk: &mut Desk, performer: char, who: char) -> Standing {
    by(desk, performer).renew(&Renewal::new(key(who), seconds(TTL)))
}

fn is_provisional(desk: &Desk, who: char) -> bool {
    let entry = desk.state.entries.iter().find(|entry| entry.id == key(who).id).unwrap();
    matches!(entry.state, EntryState::Provisional { .. })
}

#[test]
fn a_hand_off_to_another_process_is_provisional_until_that_process_renews() {
    let mut desk = queue_of_processes();
    assert!(!is_provisional(&desk, 'a'), "who asks and gets it needs no confirmation");
    by(&mut desk, 'a').release('a');
    assert_eq!(desk.effects.granted, [Granted { id: key('b').id, fence: desk.fence_of('b'), provisional: true }]);
    assert_eq!(desk.order(), "b|c", "it uses its units at once");
    assert!(matches!(renew(&mut desk, 'c', 'b'), Standing::Holding(_)), "another process may look");
    assert!(is_provisional(&desk, 'b'), "and confirms nothing");
    assert!(matches!(renew(&mut desk, 'b', 'b'), Standing::Holding(_)));
    assert!(!is_provisional(&desk, 'b'));
    desk.now = 1000;
    desk.settle();
    assert_eq!(desk.order(), "b|c");
}

#[test]
fn asking_again_confirms_like_a_renewal() {
    let mut desk = queue_of_processes();
    by(&mut desk, 'a').release('a');
    assert!(matches!(by(&mut desk, 'b').queue('b', Claim::EXCLUSIVE), Decision::Granted(_)));
    assert!(!is_provisional(&desk, 'b'));
}

#[test]
fn a_waiter_that_does_not_confirm_in_time_loses_its_turn_to_the_next() {
    let mut desk = queue_of_processes();
    by(&mut desk, 'a').release('a');
    let Standing::Waiting(place) = renew(&mut desk, 'c', 'c') else { panic!("two mutexes") };
    assert_eq!(place.ask_again_in, Some(CONFIRM_WITHIN), "the one behind asks exactly then");
    desk.now += CONFIRM_WITHIN.as_secs();
    assert!(matches!(renew(&mut desk, 'c', 'c'), Standing::Holding(_)));
    assert_eq!(desk.effects.ended[0].ending, Ending::Expired);
    assert_eq!(desk.effects.ended[0].entry.id, key('b').id);
    assert_eq!(renew(&mut desk, 'b', 'b'), Standing::Gone, "it needs a new id");
}

#[test]
fn a_short_ttl_shortens_the_time_to_confirm() {
    let mut desk = queue_of_processes();
    let mut hasty = request('d', Claim::EXCLUSIVE);
    hasty.ttl = seconds(2);
    by(&mut desk, 'd').request(&hasty);
    for who in ['a', 'b', 'c'] {
        by(&mut desk, who).release(who);
    }
    let records = desk.with(|state, context, _| state.records(&key('a').resource, context));
    assert!(matches!(records[0].state, LeaseState::Holding { .. }), "others see a holder");
    assert_eq!(records[0].expires_in, Some(Duration::from_secs(2)));
}

#[test]
fn a_hand_off_inside_one_process_is_confirmed_in_the_same_step() {
    let mut desk = queue_of_processes();
    by(&mut desk, 'b').release('a');
    assert_eq!(desk.effects.granted, [Granted { id: key('b').id, fence: desk.fence_of('b'), provisional: false }]);
    assert!(!is_provisional(&desk, 'b'));
}

#[test]
fn what_lives_by_the_clock_is_never_provisional() {
    let mut desk = queue_of_processes();
    desk.expiry = Expiry::ByClock;
    by(&mut desk, 'd').queue('d', Claim::EXCLUSIVE);
    for who in ['a', 'b', 'c'] {
        by(&mut desk, who).release(who);
    }
    assert_eq!(desk.order(), "d|");
    assert!(!is_provisional(&desk, 'd'));
}

#[test]
fn a_provisional_holder_dies_is_evicted_and_gives_back_like_any_other() {
    let mut desk = queue_of_processes();
    by(&mut desk, 'a').release('a');
    desk.presences.insert('b', Presence::Dead);
    desk.settle();
    assert_eq!((desk.order().as_str(), is_provisional(&desk, 'c')), ("c|", true));

    let mut desk = queue_of_processes();
    by(&mut desk, 'a').release('a');
    let fence = desk.fence_of('b');
    let evicted = desk.with(|state, context, effects| state.evict(fence, "stuck", context, effects));
    assert!(matches!(evicted, Evicted::Evicted { holder } if holder.as_str() == "b"));
    assert_eq!(by(&mut desk, 'c').release('c'), Released::Freed);
    assert_eq!(desk.order(), "|");
}

#[test]
fn each_state_survives_being_stored_and_older_grants_can_be_read() {
    let mut desk = queue_of_processes();
    by(&mut desk, 'a').release('a');
    let stored = serde_json::to_value(&desk.state).unwrap();
    assert_eq!(serde_json::from_value::<State>(stored.clone()).unwrap(), desk.state);

    let mut older = stored["entries"][0].clone();
    older["grant"] = older["grant"]["held"].clone();
    let older: Entry = serde_json::from_value(older).unwrap();
    assert!(matches!(older.state, EntryState::Holding(held) if held.fence == desk.fence_of('b')));
}
