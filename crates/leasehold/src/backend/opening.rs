//! The options for opening any backend.

use std::{fmt, future::Future, pin::Pin, sync::Arc, time::Duration};

use super::Backend;
use crate::{Error, Result, clock::Clock, clock::SystemClock};

/// A future that opens a backend.
pub type Opening = Pin<Box<dyn Future<Output = Result<Arc<dyn Backend>>> + Send>>;

/// Opens the backend that a URL names.
pub(crate) type Opener = fn(&str, &OpenOptions) -> Opening;

/// The options for opening any backend.
#[derive(Clone)]
#[non_exhaustive]
pub struct OpenOptions {
    /// The namespace, which separates applications on one backend.
    pub namespace: String,
    /// The source of time.
    pub clock: Arc<dyn Clock>,
    /// How long opening may take.
    pub connect_limit: Duration,
}

impl OpenOptions {
    /// Creates the default options.
    ///
    /// The namespace is `default`, the clock is the system clock, and the connect limit is 3 s.
    pub fn new() -> Self {
        Self { namespace: String::from("default"), clock: Arc::new(SystemClock), connect_limit: Duration::from_secs(3) }
    }
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for OpenOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenOptions").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

/// Checks that every backend can use the namespace, as a directory and as part of a key.
pub(crate) fn check_namespace(namespace: &str) -> Result<()> {
    // A name with a leading dot may be `.` or `..`, or look like a directory that is still being created.
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if namespace.is_empty() || namespace.len() > 64 || namespace.starts_with('.') || !namespace.chars().all(fits) {
        return Err(Error::invalid_config(format!(
            "namespace {namespace:?} does not fit: 1 to 64 of A-Z a-z 0-9 . _ -, not beginning with a dot"
        )));
    }
    Ok(())
}
