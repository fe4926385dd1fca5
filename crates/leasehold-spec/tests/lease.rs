//! Every promise holds in every world, and each known bug breaks one.

use leasehold_spec::{
    check::{Limit, check},
    scenarios,
};

#[test]
fn every_promise_holds_in_every_state_within_bounds() {
    let mut reached = Vec::new();
    for (name, spec) in scenarios::sound() {
        let report = check(spec, Limit::default());
        println!("{name}: {report}");
        assert!(report.exhaustive, "{name}: {report}");
        assert!(report.reached.contains(&"someone believes"), "{name}: nothing happened");
        reached.extend(report.reached);
    }
    for situation in ["a waiter gets its turn", "an unconfirmed turn ends"] {
        assert!(reached.contains(&situation), "nobody saw that {situation}");
    }
}

#[test]
fn each_known_bug_breaks_a_promise() {
    for (mutation, spec, promise) in scenarios::mutants() {
        let report = check(spec, Limit::default());
        println!("{mutation:?}: {report}");
        assert!(report.violations.contains_key(promise), "{mutation:?} does not break: {promise}\n{report}");
    }
}
