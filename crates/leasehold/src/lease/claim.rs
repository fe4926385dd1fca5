//! What is asked for: units of a resource's capacity.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// How many units of a resource's capacity a lease takes.
///
/// [`EXCLUSIVE`](Self::EXCLUSIVE) is the claim of a mutex or a write lock, [`SHARED`](Self::SHARED) that of a read
/// lock, [`LEADER`](Self::LEADER) that of an election, and [`permits`](Self::permits) creates that of a semaphore. A
/// claim never exceeds the capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Unchecked")]
pub struct Claim {
    mode: Mode,
    units: u32,
    capacity: u32,
}

impl Claim {
    /// The claim of a mutex or a write lock: all units of the lock.
    pub const EXCLUSIVE: Self = Self { mode: Mode::Exclusive, units: LOCK_CAPACITY, capacity: LOCK_CAPACITY };
    /// The claim of a read lock: one unit of the lock.
    pub const SHARED: Self = Self { mode: Mode::Shared, units: 1, capacity: LOCK_CAPACITY };
    /// The claim of a leader: the only unit of an election.
    pub const LEADER: Self = Self { mode: Mode::Leader, units: 1, capacity: 1 };
    /// The most permits a semaphore can have. Each backend stores the number as a 32-bit integer.
    pub const MAX_PERMITS: u32 = LOCK_CAPACITY;

    /// Creates a claim on `units` permits of a semaphore that has `limit`.
    ///
    /// # Errors
    /// `InvalidConfig` if either is zero, `units` exceeds `limit`, or `limit` exceeds
    /// [`MAX_PERMITS`](Self::MAX_PERMITS).
    pub fn permits(units: u32, limit: u32) -> Result<Self> {
        if limit == 0 || limit > Self::MAX_PERMITS {
            return Err(Error::invalid_config(format!(
                "a semaphore needs 1 to {} permits, not {limit}",
                Self::MAX_PERMITS
            )));
        }
        if units == 0 || units > limit {
            return Err(Error::invalid_config(format!(
                "cannot take {units} permits of a semaphore that has {limit}: take 1 to {limit}"
            )));
        }
        Ok(Self { mode: Mode::Permit, units, capacity: limit })
    }

    /// Returns the mode: exclusive, shared, permit or leader.
    pub const fn mode(self) -> Mode {
        self.mode
    }

    /// Returns how many units the claim takes.
    pub const fn units(self) -> u32 {
        self.units
    }

    /// Returns how many units the resource has.
    pub const fn capacity(self) -> u32 {
        self.capacity
    }

    /// Returns the shape, which must be the same for all claims on one resource.
    pub const fn shape(self) -> Shape {
        Shape { family: self.mode.family(), capacity: self.capacity }
    }
}

/// A claim as it is stored, before it is checked.
#[derive(Deserialize)]
struct Unchecked {
    mode: Mode,
    units: u32,
    capacity: u32,
}

impl TryFrom<Unchecked> for Claim {
    type Error = Error;

    fn try_from(Unchecked { mode, units, capacity }: Unchecked) -> Result<Self> {
        let claim = match mode {
            Mode::Exclusive => Self::EXCLUSIVE,
            Mode::Shared => Self::SHARED,
            Mode::Permit => Self::permits(units, capacity)?,
            Mode::Leader => Self::LEADER,
        };
        if (claim.units, claim.capacity) == (units, capacity) {
            return Ok(claim);
        }
        Err(Error::invalid_config(format!("no claim is {mode} and has {units} units of {capacity}")))
    }
}

/// The units of a lock. A writer takes all of them, a reader one.
const LOCK_CAPACITY: u32 = i32::MAX.unsigned_abs();

/// How a lease shares its resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Mode {
    /// Alone: a mutex or a write lock.
    Exclusive,
    /// With other readers: a read lock.
    Shared,
    /// Some permits of a semaphore.
    Permit,
    /// The leader of an election.
    Leader,
}

impl Mode {
    /// Returns the kind of resource that this mode belongs to.
    pub const fn family(self) -> Family {
        match self {
            Self::Exclusive | Self::Shared => Family::Lock,
            Self::Permit => Family::Permits,
            Self::Leader => Family::Election,
        }
    }

    /// Returns its name in JSON, SQL and the command.
    ///
    /// The names are `exclusive`, `shared`, `permit` and `leader`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Exclusive => "exclusive",
            Self::Shared => "shared",
            Self::Permit => "permit",
            Self::Leader => "leader",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The kind of resource. All live leases of a resource are of the same kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Family {
    /// A lock, taken as a mutex, a read lock or a write lock.
    Lock,
    /// A semaphore.
    Permits,
    /// An election.
    Election,
}

/// The kind and capacity of a resource, which are the same for all its live leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Shape {
    /// The kind of resource.
    pub family: Family,
    /// Its capacity in units.
    pub capacity: u32,
}

impl Shape {
    /// Creates the shape of a resource of this kind and capacity.
    pub const fn new(family: Family, capacity: u32) -> Self {
        Self { family, capacity }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.family {
            Family::Lock => f.write_str("a lock"),
            Family::Permits => write!(f, "a semaphore of {}", self.capacity),
            Family::Election => f.write_str("an election"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_is_what_could_have_been_made() -> Result<()> {
        for claim in [Claim::EXCLUSIVE, Claim::SHARED, Claim::LEADER, Claim::permits(2, 3)?] {
            let text = serde_json::to_string(&claim).unwrap();
            assert_eq!(serde_json::from_str::<Claim>(&text).unwrap(), claim);
        }
        for (mode, units, capacity) in [
            ("exclusive", 1, LOCK_CAPACITY),
            ("shared", 2, LOCK_CAPACITY),
            ("leader", 1, 2),
            ("permit", 4, 3),
            ("permit", 0, 3),
            ("permit", 1, u32::MAX),
        ] {
            let text = format!(r#"{{"mode":"{mode}","units":{units},"capacity":{capacity}}}"#);
            assert!(serde_json::from_str::<Claim>(&text).is_err(), "{text}");
        }
        Ok(())
    }
}
