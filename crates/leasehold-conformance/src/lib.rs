//! The trials that every leasehold backend must pass.
//!
//! A backend's test file makes fixtures and passes them to the suite:
//!
//! ```no_run
//! use std::sync::Arc;
//! use leasehold::{backend::Backend, backends::memory::MemoryBackend};
//! use leasehold_conformance::{Fixture, check};
//!
//! struct Memory(MemoryBackend);
//!
//! #[async_trait::async_trait]
//! impl Fixture for Memory {
//!     async fn instance(&self) -> Arc<dyn Backend> {
//!         Arc::new(self.0.sibling())
//!     }
//!     fn keeps_to_clock(&self) -> bool {
//!         true
//!     }
//! }
//!
//! #[test]
//! fn memory() {
//!     check(async |clock| Memory(MemoryBackend::private(clock)));
//! }
//! # fn main() { check(async |clock| Memory(MemoryBackend::private(clock))) }
//! ```
//!
//! Which trials are run follows from [`Guarantees`](leasehold::backend::Guarantees);
//! one that is not called for is named with the reason, never skipped in silence.
//!
//! [`Faulty`] makes any backend fail on purpose, for tests of what stands on it.

// Trials end by panicking: what went wrong is the message, and who panics is no news.
#![allow(clippy::missing_panics_doc, reason = "to panic is how a trial fails")]

mod check;
mod dice;
mod faulty;
mod fixture;
mod histories;
mod instance;
mod trial;
mod trials;

pub use check::{check, failures};
pub use faulty::{BackendCall, Faulty, Gate, HintFaults, Odds};
pub use fixture::Fixture;
