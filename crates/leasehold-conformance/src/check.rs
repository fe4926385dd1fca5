//! Runs every trial that a backend's guarantees call for.

use std::{any::Any, env, sync::Arc, time::Duration};

use leasehold::{
    backend::Guarantees,
    clock::{Clock, ManualClock, SystemClock},
};
use tokio::{
    task::{JoinSet, LocalSet},
    time,
};

use crate::{
    fixture::Fixture,
    trial::{Time, Trial, TrialContext},
    trials,
};

/// A trial that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(120);

/// Runs every trial that `guarantees()` calls for, each on fresh storage.
///
/// `make` is called once per trial and returns a fixture with fresh, empty storage. A
/// backend that cannot use the given clock ignores it, and its fixture returns `false`
/// from [`Fixture::keeps_to_clock`]. `check` prints a line for each trial, also for those
/// that are not called for. `LEASEHOLD_TRIALS` selects the trials whose name contains its
/// value, and `LEASEHOLD_SEED` repeats a random history.
///
/// # Panics
/// At the end, naming all trials that failed.
pub fn check<M: Fixture>(make: impl AsyncFn(Arc<dyn Clock>) -> M) {
    let wanted = env::var("LEASEHOLD_TRIALS").unwrap_or_default();
    let failed = failures(&wanted, make);
    assert!(failed.is_empty(), "{} trials failed: {}", failed.len(), failed.join(", "));
}

/// Runs the trials whose name holds this text and names those that failed.
///
/// For those who want to know that a trial does fail: try it on a backend that is broken on purpose.
pub fn failures<M: Fixture>(wanted: &str, make: impl AsyncFn(Arc<dyn Clock>) -> M) -> Vec<String> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("the suite needs a runtime");
    let mut failed = Vec::new();
    runtime.block_on(async {
        let sample = make(Arc::new(SystemClock)).await;
        let keeps_to_clock = sample.keeps_to_clock();
        let guarantees = sample.instance().await.guarantees();
        drop(sample);

        for trial in trials::all() {
            if !trial.name.contains(wanted) {
                println!("not chosen: {}", trial.name);
                continue;
            }
            if let Some(reason) = uncalled_for(&trial, &guarantees, keeps_to_clock) {
                println!("not called for: {} ({reason})", trial.name);
                continue;
            }
            let started = SystemClock.now();
            let clock = ManualClock::new();
            let fixture: Arc<dyn Fixture> = match trial.time {
                Time::Real => Arc::new(make(Arc::new(SystemClock)).await),
                Time::Manual => Arc::new(make(Arc::new(clock.clone())).await),
            };
            let context = TrialContext { fixture, guarantees: guarantees.clone(), clock };
            let outcome = run(&trial, context).await;
            let took = SystemClock.now().since(started).as_millis();
            match outcome {
                Ok(()) => println!("ok: {} ({took} ms)", trial.name),
                Err(message) => {
                    println!("FAILED: {} ({took} ms): {message}", trial.name);
                    failed.push(trial.name);
                }
            }
        }
    });
    runtime.shutdown_timeout(Duration::from_secs(5));
    failed
}

fn uncalled_for(trial: &Trial, guarantees: &Guarantees, keeps_to_clock: bool) -> Option<&'static str> {
    if trial.time == Time::Manual && !keeps_to_clock {
        return Some("the backend has a clock of its own");
    }
    (trial.uncalled_for)(guarantees)
}

/// In a task of its own, so that a panic fails this trial only.
async fn run(trial: &Trial, context: TrialContext) -> Result<(), String> {
    let mut tasks = JoinSet::new();
    let local = LocalSet::new();
    tasks.spawn_local_on((trial.run)(context), &local);
    match local.run_until(time::timeout(LIMIT, tasks.join_next())).await {
        Ok(Some(Ok(()))) => Ok(()),
        Ok(Some(Err(error))) => Err(error.try_into_panic().map_or_else(|error| error.to_string(), words)),
        Ok(None) => Err(String::from("it did not run")),
        Err(_) => Err(format!("it did not end within {LIMIT:?}")),
    }
}

fn words(panic: Box<dyn Any + Send>) -> String {
    let panic = match panic.downcast::<String>() {
        Ok(words) => return *words,
        Err(panic) => panic,
    };
    panic.downcast::<&'static str>().map_or_else(|_| String::from("it panicked"), |words| (*words).to_owned())
}
