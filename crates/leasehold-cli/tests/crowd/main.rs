//! Many processes at once, and processes that die: one test at a time, on real time.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test that cannot go on fails, on real time")]

#[path = "../sandbox/mod.rs"]
mod sandbox;

mod fifo;
mod increments;
mod killed;
mod waiters;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// These tests measure; they would measure each other.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
