//! Runs the torture: the honest client is clean under every fault, and every broken client is caught by its checker.

use std::{
    process::{Command, Output},
    thread,
};

use serde_json::Value;

fn run(backend: &str, seconds: u32, client: &str, faults: &[&str]) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold-torture"));
    command.args(["run", "--json", "--workers", "3", "--backend", backend, "--seconds", &seconds.to_string()]);
    command.args(["--client", client, "--faults"]).args(faults);
    let Output { stdout, stderr, .. } = command.output().expect("the conductor can be started");
    serde_json::from_slice(&stdout).unwrap_or_else(|error| {
        panic!("{backend} {client}: {error}\n{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr))
    })
}

fn is_clean(backend: &str, faults: &[&str]) {
    let report = run(backend, 15, "ours", faults);
    assert_eq!(report["violations"], Value::Array(Vec::new()), "{report:#}");
    assert!(report["acquisitions"].as_u64() > Some(100), "{report:#}");
    assert!(report["observed_queues"].as_u64() > Some(0), "{report:#}");
    for fault in faults {
        let injected = report["faults"].as_object().into_iter().flatten();
        let mut injected = injected.filter(|(_, count)| count.as_u64() > Some(0));
        assert!(injected.any(|(name, _)| name.starts_with(fault)), "{fault} was not injected: {report:#}");
    }
}

/// Runs the broken client until its checker catches it; the first run is long enough unless the machine is busy.
fn is_caught(client: &str, checker: &str, seconds: u32) {
    thread::scope(|scope| {
        for backend in ["memory", "file"] {
            scope.spawn(move || {
                let reports = [1, 3, 9].map(|times| move || run(backend, times * seconds, client, &[]));
                let is_caught = |report: &Value| report["found"][checker].as_u64() > Some(0);
                assert!(reports.into_iter().any(|run| is_caught(&run())), "{backend}: {checker} must catch {client}");
            });
        }
    });
}

#[test]
fn the_honest_client_is_clean_on_memory() {
    is_clean("memory", &["kill", "stop", "fork", "callback"]);
}

#[test]
fn the_honest_client_is_clean_on_file() {
    is_clean("file", &["kill", "stop", "fork", "callback", "slow-disk"]);
}

/// Writes a test for each broken client: who it is, the checker that catches it, and the seconds that this takes.
macro_rules! broken_clients {
    ($($test:ident: $client:literal, $checker:literal, $seconds:literal;)*) => {
        $(
            #[test]
            fn $test() {
                is_caught($client, $checker, $seconds);
            }
        )*
    };
}

broken_clients! {
    overlap_catches_a_client_that_takes_no_lock: "broken-no-lock", "overlap", 1;
    overlap_catches_a_client_that_goes_on_after_a_loss: "broken-ignores-loss", "overlap", 1;
    overlap_catches_a_client_that_counts_from_receipt: "broken-from-receipt", "overlap", 3;
    overlap_catches_a_client_that_forges_releases: "broken-forges-release", "overlap", 2;
    fences_catch_a_client_that_uses_an_old_fence: "broken-old-fence", "fences", 1;
    leaks_catch_a_client_that_keeps_what_it_cancelled: "broken-keeps-cancelled", "leaks", 1;
    leaks_catch_a_client_that_stays_queued: "broken-stays-queued", "leaks", 1;
    order_catches_a_client_that_swaps_turns: "broken-swaps-turns", "order", 3;
    progress_catches_a_client_that_never_releases: "broken-never-releases", "progress", 7;
    loss_catches_a_client_that_learns_of_it_late: "broken-late-loss", "loss", 4;
}
