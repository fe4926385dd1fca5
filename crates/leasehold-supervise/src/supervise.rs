//! Watches over a child and the leases it runs under, until the child is gone.
//!
//! The lease is never given back here: whoever called does that, once this has
//! told that the child and what it started are dead.

use std::{
    future::{pending, poll_fn},
    io,
    os::fd::OwnedFd,
    pin::pin,
    task::Poll,
    time::Duration,
};

use leasehold::{
    ErrorKind, Lease, Loss,
    clock::{Clock, SystemClock},
    lease::Moment,
};
use rustix::process::{self, Pid, WaitOptions};

use crate::{
    KillMode, Limits, OnLost, Stragglers,
    ended::{Cause, Ended, NotStarted, Notice, Status},
    group::{self, Process, State, Straggler},
    helper::{Helper, Launch, wants_terminal},
    messages::{Order, Report},
    signal::Signal,
    signals::{Caught, Signals},
    suspend::Suspended,
    terminal::Terminal,
    timeline::{LOOK, Stage, first_orders},
};

/// Two interrupts within this time mean it.
const TWICE: Duration = Duration::from_secs(2);
/// One TERM may come twice in a moment: a service manager sends it to every process, and an outer `run` passes it on.
const ECHO: Duration = Duration::from_millis(50);
/// Whoever ends so soon after the child is no straggler.
const LINGER: Duration = Duration::from_millis(100);

/// Runs the command under the leases, and comes back when it and what it started are gone. Daemons, which have left
/// our session, may go on unless a lease is lost.
///
/// Without leases nothing can be lost. What is in `inherit` stays open in the
/// child and all it starts.
///
/// # Errors
/// When a lease is lost before the command is started, or the command cannot be run.
pub async fn supervise(
    launch: &Launch,
    leases: &[Lease],
    limits: Limits,
    inherit: Option<OwnedFd>,
    signals: &mut Signals,
    tell: &mut dyn FnMut(Notice),
) -> Result<Ended, NotStarted> {
    // If the supervisor is killed, whoever it watched over becomes our child.
    process::set_child_subreaper(Some(process::getpid())).map_err(io::Error::from)?;
    let terminal = Terminal::controlling();
    let is_foreground = wants_terminal(terminal.as_ref());
    let orders = first_orders(leases, &limits);
    if let Some(loss) = lost_one(leases) {
        return Err(NotStarted::Lost(loss));
    }
    let mut helper = Helper::start(launch, &limits, orders, is_foreground, inherit)?;
    helper.order(orders);
    let child = match helper.started().await {
        Ok(child) => child,
        Err(error) => {
            // The command may have run already, if it was the supervisor that failed.
            group::end_descendants();
            if let Some(terminal) = terminal.filter(|_| is_foreground) {
                terminal.give_to(process::getpgrp());
            }
            return Err(error);
        }
    };
    tell(Notice::Started { pid: child.as_raw_pid() });
    let watch = Watch {
        started: SystemClock.now(),
        stage: Stage::Running,
        status: None,
        cause: None,
        interrupted: None,
        last_interrupt: None,
        in_doubt: false,
        look: LOOK[0],
        swallow_stop: false,
        suspended: None,
        asked_others: false,
        number_is_free: false,
        ended_at: None,
        awaits_stragglers: false,
        nobody_left: false,
        is_orphan: false,
        denied: Vec::new(),
        orders,
        helper,
        child,
        leases,
        limits,
        terminal,
        tell,
    };
    Ok(watch.run(signals).await)
}

/// What a watch acts on, besides reports and the clock.
enum Event {
    Lost(Loss),
    Signal(Signal),
}

/// One child being watched.
#[allow(clippy::struct_excessive_bools, reason = "each remembers one thing that has happened")]
pub(super) struct Watch<'a> {
    pub(super) helper: Helper,
    pub(super) child: Pid,
    /// The last orders that the supervisor was given.
    pub(super) orders: Order,
    /// Whether the supervisor is gone, which left the family to us.
    pub(super) is_orphan: bool,
    pub(super) denied: Vec<Straggler>,
    pub(super) leases: &'a [Lease],
    pub(super) limits: Limits,
    pub(super) terminal: Option<Terminal>,
    pub(super) swallow_stop: bool,
    pub(super) suspended: Option<Suspended>,
    pub(super) tell: &'a mut dyn FnMut(Notice),
    pub(super) started: Moment,
    pub(super) stage: Stage,
    pub(super) status: Option<Status>,
    pub(super) cause: Option<Cause>,
    pub(super) in_doubt: bool,
    pub(super) look: Duration,
    pub(super) awaits_stragglers: bool,
    ended_at: Option<Moment>,
    interrupted: Option<Signal>,
    last_interrupt: Option<Moment>,
    asked_others: bool,
    nobody_left: bool,
    number_is_free: bool,
}

