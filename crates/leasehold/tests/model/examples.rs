//! The rule by example.

use std::time::Duration;

use leasehold::{
    Fence, Holder, Resource, Ttl,
    lease::{
        Claim, Decision, Ending, Evicted, LeaseId, LeaseKey, LeaseState, Lifetime, Metadata, Moment, Outcome, Patience,
        Released, Renewal, Request, Standing, Timestamp,
    },
    model::{Effects, Entry, Expiry, Presence, Scene, State},
};

/// A resource at a desk: askers are letters, time stands still unless told.
struct Desk {
    state: State,
    effects: Effects,
    now: u64,
    absent: Vec<char>,
    dead: Vec<char>,
}

const TTL: u64 = 30;

impl Desk {
    fn new() -> Self {
        Self { state: State::default(), effects: Effects::default(), now: 0, absent: vec![], dead: vec![] }
    }

    fn with<T>(&mut self, rule: impl FnOnce(&mut State, &Scene<'_>, &mut Effects) -> T) -> T {
        let presence = |entry: &Entry| match entry.holder.as_str().chars().next() {
            Some(who) if self.dead.contains(&who) => Presence::Dead,
            Some(who) if self.absent.contains(&who) => Presence::Absent,
            _ => Presence::Present,
        };
        let scene = Scene {
            now: Moment::from_micros(0).after(Duration::from_secs(self.now)),
            wall: Timestamp::from_micros(1_790_000_000_000_000).after(Duration::from_secs(self.now)),
            presence: &presence,
        };
        self.effects = Effects::default();
        rule(&mut self.state, &scene, &mut self.effects)
    }

    fn ask(&mut self, who: char, claim: Claim, patience: Patience) -> Decision {
        let request = Request {
            key: key(who),
            claim,
            ttl: seconds(TTL),
            patience,
            lifetime: Lifetime::Attached,
            holder: Holder::new(who.to_string()).unwrap(),
            note: None,
            metadata: Metadata::new(),
            fence_floor: None,
        };
        self.with(|state, scene, effects| state.acquire(&request, Expiry::ByClock, scene, effects))
    }

    fn queue(&mut self, who: char, claim: Claim) -> Decision {
        self.ask(who, claim, Patience::Queue)
    }

    fn renew(&mut self, renewal: &Renewal) -> Standing {
        self.with(|state, scene, effects| state.renew(renewal, scene, effects))
    }

    fn release(&mut self, who: char) -> Released {
        self.with(|state, scene, effects| state.release(key(who).id, &Outcome::Completed, scene, effects))
    }

    fn settle(&mut self) {
        self.with(State::settle);
    }

    /// Who holds, and after a bar who waits.
    fn order(&self) -> String {
        let letters = |holding: bool| {
            let of_kind = self.state.entries.iter().filter(move |entry| entry.grant.is_some() == holding);
            of_kind.map(|entry| entry.holder.as_str()).collect::<String>()
        };
        format!("{}|{}", letters(true), letters(false))
    }

    fn fence_of(&self, who: char) -> Fence {
        let entry = self.state.entries.iter().find(|entry| entry.id == key(who).id).unwrap();
        entry.grant.unwrap().fence
    }
}

fn key(who: char) -> LeaseKey {
    LeaseKey { resource: Resource::new("desk").unwrap(), id: LeaseId::from_u128(u128::from(u32::from(who))) }
}

fn seconds(count: u64) -> Ttl {
    Ttl::new(Duration::from_secs(count)).unwrap()
}

fn permits(units: u32, limit: u32) -> Claim {
    Claim::permits(units, limit).unwrap()
}

#[test]
fn a_mutex_is_handed_on_in_the_order_they_came() {
    let mut desk = Desk::new();
    for who in ['a', 'b', 'c'] {
        desk.queue(who, Claim::EXCLUSIVE);
    }
    assert_eq!(desk.order(), "a|bc");
    assert_eq!(desk.release('a'), Released::Freed);
    assert_eq!(desk.order(), "b|c");
    assert_eq!(desk.effects.granted, [key('b').id]);
}

#[test]
fn a_try_leaves_nothing_behind_and_overtakes_nobody() {
    let mut desk = Desk::new();
    desk.queue('a', Claim::SHARED);
    desk.queue('b', Claim::EXCLUSIVE);
    let Decision::Busy(busy) = desk.ask('c', Claim::SHARED, Patience::Try) else { panic!("a reader passed a writer") };
    assert_eq!((busy.holders.len(), busy.waiting), (1, 1));
    assert_eq!(desk.order(), "a|b");
}

#[test]
fn readers_share_and_a_queued_writer_stops_later_readers() {
    let mut desk = Desk::new();
    for (who, claim) in [('a', Claim::SHARED), ('b', Claim::SHARED), ('w', Claim::EXCLUSIVE), ('c', Claim::SHARED)] {
        desk.queue(who, claim);
    }
    assert_eq!(desk.order(), "ab|wc");
    desk.release('a');
    desk.release('b');
    assert_eq!(desk.order(), "w|c");
}

#[test]
fn a_writer_that_becomes_a_reader_lets_the_readers_behind_it_in() {
    let mut desk = Desk::new();
    for (who, claim) in [('w', Claim::EXCLUSIVE), ('a', Claim::SHARED), ('b', Claim::SHARED), ('x', Claim::EXCLUSIVE)] {
        desk.queue(who, claim);
    }
    let fence = desk.fence_of('w');
    desk.renew(&Renewal { downgrade: Some(Claim::SHARED), ..Renewal::new(key('w'), seconds(TTL)) });
    assert_eq!(desk.order(), "wab|x");
    assert_eq!(desk.fence_of('w'), fence);
}

#[test]
fn a_big_claim_at_the_head_is_not_starved_by_small_ones() {
    let mut desk = Desk::new();
    for (who, units) in [('a', 2), ('b', 3), ('c', 1)] {
        desk.queue(who, permits(units, 3));
    }
    assert_eq!(desk.order(), "a|bc");
    desk.release('a');
    assert_eq!(desk.order(), "b|c");
}

#[test]
fn two_who_disagree_on_the_limit_find_out() {
    let mut desk = Desk::new();
    desk.queue('a', permits(1, 3));
    let refused = desk.queue('b', permits(1, 5));
    assert_eq!(refused, Decision::WrongShape { in_force: permits(1, 3).shape() });
    assert_eq!(desk.order(), "a|");
    desk.release('a');
    assert!(matches!(desk.queue('b', permits(1, 5)), Decision::Granted(_)), "the next one fixes the shape anew");
}

#[test]
fn a_waiter_whose_time_runs_out_loses_its_place_like_a_holder_its_lease() {
    let mut desk = Desk::new();
    for who in ['a', 'b', 'c'] {
        desk.queue(who, Claim::EXCLUSIVE);
    }
    desk.now = 20;
    desk.renew(&Renewal::new(key('a'), seconds(TTL)));
    desk.renew(&Renewal::new(key('c'), seconds(TTL)));
    desk.now = 30;
    desk.settle();
    assert_eq!(desk.order(), "a|c");
    assert_eq!(desk.effects.ended[0].ending, Ending::Expired);
}

#[test]
fn the_head_is_told_when_the_lease_ahead_runs_out() {
    let mut desk = Desk::new();
    desk.queue('a', Claim::EXCLUSIVE);
    desk.now = 12;
    let Decision::Queued(place) = desk.queue('b', Claim::EXCLUSIVE) else { panic!("two mutexes") };
    assert_eq!((place.ahead, place.ask_again_in), (0, Some(Duration::from_secs(18))));
    desk.now = 30;
    assert!(matches!(desk.queue('b', Claim::EXCLUSIVE), Decision::Granted(_)), "asked exactly then");
}

#[test]
fn renewing_never_shortens() {
    let mut desk = Desk::new();
    desk.queue('a', Claim::EXCLUSIVE);
    desk.renew(&Renewal::new(key('a'), seconds(1)));
    desk.now = 29;
    assert!(matches!(desk.renew(&Renewal::new(key('a'), seconds(1))), Standing::Holding(_)));
    desk.now = 30;
    assert_eq!(desk.renew(&Renewal::new(key('a'), seconds(30))), Standing::Gone);
}

#[test]
fn the_absent_are_passed_over_and_keep_their_place() {
    let mut desk = Desk::new();
    for who in ['a', 'b', 'c', 'd'] {
        desk.queue(who, Claim::EXCLUSIVE);
    }
    desk.absent = vec!['b'];
    desk.release('a');
    assert_eq!(desk.order(), "c|bd");
    desk.absent.clear();
    desk.release('c');
    assert_eq!(desk.order(), "b|d");
}

#[test]
fn the_dead_are_dropped_at_once_whether_they_hold_or_wait() {
    let mut desk = Desk::new();
    for who in ['a', 'b', 'c'] {
        desk.queue(who, Claim::EXCLUSIVE);
    }
    desk.dead = vec!['a', 'b'];
    desk.settle();
    assert_eq!(desk.order(), "c|");
    assert!(desk.effects.ended.iter().all(|ended| ended.ending == Ending::Disconnected));
}

#[test]
fn an_eviction_names_the_fence_it_means() {
    let mut desk = Desk::new();
    desk.queue('a', Claim::EXCLUSIVE);
    desk.queue('b', Claim::EXCLUSIVE);
    let fence = desk.fence_of('a');
    let stale = Fence::new(fence.get() - 1);
    let refused = desk.with(|state, scene, effects| state.evict(stale, "stuck", scene, effects));
    assert_eq!(refused, Evicted::NoSuchFence { current: vec![fence] });
    desk.with(|state, scene, effects| state.evict(fence, "stuck", scene, effects));
    assert_eq!(desk.order(), "b|");
    assert_eq!(desk.effects.ended[0].problem.as_ref().unwrap().details, "stuck");
}

#[test]
fn a_lost_memory_does_not_lower_fences() {
    let mut desk = Desk::new();
    desk.queue('a', Claim::EXCLUSIVE);
    let before = desk.fence_of('a');
    desk.state = State::default();
    desk.now = 1;
    desk.queue('b', Claim::EXCLUSIVE);
    assert!(desk.fence_of('b') > before);
}

#[test]
fn an_unanswered_ask_is_settled_by_asking_again() {
    let mut desk = Desk::new();
    let granted = desk.queue('a', Claim::EXCLUSIVE);
    assert_eq!(desk.queue('a', Claim::EXCLUSIVE), granted);
    let queued = desk.queue('b', Claim::EXCLUSIVE);
    assert_eq!(desk.queue('b', Claim::EXCLUSIVE), queued);
    assert_eq!(desk.order(), "a|b");
}

#[test]
fn a_listing_shows_holders_first_then_the_queue() {
    let mut desk = Desk::new();
    desk.absent = vec!['b'];
    for who in ['a', 'b', 'c'] {
        desk.queue(who, Claim::LEADER);
    }
    desk.release('a');
    let records = desk.with(|state, scene, _| state.records(&key('a').resource, scene));
    assert!(matches!(records[0].state, LeaseState::Holding { .. }) && records[0].holder.as_str() == "c");
    assert!(matches!(records[1].state, LeaseState::Waiting { ahead: 0, .. }) && records[1].holder.as_str() == "b");
}
