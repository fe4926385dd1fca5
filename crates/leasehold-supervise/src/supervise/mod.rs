//! Watches over a child and the leases it runs under, until the child is gone.
//!
//! Releasing the leases is the caller's part, once this has reported that the
//! child and what it started are dead.

mod suspend;
mod timeline;

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

use self::{
    suspend::Suspended,
    timeline::{Stage, first_orders},
};
use crate::{
    KillMode, Limits, OnLost, Stragglers,
    ended::{Cause, ChildEnd, NotStarted, Notice, Status},
    group::{self, ProcessRow, ProcessStatus, Straggler},
    limits::POLL_INTERVAL,
    messages::{Order, SupervisorReport},
    signal::Signal,
    signals::{Caught, Signals},
    supervisor_process::{Launch, SupervisorProcess, wants_terminal},
    terminal::Terminal,
};

/// A second interrupt within this time starts the grace.
const DOUBLE_INTERRUPT: Duration = Duration::from_secs(2);
/// One TERM may come twice in a moment: a service manager sends it to every process, and an outer `run` passes it on.
const DUPLICATE_WINDOW: Duration = Duration::from_millis(50);
/// Whoever ends so soon after the child is no straggler.
const LINGER: Duration = Duration::from_millis(100);

/// Runs the command under the leases, and returns when it and what it started are gone. Daemons, which have left
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
    notify: &mut dyn FnMut(Notice),
) -> Result<ChildEnd, NotStarted> {
    // If the supervisor is killed, whoever it watched over becomes our child.
    process::set_child_subreaper(Some(process::getpid())).map_err(io::Error::from)?;
    let terminal = Terminal::controlling();
    let is_foreground = wants_terminal(terminal.as_ref());
    let orders = first_orders(leases, &limits);
    if let Some(loss) = lost_one(leases) {
        return Err(NotStarted::Lost(loss));
    }
    let earlier = group::own_descendants();
    let mut supervisor = SupervisorProcess::start(launch, &limits, orders, is_foreground, inherit)?;
    supervisor.order(orders);
    let child = match supervisor.started().await {
        Ok(child) => child,
        Err(error) => {
            // The command may have run already, if it was the supervisor that failed. Daemons of an earlier command
            // are our children, too, and may go on.
            group::end_children(|pid| earlier.contains(&pid));
            if let Some(terminal) = terminal.filter(|_| is_foreground) {
                terminal.give_to(process::getpgrp());
            }
            return Err(error);
        }
    };
    notify(Notice::Started { pid: child.as_raw_pid() });
    let watch = Watch {
        started: SystemClock.now(),
        stage: Stage::Running,
        status: None,
        cause: None,
        interrupted: None,
        last_interrupt: None,
        in_doubt: false,
        poll_interval: POLL_INTERVAL[0],
        ignore_next_stop: false,
        suspended: None,
        signalled_other_groups: false,
        pid_released: false,
        ended_at: None,
        awaits_stragglers: false,
        nobody_left: false,
        is_orphan: false,
        denied: Vec::new(),
        orders,
        supervisor,
        child,
        leases,
        limits,
        terminal,
        notify,
    };
    Ok(watch.run(signals).await)
}

/// What a watch acts on, besides reports and the clock.
enum WatchEvent {
    Lost(Loss),
    Signal(Signal),
}

/// One child being watched.
#[allow(clippy::struct_excessive_bools, reason = "each remembers one thing that has happened")]
struct Watch<'a> {
    supervisor: SupervisorProcess,
    child: Pid,
    /// The last orders that the supervisor was given.
    orders: Order,
    /// Whether the supervisor is gone, which left the process tree to us.
    is_orphan: bool,
    denied: Vec<Straggler>,
    leases: &'a [Lease],
    limits: Limits,
    terminal: Option<Terminal>,
    ignore_next_stop: bool,
    suspended: Option<Suspended>,
    notify: &'a mut dyn FnMut(Notice),
    started: Moment,
    stage: Stage,
    status: Option<Status>,
    cause: Option<Cause>,
    in_doubt: bool,
    poll_interval: Duration,
    awaits_stragglers: bool,
    ended_at: Option<Moment>,
    interrupted: Option<Signal>,
    last_interrupt: Option<Moment>,
    signalled_other_groups: bool,
    nobody_left: bool,
    pid_released: bool,
}

