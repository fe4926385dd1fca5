//! One task of a worker: asks for a lock, holds it for a while, and records what it believes.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::Duration,
};

use leasehold::{Error, Guard, Holder, LeaseHandle, Leasehold, blocking};
use leasehold_testkit::Dice;
use leasehold_torture_fork::fork;
use parking_lot::Mutex;
use rustix::process::{Pid, WaitOptions, waitpid};
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};

use crate::{
    args::Role,
    event::{Log, LogEvent},
    instant::{Micros, millis, now},
    target::{LIMIT, LockMode, LockTarget, TARGETS, TTL},
};

/// How long an ask waits: longer than any fault lasts, so that a hang shows as a wait and not as a refusal.
pub(crate) const WAIT: Duration = Duration::from_secs(20);
/// How long `lost` may take before the lane gives up on it. The loss checker judges far shorter delays.
const LOST_LIMIT: Duration = Duration::from_secs(10);
/// A forked child ends by itself after this many seconds.
const CHILD_SECONDS: u32 = 20;

/// What all tasks of a worker share.
#[derive(Debug)]
pub(crate) struct WorkerState {
    pub(crate) locks: Leasehold,
    pub(crate) log: Log,
    pub(crate) role: Role,
    serial: AtomicU64,
    settling: watch::Sender<bool>,
    /// A fork that the next holder makes; true for a child that idles.
    pub(crate) fork_idle: Mutex<Option<bool>>,
    /// Handles of leases held right now, for the client that forges releases.
    pub(crate) handles: Mutex<HashMap<&'static str, LeaseHandle>>,
}

impl WorkerState {
    pub(crate) fn new(locks: Leasehold, log: Log, role: Role) -> Self {
        Self {
            locks,
            log,
            role,
            serial: AtomicU64::new(0),
            settling: watch::Sender::new(false),
            fork_idle: Mutex::new(None),
            handles: Mutex::new(HashMap::new()),
        }
    }

    pub(crate) fn is_settling(&self) -> bool {
        *self.settling.borrow()
    }

    /// Completes when every task of the worker is to end.
    pub(crate) async fn settled(&self) {
        let mut settling = self.settling.subscribe();
        let _worker_ended = settling.wait_for(|settling| *settling).await.is_err();
    }

    /// Makes every task of the worker end.
    pub(crate) fn settle(&self) {
        self.settling.send_replace(true);
    }

    /// Records an ask and gives it an id, which is also the holder that `list` shows.
    pub(crate) fn ask(&self, target: LockTarget) -> LockAttempt {
        let id = format!("{}.{}", self.role.label, self.serial.fetch_add(1, Ordering::Relaxed));
        let (units, capacity) = (target.mode.units(), target.mode.capacity());
        self.log.write(LogEvent::Asked { id: id.clone(), name: target.name.to_owned(), units, capacity });
        LockAttempt { id, target }
    }

    /// Waits for the lock.
    pub(crate) async fn acquire(&self, ask: &LockAttempt) -> Result<Guard, Error> {
        let (name, holder) = (ask.target.name, Holder::new(&ask.id)?);
        match ask.target.mode {
            LockMode::Mutex => self.locks.mutex(name).holder(holder).wait(WAIT).acquire().await,
            LockMode::Read => self.locks.read(name).holder(holder).wait(WAIT).acquire().await,
            LockMode::Write => self.locks.write(name).holder(holder).wait(WAIT).acquire().await,
            LockMode::Permits(count) => {
                self.locks.semaphore(name, LIMIT).permits(count).holder(holder).wait(WAIT).acquire().await
            }
            LockMode::Leader => self.locks.election(name).holder(holder).ttl(TTL).wait(WAIT).campaign().await,
        }
    }

    /// Takes the lock if it is free.
    async fn try_acquire(&self, ask: &LockAttempt) -> Result<Option<Guard>, Error> {
        let (name, holder) = (ask.target.name, Holder::new(&ask.id)?);
        match ask.target.mode {
            LockMode::Mutex => self.locks.mutex(name).holder(holder).try_acquire().await,
            LockMode::Read => self.locks.read(name).holder(holder).try_acquire().await,
            LockMode::Write => self.locks.write(name).holder(holder).try_acquire().await,
            LockMode::Permits(count) => {
                self.locks.semaphore(name, LIMIT).permits(count).holder(holder).try_acquire().await
            }
            LockMode::Leader => self.locks.election(name).holder(holder).ttl(TTL).try_campaign().await,
        }
    }

    pub(crate) fn refused(&self, ask: &LockAttempt, error: &Error) {
        self.log.write(LogEvent::Refused { id: ask.id.clone(), error: format!("{:?}: {error}", error.kind()) });
    }

    pub(crate) fn began(&self, ask: &LockAttempt, fence: u64) {
        self.log.write(LogEvent::Began { id: ask.id.clone(), fence });
    }

