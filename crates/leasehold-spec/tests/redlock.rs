//! A node that lost its memory must not vote before its memory is as old as the longest ttl.

use leasehold_spec::{
    check::{CheckReport, Limit, check},
    redlock::{Quarantine, RedlockSpec},
};

fn run(quarantine: Quarantine) -> CheckReport {
    let report = check(RedlockSpec { quarantine, wipes: 1, horizon: 4 }, Limit::default());
    println!("{quarantine:?}: {report}");
    report
}

#[test]
fn a_quorum_with_quarantine_never_has_two_believers() {
    let report = run(Quarantine::LongestTtl);
    assert!(report.exhaustive, "{report}");
    assert!(report.reached.contains(&"someone believes"));
    assert!(report.reached.contains(&"a node that lost its memory votes again"));
}

#[test]
fn without_quarantine_two_believe() {
    assert!(run(Quarantine::None).violations.contains_key("at most one believes"));
}

#[test]
fn a_quarantine_as_short_as_the_ttl_of_who_asks_is_too_short() {
    assert!(run(Quarantine::AskersTtl).violations.contains_key("at most one believes"));
}
