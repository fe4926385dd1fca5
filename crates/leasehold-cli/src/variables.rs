//! The environment variables of this process.

use std::{
    env,
    ffi::{OsStr, OsString},
};

use crate::edit_distance::edit_distance;

/// Where environment variables come from, so that tests can bring their own.
pub(crate) type Environment<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// The variables that users set.
const SETTINGS: [&str; 7] = [
    "LEASEHOLD_URL",
    "LEASEHOLD_NAMESPACE",
    "LEASEHOLD_CONFIG",
    "LEASEHOLD_JSON",
    "LEASEHOLD_LOG",
    "LEASEHOLD_LEASE",
    "LEASEHOLD_MACHINE_DIR",
];

/// How URLs of backends begin, up to the first `+` or `:`.
const URL_SCHEMES: [&str; 9] =
    ["file", "memory", "redis", "rediss", "valkey", "valkeys", "redlock", "postgres", "postgresql"];

/// The variable of this process's environment; an empty one counts as absent, except for the URL: where that is
/// empty by mistake, the locks would silently be on this machine only.
pub(crate) fn environment(name: &str) -> Option<OsString> {
    env::var_os(name).filter(|value| !value.is_empty() || name == "LEASEHOLD_URL")
}

/// A variable that looks like a mistyped setting.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Mistyped {
    /// The variable.
    pub(crate) name: String,
    /// The setting that was probably meant.
    pub(crate) meant: &'static str,
}

/// Each of these variables that looks like a mistyped setting.
pub(crate) fn mistyped(variables: impl Iterator<Item = (OsString, OsString)>) -> Vec<Mistyped> {
    let variables: Vec<(String, OsString)> =
        variables.filter_map(|(name, value)| Some((name.into_string().ok()?, value))).collect();
    let is_set = |setting: &str| variables.iter().any(|(name, _)| name == setting);
    let candidates = variables.iter().filter(|(name, _)| name.starts_with("LEA") && !SETTINGS.contains(&name.as_str()));
    candidates
        .filter_map(|(name, value)| {
            let meant = if is_url_by_another_name(name, value) {
                "LEASEHOLD_URL"
            } else {
                SETTINGS.into_iter().find(|setting| edit_distance(name, setting) == 1)?
            };
            // Whoever has both has probably not mistyped one of them.
            (!is_set(meant)).then(|| Mistyped { name: name.clone(), meant })
        })
        .collect()
}

/// Returns whether the variable has the URL of a backend and seems to be ours. `run` gives its command a variable
/// `LEASEHOLD_BACKEND`, too, with the kind of the backend alone.
fn is_url_by_another_name(name: &str, value: &OsStr) -> bool {
    let scheme = value.to_str().and_then(|value| value.split_once(':')).map(|(scheme, _)| scheme);
    let is_url = scheme.is_some_and(|scheme| URL_SCHEMES.contains(&scheme.split('+').next().unwrap_or(scheme)));
    name.starts_with("LEASEHOLD") && is_url
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_fingers_is_told_from_a_variable_of_somebody_else() {
        for (variables, found) in [
            (&["LEASEHOLD_URI=x", "PATH=x"][..], &[("LEASEHOLD_URI", "LEASEHOLD_URL")][..]),
            (&["LEASEHOLD_ULR=x"], &[("LEASEHOLD_ULR", "LEASEHOLD_URL")]),
            (&["LEASHOLD_URL=x"], &[("LEASHOLD_URL", "LEASEHOLD_URL")]),
            (&["LEASEHOLD_NAMESPACES=x"], &[("LEASEHOLD_NAMESPACES", "LEASEHOLD_NAMESPACE")]),
            (&["LEASEHOLD_URL=x", "LEASEHOLD_URL2=x"], &[]),
            (
                &["LEASEHOLD_URL=x", "LEASEHOLD_HELD=1", "LEASEHOLD_LOCK=x", "LEASEHOLD_MODE=x", "LEASEHOLD_KEEPER=x"],
                &[],
            ),
            (&["LEASEHOLD_TTL=5s", "LEASEHOLD_COMPLETE=x", "LEASEHOLD_TEST_PLACE=x"], &[]),
            (&["LEASEHOLD_BACKEND=redis://h"], &[("LEASEHOLD_BACKEND", "LEASEHOLD_URL")]),
            (&["LEASEHOLD_BACKEND=redis://h", "LEASEHOLD_URL=file:"], &[]),
            (&["LEASEHOLD_BACKEND=redis"], &[]),
            (&["LEASEHOLD_REDIS_URL=redis+cluster://h"], &[("LEASEHOLD_REDIS_URL", "LEASEHOLD_URL")]),
            (&["LEASEHOLD_DSN=postgres://h/x", "LEASEHOLD_HOOK=https://h"], &[("LEASEHOLD_DSN", "LEASEHOLD_URL")]),
            (&["REDIS_URL=redis://h", "LEASEHOLDER=redis"], &[]),
        ] {
            let pairs = variables.iter().filter_map(|pair| pair.split_once('='));
            let suggestions = mistyped(pairs.map(|(name, value)| (name.into(), value.into())));
            let suggestions: Vec<(&str, &str)> =
                suggestions.iter().map(|Mistyped { name, meant }| (name.as_str(), *meant)).collect();
            assert_eq!(suggestions, found, "{variables:?}");
        }
    }
}
