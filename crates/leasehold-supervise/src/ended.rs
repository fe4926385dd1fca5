//! How a child ended, and what the caller is notified of on the way.

use std::{error::Error, fmt, io, time::Duration};

use leasehold::Loss;
use rustix::process::WaitStatus;

use crate::{Stragglers, group::Straggler, signal::Signal};

/// Why a child was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A lease was lost, or could not be renewed in time.
    Lost(Loss),
    /// It was held for `max_hold`.
    MaxHold,
    /// Interrupted twice, or once where that is enough.
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

impl Status {
    /// What the kernel tells of a process that ended; `None` if it was only stopped.
    pub(crate) fn of(status: WaitStatus) -> Option<Self> {
        let code = status.exit_status().map(|code| Self::Exited(u8::try_from(code & 0xff).unwrap_or(u8::MAX)));
        code.or_else(|| status.terminating_signal().map(Self::Killed))
    }
}

/// Why a command was not started.
#[derive(Debug)]
pub enum NotStarted {
    /// A lease was lost before the start.
    Lost(Loss),
    /// The command, or its supervisor, cannot be run.
    Failed(io::Error),
}

impl fmt::Display for NotStarted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost(loss) => write!(f, "not started: the lease was lost ({})", loss.as_str()),
            Self::Failed(error) => write!(f, "not started: {error}"),
        }
    }
}

impl Error for NotStarted {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Lost(_) => None,
            Self::Failed(error) => Some(error),
        }
    }
}

impl From<io::Error> for NotStarted {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

/// How a child ended, and why.
#[derive(Debug)]
#[non_exhaustive]
pub struct ChildEnd {
    /// The child's process id.
    pub pid: i32,
    /// How the child ended.
    pub status: Status,
    /// Why it was stopped, if it was.
    pub cause: Option<Cause>,
    /// The first signal that asked us to end.
    pub interrupted: Option<Signal>,
}

/// Something the one at the terminal may want to know.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notice {
    /// The child runs.
    Started {
        /// Its process id.
        pid: i32,
    },
    /// Renewals fail.
    InDoubt {
        /// Index into the leases.
        lease: usize,
        /// How long it may still be believed in.
        left: Duration,
    },
    /// The child is being stopped.
    Stopping {
        /// Why it is stopped.
        cause: Cause,
        /// By which signal.
        signal: Signal,
        /// When KILL follows, if it does.
        grace: Option<Duration>,
    },
    /// A lease was found to be lost when the child had ended: nobody could look before, as after a long stop.
    FoundLost {
        /// Why it was lost.
        loss: Loss,
    },
    /// A lease is lost and the child goes on, as chosen.
    ContinuesWithoutLease {
        /// Why it was lost.
        loss: Loss,
    },
    /// Processes that the child started outlive it.
    Stragglers {
        /// The surviving processes.
        left: Vec<Straggler>,
        /// What is done with them.
        choice: Stragglers,
    },
    /// Killed, and yet there: the kernel is busy with it.
    Overdue,
    /// The supervisor was killed: the child and all it started are being killed.
    SupervisorGone,
    /// Told by the supervisor: the process that holds the lease is gone, and the child and all it started are being
    /// killed.
    HolderGone,
    /// Told by the supervisor: the process that holds the lease gives no orders, and the child is being stopped before
    /// the lease ends.
    HolderHangs,
    /// Processes that we may not signal run on.
    Denied {
        /// The surviving processes.
        left: Vec<Straggler>,
    },
}
