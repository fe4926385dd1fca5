//! What was acquired, and whether the fences are in order.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    iter::Sum,
    sync::atomic::{AtomicU64, Ordering},
};

use leasehold::Fence;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// All acquisitions of a world, checked as they are told.
pub(crate) struct Ledger {
    until: Until,
    ticks: AtomicU64,
    pages: Mutex<Pages>,
    done: Notify,
}

/// When a world has seen enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Until {
    Acquired(usize),
    /// Or something is out of order before.
    AcquiredOrBroken(usize),
}

#[derive(Default)]
struct Pages {
    verdict: Verdict,
    fences: HashMap<String, HashSet<Fence>>,
    /// By the end of each acquisition: the highest fence told until then.
    highest: HashMap<String, Vec<(u64, Fence)>>,
}

impl Ledger {
    pub(crate) fn new(until: Until) -> Self {
        Self { until, ticks: AtomicU64::new(0), pages: Mutex::default(), done: Notify::new() }
    }

    pub(crate) fn tick(&self) -> u64 {
        self.ticks.fetch_add(1, Ordering::SeqCst)
    }

    /// This fence was told just now to one who began to ask at `begun`.
    pub(crate) fn record(&self, name: &str, begun: u64, fence: Fence) {
        let mut pages = self.pages.lock();
        let Pages { verdict, fences, highest } = &mut *pages;
        verdict.acquired += 1;
        verdict.repeated += usize::from(!fences.entry(name.to_owned()).or_default().insert(fence));
        let highest = highest.entry(name.to_owned()).or_default();
        let before = highest.partition_point(|(ended, _)| *ended < begun);
        verdict.inverted += usize::from(before > 0 && fence <= highest[before - 1].1);
        let so_far = highest.last().map_or(fence, |(_, so_far)| fence.max(*so_far));
        highest.push((self.tick(), so_far));
        let enough = match self.until {
            Until::Acquired(wanted) => verdict.acquired >= wanted,
            Until::AcquiredOrBroken(wanted) => verdict.acquired >= wanted || !verdict.is_clean(),
        };
        if enough {
            self.done.notify_one();
        }
    }

    pub(crate) async fn complete(&self) -> Verdict {
        self.done.notified().await;
        self.pages.lock().verdict
    }
}

/// How many fences are out of order.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Verdict {
    pub(crate) acquired: usize,
    repeated: usize,
    inverted: usize,
}

impl Verdict {
    pub(crate) fn is_clean(&self) -> bool {
        self.repeated == 0 && self.inverted == 0
    }
}

impl Sum for Verdict {
    fn sum<I: Iterator<Item = Self>>(verdicts: I) -> Self {
        verdicts.fold(Self::default(), |sum, one| Self {
            acquired: sum.acquired + one.acquired,
            repeated: sum.repeated + one.repeated,
            inverted: sum.inverted + one.inverted,
        })
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { acquired, repeated, inverted } = self;
        write!(f, "{acquired} acquired, {repeated} fences repeated, {inverted} out of order")
    }
}
