//! A node that is restarted and whose clock is off, in simulated time, sound or broken on purpose.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use leasehold::{
    Fence, Resource, Result,
    backend::{Answer, Backend, Decision, Hint, HintSender, Incarnation, Renewal, Request},
    backends::memory::MemoryBackend,
    clock::{Clock, Sleep},
    lease::{Grant, Moment, Standing, Timestamp},
};
use parking_lot::Mutex;
use tokio::time::Instant;

/// Wall clocks tick every quarter of a second only: numbers taken from them alone would often be the same.
const COARSE: u64 = 250_000;

/// A clock in simulated time, with a wall clock that is off and a steady clock that may leap.
#[derive(Debug)]
pub(crate) struct SimClock {
    start: Instant,
    wall_off: i64,
    leapt: AtomicU64,
}

impl SimClock {
    #[allow(clippy::disallowed_methods, reason = "simulated time is read from the paused runtime")]
    pub(crate) fn new(wall_off: i64) -> Arc<Self> {
        Arc::new(Self { start: Instant::now(), wall_off, leapt: AtomicU64::new(0) })
    }

    #[allow(clippy::disallowed_methods, reason = "simulated time is read from the paused runtime")]
    pub(crate) fn elapsed(&self) -> Duration {
        Instant::now().duration_since(self.start)
    }

    fn micros(&self) -> u64 {
        u64::try_from(self.elapsed().as_micros()).unwrap()
    }

    /// Whatever is leased for less than this has expired.
    pub(crate) fn leap(&self, length: Duration) {
        self.leapt.fetch_add(u64::try_from(length.as_micros()).unwrap(), Ordering::SeqCst);
    }
}

impl Clock for SimClock {
    fn now(&self) -> Moment {
        Moment::from_micros(3_600_000_000 + self.micros() + self.leapt.load(Ordering::SeqCst))
    }

    fn wall(&self) -> Timestamp {
        let exact = (1_790_000_000_000_000 + self.micros()).saturating_add_signed(self.wall_off);
        Timestamp::from_micros(exact / COARSE * COARSE)
    }

    fn sleep_until(&self, moment: Moment) -> Sleep {
        Box::pin(tokio::time::sleep(moment.since(self.now())))
    }
}

/// What is wrong with the protocol, if anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Variant {
    Sound,
    /// The second phase says that it stored the fence and does not: as if the highest answer were simply taken.
    NoWriteBack,
    /// The second phase raises the fence also where the lease is no longer held.
    UnconditionalWriteBack,
    /// A node that lost its memory votes as if nothing had happened.
    ForgetfulVoter,
}

/// A node, which outlives its memory.
pub(crate) struct SimulatedNode {
    variant: Variant,
    pub(crate) clock: Arc<SimClock>,
    life: Mutex<Life>,
    pub(crate) hints: HintSender,
    raised: Mutex<HashMap<Resource, Fence>>,
}

struct Life {
    memory: Arc<MemoryBackend>,
    born: Duration,
}

impl SimulatedNode {
    pub(crate) fn new(variant: Variant, wall_off: i64) -> Arc<Self> {
        let clock = SimClock::new(wall_off);
        let hints = HintSender::new();
        // The first life began long ago.
        let life = Life { memory: begin(&clock, &hints), born: Duration::ZERO };
        Arc::new(Self { variant, clock, life: Mutex::new(life), hints, raised: Mutex::default() })
    }

    fn memory(&self) -> Arc<MemoryBackend> {
        Arc::clone(&self.life.lock().memory)
    }

    /// Everything it knew is gone.
    pub(crate) fn restart(&self) {
        *self.life.lock() = Life { memory: begin(&self.clock, &self.hints), born: self.clock.elapsed() };
        self.raised.lock().clear();
    }

    pub(crate) fn age(&self) -> Duration {
        let born = self.life.lock().born;
        let hidden = self.variant == Variant::ForgetfulVoter;
        let long_ago = born.is_zero() || hidden;
        if long_ago { Duration::from_secs(86_400) } else { self.clock.elapsed().saturating_sub(born) }
    }

    pub(crate) fn is_young(&self, quarantine: Duration) -> bool {
        let born = self.life.lock().born;
        !born.is_zero() && born + quarantine > self.clock.elapsed()
    }

    pub(crate) fn disguise<T>(&self, answer: Answer<T>) -> Answer<T> {
        let hidden = self.variant == Variant::ForgetfulVoter;
        let incarnation = if hidden { Incarnation(std::ptr::from_ref(self).addr() as u64) } else { answer.incarnation };
        Answer::new(answer.value, incarnation)
    }

    pub(crate) async fn acquire(&self, request: &Request) -> Result<Answer<Decision>> {
        let mut request = request.clone();
        if let Some(raised) = self.raised.lock().get(&request.key.resource) {
            request.fence_floor = request.fence_floor.max(Some(Fence::new(raised.get() + 1)));
        }
        self.memory().acquire(&request).await
    }

    pub(crate) async fn renew(&self, renewals: &[Renewal]) -> Result<Answer<Vec<Standing>>> {
        let [renewal] = renewals else { return self.memory().renew(renewals).await };
        let Some(floor) = renewal.fence_floor else { return self.memory().renew(renewals).await };
        let stored = Standing::Holding(Grant::new(floor, self.clock.wall()));
        match self.variant {
            Variant::Sound | Variant::ForgetfulVoter => self.memory().renew(renewals).await,
            Variant::NoWriteBack => {
                let mut renewal = renewal.clone();
                renewal.fence_floor = None;
                let mut answer = self.memory().renew(&[renewal]).await?;
                if matches!(answer.value[0], Standing::Holding(_)) {
                    answer.value[0] = stored;
                }
                Ok(answer)
            }
            Variant::UnconditionalWriteBack => {
                let mut answer = self.memory().renew(renewals).await?;
                if answer.value[0] != stored {
                    let mut raised = self.raised.lock();
                    let raised = raised.entry(renewal.key.resource.clone()).or_default();
                    *raised = (*raised).max(floor);
                    answer.value[0] = stored;
                }
                Ok(answer)
            }
        }
    }

    pub(crate) fn backend(&self) -> Arc<dyn Backend> {
        self.memory()
    }
}

/// A new life, whose hints are passed on for as long as it lasts.
fn begin(clock: &Arc<SimClock>, hints: &HintSender) -> Arc<MemoryBackend> {
    let memory = Arc::new(MemoryBackend::private(Arc::<SimClock>::clone(clock)));
    let (mut told, hints) = (memory.hints(), hints.clone());
    tokio::runtime::Handle::current().spawn(async move {
        while let Some(hint) = told.next().await {
            if matches!(hint, Hint::Granted { .. }) {
                hints.send(hint);
            }
        }
    });
    memory
}
