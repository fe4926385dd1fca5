//! What the tests share: an instance behind faults, a clock that moves when told, and bounded waiting.

use std::{
    future::Future,
    sync::Arc,
    time::{Duration, Instant},
};

use leasehold::{
    Guard, Leasehold,
    backend::Backend,
    backends::memory::MemoryBackend,
    clock::ManualClock,
    lease::{Ending, HistoryFilter, ListFilter, Names, Released},
};
use leasehold_conformance::Faulty;

pub(crate) const TTL: Duration = Duration::from_secs(30);
/// 2 % of the ttl.
pub(crate) const MARGIN: Duration = Duration::from_millis(600);

/// One instance behind faults, another that sees the truth, and a clock that moves when told.
pub(crate) struct Bench {
    pub(crate) clock: ManualClock,
    pub(crate) faulty: Arc<Faulty>,
    pub(crate) locks: Leasehold,
    pub(crate) truth: Leasehold,
}

impl Bench {
    pub(crate) fn new() -> Self {
        let clock = ManualClock::new();
        let memory = MemoryBackend::private(Arc::new(clock.clone()));
        let truth = locks(&clock, Arc::new(memory.sibling()));
        let faulty = Faulty::new(Arc::new(memory));
        let locks = locks(&clock, Arc::clone(&faulty) as Arc<dyn Backend>);
        Self { clock, faulty, locks, truth }
    }

    pub(crate) async fn hold(&self) -> Guard {
        self.locks.mutex("r").ttl(TTL).acquire().await.unwrap()
    }

    pub(crate) async fn free_for_others(&self) -> bool {
        match self.truth.mutex("r").try_acquire().await.unwrap() {
            Some(guard) => guard.release().await.unwrap() == Released::Freed,
            None => false,
        }
    }

    /// Moves the clock on by steps far below the ttl until no lease is left, and checks that the last did not run out.
    pub(crate) async fn assert_soon_ended_by(&self, ending: Ending, step: Duration) {
        soon("no lease is left", async || {
            self.clock.advance(step);
            leases(&self.truth).await == 0
        })
        .await;
        let ended = self.truth.history(&HistoryFilter::new(Names::All)).await.unwrap().remove(0);
        assert_eq!(ended.ending, ending);
    }
}

pub(crate) fn locks(clock: &ManualClock, backend: Arc<dyn Backend>) -> Leasehold {
    Leasehold::builder().clock(Arc::new(clock.clone())).open(backend).unwrap()
}

pub(crate) async fn leases(locks: &Leasehold) -> usize {
    locks.list(&ListFilter::new(Names::All)).await.unwrap().leases.len()
}

/// Waits, in real time and bounded, for what other threads bring about.
pub(crate) async fn soon(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let started = Instant::now();
    while !holds().await {
        assert!(started.elapsed() < Duration::from_secs(10), "not within 10 s: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

pub(crate) fn run(test: impl Future<Output = ()>) {
    let bounded = async { tokio::time::timeout(Duration::from_secs(60), test).await.expect("the test hangs") };
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(bounded);
}

/// Runs a test on a bench of its own.
pub(crate) fn on_bench(test: impl AsyncFnOnce(&Bench)) {
    let bench = Bench::new();
    run(test(&bench));
}

/// Runs `work` while the clock moves by `step` every other millisecond.
pub(crate) async fn ticking<T>(clock: &ManualClock, step: Duration, work: impl Future<Output = T>) -> T {
    let ticks = async {
        loop {
            clock.advance(step);
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::select! {
        done = work => done,
        () = ticks => unreachable!("it ticks for ever"),
    }
}
