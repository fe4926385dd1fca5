//! Notifies an event loop which calls to poll, through a socket that the loop reads.

use std::{
    io::{Read, Write},
    os::{fd::AsRawFd, unix::net::UnixStream},
    sync::Arc,
    task::Wake,
};

use parking_lot::Mutex;
use pyo3::prelude::*;

use crate::{call::Call, of_process::OfProcess};

/// The calls of one event loop that have something to do.
#[pyclass(frozen, module = "leasehold._native")]
pub(crate) struct Mailbox(OfProcess<Inner>);

struct Inner {
    letters: Arc<Letters>,
    reader: UnixStream,
}

struct Letters {
    writer: UnixStream,
    /// The numbers of the calls to poll. The first of them comes with a byte.
    ready: Mutex<Vec<u64>>,
}

/// Wakes the event loop for one call.
pub(crate) struct Notifier {
    letters: Arc<Letters>,
    number: u64,
}

impl Wake for Notifier {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let is_first = {
            let mut ready = self.letters.ready.lock();
            ready.push(self.number);
            ready.len() == 1
        };
        if is_first {
            // It can only fail once the event loop is gone.
            let _nobody_reads = (&self.letters.writer).write(&[0]);
        }
    }
}

#[pymethods]
impl Mailbox {
    #[new]
    fn new() -> PyResult<Self> {
        let (reader, writer) = UnixStream::pair()?;
        reader.set_nonblocking(true)?;
        writer.set_nonblocking(true)?;
        let letters = Arc::new(Letters { writer, ready: Mutex::new(Vec::new()) });
        Ok(Self(OfProcess::new(Inner { letters, reader })))
    }

    /// The descriptor that becomes readable when a call has to be polled.
    fn fileno(&self) -> PyResult<i32> {
        Ok(self.0.get()?.reader.as_raw_fd())
    }

    /// Begins a call under this number; returns whether it has ended already.
    fn start(&self, py: Python<'_>, call: &Call, number: u64) -> PyResult<bool> {
        let letters = Arc::clone(&self.0.get()?.letters);
        call.start(py, Arc::new(Notifier { letters, number }))
    }

    /// The numbers of the calls to poll.
    fn take(&self) -> PyResult<Vec<u64>> {
        let inner = self.0.get()?;
        // The byte before the numbers: a number that comes in between brings its own byte.
        let _empty = (&inner.reader).read(&mut [0; 64]);
        Ok(std::mem::take(&mut *inner.letters.ready.lock()))
    }
}
