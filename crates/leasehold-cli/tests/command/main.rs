//! The command as people use it, one behaviour per file, on private directories of locks.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test that cannot go on fails, on real time")]

#[path = "../sandbox/mod.rs"]
mod sandbox;

mod conflict;
mod elect;
mod exit_codes;
mod hooks;
mod kept;
mod leases;
mod looks;
mod lost;
mod machine;
mod metrics;
mod mistakes;
mod nested;
mod output;
mod packaging;
mod schemas;
mod secrets;
mod settings;
mod signals;
mod skips;
mod stop_and_go;
mod stragglers;
mod supervisor;
mod terminal;

#[test]
fn what_is_alike_on_every_backend_is_so_here() {
    sandbox::on_any_backend::everything(&sandbox::Sandbox::new());
}
