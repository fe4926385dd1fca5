//! Notifies an event loop which calls to poll, through a socket that the loop reads.
//!
//! The loop also reads the answers to its own calls, from another descriptor, and then needs no notice.

use std::{
    cell::Cell,
    io::{Read, Write},
    os::{
        fd::{AsFd, AsRawFd},
        unix::net::UnixStream,
    },
    ptr,
    sync::Arc,
    task::{Wake, Waker},
};

use leasehold::event_loop::{EventLoop, WaitingBatches};
use parking_lot::Mutex;
use pyo3::prelude::*;

use crate::{call::Call, of_process::OfProcess};

thread_local! {
    /// The letters of the event loop that reads on this thread just now; null while none does.
    static READING: Cell<*const Letters> = const { Cell::new(ptr::null()) };
}

/// The calls of one event loop that have something to do.
#[pyclass(frozen, module = "leasehold._native")]
pub(crate) struct Mailbox(OfProcess<Inner>);

struct Inner {
    letters: Arc<Letters>,
    reader: UnixStream,
    /// What waits until the callers have run whose calls were answered.
    answered: Mutex<Vec<WaitingBatches>>,
}

struct Letters {
    writer: UnixStream,
    /// The numbers of the calls to poll. The first of them comes with a byte, unless the loop reads just now.
    ready: Mutex<Vec<u64>>,
    /// `None` where only the library's own thread can read.
    event_loop: Option<EventLoop>,
}

/// Wakes the event loop for one call.
pub(crate) struct Notifier {
    letters: Arc<Letters>,
    number: u64,
}

impl Notifier {
    /// Polls a call of this number, whose answers the event loop reads.
    pub(crate) fn poll<T>(self: &Arc<Self>, poll: impl FnOnce(&Waker) -> T) -> T {
        let waker = Waker::from(Arc::clone(self));
        match &self.letters.event_loop {
            Some(event_loop) => event_loop.poll_here(|| poll(&waker)),
            None => poll(&waker),
        }
    }
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
        if is_first && !ptr::eq(READING.get(), &raw const *self.letters) {
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
        let letters = Arc::new(Letters { writer, ready: Mutex::default(), event_loop: EventLoop::new().ok() });
        Ok(Self(OfProcess::new(Inner { letters, reader, answered: Mutex::default() })))
    }

    /// The descriptor that becomes readable when `read` has something to do; nothing if the loop cannot read.
    fn answers_fileno(&self) -> PyResult<Option<i32>> {
        Ok(self.0.get()?.letters.event_loop.as_ref().map(|event_loop| event_loop.as_fd().as_raw_fd()))
    }

    /// Reads answers. Returns the numbers of the calls to poll, and whether to call `callers_ran` once those who await
    /// them have run.
    fn read(&self) -> PyResult<(Vec<u64>, bool)> {
        let inner = self.0.get()?;
        let Some(event_loop) = &inner.letters.event_loop else { return Ok((Vec::new(), false)) };
        READING.set(&raw const *inner.letters);
        let answered = event_loop.read();
        READING.set(ptr::null());
        let waits = !answered.is_done();
        if waits {
            inner.answered.lock().push(answered);
        }
        Ok((std::mem::take(&mut *inner.letters.ready.lock()), waits))
    }

    /// Has what waited for the callers go on.
    fn callers_ran(&self) -> PyResult<()> {
        let _dropped_after_the_lock = std::mem::take(&mut *self.0.get()?.answered.lock());
        Ok(())
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
