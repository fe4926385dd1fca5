//! A child process under a lease: started, watched, stopped in time.

pub(crate) mod group;
pub(crate) mod limits;
pub(crate) mod shim;
pub mod signal;
pub(crate) mod signals;
pub(crate) mod spawn;
pub(crate) mod supervise;
pub(crate) mod terminal;

pub use self::{
    limits::Limits,
    signals::Signals,
    spawn::Launch,
    supervise::{Cause, Ended, supervise},
};
pub use crate::args::{KillMode, OnLost};
