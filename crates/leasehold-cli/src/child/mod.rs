//! A child process under a lease: started, watched, stopped in time.

pub(crate) mod group;
pub(crate) mod limits;
mod policy;
pub(crate) mod shim;
pub mod signal;
pub(crate) mod signals;
pub(crate) mod spawn;
pub(crate) mod supervise;
mod suspend;
pub(crate) mod terminal;

pub use self::{
    limits::Limits,
    policy::{KillMode, OnLost},
    signals::Signals,
    spawn::Launch,
    supervise::{Cause, Ended, Notice, Status, supervise},
};
