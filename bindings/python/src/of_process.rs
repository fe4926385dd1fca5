//! Objects that belong to the process that made them, not to a child that it forks.

use std::mem::ManuallyDrop;

use pyo3::PyResult;

use crate::errors;

/// A value that a forked child can neither use nor drop: its locks may be held, and its sockets are the parent's.
pub(crate) struct OfProcess<T> {
    generation: u32,
    value: ManuallyDrop<T>,
}

impl<T> OfProcess<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { generation: leasehold_fork::generation(), value: ManuallyDrop::new(value) }
    }

    /// The value, unless this process inherited it.
    pub(crate) fn get(&self) -> PyResult<&T> {
        self.if_own().ok_or_else(errors::inherited)
    }

    /// The value, for a question that needs no lock and no socket.
    pub(crate) fn peek(&self) -> &T {
        &self.value
    }

    /// The value, or `None` if this process inherited it.
    pub(crate) fn if_own(&self) -> Option<&T> {
        (self.generation == leasehold_fork::generation()).then_some(&*self.value)
    }
}

impl<T> Drop for OfProcess<T> {
    fn drop(&mut self) {
        if self.generation == leasehold_fork::generation() {
            // SAFETY: this is the only place that drops the value, and nothing uses it afterwards.
            unsafe { ManuallyDrop::drop(&mut self.value) }
        }
    }
}
