//! The name of what is locked.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::text::text_impls;
use crate::{Error, Result};

/// The name of what is locked: UTF-8, 1 to 512 bytes, no control characters.
///
/// Give related resources a common prefix, so that they can be listed together:
/// `lock:order:{id}:process`, `job:{type}:{id}`, `cron:{task}`.
///
/// ```
/// use leasehold::Resource;
///
/// assert_eq!(Resource::new("cron:daily-report")?.as_str(), "cron:daily-report");
/// assert!(Resource::new("").is_err());
/// assert!(Resource::new("two\nlines").is_err());
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Resource(Arc<str>);

impl Resource {
    /// The longest name, in bytes.
    pub const MAX_BYTES: usize = 512;

    /// Creates the resource of this name.
    ///
    /// # Errors
    /// `InvalidName` if it is empty, too long or has a control character.
    pub fn new(name: impl AsRef<str>) -> Result<Self> {
        let resource = Self::unchecked(name.as_ref());
        resource.check()?;
        Ok(resource)
    }

    /// A name that is not checked yet; [`check`](Self::check) does that.
    pub(crate) fn unchecked(name: &str) -> Self {
        Self(name.into())
    }

    /// Fails if the name cannot be used.
    pub(crate) fn check(&self) -> Result<()> {
        let name = self.as_str();
        if name.is_empty() {
            return Err(Error::invalid_name("a resource name must not be empty"));
        }
        if name.len() > Self::MAX_BYTES {
            return Err(Error::invalid_name(format!(
                "a resource name may have {} bytes, this one has {}; name it by a hash or a shorter id",
                Self::MAX_BYTES,
                name.len()
            )));
        }
        if let Some(bad) = name.chars().find(|c| c.is_control()) {
            return Err(Error::invalid_name(format!(
                "a resource name must not hold control characters, this one holds {bad:?}"
            )));
        }
        Ok(())
    }

    /// Returns the name as given.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

text_impls!(Resource);