    /// Believes until `until`, checking every few milliseconds. Returns when a check failed, if one did.
    pub(crate) async fn believe(&self, ask: &LockAttempt, guard: &Guard, until: Micros) -> Option<Micros> {
        loop {
            // Read before the check: a pause between the two shortens the recorded belief, never prolongs it.
            let at = now();
            if guard.check().is_err() {
                return Some(at);
            }
            self.log.write_at(at, LogEvent::Believed { id: ask.id.clone() });
            if at >= until {
                return None;
            }
            sleep(Duration::from_micros((until - at).min(millis(5)))).await;
        }
    }

    /// Records the end before the release, so that a kill in between leaves no claim behind.
    pub(crate) async fn release(&self, ask: &LockAttempt, guard: Guard) {
        self.log.write(LogEvent::Ending { id: ask.id.clone() });
        let error = guard.release().await.err().map(|error| error.to_string());
        self.log.write(LogEvent::Released { id: ask.id.clone(), error });
    }

    /// Waits for `lost` after a failed check, and records when each happened.
    pub(crate) async fn lose(&self, ask: &LockAttempt, guard: &Guard, failed_at: Micros) {
        let _late_is_recorded = timeout(LOST_LIMIT, guard.lost()).await;
        self.log.write(LogEvent::Lost { id: ask.id.clone(), failed_at });
    }

    /// Forks from a thread of its own, so that the child has no runtime in the way of its calls.
    fn fork_child(&self, guard: &Guard, idle: bool) {
        let forked = thread::scope(|scope| {
            scope
                .spawn(|| fork(CHILD_SECONDS, || if idle { sleep_for_ever() } else { self.call_in_child(guard) }))
                .join()
        });
        let Ok(Ok(child)) = forked else { return };
        self.log.write(LogEvent::Forked { child, idle });
        thread::spawn(move || waitpid(Pid::from_raw(child), WaitOptions::empty()).map(drop));
    }

    /// Uses what a forked child inherited. The library must refuse each call, and must not hang.
    fn call_in_child(&self, guard: &Guard) {
        let child = rustix::process::getpid().as_raw_nonzero().get();
        let answered = |call: &str, answer: Option<String>, refused: bool| {
            self.log.write(LogEvent::InChild { child, call: call.to_owned(), answer, refused });
        };
        answered("check", None, false);
        let checked = guard.check();
        answered("check", Some(format!("{checked:?}")), checked.is_err());
        answered("try_acquire", None, false);
        let tried = blocking::wait(self.locks.mutex(format!("forked:{child}")).try_acquire());
        answered("try_acquire", Some(format!("{tried:?}")), tried.is_err());
        // A drop would be one more call on the inherited instance.
        std::mem::forget(tried);
    }
}

fn sleep_for_ever() {
    loop {
        thread::sleep(Duration::from_secs(60));
    }
}

/// One acquisition.
#[derive(Clone, Debug)]
pub(crate) struct LockAttempt {
    pub(crate) id: String,
    pub(crate) target: LockTarget,
}

/// One acquisition by an honest client: a wait, a try, or a wait that is cancelled.
pub(crate) async fn turn(shared: &WorkerState, dice: &mut Dice) {
    let ask = shared.ask(TARGETS[dice.index(TARGETS.len())]);
    let answer = match dice.below(100) {
        0..15 => shared.try_acquire(&ask).await,
        15..35 => {
            let patience = Duration::from_micros(dice.below(millis(20)));
            match timeout(patience, shared.acquire(&ask)).await {
                Ok(answer) => answer.map(Some),
                Err(_) => return shared.log.write(LogEvent::Cancelled { id: ask.id }),
            }
        }
        _ => shared.acquire(&ask).await.map(Some),
    };
    match answer {
        Ok(Some(guard)) => hold(shared, dice, &ask, guard).await,
        Ok(None) => shared.log.write(LogEvent::Refused { id: ask.id, error: String::from("Busy") }),
        Err(error) => shared.refused(&ask, &error),
    }
}

async fn hold(shared: &WorkerState, dice: &mut Dice, ask: &LockAttempt, guard: Guard) {
    shared.began(ask, guard.fence().get());
    let mut length = if dice.percent(3) { millis(300) } else { millis(8) };
    let fork_idle = shared.fork_idle.lock().take();
    if let Some(idle) = fork_idle {
        shared.fork_child(&guard, idle);
        // The conductor kills the parent of an idle child; until then the parent holds.
        length = if idle { millis(10_000) } else { length };
    }
    match shared.believe(ask, &guard, now() + dice.below(length)).await {
        None => shared.release(ask, guard).await,
        Some(failed_at) => shared.lose(ask, &guard, failed_at).await,
    }
}