impl Watch<'_> {
    async fn run(mut self, signals: &mut Signals) -> Ended {
        loop {
            self.reap();
            // A supervisor that was not dismissed would kill whoever may go on. One that was killed while we looked has
            // left its children to us: the next look finds them.
            if let Some(status) = self.status
                && self.is_over()
                && (self.is_orphan || self.helper.order(Order::Dismiss))
            {
                self.take_terminal_back();
                let pid = self.child.as_raw_pid();
                let cause = self.cause.or_else(|| self.found_lost());
                return Ended { pid, status, cause, interrupted: self.interrupted };
            }
            self.keep_time();
            self.give_orders();
            let wake = self.next_wake();
            let leases = self.leases;
            // A loss stays told: once it is known, only the clock is left to watch.
            let goes_on = self.limits.on_lost == OnLost::Continue && self.stage != Stage::Running;
            let may_be_lost = !goes_on && !matches!(self.cause, Some(Cause::Lost(_)));
            let event = tokio::select! {
                biased;
                loss = first_lost(leases), if may_be_lost => Some(Event::Lost(loss)),
                () = self.helper.wait_for_report() => None,
                caught = signals.next() => match caught {
                    Caught::Signal(signal) => Some(Event::Signal(signal)),
                    Caught::Child => None,
                },
                () = sleep_until(wake) => None,
            };
            // We may have been stopped for long: a child that was buried meanwhile must not be signalled.
            self.reap();
            match event {
                Some(Event::Lost(loss)) => self.lose(loss),
                Some(Event::Signal(signal)) => self.take(signal).await,
                None => {}
            }
        }
    }

    /// Hears what the supervisor reports, and buries the dead.
    fn reap(&mut self) {
        while let Some(report) = self.helper.next_report() {
            match report {
                Report::Stopped(number) => self.heard_of_stop(number),
                Report::Ended(status) => self.status = Some(status),
                Report::Alone => self.nobody_left = true,
                Report::Asked => self.asked_meanwhile(),
                Report::Started(_) | Report::Failed(_) | Report::Late => {}
            }
        }
        if self.helper.is_gone() && !self.is_orphan {
            self.is_orphan = true;
            self.take_over();
        }
        loop {
            match process::wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid == self.child => self.status = Status::of(status).or(self.status),
                Ok(Some(_)) => {}
                Ok(None) => return,
                // Whoever the supervisor left behind is our child: without a child there is nobody.
                Err(_no_child) => {
                    if self.is_orphan {
                        self.nobody_left = true;
                        self.status.get_or_insert(Status::Killed(Signal::KILL.number()));
                    }
                    return;
                }
            }
        }
    }

    /// Somebody was stopped, unless that is over by now or was our own wish.
    fn heard_of_stop(&mut self, number: i32) {
        if self.suspended.is_none()
            && self.state() == State::Stopped
            && let Some(signal) = Signal::from_number(number)
        {
            self.child_stopped(signal);
        }
    }

    /// How a lease was lost while we could not look: after a long stop we may hear of the end of the command, whom the
    /// supervisor killed in time, before the loss itself is known.
    fn found_lost(&self) -> Option<Cause> {
        lost_one(self.leases).map(Cause::Lost)
    }

    /// Whether nobody is left who could still do the work.
    fn is_over(&mut self) -> bool {
        if self.limits.kill_mode == KillMode::Process || self.nobody_left {
            return true;
        }
        let left = self.left();
        if left.is_empty() {
            // A daemon may go on, but under a lost lease nobody may: the supervisor says when it is alone.
            return !self.is_lost() && !self.is_orphan;
        }
        if self.stage == Stage::Running {
            return self.see_to(left);
        }
        if !self.asked_others {
            self.send_others(&left, Signal::TERM);
        }
        false
    }

    /// Whether nobody may go on, since the lease is lost.
    pub(super) fn is_lost(&self) -> bool {
        matches!(self.cause, Some(Cause::Lost(_))) && !self.goes_on()
    }

    /// Those of the family who run and may not go on without the lock: all of them if it is lost or their supervisor
    /// was killed, else those who have not left our session.
    pub(super) fn left(&self) -> Vec<Process> {
        if self.is_lost() || self.is_orphan {
            group::living(self.root())
        } else {
            group::living_in_session(self.root())
        }
    }

    /// Whose descendants the family are.
    fn root(&self) -> Pid {
        if self.is_orphan { process::getpid() } else { self.helper.pid }
    }

    /// Sends a signal to those who are in other groups than the child's. One that ends them also wakes who is stopped.
    fn send_others(&mut self, left: &[Process], signal: Signal) {
        let others = || left.iter().filter(|process| process.group != self.child.as_raw_pid());
        group::send_each(others(), signal);
        if signal.is_ending() {
            group::send_each(others(), Signal::CONT);
            self.asked_others = true;
        }
    }

    /// Does what was chosen with those who outlive the child; tells whether they may go on without the lock.
    fn see_to(&mut self, left: Vec<Process>) -> bool {
        let now = SystemClock.now();
        let choice = self.limits.stragglers;
        if self.awaits_stragglers || now.since(*self.ended_at.get_or_insert(now)) < LINGER {
            return false;
        }
        (self.tell)(Notice::Stragglers { left: left.into_iter().map(Straggler::from).collect(), choice });
        match choice {
            // The next look asks those outside of the group.
            Stragglers::Stop => self.stop_group(),
            Stragglers::Wait => {
                self.awaits_stragglers = true;
                // Ctrl-C and Ctrl-Z are for us now: nobody may be left in the child's group.
                self.take_terminal_back();
            }
            Stragglers::Leave => {}
        }
        choice == Stragglers::Leave
    }

    /// Sends a signal to the child or its group, as chosen.
    pub(super) fn signal(&mut self, signal: Signal) {
        if self.has_number() {
            group::send(self.limits.kill_mode, self.child, signal);
        }
    }

    /// Whether the number of the child, or of its group, is still theirs: once the child was buried and nobody is left
    /// in its group, it may become another's.
    pub(super) fn has_number(&mut self) -> bool {
        if self.status.is_some() && !self.number_is_free {
            let is_member = |process: &Process| process.group == self.child.as_raw_pid();
            self.number_is_free = self.limits.kill_mode == KillMode::Process
                || !group::living_in_session(self.root()).iter().any(is_member);
        }
        !self.number_is_free
    }

    /// Passes a signal on to the child's group, and to those in other groups once the child has ended.
    fn pass_on(&mut self, signal: Signal) {
        self.signal(signal);
        if self.status.is_some() && self.limits.kill_mode == KillMode::Group {
            let left = self.left();
            self.send_others(&left, signal);
        }
    }

    async fn take(&mut self, signal: Signal) {
        if signal == Signal::TSTP {
            self.stop_asked().await;
        } else if signal == Signal::CONT {
            self.resume().await;
        } else {
            self.pass_on(signal);
            if signal.is_ending() {
                self.interrupted.get_or_insert(signal);
                self.count_interrupt(signal);
            }
        }
    }

    fn count_interrupt(&mut self, signal: Signal) {
        if signal != Signal::INT && signal != Signal::TERM {
            return;
        }
        let now = SystemClock.now();
        let is_second = self.last_interrupt.replace(now).is_some_and(|last| (ECHO..=TWICE).contains(&now.since(last)));
        let is_enough = is_second || (signal == Signal::TERM && self.limits.kill_on_term);
        if is_enough && self.stage == Stage::Running {
            let grace = self.limits.kill_after;
            self.cause.get_or_insert(Cause::Interrupt);
            (self.tell)(Notice::Stopping { cause: Cause::Interrupt, signal, grace: Some(grace) });
            self.stage = Stage::Stopping { kill_at: now.after(grace) };
        }
    }

    fn take_terminal_back(&self) {
        if let Some(terminal) = &self.terminal
            && terminal.take_from(self.child)
            && matches!(self.status, Some(Status::Killed(_)))
        {
            terminal.restore_modes();
        }
    }
}

/// Why the first lease that is lost by now was lost.
fn lost_one(leases: &[Lease]) -> Option<Loss> {
    let is_past = |lease: &Lease| lease.check().is_err_and(|error| error.kind() == ErrorKind::Lost);
    leases.iter().find_map(|lease| lease.loss().or_else(|| is_past(lease).then_some(Loss::RenewTimeout)))
}

async fn sleep_until(moment: Option<Moment>) {
    match moment {
        // A machine that wakes up past it must not sleep on.
        Some(moment) => SystemClock.alarm_at(moment).await,
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