impl Watch<'_> {
    async fn run(mut self, signals: &mut Signals) -> ChildEnd {
        loop {
            self.reap();
            // A supervisor that was not dismissed would kill whoever may go on. One that was killed while we looked has
            // left its children to us: the next look finds them.
            if let Some(status) = self.status
                && self.is_over()
                && (self.is_orphan || self.supervisor.order(Order::Dismiss))
            {
                self.take_terminal_back();
                let pid = self.child.as_raw_pid();
                let cause = self.cause.or_else(|| self.find_lost());
                return ChildEnd { pid, status, cause, interrupted: self.interrupted };
            }
            self.keep_time();
            self.give_orders();
            let wake = self.next_wake();
            let leases = self.leases;
            // `lost()` keeps completing after a loss, so stop polling it.
            let goes_on = self.limits.on_lost == OnLost::Continue && self.stage != Stage::Running;
            let may_be_lost = !goes_on && !matches!(self.cause, Some(Cause::Lost(_)));
            let event = tokio::select! {
                biased;
                loss = first_lost(leases), if may_be_lost => Some(WatchEvent::Lost(loss)),
                () = self.supervisor.wait_for_report() => None,
                caught = signals.next() => match caught {
                    Caught::Signal(signal) => Some(WatchEvent::Signal(signal)),
                    Caught::Child => None,
                },
                () = sleep_until(wake) => None,
            };
            // We may have been stopped for long: a child that was reaped meanwhile must not be signalled.
            self.reap();
            match event {
                Some(WatchEvent::Lost(loss)) => self.lose(loss),
                Some(WatchEvent::Signal(signal)) => self.on_signal(signal).await,
                None => {}
            }
        }
    }

    /// Reads what the supervisor reports, and reaps the dead.
    fn reap(&mut self) {
        while let Some(report) = self.supervisor.next_report() {
            match report {
                SupervisorReport::Stopped(number) => self.on_child_stop(number),
                SupervisorReport::Ended(status) => self.status = Some(status),
                SupervisorReport::NoneLeft => self.nobody_left = true,
                SupervisorReport::TermSent => self.on_term_sent(),
                SupervisorReport::Started(_) | SupervisorReport::Failed(_) | SupervisorReport::Late => {}
            }
        }
        if self.supervisor.is_gone() && !self.is_orphan {
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
    fn on_child_stop(&mut self, number: i32) {
        if self.suspended.is_none()
            && self.state() == ProcessStatus::Stopped
            && let Some(signal) = Signal::from_number(number)
        {
            self.child_stopped(signal);
        }
    }

    /// How a lease was lost while we could not look: after a long stop we may hear of the end of the command, whom the
    /// supervisor killed in time, before the loss itself is known.
    fn find_lost(&mut self) -> Option<Cause> {
        let loss = lost_one(self.leases)?;
        (self.notify)(Notice::FoundLost { loss });
        Some(Cause::Lost(loss))
    }

    /// Whether nobody is left who could still do the work.
    fn is_over(&mut self) -> bool {
        if self.limits.kill_mode == KillMode::Process || self.nobody_left {
            return true;
        }
        let left = self.left();
        if left.is_empty() {
            // A daemon may go on, but under a lost lease nobody may: the supervisor reports when none is left.
            return !self.is_lost() && !self.is_orphan;
        }
        if self.stage == Stage::Running {
            return self.handle_stragglers(left);
        }
        if !self.signalled_other_groups {
            self.send_others(&left, Signal::TERM);
        }
        false
    }

    /// Whether nobody may go on, since the lease is lost.
    fn is_lost(&self) -> bool {
        matches!(self.cause, Some(Cause::Lost(_))) && !self.goes_on()
    }

    /// The running processes of the tree that may not go on without the lock: all of them if it is lost or their
    /// supervisor was killed, else those that have not left our session.
    fn left(&self) -> Vec<ProcessRow> {
        if self.is_lost() || self.is_orphan {
            group::living(self.root())
        } else {
            group::living_in_session(self.root())
        }
    }

    /// The process whose descendants make up the tree.
    fn root(&self) -> Pid {
        if self.is_orphan { process::getpid() } else { self.supervisor.pid }
    }

    /// Sends a signal to those who are in other groups than the child's. One that ends them also wakes who is stopped.
    fn send_others(&mut self, left: &[ProcessRow], signal: Signal) {
        let others = || left.iter().filter(|process| process.group != self.child.as_raw_pid());
        group::send_each(others(), signal);
        if signal.is_ending() {
            group::send_each(others(), Signal::CONT);
            self.signalled_other_groups = true;
        }
    }

    /// Does what was chosen with those who outlive the child; returns whether they may go on without the lock.
    fn handle_stragglers(&mut self, left: Vec<ProcessRow>) -> bool {
        let now = SystemClock.now();
        let choice = self.limits.stragglers;
        if self.awaits_stragglers || now.since(*self.ended_at.get_or_insert(now)) < LINGER {
            return false;
        }
        (self.notify)(Notice::Stragglers { left: left.into_iter().map(Straggler::from).collect(), choice });
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
    fn signal(&mut self, signal: Signal) {
        if self.owns_pid() {
            group::send(self.limits.kill_mode, self.child, signal);
        }
    }

    /// Whether the pid of the child, or of its group, is still theirs: once the child was reaped and nobody is left
    /// in its group, it may become another's.
    fn owns_pid(&mut self) -> bool {
        if self.status.is_some() && !self.pid_released {
            let is_member = |process: &ProcessRow| process.group == self.child.as_raw_pid();
            self.pid_released = self.limits.kill_mode == KillMode::Process
                || !group::living_in_session(self.root()).iter().any(is_member);
        }
        !self.pid_released
    }

    /// Passes a signal on to the child's group, and to those in other groups once the child has ended.
    fn pass_on(&mut self, signal: Signal) {
        self.signal(signal);
        if self.status.is_some() && self.limits.kill_mode == KillMode::Group {
            let left = self.left();
            self.send_others(&left, signal);
        }
    }

    async fn on_signal(&mut self, signal: Signal) {
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
        let is_second = self
            .last_interrupt
            .replace(now)
            .is_some_and(|last| (DUPLICATE_WINDOW..=DOUBLE_INTERRUPT).contains(&now.since(last)));
        let is_enough = is_second || (signal == Signal::TERM && self.limits.kill_on_term);
        if is_enough && self.stage == Stage::Running {
            let grace = self.limits.kill_after;
            self.cause.get_or_insert(Cause::Interrupt);
            (self.notify)(Notice::Stopping { cause: Cause::Interrupt, signal, grace: Some(grace) });
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
