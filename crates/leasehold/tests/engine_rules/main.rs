//! The rules of belief, each with a test that fails when the rule is broken.
//!
//! Time is injected: nothing here sleeps to let a lease run out, except where
//! a real thread must be blocked. Tests that block the library's own threads
//! are in `blocked_threads.rs`, a process of its own.
#![cfg(feature = "memory")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::unchecked_time_subtraction, reason = "of constants, larger less smaller")]
#![allow(clippy::disallowed_methods, reason = "tests bound what they wait for in real time")]

mod belief;
mod bench;
mod guards;
mod ids;
mod renewing;
mod requests;
#[path = "../scripted/mod.rs"]
mod scripted;
mod scripts;
mod waiting;
