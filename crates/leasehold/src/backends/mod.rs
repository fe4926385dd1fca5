//! The built-in backends and their URL schemes.
//!
//! - `memory:`: the tasks of one process.
//! - `file:`: the processes of one machine; Linux only.
//! - `postgres://` or `postgresql://`: machines that share a database.
//! - `redis://`, `redis+unix://` (or `unix://`), `redis+sentinel://` and `redis+cluster://`: machines that share a
//!   Redis or Valkey server or cluster. Write `rediss` instead of `redis` to use TLS. `valkey` means the same as
//!   `redis`, and `valkeys` the same as `rediss`.
//! - `redlock://`: machines that share several independent Redis servers, of which a majority decides.
//!
//! [`register`] adds a scheme for a backend of your own.

mod registry;

pub(crate) use self::registry::open;
pub use self::registry::register;
use crate::backend::Opener;

/// A backend of this crate: the feature that builds it, and its URL schemes.
pub(crate) struct BuiltIn {
    pub(crate) feature: &'static str,
    pub(crate) schemes: &'static [&'static str],
    /// The only operating system that it runs on, if there is one.
    pub(crate) only_on: Option<&'static str>,
    /// `None` where the feature is off, or on another operating system.
    pub(crate) open: Option<Opener>,
}

/// Returns the names of the backends in this build, such as `redis`.
pub fn built_in() -> impl Iterator<Item = &'static str> {
    BUILT_IN.iter().filter(|built_in| built_in.open.is_some()).map(|built_in| built_in.feature)
}

/// One line for each backend: its feature, the operating system that it needs, its module, its URL schemes.
macro_rules! built_in {
    ($($feature:literal $(on $system:literal)?, $module:ident, [$($scheme:literal),+];)+) => {
        $(#[cfg(all(feature = $feature $(, target_os = $system)?))]
        pub mod $module;)+

        pub(crate) const BUILT_IN: &[BuiltIn] = &[$(BuiltIn {
            feature: $feature,
            schemes: &[$($scheme),+],
            only_on: built_in!(@system $($system)?),
            #[cfg(all(feature = $feature $(, target_os = $system)?))]
            open: Some($module::open),
            #[cfg(not(all(feature = $feature $(, target_os = $system)?)))]
            open: None,
        }),+];
    };
    (@system) => { None };
    (@system $system:literal) => { Some($system) };
}

built_in! {
    "memory", memory, ["memory"];
    "file" on "linux", file, ["file"];
    "postgres", postgres, ["postgres", "postgresql"];
    "redis", redis, [
        "redis", "rediss", "redis+unix", "unix", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster",
        "valkey", "valkeys", "valkey+unix", "valkey+sentinel", "valkeys+sentinel", "valkey+cluster", "valkeys+cluster"
    ];
    "redlock", redlock, ["redlock"];
}
