//! URL schemes and the backends they open, built in or registered from outside.

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::RwLock;

use super::BUILT_IN;
use crate::{
    Error, Result,
    backend::{Backend, OpenOptions, Opener, Opening, check_namespace},
};

static REGISTERED: RwLock<BTreeMap<&'static str, Opener>> = RwLock::new(BTreeMap::new());

/// Adds a URL scheme for a backend from outside this crate.
///
/// `Leasehold::connect("scheme:…")` then calls `open`.
///
/// # Errors
/// `InvalidConfig` if the scheme is taken or malformed.
pub fn register(scheme: &'static str, open: fn(&str, &OpenOptions) -> Opening) -> Result<()> {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "+.-".contains(c);
    if !scheme.starts_with(|c: char| c.is_ascii_lowercase()) || !scheme.chars().all(fits) {
        return Err(Error::invalid_config(format!("{scheme:?} is no URL scheme: write a-z 0-9 + . -, a letter first")));
    }
    let taken = || Error::invalid_config(format!("the URL scheme {scheme}: is taken"));
    if BUILT_IN.iter().any(|built_in| built_in.schemes.contains(&scheme)) {
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
    let built_in = BUILT_IN.iter().find(|built_in| built_in.schemes.contains(&scheme));
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
    let built_in = BUILT_IN.iter().filter(|built_in| built_in.open.is_some());
    let mut known: Vec<String> = built_in.map(|built_in| format!("{}:", built_in.schemes[0])).collect();
    known.extend(REGISTERED.read().keys().map(|scheme| format!("{scheme}:")));
    known.join(", ")
}
