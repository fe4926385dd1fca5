//! Seeded chance: the same seed gives the same decisions.

use std::time::Duration;

/// A `SplitMix64` generator.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// Creates the generator of this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns any number.
    #[allow(clippy::should_implement_trait, reason = "it never ends, and is no iterator")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `limit`, which must not be zero.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// Returns true in `chance` of a hundred cases.
    pub fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }

    /// Returns less than `limit` milliseconds.
    pub fn millis(&mut self, limit: u64) -> Duration {
        Duration::from_millis(self.below(limit))
    }

    /// Returns the position of one of `count` things.
    pub fn index(&mut self, count: usize) -> usize {
        let limit = u64::try_from(count).unwrap_or(u64::MAX).max(1);
        usize::try_from(self.below(limit)).unwrap_or(0)
    }

    /// Returns a generator of its own for a part of the run.
    #[must_use]
    pub fn split(&mut self) -> Self {
        Self(self.next())
    }
}
