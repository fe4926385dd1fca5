//! URL schemes and the backends they open, built in or registered from outside.

use std::{collections::BTreeMap, fmt, future::Future, pin::Pin, sync::Arc, time::Duration};

use parking_lot::RwLock;

use super::Backend;
use crate::{Error, Result, backends, clock::Clock, clock::SystemClock};

/// A backend that is being opened.
pub type Opening = Pin<Box<dyn Future<Output = Result<Arc<dyn Backend>>> + Send>>;

/// Opens the backend that a URL names.
pub(crate) type Opener = fn(&str, &OpenOptions) -> Opening;

static REGISTERED: RwLock<BTreeMap<&'static str, Opener>> = RwLock::new(BTreeMap::new());

/// What opening a backend needs, whichever it is.
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

impl OpenOptions {
    /// The defaults: namespace `default`, the machine's clocks, 3 s.
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

/// Adds a URL scheme, so that `Leasehold::connect("scheme:…")` opens a backend from outside this crate.
///
/// # Errors
/// `InvalidConfig` when the scheme is taken already, or is no scheme.
pub fn register(scheme: &'static str, open: fn(&str, &OpenOptions) -> Opening) -> Result<()> {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "+.-".contains(c);
    if !scheme.starts_with(|c: char| c.is_ascii_lowercase()) || !scheme.chars().all(fits) {
        return Err(Error::invalid_config(format!("{scheme:?} is no URL scheme: write a-z 0-9 + . -, a letter first")));
    }
    let taken = || Error::invalid_config(format!("the URL scheme {scheme}: is taken"));
    if backends::BUILT_IN.iter().any(|built_in| built_in.schemes.contains(&scheme)) {
        return Err(taken());
    }
    let mut registered = REGISTERED.write();
    if registered.contains_key(scheme) {
        return Err(taken());
    }
    registered.insert(scheme, open);
    Ok(())
}

/// Opens the backend that a URL names.
pub(crate) async fn open(url: &str, options: &OpenOptions) -> Result<Arc<dyn Backend>> {
    check_namespace(&options.namespace)?;
    let Some((scheme, rest)) = url.split_once(':') else {
        return Err(Error::invalid_config(format!(
            "a backend URL begins with its scheme, such as {}; this one has none",
            known_schemes()
        )));
    };
    let built_in = backends::BUILT_IN.iter().find(|built_in| built_in.schemes.contains(&scheme));
    let open = match built_in {
        Some(built_in) => built_in.open,
        None => REGISTERED.read().get(scheme).copied(),
    };
    if let Some(open) = open {
        return open(url, options).await;
    }
    let is_address = rest.bytes().take_while(u8::is_ascii_digit).count() > 0;
    let no_scheme =
        || if is_address { format!("; a server goes by its kind: redis://{scheme}:…") } else { String::new() };
    let advice = built_in.map_or_else(no_scheme, |left_out| match left_out.only_on {
        Some(system) if system != std::env::consts::OS => format!("; {scheme}: runs on {system} only"),
        _ => format!("; turn the feature `{}` of leasehold on", left_out.feature),
    });
    Err(Error::invalid_config(format!("unknown backend scheme {scheme:?}; known here: {}{advice}", known_schemes())))
}

fn known_schemes() -> String {
    let built_in = backends::BUILT_IN.iter().filter(|built_in| built_in.open.is_some());
    let mut known: Vec<String> = built_in.map(|built_in| format!("{}:", built_in.schemes[0])).collect();
    known.extend(REGISTERED.read().keys().map(|scheme| format!("{scheme}:")));
    known.join(", ")
}

/// Checks that every backend can use the namespace, as a directory and as part of a key.
pub(crate) fn check_namespace(namespace: &str) -> Result<()> {
    // A leading dot would be `.`, `..`, or look like a directory that is only being made.
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if namespace.is_empty() || namespace.len() > 64 || namespace.starts_with('.') || !namespace.chars().all(fits) {
        return Err(Error::invalid_config(format!(
            "namespace {namespace:?} does not fit: 1 to 64 of A-Z a-z 0-9 . _ -, not beginning with a dot"
        )));
    }
    Ok(())
}
