//! Errors of the library as exceptions of the package.

use leasehold::{Error, ErrorKind};
use pyo3::{prelude::*, sync::PyOnceLock};

/// The exception for an error of the library.
pub(crate) fn exception(error: &Error) -> PyErr {
    let kind = match error.kind() {
        ErrorKind::WaitElapsed => "wait_elapsed",
        ErrorKind::Busy => "busy",
        ErrorKind::Lost => "lost",
        ErrorKind::ShapeMismatch => "shape_mismatch",
        ErrorKind::PermissionDenied => "permission_denied",
        ErrorKind::InvalidName => "invalid_name",
        ErrorKind::InvalidConfig => "invalid_config",
        ErrorKind::OutcomeUnknown => "outcome_unknown",
        ErrorKind::Unsupported => "unsupported",
        ErrorKind::Closed => "closed",
        _ => "unavailable",
    };
    let holders: Vec<_> = error
        .holders()
        .iter()
        .map(|held| {
            let (holder, mode, fence) = (held.holder.as_str(), held.mode.as_str(), held.fence.get());
            (holder, mode, fence, held.held_for.as_secs_f64(), held.note.as_deref())
        })
        .collect();
    Python::attach(|py| match maker(py).and_then(|make| make.call1(py, (kind, format!("{error:#}"), holders))) {
        Ok(made) => PyErr::from_value(made.into_bound(py)),
        Err(failed) => failed,
    })
}

/// The exception for the use of an object that a forked child inherited.
pub(crate) fn inherited() -> PyErr {
    const MESSAGE: &str = "this object belongs to the parent of this forked process; connect again in the child";
    Python::attach(|py| {
        let none: [(&str, &str, u64, f64, Option<&str>); 0] = [];
        match maker(py).and_then(|make| make.call1(py, ("closed", MESSAGE, none))) {
            Ok(made) => PyErr::from_value(made.into_bound(py)),
            Err(failed) => failed,
        }
    })
}

/// The exception for a setting that cannot be used.
pub(crate) fn invalid(message: impl Into<String>) -> PyErr {
    exception(&Error::invalid_config(message))
}

/// The function of the package that makes exceptions.
fn maker(py: Python<'_>) -> PyResult<&Py<PyAny>> {
    static MAKER: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    MAKER.get_or_try_init(py, || Ok(py.import("leasehold._errors")?.getattr("from_native")?.unbind()))
}
