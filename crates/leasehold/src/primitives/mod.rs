//! The meanings: what a claim on units is good for.

mod all;
mod candidate;
mod election;
mod lock_options;
mod mutex;
mod rwlock;
mod semaphore;

pub(crate) use self::lock_options::{conclude, outcome_of};
pub use self::{
    all::{All, Guards},
    candidate::Candidate,
    election::{Election, Leader, Observer},
    lock_options::Detached,
    mutex::Mutex,
    rwlock::RwLock,
    semaphore::Semaphore,
};
