//! Notices that a process forked, and keeps chosen descriptors out of the child.
//!
//! A forked child starts with copies of its parent's memory and descriptors,
//! but without its parent's threads. Whatever ends with an open descriptor (a
//! FIFO with a reader, a locked file, a connection) would live on in a child
//! that knows nothing of it, and a lock that some thread of the parent held
//! stays locked in the child for ever. So this crate does three things:
//!
//! - [`generation`] is a number that is higher in the child. An object that
//!   keeps the generation it was made in can tell, before it takes any lock,
//!   that it was inherited.
//! - [`close_in_child`] has the child close a descriptor before `fork` returns
//!   there. `fork` may return in the parent earlier than that. `forks`
//!   tells whether some child began before the descriptor was registered.
//! - [`PerProcess`] is a global value of which a forked child makes its own.
//!
//! ```
//! # #[cfg(unix)] {
//! use std::{fs::File, io, os::fd::AsFd};
//! use leasehold_fork::{Registration, close_in_child, generation};
//!
//! struct Presence {
//!     generation: u32,
//!     // Fields drop in this order: the registration before the descriptor.
//!     registration: Registration,
//!     file: File,
//! }
//!
//! impl Presence {
//!     fn new(file: File) -> io::Result<Self> {
//!         let generation = generation();
//!         Ok(Self { generation, registration: close_in_child(file.as_fd())?, file })
//!     }
//!
//!     fn is_inherited(&self) -> bool {
//!         self.generation != generation()
//!     }
//! }
//! # let presence = Presence::new(File::open("/dev/null")?)?;
//! # assert!(!presence.is_inherited());
//! # }
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! # What is noticed
//!
//! Every `fork` of the C library, which runs the handlers of `pthread_atfork`.
//! `vfork`, `posix_spawn` and [`std::process::Command`] start another program
//! and need no notice: descriptors that Rust opens close on `exec`. `_Fork` and
//! a `clone` by system call run no handler, so that a child they make is not
//! noticed.
//!
//! On targets other than Unix nothing forks and the generation is always 0.

#[cfg(unix)]
mod descriptors;
mod per_process;
#[cfg(unix)]
mod slots;
#[cfg(unix)]
mod watch;

#[cfg(unix)]
pub use descriptors::{Registration, close_in_child};
pub use per_process::PerProcess;
#[cfg(unix)]
pub use watch::{forks, generation, watch};

/// Returns 0: on this target no process forks.
#[cfg(not(unix))]
#[inline]
pub fn generation() -> u32 {
    0
}

/// Does nothing: on this target no process forks.
#[cfg(not(unix))]
pub fn watch() -> std::io::Result<()> {
    Ok(())
}
