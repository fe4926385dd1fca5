//! The small process between us and the command: its parent, and the subreaper of all it starts.
//!
//! It ends the command and all it started when the process that holds the
//! lease is gone, and stops them in time when that process hangs or is stopped.
//! It is this program, started once more; it has one thread and talks to no
//! backend.

use std::{
    collections::VecDeque,
    ffi::OsString,
    io::{self, Read, Write},
    os::{
        fd::{OwnedFd, RawFd},
        unix::{net::UnixStream, process::CommandExt},
    },
    process::{Command, ExitCode},
    time::Duration,
};

use leasehold::{
    clock::{Clock, SystemClock},
    lease::Moment,
};
use nix::sys::{
    signal::{SigSet, SigmaskHow, Signal as Number},
    signalfd::{SfdFlags, SignalFd},
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    process::{self, Pid, WaitId, WaitIdOptions},
    time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec as TimerSpec, timerfd_create,
        timerfd_settime,
    },
};

use crate::{
    KillMode, Notice, Signal,
    group::{self, Straggler},
    limits::POLL_INTERVAL,
    messages::{Inbox, Order, SupervisorReport},
    raw::{self, ChildChange},
    terminal::Terminal,
};

/// How often to check for processes that we may not signal.
const DENIED_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// What the child reports that did not become the command in time; no exec fails so.
const TOO_LATE: Errno = Errno::TIME;
/// The exit code of a supervisor that cannot do its work (`EX_SOFTWARE`).
const SOFTWARE: u8 = 70;

/// Arguments of a supervisor.
#[derive(Debug, PartialEq, Eq)]
pub struct Supervisor {
    /// The number of its end of the socket.
    pub(crate) socket: RawFd,
    /// Whether the command gets the terminal.
    pub(crate) foreground: bool,
    /// Whom to signal.
    pub(crate) kill_mode: KillMode,
    /// What asks the command to end, TERM or the signal chosen instead; `None` where it is only killed.
    pub(crate) term_signal: Option<Signal>,
    /// When the lease ends: from then on the command is not started.
    pub(crate) start_by: Moment,
    /// The command and its arguments.
    pub(crate) command: Vec<OsString>,
}

impl Supervisor {
    pub(crate) fn to_args(&self) -> Vec<OsString> {
        let mut args: Vec<OsString> = vec![
            self.socket.to_string().into(),
            if self.foreground { "fg" } else { "bg" }.into(),
            if self.kill_mode == KillMode::Group { "group" } else { "process" }.into(),
            self.term_signal.map_or(0, Signal::number).to_string().into(),
            self.start_by.as_micros().to_string().into(),
        ];
        args.extend(self.command.iter().cloned());
        args
    }

    /// The supervisor that these arguments ask for: what follows [`Launch::supervisor`](crate::Launch::supervisor).
    pub fn from_args(args: &[OsString]) -> Option<Self> {
        let [socket, ground, mode, term_signal, start_by, command @ ..] = args else { return None };
        let number = |text: &OsString| text.to_str()?.parse::<i32>().ok();
        if command.is_empty() {
            return None;
        }
        Some(Self {
            socket: number(socket)?,
            foreground: ground == "fg",
            kill_mode: mode.to_str()?.parse().ok()?,
            term_signal: Signal::from_number(number(term_signal)?),
            start_by: Moment::from_micros(start_by.to_str()?.parse().ok()?),
            command: command.to_vec(),
        })
    }

    /// The program it runs, as people call it.
    pub fn name(&self) -> String {
        self.command.first().map(|program| program.to_string_lossy().into_owned()).unwrap_or_default()
    }

    /// Starts the command and watches over it, until it is told that the work is over or nobody is left.
    ///
    /// To be called first thing in `main`: no other thread may exist, and nothing may have been opened.
    pub fn run(self, notify: &mut dyn FnMut(Notice)) -> ExitCode {
        match ProcessTree::start(&self, notify) {
            Ok(Some(tree)) => {
                tree.watch();
                ExitCode::SUCCESS
            }
            Ok(None) => ExitCode::SUCCESS,
            Err(_nobody_to_tell) => ExitCode::from(SOFTWARE),
        }
    }
}

