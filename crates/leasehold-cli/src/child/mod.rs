//! A child process under a lease: started, watched, stopped in time.

mod ended;
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
mod timeline;

pub use self::{
    ended::{Cause, Ended, Notice, Status},
    group::Straggler,
    limits::Limits,
    policy::{KillMode, OnLost, Stragglers},
    signals::Signals,
    spawn::Launch,
    supervise::supervise,
};
