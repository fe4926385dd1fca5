//! The environment variables of this process.

use std::{env, ffi::OsString};

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

/// The variable of this process's environment; an empty one counts as absent, except for the URL: where that is
/// empty by mistake, the locks would silently be on this machine only.
pub(crate) fn environment(name: &str) -> Option<OsString> {
    env::var_os(name).filter(|value| !value.is_empty() || name == "LEASEHOLD_URL")
}

/// Each of these variables that looks like a mistyped setting, with the setting.
pub(crate) fn mistyped(names: impl Iterator<Item = OsString>) -> Vec<(String, &'static str)> {
    let names: Vec<String> = names.filter_map(|name| name.into_string().ok()).collect();
    let is_set = |setting: &str| names.iter().any(|name| name == setting);
    let candidates = names.iter().filter(|name| name.starts_with("LEA") && !SETTINGS.contains(&name.as_str()));
    candidates
        .filter_map(|name| {
            let meant = SETTINGS.into_iter().find(|setting| edit_distance(name, setting) == 1)?;
            // Whoever has both has probably not mistyped one of them.
            (!is_set(meant)).then(|| (name.clone(), meant))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_fingers_is_told_from_a_variable_of_somebody_else() {
        for (names, found) in [
            (&["LEASEHOLD_URI", "PATH"][..], &[("LEASEHOLD_URI", "LEASEHOLD_URL")][..]),
            (&["LEASEHOLD_ULR"], &[("LEASEHOLD_ULR", "LEASEHOLD_URL")]),
            (&["LEASHOLD_URL"], &[("LEASHOLD_URL", "LEASEHOLD_URL")]),
            (&["LEASEHOLD_NAMESPACES"], &[("LEASEHOLD_NAMESPACES", "LEASEHOLD_NAMESPACE")]),
            (&["LEASEHOLD_URL", "LEASEHOLD_URL2"], &[]),
            (&["LEASEHOLD_URL", "LEASEHOLD_HELD", "LEASEHOLD_LOCK", "LEASEHOLD_MODE", "LEASEHOLD_KEEPER"], &[]),
            (&["LEASEHOLD_TTL", "LEASEHOLD_COMPLETE", "LEASEHOLD_TEST_PLACE"], &[]),
        ] {
            let suggestions = mistyped(names.iter().map(OsString::from));
            let suggestions: Vec<(&str, &str)> =
                suggestions.iter().map(|(name, meant)| (name.as_str(), *meant)).collect();
            assert_eq!(suggestions, found, "{names:?}");
        }
    }
}
