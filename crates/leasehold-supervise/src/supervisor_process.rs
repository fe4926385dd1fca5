//! The supervisor process as its parent sees it: started, told of deadlines, listened to.

use std::{
    ffi::OsString,
    io::{self, Write},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::{net::UnixStream as StdStream, process::CommandExt},
    },
    process::Command,
};

use leasehold::{Loss, lease::Moment};
use rustix::{
    io::{FdFlags, fcntl_setfd},
    process::Pid,
};
use tokio::net::UnixStream;

use crate::{
    Limits, NotStarted, OnLost, Signal, Supervisor,
    messages::{Inbox, Order, SupervisorReport},
    raw,
    terminal::Terminal,
};

/// A command to start.
#[derive(Debug, Default)]
pub struct Launch {
    /// The program and its arguments; not empty.
    pub command: Vec<OsString>,
    /// Variables that override what is inherited.
    pub env: Vec<(OsString, OsString)>,
    /// Variables that the child must not inherit.
    pub without: Vec<&'static str>,
    /// The program that becomes the [`Supervisor`], and its first arguments; not empty. Those that
    /// [`Supervisor::from_args`] takes are added.
    pub supervisor: Vec<OsString>,
}

impl Launch {
    /// The program as people call it.
    pub fn name(&self) -> String {
        self.command.first().map(|program| program.to_string_lossy().into_owned()).unwrap_or_default()
    }
}

/// The supervisor process.
#[derive(Debug)]
pub(crate) struct SupervisorProcess {
    /// Its process id.
    pub(crate) pid: Pid,
    reports: UnixStream,
    /// The same socket: the runtime's half refuses to write until the runtime has looked at it.
    orders: StdStream,
    inbox: Inbox,
    is_gone: bool,
}

impl SupervisorProcess {
    /// Starts the supervisor, which starts the command. What is in `inherit` stays open in both and in all the
    /// command starts, and is closed here.
    pub(crate) fn start(
        launch: &Launch,
        limits: &Limits,
        orders: Order,
        foreground: bool,
        inherit: Option<OwnedFd>,
    ) -> io::Result<Self> {
        // All that can fail comes before the start: after it, the command may run.
        let (ours, theirs) = StdStream::pair()?;
        ours.set_nonblocking(true)?;
        let orders_to_it = ours.try_clone()?;
        let reports = UnixStream::from_std(ours)?;
        let supervisor = Supervisor {
            socket: theirs.as_raw_fd(),
            foreground,
            kill_mode: limits.kill_mode,
            term_signal: match limits.on_lost {
                OnLost::Terminate => Some(Signal::TERM),
                OnLost::Signal(signal) => Some(signal),
                OnLost::Kill | OnLost::Continue => None,
            },
            start_by: match orders {
                Order::Deadlines { kill_at, .. } => kill_at,
                Order::Dismiss => Moment::NEVER,
            },
            command: launch.command.clone(),
        };
        let (program, first) = launch.supervisor.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let mut command = Command::new(program);
        // A group of its own: what is meant for ours, or for the command's, does not reach it.
        command.arg0("leasehold").args(first).args(supervisor.to_args()).process_group(0);
        for name in &launch.without {
            command.env_remove(name);
        }
        command.envs(launch.env.iter().map(|(name, value)| (name, value)));
        // Another child that this process starts just now must not get it: it would hide from us that the supervisor is
        // gone.
        raw::before_exec(&mut command, move || Ok(fcntl_setfd(&theirs, FdFlags::empty())?));
        let child = command.spawn()?;
        drop((command, inherit));
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self { pid, reports, orders: orders_to_it, inbox: Inbox::default(), is_gone: false })
    }

    /// Completes when the command runs, with its process id.
    ///
    /// # Errors
    /// When it cannot be run, or the lease has ended.
    pub(crate) async fn started(&mut self) -> Result<Pid, NotStarted> {
        loop {
            self.wait_for_report().await;
            match self.next_report() {
                Some(SupervisorReport::Started(pid)) => {
                    return Pid::from_raw(pid).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData).into());
                }
                Some(SupervisorReport::Failed(error)) => return Err(io::Error::from_raw_os_error(error).into()),
                Some(SupervisorReport::Late) => return Err(NotStarted::Lost(Loss::RenewTimeout)),
                _ if self.is_gone => return Err(io::Error::other("its supervisor was killed").into()),
                _ => {}
            }
        }
    }

    /// Gives an order. Returns whether the supervisor can read it: it is there, and there was room.
    pub(crate) fn order(&self, order: Order) -> bool {
        give(&self.orders, order)
    }

    /// Completes when a report may have come; never once the supervisor is gone.
    ///
    /// # Cancel safety
    /// A dropped call loses nothing.
    pub(crate) async fn wait_for_report(&self) {
        if self.is_gone {
            return std::future::pending().await;
        }
        let _broken_is_found_by_reading = self.reports.readable().await;
    }

    /// The next report that has come.
    pub(crate) fn next_report(&mut self) -> Option<SupervisorReport> {
        loop {
            if let Some(message) = self.inbox.next() {
                return SupervisorReport::decode(message);
            }
            let mut buffer = [0; 512];
            match self.reports.try_read(&mut buffer) {
                Ok(0) => self.is_gone = true,
                Ok(read) => {
                    self.inbox.add(&buffer[..read]);
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_broken) => self.is_gone = true,
            }
            return None;
        }
    }

    /// Whether the supervisor has ended: nobody is there to hear an order.
    pub(crate) fn is_gone(&self) -> bool {
        self.is_gone
    }
}

/// Writes an order, whole or not at all.
fn give(mut orders: &StdStream, order: Order) -> bool {
    orders.write_all(&order.encode()).is_ok()
}

/// Whether the child should have the terminal from the start: somebody types to it and reads from it.
///
/// In a pipeline the terminal stays with the pipeline until the child asks for it, or a pager at its end would be stopped.
pub(crate) fn wants_terminal(terminal: Option<&Terminal>) -> bool {
    use std::io::IsTerminal;
    io::stdin().is_terminal() && io::stdout().is_terminal() && terminal.is_some_and(Terminal::is_ours)
}

#[cfg(test)]
mod tests {
    use std::{io::Read, thread, time::Duration};

    use super::*;

    #[test]
    fn an_order_that_finds_no_room_is_not_called_given() {
        let (ours, mut theirs) = StdStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let mut given = 0;
        while give(&ours, Order::Dismiss) {
            given += 1;
            assert!(given < 100_000, "it never fills");
        }
        let mut orders = vec![0; given * crate::messages::LENGTH];
        theirs.read_exact(&mut orders).unwrap();
        let last = Order::Deadlines { term_at: Moment::NEVER, kill_at: Moment::NEVER };
        assert!(given > 0 && give(&ours, last));
        let mut order = [0; crate::messages::LENGTH];
        theirs.read_exact(&mut order).unwrap();
        assert_eq!(Order::decode(order), Some(last), "no part of what found no room is in between");
        drop(theirs);
        // A child that another test is starting just now has a copy of `theirs` until it runs its program.
        let finds_nobody = |_| {
            thread::sleep(Duration::from_millis(50));
            !give(&ours, Order::Dismiss)
        };
        assert!((0..100).any(finds_nobody), "nobody is left to give it to");
    }
}
