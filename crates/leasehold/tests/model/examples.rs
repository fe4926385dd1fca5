//! The rule by example.

use std::{collections::HashMap, time::Duration};

use leasehold::{
    Fence, Holder, Resource, Ttl,
    backend::{
        Decision, Patience, Renewal, Request,
        model::{Context, Effects, Entry, Expiry, Presence, State},
    },
    lease::{Claim, Ending, Evicted, LeaseId, LeaseKey, LeaseState, Moment, Outcome, Released, Standing, Timestamp},
};

/// A resource at a desk: clients are letters, time stands still until `now` is set.
pub(crate) struct Desk {
    pub(crate) state: State,
    pub(crate) effects: Effects,
    pub(crate) now: u64,
    /// The clients that are not simply present.
    pub(crate) presences: HashMap<char, Presence>,
    /// What the leases of new clients end with.
    pub(crate) expiry: Expiry,
    /// Whose process performs the operations.
    pub(crate) performer: char,
}

pub(crate) const TTL: u64 = 30;

impl Desk {
    pub(crate) fn new() -> Self {
        Self {
            state: State::default(),
            effects: Effects::default(),
            now: 0,
            presences: HashMap::new(),
            expiry: Expiry::ByClock,
            performer: '-',
        }
    }

    /// A desk where these clients asked, in this order.
    fn queued<const N: usize>(asked: [(char, Claim); N]) -> Self {
        let mut desk = Self::new();
        for (who, claim) in asked {
            desk.queue(who, claim);
        }
        desk
    }

