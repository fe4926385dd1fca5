//! Runs a command under leases: watched, and stopped with everything it started before a lease ends.
//!
//! [`supervise`] starts a command in a process group of its own, gives it the
//! terminal if it should have it, passes signals on, and stops it when a lease
//! is lost or cannot be renewed in time. It returns when the command and what it
//! started are gone, save daemons; the caller then releases the leases.
//!
//! The command is started by a [`Supervisor`], a small process between the
//! caller and the command: the caller's program started once more, with the
//! arguments in [`Launch::supervisor`]. It kills the command and all it started
//! if the caller is killed, and stops them in time if the caller hangs. If the
//! supervisor itself is killed, the caller kills them.
//!
//! The process that calls [`supervise`] must have no other work: it becomes a
//! subreaper, it reaps every child that ends, whoever started it, and if the
//! supervisor is killed, it kills every child that it has. A program that starts
//! other processes, too, should start itself once more for this.
//!
//! ```no_run
//! use std::process::ExitCode;
//!
//! use leasehold::Leasehold;
//! use leasehold_supervise::{
//!     KillMode, Launch, Limits, OnLost, Signals, Status, Stragglers, Supervisor, kill_after, supervise,
//! };
//!
//! fn main() -> ExitCode {
//!     let args: Vec<_> = std::env::args_os().collect();
//!     if args.get(1).is_some_and(|word| word == "supervise") {
//!         let Some(supervisor) = Supervisor::from_args(&args[2..]) else { return ExitCode::FAILURE };
//!         return supervisor.run(&mut |notice| eprintln!("{notice:?}"));
//!     }
//!     let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
//!     runtime.block_on(report()).unwrap_or(ExitCode::FAILURE)
//! }
//!
//! async fn report() -> Result<ExitCode, Box<dyn std::error::Error>> {
//!     let mut signals = Signals::catch()?;
//!     let locks = Leasehold::connect("file:").await?;
//!     let guard = locks.mutex("nightly-report").acquire().await?;
//!     let launch = Launch {
//!         command: vec!["./report.sh".into()],
//!         supervisor: vec!["/proc/self/exe".into(), "supervise".into()],
//!         ..Launch::default()
//!     };
//!     let limits = Limits {
//!         ttl: guard.ttl(),
//!         kill_after: kill_after(None, guard.ttl())?,
//!         kill_mode: KillMode::Group,
//!         on_lost: OnLost::Terminate,
//!         max_hold: None,
//!         kill_on_term: false,
//!         stragglers: Stragglers::Stop,
//!     };
//!     let leases = [guard.lease().clone()];
//!     let ended = supervise(&launch, &leases, limits, None, &mut signals, &mut |notice| eprintln!("{notice:?}")).await?;
//!     guard.release().await?;
//!     Ok(if ended.status == Status::Exited(0) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
//! }
//! ```
//!
//! Linux only: it looks for processes in `/proc` and relies on subreapers.

mod ended;
mod group;
mod limits;
mod messages;
mod policy;
mod raw;
mod signal;
mod signals;
mod supervise;
mod supervisor;
mod supervisor_process;
mod terminal;

pub use self::{
    ended::{Cause, ChildEnd, NotStarted, Notice, Status},
    group::Straggler,
    limits::{Limits, TtlTooShort, kill_after},
    policy::{KillMode, OnLost, Stragglers},
    signal::{Signal, signal_name},
    signals::{Caught, Signals},
    supervise::supervise,
    supervisor::Supervisor,
    supervisor_process::Launch,
};
