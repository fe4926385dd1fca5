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
            let left_out =
                SCHEMES.iter().find(|(known, built)| !built && scheme.starts_with(known.trim_end_matches(':')));
            let advice = left_out.map_or_else(String::new, |(known, _)| {
                format!("; turn the feature `{}` of leasehold on", known.trim_end_matches(':'))
            });
            Err(Error::invalid_config(format!(
                "unknown backend scheme {scheme:?}; known here: {}{advice}",
                known_schemes()
            )))
        }
    }
}

/// How the URLs of each backend begin, and whether it is built in.
const SCHEMES: [(&str, bool); 5] = [
    ("memory:", cfg!(feature = "memory")),
    ("file:", cfg!(feature = "file")),
    ("postgres:", cfg!(feature = "postgres")),
    ("redis:", cfg!(feature = "redis")),
    ("redlock:", cfg!(feature = "redlock")),
];

fn known_schemes() -> String {
    SCHEMES.iter().filter_map(|(scheme, built)| built.then_some(*scheme)).collect::<Vec<_>>().join(", ")
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
