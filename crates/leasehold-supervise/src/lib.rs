//! Runs a command under leases: watched, and stopped with everything it started before a lease ends.
//!
//! [`supervise`] starts a command in a process group of its own, gives it the
//! terminal if it should have it, passes signals on, and stops it when a lease
//! is lost or cannot be renewed in time. It returns when the command and its
//! group are gone; the caller then releases the leases.
//!
//! The caller's program must hand its `main` over to [`shim`] when it was
//! started as such: the command is started through it.
//!
//! Linux only: it looks for processes in `/proc` and relies on subreapers.

mod ended;
mod group;
mod limits;
mod policy;
pub mod shim;
mod signal;
mod signals;
mod spawn;
mod supervise;
mod suspend;
mod terminal;
mod timeline;

pub use self::{
    ended::{Cause, Ended, Notice, Status},
    group::Straggler,
    limits::{Limits, NoRoom, kill_after},
    policy::{KillMode, OnLost, Stragglers},
    signal::{Signal, signal_name},
    signals::{Caught, Signals},
    spawn::Launch,
    supervise::supervise,
};
