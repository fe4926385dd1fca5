//! A stream of events.

use std::{future::poll_fn, sync::Arc};

use leasehold::backend::EventStream;
use pyo3::prelude::*;
use tokio::sync::Mutex;

use crate::{
    call::{Call, Value},
    of_process::OfProcess,
    records,
};

/// A stream of events about locks.
#[pyclass(frozen, module = "leasehold._native")]
pub(crate) struct Watch(OfProcess<Arc<Mutex<EventStream>>>);

impl Watch {
    pub(crate) fn new(events: EventStream) -> Self {
        Self(OfProcess::new(Arc::new(Mutex::new(events))))
    }
}

#[pymethods]
impl Watch {
    /// A call that gives the next event as JSON, or nothing if the backend is gone.
    fn next(&self) -> PyResult<Call> {
        let events = Arc::clone(self.0.get()?);
        Ok(Call::new(async move {
            let mut events = events.lock().await;
            let next = poll_fn(|context| events.as_mut().poll_next(context)).await;
            Ok(next.map_or(Value::Nothing, |event| Value::Text(records::event(event))))
        }))
    }
}
