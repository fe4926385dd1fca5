//! The environment variables of this process.

use std::{env, ffi::OsString};

/// Where environment variables come from, so that tests can bring their own.
pub(crate) type Environment<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// The variable of this process's environment; an empty one counts as absent.
pub(crate) fn environment(name: &str) -> Option<OsString> {
    env::var_os(name).filter(|value| !value.is_empty())
}
