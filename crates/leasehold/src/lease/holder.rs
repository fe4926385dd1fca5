//! The label by which others see a holder or a waiter.

use std::{env, fs, os::unix::fs::MetadataExt, sync::Arc};

use serde::{Deserialize, Serialize};

use super::text::text_impls;
use crate::{Error, Result};

/// The name by which others see a holder or a waiter.
///
/// The default is `user@host:pid:random`. The name is a label for people and gives no rights: to renew or release a
/// lease, a client needs the lease id.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Holder(Arc<str>);

impl Holder {
    /// The longest holder, in bytes.
    pub const MAX_BYTES: usize = 256;

    /// Creates a holder with this label: 1 to 256 bytes, no control characters.
    ///
    /// # Errors
    /// `InvalidName` if the label is empty, too long or has a control character.
    pub fn new(label: impl AsRef<str>) -> Result<Self> {
        let label = label.as_ref();
        if label.is_empty() || label.len() > Self::MAX_BYTES || label.chars().any(char::is_control) {
            return Err(Error::invalid_name(format!(
                "a holder needs 1 to {} bytes and no control characters",
                Self::MAX_BYTES
            )));
        }
        Ok(Self(label.into()))
    }

    /// Creates a label that no other instance has: `user@host:pid:random`.
    pub fn unique() -> Self {
        let user = env::var("USER").or_else(|_| env::var("LOGNAME")).unwrap_or_else(|_| user_of_process());
        let host = fs::read_to_string("/proc/sys/kernel/hostname")
            .or_else(|_| fs::read_to_string("/etc/hostname"))
            .unwrap_or_else(|_| String::from("localhost"));
        let random = &uuid::Uuid::new_v4().simple().to_string()[..8];
        let fit = |part: &str, most: usize| -> String {
            part.trim().chars().filter(|c| !c.is_control()).take(most).collect()
        };
        let label = format!("{}@{}:{}:{random}", fit(&user, 24), fit(&host, 32), std::process::id());
        Self(label.into())
    }

    /// Returns the label.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The user's name by its number, for cron jobs and containers that have no environment.
fn user_of_process() -> String {
    let Ok(uid) = fs::metadata("/proc/self").map(|process| process.uid()) else {
        return String::from("unknown");
    };
    name_in("/etc/passwd", uid).unwrap_or(format!("uid-{uid}"))
}

/// The name that `/etc/passwd` or `/etc/group` has for a user or a group.
pub(crate) fn name_in(file: &str, id: u32) -> Option<String> {
    let (names, id) = (fs::read_to_string(file).unwrap_or_default(), id.to_string());
    names
        .lines()
        .map(|line| line.split(':').collect::<Vec<_>>())
        .find(|fields| fields.get(2) == Some(&id.as_str()))
        .and_then(|fields| fields.first().map(|name| (*name).to_owned()))
}

text_impls!(Holder);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_instances_of_one_process_have_two_labels() {
        let (one, other) = (Holder::unique(), Holder::unique());
        assert_ne!(one, other);
        assert!(one.as_str().contains(&format!(":{}:", std::process::id())), "{one}");
    }

    #[test]
    fn a_process_without_an_environment_has_a_user_all_the_same() {
        let user = user_of_process();
        assert!(!user.is_empty() && user != "unknown", "{user}");
    }
}
