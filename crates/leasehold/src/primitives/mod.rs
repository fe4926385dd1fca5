//! The meanings: what a claim on units is good for.

mod all;
mod candidate;
mod election;
mod mutex;
mod reentry;
mod rwlock;
mod semaphore;
mod terms;

pub use self::{
    all::{All, Guards},
    candidate::Candidate,
    election::{Election, Leader, Observer},
    mutex::Mutex,
    rwlock::RwLock,
    semaphore::Semaphore,
    terms::{Attempt, Detached},
};
pub(crate) use self::{
    reentry::Reentries,
    terms::{conclude, outcome_of},
};
