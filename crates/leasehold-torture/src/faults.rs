//! What goes wrong, and when: one seeded schedule for the whole run.

use std::{collections::BTreeMap, env, fs, io, thread, time::Duration};

use leasehold::{
    Resource,
    blocking::Leasehold,
    lease::{LeaseState, ListFilter, Names},
};
use leasehold_testkit::Dice;
use rustix::process::{Pid, Signal, kill_process};

use crate::{
    args::{Fault, RunPlan},
    fleet::Fleet,
    instant::{Micros, millis, now},
    target::{LockTarget, TARGETS},
};

/// A stop far longer than the ttl, and longer than a name may go without a grant.
const LONG_STOP: Micros = millis(9000);
/// Sentinels begin no second failover within twice their limit of 3 s.
const BETWEEN_FAILOVERS: Micros = millis(8000);
/// How often a failover is looked at.
const LOOK_EVERY: Micros = millis(50);
/// How often somebody looks for a failover that nobody asked for: a busy machine makes servers give up on one another.
const LOOK_FOR_EVERY: Micros = millis(250);
/// The name of a cut in the report.
const CUT: &str = "cut";
/// How long an idle forked child outlives its parent: longer than a name may go without a grant.
const CHILD_OUTLIVES: Micros = millis(8000);

/// Injects faults.
#[derive(Debug)]
pub(crate) struct Faults {
    kinds: Vec<Fault>,
    /// Those of the kinds whose turn has not come since all had theirs.
    deck: Vec<Fault>,
    dice: Dice,
    next_at: Micros,
    next_failover: Micros,
    look_for_failover: Micros,
    /// Cuts connections, as often as possible, instead.
    cuts_only: bool,
    pending: Vec<(Micros, ActiveFault)>,
    /// Looks at the locks from outside, where the backend lets another process do so.
    observer: Option<Leasehold>,
    /// How many faults of each kind were injected.
    pub(crate) injected: BTreeMap<&'static str, u64>,
}

/// What ends a fault.
#[derive(Clone, Copy, Debug)]
enum ActiveFault {
    GoOn(usize),
    Mend(usize),
    /// Kill this worker as soon as it has forked.
    KillParent(usize, usize),
    KillChild(i32),
    Failover,
}

impl Faults {
    pub(crate) fn new(plan: &RunPlan, observer: Option<Leasehold>, dice: Dice) -> Self {
        let began = now();
        Self {
            // A slow disk is not injected here: strace injects it from the worker's start.
            kinds: plan.faults.iter().copied().filter(|kind| *kind != Fault::SlowDisk).collect(),
            deck: Vec::new(),
            dice,
            next_at: began + millis(300),
            next_failover: began + millis(2000),
            look_for_failover: began,
            cuts_only: plan.cuts.is_some(),
            pending: Vec::new(),
            observer,
            injected: BTreeMap::new(),
        }
    }

    /// How often connections were cut, where nothing else is done.
    pub(crate) fn cuts(&self) -> u64 {
        self.injected.get(CUT).copied().unwrap_or(0)
    }

    /// Ends faults whose time has come, and injects the next one.
    pub(crate) fn step(&mut self, fleet: &mut Fleet) -> io::Result<()> {
        for (due, pending) in std::mem::take(&mut self.pending) {
            self.follow_up(fleet, due, pending)?;
        }
        if now() >= self.look_for_failover {
            self.look_for_failover = now() + LOOK_FOR_EVERY;
            if fleet.finds_failover() {
                self.pending.push((now() + LOOK_EVERY, ActiveFault::Failover));
                self.count("failover, not asked for");
            }
        }
        if now() < self.next_at {
            return Ok(());
        }
        if self.cuts_only {
            self.cut(fleet);
            return Ok(());
        }
        if self.kinds.is_empty() {
            return Ok(());
        }
        self.next_at = now() + millis(300) + self.dice.below(millis(1200));
        if self.deck.is_empty() {
            self.deck.clone_from(&self.kinds);
        }
        let kind = self.deck.swap_remove(self.dice.index(self.deck.len()));
        let index = self.dice.index(fleet.slots.len());
        self.inject(fleet, kind, index)
    }

    /// Cuts a worker off, if it is not cut off already.
    fn cut(&mut self, fleet: &mut Fleet) {
        // A worker gets time to connect again, and to take locks before the next cut.
        self.next_at = now() + millis(50) + self.dice.below(millis(300));
        let index = self.dice.index(fleet.slots.len());
        if let Some(length) = fleet.cut(index, &mut self.dice) {
            self.pending.push((now() + length, ActiveFault::Mend(index)));
            self.count(CUT);
        }
    }

    fn inject(&mut self, fleet: &mut Fleet, kind: Fault, index: usize) -> io::Result<()> {
        if fleet.is_stopped(index) || self.is_about_to_be_killed(index) {
            return Ok(());
        }
        match kind {
            Fault::Kill => {
                fleet.kill(index)?;
                self.count("kill");
            }
            Fault::Stop => self.stop(fleet, index)?,
            Fault::Fork if self.dice.percent(50) => {
                fleet.command(index, "fork idle");
                self.pending.push((0, ActiveFault::KillParent(index, fleet.slots[index].life)));
            }
            Fault::Fork => {
                fleet.command(index, "fork use");
                self.count("fork, child calls");
            }
            Fault::Callback => {
                fleet.command(index, "callback");
                self.count("callback");
            }
            Fault::Network => {
                if let Some((what, length)) = fleet.disturb(index, &mut self.dice) {
                    self.pending.push((now() + length, ActiveFault::Mend(index)));
                    self.count(what);
                }
            }
            Fault::Failover => {
                if now() >= self.next_failover
                    && let Some(what) = fleet.fail_over(&mut self.dice)
                {
                    self.pending.push((now() + LOOK_EVERY, ActiveFault::Failover));
                    self.count(what);
                }
            }
            Fault::SlowDisk => {}
        }
        Ok(())
    }

