//! Named worlds: which clients, which troubles, how far to look.

use leasehold::{
    backend::{Patience, model::Expiry},
    lease::Claim,
};

use crate::{client::ClientRules, lease::LeaseSpec, mutation::Mutation, server::Terms, world::Troubles};

const NO_TROUBLES: Troubles = Troubles { repeats: 0, crashes: 0, stops: 0, evictions: 0, restarts: 0, amnesias: 0 };

/// Two clients of a mutex whose leases end after three ticks.
const BY_CLOCK: LeaseSpec = LeaseSpec {
    rules: ClientRules {
        terms: Terms {
            claim: Claim::EXCLUSIVE,
            expiry: Expiry::ByClock,
            ttl: 3,
            patience: Patience::Queue,
            max_waiters: None,
        },
        margin: 1,
        mutation: None,
    },
    clients: 2,
    attempts: 1,
    calls: 2,
    horizon: 4,
    drift: 0,
    explicit_renewals: false,
    troubles: NO_TROUBLES,
};

/// The same with a ttl of two ticks, so that there is room for trouble.
const BRIEF: LeaseSpec = LeaseSpec {
    rules: ClientRules { terms: Terms { ttl: 2, ..BY_CLOCK.rules.terms }, ..BY_CLOCK.rules },
    horizon: 3,
    ..BY_CLOCK
};

/// Two clients of a mutex whose processes are the life of their leases.
const BY_PRESENCE: LeaseSpec = LeaseSpec {
    rules: ClientRules { terms: Terms { expiry: Expiry::ByPresence, ..BY_CLOCK.rules.terms }, ..BY_CLOCK.rules },
    horizon: 5,
    ..BY_CLOCK
};

/// The worlds in which every promise must hold. The checker sees all of their states in about a minute.
pub fn sound() -> Vec<(&'static str, LeaseSpec)> {
    let brief = |troubles| LeaseSpec { troubles, ..BRIEF };
    let presence = |troubles| LeaseSpec { troubles, ..BY_PRESENCE };
    let none = NO_TROUBLES;
    vec![
        ("by clock, unordered messages", BY_CLOCK),
        ("by clock, drift", LeaseSpec { drift: 1, ..BRIEF }),
        ("by clock, two attempts", LeaseSpec { attempts: 2, calls: 1, horizon: 2, ..BRIEF }),
        ("by clock, a doubled message", brief(Troubles { repeats: 1, ..none })),
        ("by clock, a crash", brief(Troubles { crashes: 1, ..none })),
        ("by clock, a stop", brief(Troubles { stops: 1, ..none })),
        ("by clock, an eviction", brief(Troubles { evictions: 1, ..none })),
        ("by clock, explicit renewals", LeaseSpec { explicit_renewals: true, ..BRIEF }),
        ("by clock, a restart with its memory", brief(Troubles { restarts: 1, ..none })),
        ("by clock, a restart without memory", brief(Troubles { amnesias: 1, ..none })),
        ("by clock, three clients", three(BRIEF)),
        ("by clock, three clients of two permits", permits(three(BRIEF))),
        ("by presence, a crash and two stops", presence(Troubles { crashes: 1, stops: 2, ..none })),
        ("by presence, a doubled message", presence(Troubles { repeats: 1, ..none })),
        ("by presence, an eviction", presence(Troubles { evictions: 1, ..none })),
        ("by presence, three clients, a stop", three(presence(Troubles { stops: 1, ..none }))),
        ("by presence, three clients, a crash", three(presence(Troubles { crashes: 1, ..none }))),
        ("by presence, three clients, a bounded queue", bounded(three(BY_PRESENCE))),
    ]
}

/// Worlds with more time, more requests and several troubles at once, too large to be seen whole.
pub fn deep() -> Vec<(&'static str, LeaseSpec)> {
    let all = Troubles { repeats: 1, crashes: 1, stops: 1, evictions: 1, restarts: 1, amnesias: 1 };
    let on_one_machine = Troubles { restarts: 0, amnesias: 0, stops: 2, ..all };
    let long = LeaseSpec { attempts: 2, calls: 3, horizon: 8, explicit_renewals: true, ..BY_CLOCK };
    let by_clock = LeaseSpec { drift: 1, troubles: all, ..long };
    let by_presence = LeaseSpec { rules: BY_PRESENCE.rules, troubles: on_one_machine, ..long };
    vec![
        ("by clock, two clients, every trouble", by_clock),
        ("by clock, three clients, every trouble", LeaseSpec { clients: 3, ..by_clock }),
        ("by clock, three clients of two permits, every trouble", permits(LeaseSpec { clients: 3, ..by_clock })),
        ("by presence, two clients, every trouble", by_presence),
        ("by presence, three clients, every trouble", LeaseSpec { clients: 3, ..by_presence }),
        ("by presence, three clients, a bounded queue", bounded(LeaseSpec { clients: 3, ..by_presence })),
    ]
}

/// Each bug, a world that is large enough for it, and the promise that it breaks.
pub fn mutants() -> Vec<(Mutation, LeaseSpec, &'static str)> {
    let holder = "a believer is a holder";
    let evicted = Troubles { evictions: 1, ..NO_TROUBLES };
    let stopped = Troubles { stops: 1, ..NO_TROUBLES };
    let mutants = [
        (Mutation::AnswerCountsFromReceipt, BY_CLOCK, holder),
        (Mutation::PushCountsFromReceipt, BRIEF, holder),
        (Mutation::NoMargin, LeaseSpec { drift: 1, ..BY_CLOCK }, holder),
        (Mutation::LateAnswerRevives, BY_CLOCK, "a lost lease is never believed again"),
        (Mutation::CancelLeavesTheLease, BY_CLOCK, "no orphan outlives one ttl"),
        (Mutation::CancelLeavesTheLease, BY_PRESENCE, "no orphan outlives one ttl"),
        (Mutation::ReleaseByName, BY_CLOCK, "nobody ends another's lease"),
        (Mutation::StaleHintAccepted, BRIEF, holder),
        (Mutation::HandOffBelievedUnconfirmed, LeaseSpec { troubles: stopped, ..BY_PRESENCE }, holder),
        (
            Mutation::ExplicitRenewalIgnoresGone,
            LeaseSpec { explicit_renewals: true, troubles: evicted, ..BY_CLOCK },
            "gone ends belief",
        ),
    ];
    let with = |(mutation, spec, promise): (_, LeaseSpec, _)| {
        (mutation, LeaseSpec { rules: ClientRules { mutation: Some(mutation), ..spec.rules }, ..spec }, promise)
    };
    mutants.into_iter().map(with).collect()
}

/// Three clients, each with one request for its lease.
fn three(spec: LeaseSpec) -> LeaseSpec {
    LeaseSpec { clients: 3, calls: 1, ..spec }
}

fn permits(spec: LeaseSpec) -> LeaseSpec {
    let claim = Claim::permits(1, 2).expect("one of two");
    LeaseSpec { rules: ClientRules { terms: Terms { claim, ..spec.rules.terms }, ..spec.rules }, ..spec }
}

fn bounded(spec: LeaseSpec) -> LeaseSpec {
    LeaseSpec { rules: ClientRules { terms: Terms { max_waiters: Some(0), ..spec.rules.terms }, ..spec.rules }, ..spec }
}
