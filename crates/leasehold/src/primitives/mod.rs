//! What users lock with: locks, several locks at once, elections.

mod all;
mod candidate;
mod election;
mod lock;
mod lock_options;

pub(crate) use self::lock_options::{conclude, lock_options, outcome_of, sharing_option};
pub use self::{
    all::{All, Guards},
    candidate::Candidate,
    election::{Election, Leader, Observer},
    lock::Lock,
    lock_options::DetachedLease,
};
