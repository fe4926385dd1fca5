//! Checks every world and prints what the checker saw; `--deep` looks at worlds too large to be seen whole.

use std::{env, process::ExitCode, time::Duration};

use leasehold_spec::{
    check::{CheckReport, Limit, check},
    redlock::{Quarantine, RedlockSpec},
    scenarios,
};

/// How many states of each deep world to generate: breadth first keeps the last ones in memory, some 4 GiB here.
const DEEP: Limit = Limit { states: 5_000_000, time: Duration::from_secs(600) };

fn main() -> ExitCode {
    let deep = env::args().any(|argument| argument == "--deep");
    let (worlds, limit, wipes) =
        if deep { (scenarios::deep(), DEEP, 2) } else { (scenarios::sound(), Limit::default(), 1) };
    let mut sound = true;
    let mut print = |name: &str, report: CheckReport| {
        println!("{name}: {report}");
        sound &= report.violations.is_empty();
    };
    for (name, spec) in worlds {
        print(name, check(spec, limit));
    }
    let quorum = RedlockSpec { quarantine: Quarantine::LongestTtl, wipes, horizon: 4 };
    print("a quorum of three nodes", check(quorum, limit));
    if sound { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