/// Starts the command in a group of its own, bound to our life.
fn spawn(supervisor: &Supervisor, mask: SigSet) -> io::Result<Pid> {
    let mut command = Command::new(&supervisor.command[0]);
    command.args(&supervisor.command[1..]).process_group(0);
    let terminal = supervisor.foreground.then(Terminal::controlling).flatten();
    let (own, start_by) = (process::getpid(), supervisor.start_by);
    raw::before_exec(&mut command, move || {
        // The order matters: first ask for the signal, then look whether the parent is still there.
        process::set_parent_process_death_signal(Some(process::Signal::KILL))?;
        if process::getppid() != Some(own) {
            return Err(Errno::SRCH.into());
        }
        if let Some(terminal) = &terminal {
            terminal.give_to(process::getpgrp());
        }
        mask.thread_set_mask()?;
        // We may have been stopped for long on the way.
        if SystemClock.now() >= start_by { Err(TOO_LATE.into()) } else { Ok(()) }
    });
    let child = command.spawn()?;
    i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// The command and all it started, seen from the supervisor.
struct ProcessTree<'a> {
    supervisor: &'a Supervisor,
    notify: &'a mut dyn FnMut(Notice),
    socket: UnixStream,
    inbox: Inbox,
    outbox: Outbox,
    sigchld: SignalFd,
    timer: OwnedFd,
    child: Pid,
    has_ended: bool,
    none_left: bool,
    /// Whether the one who started us is gone.
    is_orphan: bool,
    term_at: Moment,
    kill_at: Moment,
    poll_interval: Duration,
    denied: Vec<Straggler>,
}

/// What to do after the orders were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AfterOrders {
    Watch,
    Leave,
}

