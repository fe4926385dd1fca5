//! Watches over a child and the leases it runs under, until the child is gone.
//!
//! The lease is never given back here: whoever called does that, once this has
//! told that the child and its group are dead.

use std::{
    future::{pending, poll_fn},
    io,
    os::fd::OwnedFd,
    pin::pin,
    task::Poll,
    time::Duration,
};

use leasehold::{
    Lease, Loss,
    clock::{Clock, SystemClock},
    lease::Moment,
};
use rustix::process::{self, Pid, WaitOptions, WaitStatus};

use super::{
    KillMode, Limits, OnLost, group,
    signal::Signal,
    signals::{Caught, Signals, is_ending},
    spawn::{self, Launch, Spawned},
    terminal::Terminal,
};

/// Two interrupts within this time mean it.
const TWICE: Duration = Duration::from_secs(2);
/// How often to look for those who outlive the child, at first and later.
const LOOK: [Duration; 2] = [Duration::from_millis(2), Duration::from_millis(50)];
/// How long the dead may take to be dead before somebody is told.
const OVERDUE: Duration = Duration::from_secs(5);

/// Why a child was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A lease was lost, or could not be renewed in time.
    Lost(Loss),
    /// It was held as long as it may be.
    MaxHold,
    /// Interrupted twice.
    Interrupt,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// By itself, with this code.
    Exited(u8),
    /// By a signal of this number.
    Killed(i32),
}

/// How it all ended.
#[derive(Debug)]
pub struct Ended {
    /// The child's process id.
    pub pid: i32,
    /// How the child ended.
    pub status: Status,
    /// Why it was stopped, if it was.
    pub cause: Option<Cause>,
    /// The first signal that asked us to end.
    pub interrupted: Option<Signal>,
    /// Why the command could not even be run.
    pub exec_error: Option<io::Error>,
}

/// Something the one at the terminal may want to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The child runs.
    Started {
        /// Its process id.
        pid: i32,
    },
    /// Renewals fail.
    InDoubt {
        /// Which of the leases.
        lease: usize,
        /// How long it may still be believed in.
        left: Duration,
    },
    /// The child is being stopped.
    Stopping {
        /// Why.
        cause: Cause,
        /// By which signal.
        signal: Signal,
        /// When KILL follows, if it does.
        grace: Option<Duration>,
    },
    /// A lease is lost and the child goes on, as wished.
    GoesOn {
        /// Why it was lost.
        loss: Loss,
    },
    /// Processes of the child's group outlive it and are being stopped.
    Stragglers {
        /// When KILL follows.
        grace: Duration,
    },
    /// Killed, and yet there: the kernel is busy with it.
    Overdue,
}

/// Runs the command under the leases, and comes back when it and its group are gone.
///
/// Without leases nothing can be lost. What is in `inherit` stays open in the
/// child and all it starts.
///
/// # Errors
/// When no process can be started at all.
pub async fn supervise(
    launch: &Launch,
    leases: &[Lease],
    limits: Limits,
    inherit: Option<OwnedFd>,
    signals: &mut Signals,
    tell: &mut dyn FnMut(Notice),
) -> io::Result<Ended> {
    // Whoever loses its parent becomes our child, so that we know when all are gone.
    process::set_child_subreaper(Some(process::getpid()))?;
    let terminal = Terminal::controlling();
    let child = spawn::spawn(launch, spawn::wants_terminal(terminal.as_ref()), inherit)?;
    tell(Notice::Started { pid: child.pid.as_raw_pid() });
    let watch = Supervisor {
        started: SystemClock.now(),
        stage: Stage::Running,
        status: None,
        cause: None,
        interrupted: None,
        last_interrupt: None,
        in_doubt: false,
        look: LOOK[0],
        swallow_stop: false,
        asked_escaped: false,
        child,
        leases,
        limits,
        terminal,
        tell,
    };
    Ok(watch.run(signals).await)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Running,
    Stopping { kill_at: Moment },
    Killed { overdue_at: Moment },
}

