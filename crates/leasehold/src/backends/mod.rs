//! The places that keep leases, one folder each, and the URLs that name them.

#[cfg(feature = "file")]
pub mod file;
#[cfg(feature = "memory")]
pub mod memory;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "redlock")]
pub mod redlock;

use std::{fmt, sync::Arc, time::Duration};

use crate::{Error, Result, backend::Backend, clock::Clock};

/// What is needed to open a backend, whichever it is.
#[derive(Clone)]
#[non_exhaustive]
pub struct OpenOptions {
    /// Separates applications on one backend.
    pub namespace: String,
    /// Where time comes from.
    pub clock: Arc<dyn Clock>,
    /// How long opening may take.
    pub connect_limit: Duration,
}

impl fmt::Debug for OpenOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenOptions").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

/// Opens the backend a URL names.
pub(crate) async fn open(url: &str, options: &OpenOptions) -> Result<Arc<dyn Backend>> {
    check_namespace(&options.namespace)?;
    let Some((scheme, _)) = url.split_once(':') else {
        return Err(Error::invalid_config(format!(
            "a backend URL begins with its scheme, such as {}; this one has none",
            known_schemes()
        )));
    };
    match scheme {
        #[cfg(feature = "memory")]
        "memory" => {
            let name = url.strip_prefix("memory:").unwrap_or_default();
            let backend = memory::MemoryBackend::named(name, &options.namespace, Arc::clone(&options.clock));
            Ok(Arc::new(backend))
        }
        #[cfg(feature = "file")]
        "file" => {
            let options = file::FileOptions::from_url(url, &options.namespace, Arc::clone(&options.clock))?;
            Ok(Arc::new(file::FileBackend::open(options).await?))
        }
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => {
            let (clock, limit) = (Arc::clone(&options.clock), options.connect_limit);
            let options = postgres::PostgresOptions::from_url(url, &options.namespace, clock, limit)?;
            Ok(Arc::new(postgres::PostgresBackend::open(options).await?))
        }
        #[cfg(feature = "redis")]
        "redis" | "rediss" | "redis+sentinel" | "rediss+sentinel" | "redis+cluster" | "rediss+cluster" => {
            redis::open(url, options).await
        }
        #[cfg(feature = "redlock")]
        "redlock" => redlock::open(url, options).await,
        _ => {
            let families = ["memory", "file", "postgres", "redlock", "redis"];
            let advice = match families.iter().find(|family| scheme.starts_with(**family)) {
                Some(feature) => format!("; is the feature `{feature}` of leasehold on?"),
                None => String::new(),
            };
            Err(Error::invalid_config(format!(
                "unknown backend scheme {scheme:?}; known here: {}{advice}",
                known_schemes()
            )))
        }
    }
}

fn known_schemes() -> String {
    [
        ("memory:", cfg!(feature = "memory")),
        ("file:", cfg!(feature = "file")),
        ("postgres:", cfg!(feature = "postgres")),
        ("redis:", cfg!(feature = "redis")),
        ("redlock:", cfg!(feature = "redlock")),
    ]
    .iter()
    .filter_map(|(scheme, built)| built.then_some(*scheme))
    .collect::<Vec<_>>()
    .join(", ")
}

/// Whether every backend can use the namespace, be it as a directory or as part of a key.
fn check_namespace(namespace: &str) -> Result<()> {
    // A leading dot would be `.`, `..`, or look like a directory that is only being made.
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if namespace.is_empty() || namespace.len() > 64 || namespace.starts_with('.') || !namespace.chars().all(fits) {
        return Err(Error::invalid_config(format!(
            "namespace {namespace:?} does not fit: 1 to 64 of A-Z a-z 0-9 . _ -, not beginning with a dot"
        )));
    }
    Ok(())
}
