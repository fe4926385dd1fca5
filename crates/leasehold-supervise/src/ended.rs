//! How a child ended, and what there was to tell on the way.

use std::{io, time::Duration};

use leasehold::Loss;

use crate::{Stragglers, group::Straggler, signal::Signal};

/// Why a child was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A lease was lost, or could not be renewed in time.
    Lost(Loss),
    /// It was held as long as it may be.
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
#[derive(Clone, Debug, PartialEq, Eq)]
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
    /// Processes of the child's group outlive it.
    Stragglers {
        /// Which.
        left: Vec<Straggler>,
        /// What is done with them.
        choice: Stragglers,
    },
    /// Killed, and yet there: the kernel is busy with it.
    Overdue,
}