    pub(crate) fn with<T>(&mut self, rule: impl FnOnce(&mut State, &Context<'_>, &mut Effects) -> T) -> T {
        let presence = |entry: &Entry| {
            let who = entry.holder.as_str().chars().next().unwrap_or('-');
            let usual = if who == self.performer { Presence::Own } else { Presence::Present };
            self.presences.get(&who).copied().unwrap_or(usual)
        };
        let context = Context {
            now: Moment::from_micros(0).after(Duration::from_secs(self.now)),
            wall: Timestamp::from_micros(1_790_000_000_000_000).after(Duration::from_secs(self.now)),
            presence: &presence,
        };
        self.effects = Effects::default();
        rule(&mut self.state, &context, &mut self.effects)
    }

    fn ask(&mut self, who: char, claim: Claim, patience: Patience) -> Decision {
        self.request(&request(who, claim).patience(patience))
    }

    pub(crate) fn request(&mut self, request: &Request) -> Decision {
        let expiry = self.expiry;
        self.with(|state, context, effects| state.acquire(request, expiry, context, effects))
    }

    pub(crate) fn queue(&mut self, who: char, claim: Claim) -> Decision {
        self.ask(who, claim, Patience::Queue)
    }

    pub(crate) fn renew(&mut self, renewal: &Renewal) -> Standing {
        self.with(|state, context, effects| state.renew(renewal, context, effects))
    }

    pub(crate) fn release(&mut self, who: char) -> Released {
        self.with(|state, context, effects| state.release(key(who).id, &Outcome::Completed, context, effects))
    }

    pub(crate) fn settle(&mut self) {
        self.with(State::settle);
    }

    /// Who holds, and after a bar who waits.
    pub(crate) fn order(&self) -> String {
        let letters = |holding: bool| {
            let of_kind = self.state.entries.iter().filter(move |entry| entry.is_waiting() != holding);
            of_kind.map(|entry| entry.holder.as_str()).collect::<String>()
        };
        format!("{}|{}", letters(true), letters(false))
    }

    pub(crate) fn fence_of(&self, who: char) -> Fence {
        let entry = self.state.entries.iter().find(|entry| entry.id == key(who).id).unwrap();
        entry.held().unwrap().fence
    }
}

pub(crate) fn request(who: char, claim: Claim) -> Request {
    Request::new(key(who), claim, Holder::new(who.to_string()).unwrap()).ttl(seconds(TTL))
}

pub(crate) fn key(who: char) -> LeaseKey {
    LeaseKey::new(Resource::new("desk").unwrap(), LeaseId::from_u128(u128::from(u32::from(who))))
}

pub(crate) fn seconds(count: u64) -> Ttl {
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
    assert_eq!(desk.effects.granted.iter().map(|granted| granted.id).collect::<Vec<_>>(), [key('b').id]);
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
    let mut desk =
        Desk::queued([('a', Claim::SHARED), ('b', Claim::SHARED), ('w', Claim::EXCLUSIVE), ('c', Claim::SHARED)]);
    assert_eq!(desk.order(), "ab|wc");
    desk.release('a');
    desk.release('b');
    assert_eq!(desk.order(), "w|c");
}

#[test]
fn a_writer_that_becomes_a_reader_lets_the_readers_behind_it_in() {
    let mut desk =
        Desk::queued([('w', Claim::EXCLUSIVE), ('a', Claim::SHARED), ('b', Claim::SHARED), ('x', Claim::EXCLUSIVE)]);
    let fence = desk.fence_of('w');
    desk.renew(&Renewal::new(key('w'), seconds(TTL)).downgrade(Claim::SHARED));
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
fn a_holder_behind_a_passed_over_waiter_is_counted_among_the_ends_ahead() {
    let mut desk = Desk::new();
    for who in ['a', 'b', 'c'] {
        desk.queue(who, Claim::EXCLUSIVE);
    }
    desk.presences.insert('b', Presence::Absent);
    desk.now = 10;
    desk.renew(&Renewal::new(key('b'), seconds(TTL)));
    desk.release('a');
    assert_eq!(desk.order(), "c|b");
    let Standing::Waiting(place) = desk.renew(&Renewal::new(key('b'), seconds(TTL))) else { panic!("two mutexes") };
    assert_eq!((place.ahead, place.ask_again_in), (0, Some(Duration::from_secs(20))));
}

#[test]
fn who_accepts_few_waiters_ahead_is_busy_at_once_and_leaves_nothing_behind() {
    let mut desk = Desk::new();
    let accepting = |who, most| request(who, Claim::EXCLUSIVE).max_waiters(most);
    desk.queue('a', Claim::EXCLUSIVE);
    assert!(matches!(desk.request(&accepting('b', 0)), Decision::Queued(_)), "only a holder is ahead");
    let Decision::Busy(busy) = desk.request(&accepting('c', 0)) else { panic!("one waits ahead") };
    assert_eq!((busy.holders.len(), busy.waiting), (1, 1));
    assert_eq!(desk.order(), "a|b");
    assert!(matches!(desk.request(&accepting('c', 1)), Decision::Queued(_)));
    assert!(matches!(desk.request(&accepting('c', 0)), Decision::Queued(_)), "who waits already keeps its position");
    assert_eq!(desk.order(), "a|bc");
}

#[test]
fn the_lease_id_of_a_dead_process_is_worth_nothing() {
    for expiry in [Expiry::ByClock, Expiry::ByPresence] {
        let mut desk = Desk { expiry, ..Desk::new() };
        desk.queue('a', Claim::EXCLUSIVE);
        desk.presences.insert('a', Presence::Dead);
        let before = desk.state.clone();
        assert_eq!(desk.renew(&Renewal::new(key('a'), seconds(TTL))), Standing::Gone);
        desk.state = before;
        assert_eq!(desk.release('a'), Released::Gone);
        assert_eq!(desk.effects.ended[0].ending, Ending::Disconnected);
        assert!(matches!(desk.queue('a', Claim::EXCLUSIVE), Decision::Busy(_)));
        assert_eq!(desk.order(), "|");
    }
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
    desk.presences.insert('b', Presence::Absent);
    desk.release('a');
    assert_eq!(desk.order(), "c|bd");
    desk.presences.clear();
    desk.release('c');
    assert_eq!(desk.order(), "b|d");
}

#[test]
fn the_dead_are_dropped_at_once_whether_they_hold_or_wait() {
    let mut desk = Desk::new();
    for who in ['a', 'b', 'c'] {
        desk.queue(who, Claim::EXCLUSIVE);
    }
    desk.presences.extend([('a', Presence::Dead), ('b', Presence::Dead)]);
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
    let refused = desk.with(|state, context, effects| state.evict(stale, "stuck", context, effects));
    assert_eq!(refused, Evicted::NoSuchFence { current: vec![fence] });
    desk.with(|state, context, effects| state.evict(fence, "stuck", context, effects));
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
    desk.presences.insert('b', Presence::Absent);
    for who in ['a', 'b', 'c'] {
        desk.queue(who, Claim::LEADER);
    }
    desk.release('a');
    let records = desk.with(|state, context, _| state.records(&key('a').resource, context));
    assert!(matches!(records[0].state, LeaseState::Holding { .. }) && records[0].holder.as_str() == "c");
    assert!(matches!(records[1].state, LeaseState::Waiting { ahead: 0, .. }) && records[1].holder.as_str() == "b");
}