impl<'a> ProcessTree<'a> {
    /// Starts the command; `None` if it cannot be run or comes too late, which is reported.
    fn start(supervisor: &'a Supervisor, notify: &'a mut dyn FnMut(Notice)) -> io::Result<Option<Self>> {
        let socket = UnixStream::from(raw::inherited(supervisor.socket)?);
        socket.set_nonblocking(true)?;
        // Nothing but KILL and STOP reaches us: a key or a service manager means the command.
        let mask = SigSet::all().thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
        let sigchld =
            SignalFd::with_flags(&SigSet::from(Number::SIGCHLD), SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        let timer = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        process::set_child_subreaper(Some(process::getpid()))?;
        if SystemClock.now() >= supervisor.start_by {
            (&socket).write_all(&SupervisorReport::Late.encode())?;
            return Ok(None);
        }
        let child = match spawn(supervisor, mask) {
            Ok(child) => child,
            Err(error) => {
                let report = match error.raw_os_error() {
                    Some(number) if number == TOO_LATE.raw_os_error() => SupervisorReport::Late,
                    number => SupervisorReport::Failed(number.unwrap_or_default()),
                };
                (&socket).write_all(&report.encode())?;
                return Ok(None);
            }
        };
        let mut tree = Self {
            supervisor,
            notify,
            socket,
            inbox: Inbox::default(),
            outbox: Outbox::default(),
            sigchld,
            timer,
            child,
            has_ended: false,
            none_left: false,
            is_orphan: false,
            term_at: Moment::NEVER,
            kill_at: Moment::NEVER,
            poll_interval: POLL_INTERVAL[0],
            denied: Vec::new(),
        };
        tree.report(SupervisorReport::Started(child.as_raw_pid()));
        Ok(Some(tree))
    }

    fn watch(mut self) {
        loop {
            self.outbox.flush(&self.socket);
            self.reap();
            if self.take_orders() == AfterOrders::Leave {
                return;
            }
            let is_over = self.has_ended && (self.none_left || self.supervisor.kill_mode == KillMode::Process);
            if is_over && self.is_orphan {
                return;
            }
            let now = SystemClock.now();
            let must_die = !is_over && (self.is_orphan || now >= self.kill_at);
            if must_die {
                self.kill();
            } else if !is_over && now >= self.term_at {
                self.send_term();
            }
            if self.wait(must_die, is_over).is_err() {
                // Without a way to wait we could only spin; the command dies with us.
                return;
            }
        }
    }

    /// Waits for orders, for the end of somebody, and for the next deadline.
    fn wait(&mut self, must_die: bool, is_over: bool) -> rustix::io::Result<()> {
        let next = self.term_at.min(self.kill_at);
        let wake = if must_die || is_over || next == Moment::NEVER { 0 } else { next.as_micros().max(1) };
        let once = Itimerspec {
            it_interval: TimerSpec { tv_sec: 0, tv_nsec: 0 },
            it_value: TimerSpec {
                tv_sec: i64::try_from(wake / 1_000_000).unwrap_or(i64::MAX),
                tv_nsec: i64::try_from(wake % 1_000_000).unwrap_or(0) * 1000,
            },
        };
        timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &once)?;
        let pause = must_die.then(|| {
            let pause = if self.denied.is_empty() { self.poll_interval } else { DENIED_POLL_INTERVAL };
            self.poll_interval = (self.poll_interval * 2).min(POLL_INTERVAL[1]);
            Timespec { tv_sec: i64::try_from(pause.as_secs()).unwrap_or(1), tv_nsec: pause.subsec_nanos().into() }
        });
        let mut sources = vec![PollFd::new(&self.sigchld, PollFlags::IN), PollFd::new(&self.timer, PollFlags::IN)];
        if !self.is_orphan {
            let room = if self.outbox.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
            sources.push(PollFd::new(&self.socket, PollFlags::IN | room));
        }
        match poll(&mut sources, pause.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Reports what became of the command, and reaps the dead.
    fn reap(&mut self) {
        while let Ok(Some(_)) = self.sigchld.read_signal() {}
        loop {
            match raw::changed_child() {
                Ok(Some((pid, change))) => {
                    let is_child = pid == self.child && !self.has_ended;
                    let change = match change {
                        ChildChange::Stopped(signal) => {
                            if is_child || self.has_ended {
                                self.report(SupervisorReport::Stopped(signal));
                            }
                            WaitIdOptions::STOPPED
                        }
                        ChildChange::Ended(status) => {
                            if is_child {
                                self.has_ended = true;
                                self.report(SupervisorReport::Ended(status));
                            }
                            WaitIdOptions::EXITED
                        }
                    };
                    // A reaped pid can be reused. Keep it until `run` can read the report of the end, or `run` may
                    // signal a stranger.
                    if pid == self.child && !self.outbox.is_empty() {
                        return;
                    }
                    // Consume only the change that was reported: a stopped child may have ended since.
                    let _seen = process::waitid(WaitId::Pid(pid), change | WaitIdOptions::NOHANG);
                }
                Ok(None) => return,
                // Whoever is orphaned becomes our child: without a child there is nobody.
                Err(_no_child) => {
                    if !self.none_left {
                        self.none_left = true;
                        self.report(SupervisorReport::NoneLeft);
                    }
                    return;
                }
            }
        }
    }

    fn take_orders(&mut self) -> AfterOrders {
        let mut buffer = [0; 512];
        while !self.is_orphan {
            match (&self.socket).read(&mut buffer) {
                Ok(0) => self.is_orphan = true,
                Ok(read) => self.inbox.add(&buffer[..read]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_broken) => self.is_orphan = true,
            }
        }
        while let Some(message) = self.inbox.next() {
            match Order::decode(message) {
                Some(Order::Deadlines { term_at, kill_at }) => (self.term_at, self.kill_at) = (term_at, kill_at),
                Some(Order::Dismiss) => return AfterOrders::Leave,
                None => {}
            }
        }
        if self.is_orphan && self.kill_at != Moment::from_micros(0) {
            self.kill_at = Moment::from_micros(0);
            self.kill();
            (self.notify)(Notice::HolderGone);
        }
        AfterOrders::Watch
    }

    /// Asks the command to end, since no orders came in time.
    fn send_term(&mut self) {
        self.term_at = Moment::NEVER;
        match self.supervisor.term_signal {
            // The pid of a child that was reaped, or of its group, may be another's by now.
            Some(signal) if self.has_ended => {
                let left = group::living_in_session(process::getpid());
                group::send_each(&left, signal);
                group::send_each(&left, Signal::CONT);
            }
            Some(signal) => {
                group::send(self.supervisor.kill_mode, self.child, signal);
                group::send(self.supervisor.kill_mode, self.child, Signal::CONT);
            }
            None => {}
        }
        self.report(SupervisorReport::TermSent);
        (self.notify)(Notice::HolderHangs);
    }

    /// Kills the remaining processes; new processes may have been forked.
    fn kill(&mut self) {
        let denied = match self.supervisor.kill_mode {
            KillMode::Group => group::kill_each(group::living(process::getpid())),
            KillMode::Process if self.has_ended => Vec::new(),
            KillMode::Process => group::kill_child(self.child).into_iter().collect(),
        };
        if denied != self.denied {
            self.denied.clone_from(&denied);
            if !denied.is_empty() {
                (self.notify)(Notice::Denied { left: denied });
            }
        }
    }

    /// Tells the one who started us; one that does not listen is not waited for.
    fn report(&mut self, report: SupervisorReport) {
        self.outbox.send(&self.socket, report);
    }
}

/// Reports that found no room, since the one who started us is stopped. Without them it would not learn of the end.
#[derive(Debug, Default)]
struct Outbox(VecDeque<SupervisorReport>);

impl Outbox {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Sends the report behind the others. A stop that finds no room is dropped.
    fn send(&mut self, socket: &UnixStream, report: SupervisorReport) {
        self.0.push_back(report);
        self.flush(socket);
        self.0.retain(|report| !matches!(report, SupervisorReport::Stopped(_)));
    }

    /// Sends as many as there is room for.
    fn flush(&mut self, mut socket: &UnixStream) {
        while let Some(report) = self.0.front() {
            match socket.write_all(&report.encode()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // Nobody is there to hear it.
                Ok(()) | Err(_) => {
                    self.0.pop_front();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::WaitOptions;

    use super::*;
    use crate::Status;

    #[test]
    fn a_command_whose_lease_has_ended_on_the_way_to_its_exec_does_not_run() {
        let mut supervisor = Supervisor {
            socket: 7,
            foreground: false,
            kill_mode: KillMode::Group,
            term_signal: None,
            start_by: SystemClock.now(),
            command: vec![OsString::from("true")],
        };
        let mask = SigSet::thread_get_mask().unwrap();
        let late = spawn(&supervisor, mask).unwrap_err();
        assert_eq!(late.raw_os_error(), Some(TOO_LATE.raw_os_error()));
        supervisor.start_by = Moment::NEVER;
        let child = spawn(&supervisor, mask).unwrap();
        // The thread that started it is its parent, whose end would kill it.
        process::waitpid(Some(child), WaitOptions::empty()).unwrap();
    }

    #[test]
    fn the_end_of_the_command_is_told_to_one_who_did_not_listen_for_long() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        for socket in [&ours, &theirs] {
            socket.set_nonblocking(true).unwrap();
        }
        let mut outbox = Outbox::default();
        for _ in 0..10_000 {
            outbox.send(&ours, SupervisorReport::Stopped(20));
        }
        assert!(outbox.is_empty(), "stops do not pile up");
        let end = [SupervisorReport::Ended(Status::Exited(3)), SupervisorReport::NoneLeft];
        for report in end {
            outbox.send(&ours, report);
        }
        assert!(!outbox.is_empty(), "there was room");
        let (mut inbox, mut buffer, mut heard) = (Inbox::default(), [0; 512], Vec::new());
        while let Ok(read) = (&theirs).read(&mut buffer) {
            inbox.add(&buffer[..read]);
            outbox.flush(&ours);
        }
        while let Some(message) = inbox.next() {
            heard.push(SupervisorReport::decode(message).unwrap());
        }
        assert!(heard.len() > 2 && heard.ends_with(&end), "{:?}", heard.last());
    }

    #[test]
    fn a_supervisor_finds_its_orders_in_its_arguments() {
        for (kill_mode, term_signal) in [(KillMode::Group, Some(Signal::TERM)), (KillMode::Process, None)] {
            let command = ["sh", "-c", "exit 3"].map(OsString::from).to_vec();
            let start_by = Moment::from_micros(99);
            let supervisor = Supervisor { socket: 7, foreground: true, kill_mode, term_signal, start_by, command };
            assert_eq!(Supervisor::from_args(&supervisor.to_args()).as_ref(), Some(&supervisor));
            assert_eq!(Supervisor::from_args(&supervisor.to_args()[..5]), None, "no command");
        }
    }
}
