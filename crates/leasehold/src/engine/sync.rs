//! The atomics and locks of what threads share about a lease.
//!
//! In unit tests they let a scheduler run another thread before each use, so that tests try many thread
//! interleavings; elsewhere they are those of the standard library and of `parking_lot`.

#[cfg(test)]
mod explored;

#[cfg(test)]
pub(crate) use explored::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Mutex, explore, step};
#[cfg(not(test))]
pub(crate) use parking_lot::Mutex;
pub(crate) use parking_lot::MutexGuard;
pub(crate) use std::sync::atomic::Ordering;
#[cfg(not(test))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize};
