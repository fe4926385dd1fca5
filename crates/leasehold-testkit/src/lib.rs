//! Private servers and a bad network for leasehold's own tests.
//!
//! Everything listens on the loopback interface only, keeps its files in a
//! temporary folder, and ends when it is dropped or its process dies.

#![allow(clippy::missing_panics_doc, reason = "to panic is how a test fails")]

mod dice;
mod ports;
pub mod postgres;
mod process;
mod proxy;
pub mod redis;
mod wait;
mod witness;

pub use dice::Dice;
pub use proxy::{Flow, Proxy};
pub use wait::until;
pub use witness::{Stay, Witness};
