//! The atomics and the mutex for what threads share about a lease and the schedule.
//!
//! In unit tests, a scheduler may switch threads before each use, so that tests try many interleavings. Otherwise these
//! are the types of the standard library and of `parking_lot`.

#[cfg(test)]
mod shuttle_sync;

#[cfg(not(test))]
pub(crate) use parking_lot::Mutex;
pub(crate) use parking_lot::MutexGuard;
#[cfg(test)]
pub(crate) use shuttle_sync::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Mutex, explore, step};
pub(crate) use std::sync::atomic::Ordering;
#[cfg(not(test))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize};