/// One child being watched.
pub(super) struct Supervisor<'a> {
    pub(super) child: Spawned,
    pub(super) leases: &'a [Lease],
    pub(super) limits: Limits,
    pub(super) terminal: Option<Terminal>,
    pub(super) swallow_stop: bool,
    tell: &'a mut dyn FnMut(Notice),
    started: Moment,
    stage: Stage,
    status: Option<Status>,
    cause: Option<Cause>,
    interrupted: Option<Signal>,
    last_interrupt: Option<Moment>,
    in_doubt: bool,
    look: Duration,
    asked_escaped: bool,
}

impl Supervisor<'_> {
    async fn run(mut self, signals: &mut Signals) -> Ended {
        loop {
            self.reap().await;
            if let Some(status) = self.status
                && self.is_over()
            {
                self.take_terminal_back();
                let exec_error = self.child.exec_error();
                let pid = self.child.pid.as_raw_pid();
                return Ended { pid, status, cause: self.cause, interrupted: self.interrupted, exec_error };
            }
            self.keep_time();
            let wake = self.next_wake();
            let leases = self.leases;
            let may_be_lost = !matches!(self.stage, Stage::Killed { .. }) && !self.goes_on();
            tokio::select! {
                biased;
                loss = first_lost(leases), if may_be_lost => self.lose(loss),
                caught = signals.next() => {
                    if let Caught::Signal(signal) = caught {
                        self.take(signal).await;
                    }
                }
                () = sleep_until(wake) => {}
            }
        }
    }

    /// Buries the dead and notices the stopped.
    async fn reap(&mut self) {
        let options = WaitOptions::NOHANG | WaitOptions::UNTRACED;
        while let Ok(Some((pid, status))) = process::wait(options) {
            if pid != self.child.pid {
                continue;
            }
            if let Some(signal) = status.stopping_signal().and_then(Signal::from_number) {
                self.child_stopped(signal).await;
            } else {
                self.note_end(status);
            }
        }
    }

    pub(super) fn note_end(&mut self, status: WaitStatus) {
        let code = status.exit_status().map(|code| Status::Exited(u8::try_from(code & 0xff).unwrap_or(u8::MAX)));
        self.status = code.or_else(|| status.terminating_signal().map(Status::Killed)).or(self.status);
    }

    pub(super) fn has_ended(&self) -> bool {
        self.status.is_some()
    }

    /// Whether nobody is left who could still do the work.
    fn is_over(&mut self) -> bool {
        if self.limits.kill_mode == KillMode::Process {
            return true;
        }
        let is_lost = matches!(self.cause, Some(Cause::Lost(_))) && !self.goes_on();
        if group::is_alive(self.child.pid) {
            if self.stage == Stage::Running {
                self.stop_stragglers();
            }
            return false;
        }
        // Under a lost lease nobody may go on, whichever group it moved to.
        let escaped = if is_lost { group::descendants() } else { Vec::new() };
        if !escaped.is_empty() && !self.asked_escaped {
            self.asked_escaped = true;
            for pid in &escaped {
                group::send(KillMode::Process, *pid, Signal::TERM);
            }
        }
        escaped.is_empty()
    }

    fn stop_stragglers(&mut self) {
        (self.tell)(Notice::Stragglers { grace: self.limits.kill_after });
        self.signal(Signal::TERM);
        self.signal(Signal::CONT);
        self.stage = Stage::Stopping { kill_at: SystemClock.now().after(self.limits.kill_after) };
    }

    /// Does what is due by the clock.
    fn keep_time(&mut self) {
        let now = SystemClock.now();
        if self.stage == Stage::Running && self.status.is_none() {
            self.warn_if_in_doubt();
            let grace = self.grace_before_deadline();
            if let (Some(grace), Some(left)) = (grace, self.remaining())
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

    /// When something is due next; `None` while only a signal or a loss can change anything.
    fn next_wake(&mut self) -> Option<Moment> {
        let now = SystemClock.now();
        if self.status.is_some() || matches!(self.stage, Stage::Killed { .. }) {
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
        let ask = self.remaining().and_then(|left| Some(after(left, grace?)));
        let most = self.limits.max_hold.map(|most| self.started.after(most));
        doubt.into_iter().chain(ask).chain(most).min()
    }

    /// A lease is gone for certain.
    pub(super) fn lose(&mut self, loss: Loss) {
        let cause = Cause::Lost(loss);
        let time_is_up = loss == Loss::RenewTimeout || matches!(self.cause, Some(Cause::Lost(_)));
        match self.limits.on_lost {
            OnLost::Continue => {
                self.cause = Some(cause);
                (self.tell)(Notice::GoesOn { loss });
            }
            OnLost::Terminate | OnLost::Signal(_) if !time_is_up && self.status.is_none() => {
                self.stop(cause, self.limits.kill_after);
            }
            _ => self.lose_now(loss),
        }
    }

    /// A lease is gone and there is no time left.
    pub(super) fn lose_now(&mut self, loss: Loss) {
        if !matches!(self.cause, Some(Cause::Lost(_))) {
            let cause = Cause::Lost(loss);
            self.cause = Some(cause);
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
            for pid in group::descendants() {
                group::send(KillMode::Process, pid, Signal::KILL);
            }
        }
    }

    /// Sends a signal to the child or its group, as chosen.
    pub(super) fn signal(&self, signal: Signal) {
        // A process that was buried must not be signalled: its number may be another's by now.
        if self.limits.kill_mode == KillMode::Group || self.status.is_none() {
            group::send(self.limits.kill_mode, self.child.pid, signal);
        }
    }

    fn goes_on(&self) -> bool {
        self.limits.on_lost == OnLost::Continue && self.cause.is_some()
    }

    async fn take(&mut self, signal: Signal) {
        if signal == Signal::TSTP {
            self.stop_asked().await;
        } else if signal == Signal::CONT {
            self.resume().await;
        } else {
            self.signal(signal);
            if is_ending(signal) {
                self.interrupted.get_or_insert(signal);
                self.count_interrupt(signal);
            }
        }
    }

    fn count_interrupt(&mut self, signal: Signal) {
        let now = SystemClock.now();
        if signal != Signal::INT {
            return;
        }
        let is_second = self.last_interrupt.replace(now).is_some_and(|last| now.since(last) <= TWICE);
        if is_second && self.stage == Stage::Running {
            let grace = self.limits.kill_after;
            self.cause.get_or_insert(Cause::Interrupt);
            (self.tell)(Notice::Stopping { cause: Cause::Interrupt, signal, grace: Some(grace) });
            self.stage = Stage::Stopping { kill_at: now.after(grace) };
        }
    }

    fn take_terminal_back(&self) {
        if let Some(terminal) = &self.terminal
            && terminal.take_from(self.child.pid)
            && matches!(self.status, Some(Status::Killed(_)))
        {
            terminal.restore_modes();
        }
    }

    pub(super) fn pid(&self) -> Pid {
        self.child.pid
    }
}

async fn sleep_until(moment: Option<Moment>) {
    match moment {
        Some(moment) => SystemClock.sleep_until(moment).await,
        None => pending().await,
    }
}

/// Ends when one of them is lost; never, if there are none.
async fn first_lost(leases: &[Lease]) -> Loss {
    let mut losses: Vec<_> = leases.iter().map(|lease| Box::pin(lease.lost())).collect();
    let mut first = pin!(poll_fn(|context| {
        let found = losses.iter_mut().find_map(|loss| match loss.as_mut().poll(context) {
            Poll::Ready(loss) => Some(loss),
            Poll::Pending => None,
        });
        found.map_or(Poll::Pending, Poll::Ready)
    }));
    first.as_mut().await
}
