//! Private servers for tests: each on a free port of the loopback, in a temporary folder, gone with its owner.

// A test that has no server fails by panicking, with the reason.
#![allow(clippy::missing_panics_doc, clippy::unwrap_used, reason = "to panic is how a test fails")]

pub mod postgres;
