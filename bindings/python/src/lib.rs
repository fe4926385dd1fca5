//! The native part of the Python package: calls of the library as objects that Python polls or waits for.
//!
//! No thread of the library ever runs Python code or needs the interpreter:
//! a call that is done writes a byte to a socket that the event loop reads
//! (`mailbox.rs`), or wakes the thread that waits for it (`call.rs`). So
//! neither a busy interpreter nor its end can disturb the threads that renew
//! leases, and they cannot disturb its end.

mod call;
mod errors;
mod instance;
mod lease;
mod lock;
mod mailbox;
mod of_process;
mod records;
mod watch;

use pyo3::prelude::*;

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    // Before any object keeps its generation.
    leasehold_fork::watch()?;
    module.add("version", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<call::Call>()?;
    module.add_class::<mailbox::Mailbox>()?;
    module.add_class::<instance::Instance>()?;
    module.add_class::<instance::Clock>()?;
    module.add_class::<lock::Lock>()?;
    module.add_class::<lease::Lease>()?;
    module.add_class::<watch::Watch>()
}
