//! Rules 7, 13 and 14: what renewals are sent, and what their answers change.

use std::{thread, time::Duration};

use leasehold::{Guard, Leasehold, lease::Released};
use leasehold_conformance::BackendCall;

use crate::bench::{MARGIN, TTL, on_bench, run, soon};

#[test]
fn a_blocked_runtime_does_not_starve_renewals() {
    run(async {
        let locks = Leasehold::connect("memory:blocked").await.unwrap();
        let guard = locks.mutex("r").ttl(Duration::from_secs(2)).acquire().await.unwrap();
        thread::sleep(Duration::from_secs(5));
        guard.check().unwrap();
        assert_eq!(guard.release().await.unwrap(), Released::Freed);
    });
}

#[test]
fn a_shorter_lease_is_renewed_in_time_though_the_keeper_sleeps_for_a_longer_one() {
    on_bench(async |bench| {
        // Renewed after 20 minutes; nothing is due before that.
        let long = bench.locks.mutex("long").ttl(Duration::from_secs(3600)).acquire().await.unwrap();
        for round in 0..20 {
            let renewed = bench.faulty.count(BackendCall::Renew);
            let short = bench.hold().await;
            bench.clock.advance(TTL / 3 + Duration::from_secs(1));
            soon("it is renewed", async || bench.faulty.count(BackendCall::Renew) > renewed).await;
            soon("it is held on", async || short.remaining() == Some(TTL - MARGIN)).await;
            short.release().await.unwrap_or_else(|error| panic!("round {round}: {error}"));
        }
        long.check().unwrap();
    });
}

#[test]
fn many_leases_are_renewed_in_few_calls() {
    on_bench(async |bench| {
        let mut guards = Vec::new();
        for n in 0..5000 {
            guards.push(bench.locks.mutex(format!("job:{n}")).ttl(TTL).acquire().await.unwrap());
        }
        let in_time = |guard: &Guard| guard.remaining().unwrap() > Duration::from_secs(18);
        for _ in 0..30 {
            bench.clock.advance(Duration::from_secs(1));
            soon("all are renewed in time", async || guards.iter().all(in_time)).await;
        }
        let calls = bench.faulty.count(BackendCall::Renew);
        assert!(calls <= 200, "{calls} calls renewed 5000 leases over three intervals");
    });
}

#[test]
fn another_life_of_the_backend_makes_it_verify_every_lease() {
    on_bench(async |bench| {
        let _first = bench.locks.mutex("a").acquire().await.unwrap();
        assert_eq!(bench.faulty.count(BackendCall::Renew), 0);
        bench.faulty.begin_another_life();
        let _second = bench.locks.mutex("b").acquire().await.unwrap();
        soon("the leases were verified", async || bench.faulty.count(BackendCall::Renew) >= 1).await;
    });
}

#[test]
fn an_explicit_renewal_that_meets_another_life_verifies_every_lease() {
    on_bench(async |bench| {
        let _other = bench.locks.mutex("a").ttl(TTL).acquire().await.unwrap();
        let guard = bench.hold().await;
        bench.faulty.begin_another_life();
        guard.renew(TTL).await.unwrap();
        soon("the leases were verified", async || bench.faulty.count(BackendCall::Renew) >= 2).await;
    });
}
