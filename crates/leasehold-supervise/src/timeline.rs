//! Dead before expiry: when the child is warned about, asked to end, and made to.

use std::time::Duration;

use leasehold::{
    Lease, Loss,
    clock::{Clock, SystemClock},
    lease::Moment,
};

use crate::{
    KillMode, OnLost,
    ended::{Cause, Notice},
    group,
    signal::Signal,
    supervise::Supervisor,
};

/// How often to look for those who outlive the child, at first and later.
pub(super) const LOOK: [Duration; 2] = [Duration::from_millis(2), Duration::from_millis(50)];
/// How often to look for those who are waited for; the kernel tells of most ends.
const LOOK_FOR_STRAGGLERS: Duration = Duration::from_secs(1);
/// How long the dead may take to be dead before somebody is told.
const OVERDUE: Duration = Duration::from_secs(5);

/// How far the end of a child has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// It runs as it should.
    Running,
    /// It was asked to end.
    Stopping { kill_at: Moment },
    /// It was killed, and may take a moment to be dead.
    Killed { overdue_at: Moment },
}

impl Supervisor<'_> {
    /// Does what is due by the clock.
    pub(super) fn keep_time(&mut self) {
        let now = SystemClock.now();
        // One that is stopped gets no grace: it would have to run to use it.
        if self.stage == Stage::Running && self.is_at_work() && self.suspended.is_none() {
            self.warn_if_in_doubt();
            let grace = self.grace_before_deadline();
            if let (Some(grace), Some(left)) = (grace, self.time_left())
                && left <= grace
            {
                self.stop(Cause::Lost(Loss::RenewTimeout), left);
            } else if self.limits.max_hold.is_some_and(|most| now >= self.started.after(most)) {
                self.stop(Cause::MaxHold, self.limits.kill_after);
            }
        }
        match self.stage {
            Stage::Stopping { kill_at } if now >= kill_at => self.kill(),
            Stage::Killed { overdue_at } => {
                self.signal_again();
                if now >= overdue_at {
                    (self.tell)(Notice::Overdue);
                    self.stage = Stage::Killed { overdue_at: Moment::NEVER };
                }
            }
            _ => {}
        }
    }

    /// A late renewal is told once, when half of the lease is gone.
    fn warn_if_in_doubt(&mut self) {
        let half = self.limits.ttl / 2;
        let latest = self.leases.iter().enumerate().filter_map(|(at, lease)| Some((lease.remaining()?, at))).min();
        let is_late = latest.is_some_and(|(left, _)| left <= half);
        if let Some((left, lease)) = latest
            && is_late
            && !self.in_doubt
        {
            (self.tell)(Notice::InDoubt { lease, left });
        }
        self.in_doubt = is_late;
    }

    /// How long before the deadline the child is asked to end; `None` if it is not.
    fn grace_before_deadline(&self) -> Option<Duration> {
        matches!(self.limits.on_lost, OnLost::Terminate | OnLost::Signal(_)).then_some(self.limits.kill_after)
    }

    fn remaining(&self) -> Option<Duration> {
        self.leases.iter().filter_map(Lease::remaining).min()
    }

    /// How long the child may go on unless a renewal comes.
    fn time_left(&self) -> Option<Duration> {
        self.remaining().map(|left| left.saturating_sub(self.limits.lead()))
    }

    /// When something is due next; `None` while only a signal or a loss can change anything.
    pub(super) fn next_wake(&mut self) -> Option<Moment> {
        let now = SystemClock.now();
        if !self.is_at_work() || matches!(self.stage, Stage::Killed { .. }) {
            let pause = self.look;
            self.look = (self.look * 2).min(LOOK[1]);
            return Some(now.after(pause));
        }
        if let Stage::Stopping { kill_at } = self.stage {
            return Some(kill_at);
        }
        let after = |left: Duration, point: Duration| now.after(left.saturating_sub(point));
        let half = self.limits.ttl / 2;
        let doubt = self.remaining().filter(|_| !self.in_doubt).map(|left| after(left, half));
        let grace = self.grace_before_deadline();
        let ask = self.time_left().and_then(|left| Some(after(left, grace?)));
        let most = self.limits.max_hold.map(|most| self.started.after(most));
        let look = self.awaits_stragglers.then(|| now.after(LOOK_FOR_STRAGGLERS));
        doubt.into_iter().chain(ask).chain(most).chain(look).min()
    }

    /// A lease is gone for certain.
    pub(super) fn lose(&mut self, loss: Loss) {
        let cause = Cause::Lost(loss);
        let time_is_up = loss == Loss::RenewTimeout || self.suspended.is_some();
        match self.limits.on_lost {
            OnLost::Continue => {
                self.cause = Some(cause);
                (self.tell)(Notice::GoesOn { loss });
            }
            OnLost::Terminate | OnLost::Signal(_) if !time_is_up && self.is_at_work() => {
                self.stop(cause, self.limits.kill_after);
            }
            _ => self.lose_now(loss),
        }
    }

    /// A lease is gone and there is no time left.
    pub(super) fn lose_now(&mut self, loss: Loss) {
        let cause = Cause::Lost(loss);
        if !matches!(self.cause.replace(cause), Some(Cause::Lost(_))) {
            (self.tell)(Notice::Stopping { cause, signal: Signal::KILL, grace: None });
        }
        self.kill();
    }

    /// Asks the child to end, and sees to it after the grace.
    fn stop(&mut self, cause: Cause, grace: Duration) {
        let signal = match (cause, self.limits.on_lost) {
            (Cause::Lost(_), OnLost::Signal(signal)) => signal,
            _ => Signal::TERM,
        };
        self.cause = Some(cause);
        (self.tell)(Notice::Stopping { cause, signal, grace: Some(grace) });
        self.signal(signal);
        self.signal(Signal::CONT);
        let kill_at = SystemClock.now().after(grace);
        self.stage = match self.stage {
            Stage::Stopping { kill_at: earlier } => Stage::Stopping { kill_at: kill_at.min(earlier) },
            _ => Stage::Stopping { kill_at },
        };
    }

    fn kill(&mut self) {
        self.stage = Stage::Killed { overdue_at: SystemClock.now().after(OVERDUE) };
        self.look = LOOK[0];
        self.signal_again();
    }

    /// Kills who is left; someone may have been born since.
    fn signal_again(&mut self) {
        self.signal(Signal::KILL);
        if matches!(self.cause, Some(Cause::Lost(_))) && self.limits.kill_mode == KillMode::Group {
            for pid in group::living_descendants() {
                group::send(KillMode::Process, pid, Signal::KILL);
            }
        }
    }

    /// Whether the child runs, or others do whom we wait for.
    fn is_at_work(&self) -> bool {
        self.status.is_none() || self.awaits_stragglers
    }

    /// Asks those to end who outlive the child in its group.
    pub(super) fn stop_stragglers(&mut self) {
        self.signal(Signal::TERM);
        self.signal(Signal::CONT);
        self.stage = Stage::Stopping { kill_at: SystemClock.now().after(self.limits.kill_after) };
    }

    /// Whether the lease is lost and the child goes on all the same, as wished.
    pub(super) fn goes_on(&self) -> bool {
        self.limits.on_lost == OnLost::Continue && self.cause.is_some()
    }
}