    /// Stops one worker at a time: two stopped waiters in a row would cost the others twice as long.
    fn stop(&mut self, fleet: &mut Fleet, index: usize) -> io::Result<()> {
        let stopped = (0..fleet.slots.len()).any(|index| fleet.is_stopped(index));
        if stopped || fleet.is_slow(index) {
            return Ok(());
        }
        fleet.stop(index)?;
        let long = self.dice.percent(30);
        if long && self.may_hold_unrecorded(fleet, index) {
            fleet.go_on(index)?;
            self.count("stop, undone at once");
            return Ok(());
        }
        let length = if long { LONG_STOP } else { millis(100) + self.dice.below(millis(700)) };
        self.pending.push((now() + length, ActiveFault::GoOn(index)));
        self.count(if long { "stop, longer than the ttl" } else { "stop, shorter than the ttl" });
        Ok(())
    }

    /// Whether the stopped worker may hold a lease that its log does not show.
    ///
    /// 1. The worker confirms a grant.
    /// 2. SIGSTOP arrives before the worker records it.
    ///
    /// On a backend where a stopped process keeps its leases, the name is then rightly blocked, though the log says
    /// that the worker waits. Such a stop is undone.
    fn may_hold_unrecorded(&self, fleet: &Fleet, index: usize) -> bool {
        let Some(observer) = &self.observer else { return false };
        // By name, since a list of all leaves out what cannot be read: a worker may have been stopped in the
        // middle of an operation, and then nobody can tell what it holds.
        let list = |target: &LockTarget| {
            let resource = Resource::new(target.name)?;
            Ok(observer.list(&ListFilter::new(Names::Exactly(resource)))?.leases)
        };
        let Ok(leases) = TARGETS.iter().map(list).collect::<leasehold::Result<Vec<_>>>() else { return true };
        leases.iter().flatten().filter(|lease| !matches!(lease.state, LeaseState::Waiting { .. })).any(|lease| {
            let ask = fleet.history.ask(lease.holder.as_str());
            ask.is_some_and(|ask| ask.life == fleet.slots[index].life && ask.began().is_none())
        })
    }

    fn follow_up(&mut self, fleet: &mut Fleet, due: Micros, pending: ActiveFault) -> io::Result<()> {
        match pending {
            _ if now() < due => self.pending.push((due, pending)),
            ActiveFault::GoOn(index) => fleet.go_on(index)?,
            ActiveFault::Mend(index) => fleet.mend(index),
            ActiveFault::KillChild(child) => kill_child(child),
            ActiveFault::Failover if fleet.follow_failover()? => self.pending.push((now() + LOOK_EVERY, pending)),
            ActiveFault::Failover => self.next_failover = now() + BETWEEN_FAILOVERS,
            // The worker was replaced before it forked.
            ActiveFault::KillParent(index, life) if fleet.slots[index].life != life => {}
            ActiveFault::KillParent(index, life) => {
                let mut children = fleet.history.children.iter();
                let Some((&child, _)) = children.find(|(_, child)| child.life == life && child.idle) else {
                    self.pending.push((due, pending));
                    return Ok(());
                };
                fleet.kill(index)?;
                self.pending.push((now() + CHILD_OUTLIVES, ActiveFault::KillChild(child)));
                self.count("fork, parent killed beside an idle child");
            }
        }
        Ok(())
    }

    fn is_about_to_be_killed(&self, index: usize) -> bool {
        self.pending
            .iter()
            .any(|(_, pending)| matches!(pending, ActiveFault::KillParent(parent, _) if *parent == index))
    }

    /// Ends every fault that is still going on, and closes the observer.
    pub(crate) fn finish(&mut self, fleet: &mut Fleet) -> io::Result<()> {
        for index in 0..fleet.slots.len() {
            fleet.go_on(index)?;
            fleet.mend(index);
        }
        while fleet.follow_failover()? {
            thread::sleep(Duration::from_micros(LOOK_EVERY));
        }
        for (_, pending) in std::mem::take(&mut self.pending) {
            if let ActiveFault::KillChild(child) = pending {
                kill_child(child);
            }
        }
        self.observer.take().map_or(Ok(()), |observer| observer.close().map_err(io::Error::other))
    }

    fn count(&mut self, kind: &'static str) {
        *self.injected.entry(kind).or_default() += 1;
    }
}

/// Kills a forked child, if the process with this id is still one of ours.
fn kill_child(child: i32) {
    let ours = env::current_exe().and_then(|program| Ok(fs::read_link(format!("/proc/{child}/exe"))? == program));
    if let (Ok(true), Some(pid)) = (ours, Pid::from_raw(child)) {
        let _ended_already = kill_process(pid, Signal::KILL);
    }
}
