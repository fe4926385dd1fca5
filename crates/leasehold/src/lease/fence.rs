//! The number that lets a resource refuse a writer who woke up too late.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A number below 2^53 that rises with every grant of a resource.
///
/// Send it along with each write. A store that remembers the highest fence it has
/// seen can refuse lower ones, which come from holders that lost the lease.
///
/// ```
/// use leasehold::Fence;
///
/// let mut highest = Fence::new(0);
/// let mut write = |fence: Fence| {
///     let accepted = fence >= highest;
///     highest = highest.max(fence);
///     accepted
/// };
/// assert!(write(Fence::new(7)));
/// assert!(write(Fence::new(9)));
/// assert!(!write(Fence::new(7)), "the first holder woke up too late");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Fence(u64);

impl Fence {
    /// The highest fence; JSON numbers represent it exactly.
    pub const MAX: Self = Self((1 << 53) - 1);

    /// Creates a fence of this value.
    pub const fn new(value: u64) -> Self {
        Self(value)
    }

    /// Returns the number to store and compare.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}
