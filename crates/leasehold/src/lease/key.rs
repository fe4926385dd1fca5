//! What identifies a lease, and the handle that carries it between processes.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{Fence, Resource, random::random_bytes};
use crate::{Error, Result};

/// The random id of one lease, chosen by the client that requests it. Anyone who knows it can renew and release the lease.
///
/// An id is never reused: to get a lease again after it has ended, request it with a new id.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LeaseId(Uuid);

impl LeaseId {
    /// Creates a new id from the system's random source.
    pub fn random() -> Self {
        Self(uuid::Builder::from_random_bytes(random_bytes()).into_uuid())
    }

    /// Creates the id with these 128 bits.
    pub const fn from_u128(bits: u128) -> Self {
        Self(Uuid::from_u128(bits))
    }

    /// Returns the id's 128 bits.
    pub const fn as_u128(self) -> u128 {
        self.0.as_u128()
    }
}

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0.simple(), f)
    }
}

impl fmt::Debug for LeaseId {
    /// Shows the first digits only: the whole id is a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}…", &self.0.simple().to_string()[..6])
    }
}

impl FromStr for LeaseId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Uuid::try_parse(text).map(Self).map_err(|_| Error::invalid_config("this is not a lease id"))
    }
}

/// The resource and the id that identify a lease.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct LeaseKey {
    /// What is locked.
    pub resource: Resource,
    /// The id of the lease.
    pub id: LeaseId,
}

impl LeaseKey {
    /// Creates the key of the lease with this id on this resource.
    pub const fn new(resource: Resource, id: LeaseId) -> Self {
        Self { resource, id }
    }
}

/// A handle to a granted lease, which can be passed to another process as text.
///
/// The text begins with `lh2_`. Anyone who has it can renew and release the lease, so keep it secret, like a password.
#[derive(Clone, PartialEq, Eq)]
pub struct LeaseHandle {
    key: LeaseKey,
    fence: Fence,
}

impl LeaseHandle {
    const PREFIX: &'static str = "lh2_";

    /// Creates the handle of the lease that was granted with this fence.
    pub const fn new(key: LeaseKey, fence: Fence) -> Self {
        Self { key, fence }
    }

    /// Returns the resource and the id of the lease.
    pub const fn key(&self) -> &LeaseKey {
        &self.key
    }

    /// Returns the fence of the lease.
    pub const fn fence(&self) -> Fence {
        self.fence
    }
}

impl fmt::Display for LeaseHandle {
    /// Writes `lh2_` and hexadecimal digits: 32 for the id, 16 for the fence, then two for each byte of the name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}{:016x}", Self::PREFIX, self.key.id, self.fence.get())?;
        self.key.resource.as_str().bytes().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for LeaseHandle {
    /// Never shows the handle itself.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LeaseHandle({})", self.key.resource)
    }
}

impl FromStr for LeaseHandle {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let invalid =
            || Error::invalid_config("this is not a lease handle: it reads lh2_… and is printed by `acquire`");
        let digits = text.trim().strip_prefix(Self::PREFIX).ok_or_else(invalid)?;
        if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) || digits.len() % 2 != 0 {
            return Err(invalid());
        }
        let (id, rest) = digits.split_at_checked(32).ok_or_else(invalid)?;
        let (fence, name) = rest.split_at_checked(16).ok_or_else(invalid)?;
        let fence = u64::from_str_radix(fence, 16).map_err(|_| invalid())?;
        let name = (0..name.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&name[at..at + 2], 16))
            .collect::<Result<Vec<u8>, _>>()
            .map_err(|_| invalid())?;
        let name = String::from_utf8(name).map_err(|_| invalid())?;
        let key = LeaseKey { resource: Resource::new(name)?, id: id.parse().map_err(|_| invalid())? };
        Ok(Self { key, fence: Fence::new(fence) })
    }
}
